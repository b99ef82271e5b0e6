//! Connections that the server or a pooler ends because they idle.

use latchwork_lock::{Locks, PostgresLockProvider};
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection};

use crate::pooler::Pooler;
use crate::support::backend::postgres::test_database;
use crate::support::idle::idle_connections_are_opened_again;
use crate::support::{connect, eventually, millis, secs, waiter, waiting};

const LIMIT: &str = "options=-c%20idle_session_timeout%3D500ms";

pub(crate) async fn idle_sessions_are_opened_again() {
    let address = format!("{}&{LIMIT}", test_database().await);
    idle_connections_are_opened_again(&address, millis(500)).await;
}

pub(crate) async fn idle_clients_of_a_pooler_come_back() {
    let pooler = Pooler::start("client_idle_timeout = 1").await;
    idle_connections_are_opened_again(&pooler.address, secs(1)).await;
}

/// A pool of the user's own, which hands out what it has without a look.
pub(crate) async fn a_pool_of_the_user_may_idle() {
    let address = format!("{}&{LIMIT}", test_database().await);
    let pool = PgPoolOptions::new().max_connections(4).test_before_acquire(false);
    let pool = pool.connect(&address).await.expect("there");
    let locks = Locks::new(PostgresLockProvider::from_pool(pool).await.expect("there"));
    for _ in 0..3 {
        tokio::time::sleep(millis(1_200)).await;
        let guard = locks.lock("key").ttl(secs(60)).acquire().await.expect("a free key");
        tokio::time::sleep(millis(1_200)).await;
        guard.release().await.expect("held");
    }
}

/// It idles by its nature. Ended each time, it would miss what is said meanwhile.
pub(crate) async fn a_listener_may_idle() {
    let address = format!("{}&{LIMIT}", test_database().await);
    let name = format!("idle_{:x}", rand::random::<u64>());
    let named = format!("{address}&application_name={name}");
    let (ours, theirs) = (connect(&address).await, connect(&named).await);
    let guard = ours.lock("key").ttl(secs(60)).acquire().await.expect("a free key");
    let next = waiter(&theirs, "key");
    waiting(&ours, "key", 1).await;
    let mut admin = PgConnection::connect(&crate::server()).await.expect("there");
    let mut listener = async move || {
        let sql = format!(
            "SELECT pid, query LIKE 'LISTEN %' FROM pg_stat_activity \
             WHERE application_name LIKE '{name} %' AND query LIKE 'LISTEN %'"
        );
        let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_optional(&mut admin).await;
        row.expect("an answer").map(|row| row.try_get::<i32, _>(0).expect("a number"))
    };
    let mut first = None;
    eventually("it listens", async || {
        first = listener().await;
        first.is_some()
    })
    .await;
    tokio::time::sleep(millis(2_000)).await;
    assert_eq!(listener().await, first, "the session that listens was ended");
    guard.release().await.expect("held");
    next.await.expect("no panic").release().await.expect("held");
}
