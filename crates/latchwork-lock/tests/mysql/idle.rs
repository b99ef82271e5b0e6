//! Settings of the server: connections that it ends because they idle, and a dialect of its own.

use latchwork_lock::MySqlLockProvider;
use sqlx::{Connection, MySqlConnection, MySqlPool};

use crate::support::backend::mysql::{admin, test_database_in};
use crate::support::idle::idle_connections_are_opened_again;
use crate::support::server::OwnServer;
use crate::support::{connect, secs};

pub(crate) async fn idle_connections_come_back() {
    let own = OwnServer::start("mariadb");
    let address = test_database_in(&own.address).await;
    admin(&address, "SET GLOBAL wait_timeout = 1").await;
    idle_connections_are_opened_again(&address, secs(1)).await;
}

/// Statements mean what they say in the sessions of our own pool; a pool of the user's is told.
pub(crate) async fn the_dialect_of_the_server_does_not_matter() {
    let own = OwnServer::start("mariadb");
    let address = test_database_in(&own.address).await;
    // MySQL has no such dialect.
    let mut admin = MySqlConnection::connect(&address).await.expect("there");
    let set = sqlx::raw_sql("SET GLOBAL sql_mode = ORACLE");
    if let Err(error) = set.execute(&mut admin).await {
        println!("SKIPPED: the server has no sql_mode=ORACLE ({error})");
        return;
    }
    let locks = connect(&address).await;
    let guard = locks.lock("key").note("").acquire().await.expect("a free key");
    assert!(locks.lock("key").try_acquire().await.expect("it answers").is_none());
    guard.release().await.expect("held");
    let pool = MySqlPool::connect(&address).await.expect("there");
    let error = MySqlLockProvider::from_pool(pool).await.expect_err("in that dialect");
    assert_eq!(error.code(), "lock_backend", "{error}");
    assert!(error.to_string().contains("sql_mode"), "{error}");
}
