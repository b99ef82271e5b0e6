//! The user's own pool, when others have all of its connections; and a server without any left.

use std::time::Duration;

use latchwork_lock::provider::Token;
use latchwork_lock::{Locks, PostgresLockProvider, Refresh};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::support::backend::postgres::{admin, place, room};
use crate::support::{SOON, connect, eventually, millis, secs, waiter, waiting};

const FORCE: Refresh = Refresh { ttl: None, threshold: Some(Duration::ZERO) };

/// A pool that gives up soon, and locks in it.
async fn small_pool(address: &str, size: u32) -> (PgPool, Locks) {
    let options: PgConnectOptions = address.parse().expect("an address");
    let pool = PgPoolOptions::new().max_connections(size).acquire_timeout(millis(700));
    let pool = pool.connect_with(options).await.expect("there");
    let provider = PostgresLockProvider::from_pool(pool.clone()).await.expect("there");
    (pool, Locks::new(provider))
}

pub(crate) async fn a_pool_of_one_connection_is_enough() {
    let (_, locks) = small_pool(&room().await, 1).await;
    let guard = locks.lock("key").acquire().await.expect("a free key");
    let waiters = (0..5).map(|_| {
        let waiter = waiter(&locks, "key");
        tokio::spawn(async move { waiter.await.expect("no panic").release().await.expect("held") })
    });
    let waiters: Vec<_> = waiters.collect();
    waiting(&locks, "key", 5).await;
    guard.release().await.expect("held");
    for waiter in waiters {
        waiter.await.expect("no panic");
    }
}

/// The user's own transactions have every connection: that is an outage, and never a grant, a
/// refusal or a loss.
pub(crate) async fn an_exhausted_pool_is_an_outage_and_no_contention() {
    let address = room().await;
    let (pool, locks) = small_pool(&address, 2).await;
    let direct = connect(&address).await;
    let held = locks.lock("held").ttl(secs(90)).acquire().await.expect("a free key");
    let given = locks.lock("given").ttl(secs(600)).acquire().await.expect("a free key");
    let busy = (pool.begin().await.expect("begun"), pool.begin().await.expect("begun"));

    let error = locks.lock("free").try_acquire().await.expect_err("no connection is left");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    assert!(error.to_string().contains("pool"), "{error}");
    let error = locks.lock("held").wait(secs(1)).acquire().await.expect_err("nobody was asked");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    let error = held.refresh_with(FORCE).await.expect_err("no connection is left");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    assert!(held.is_held(), "that a pool is busy takes nothing away");
    let error = given.release().await.expect_err("no connection is left");
    assert_eq!(error.code(), "lock_unavailable", "{error}");

    // Who has the time waits for a connection, too.
    let patient = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("patient").wait(secs(30)).acquire().await.map(drop) }
    });
    tokio::time::sleep(millis(1_500)).await;
    assert!(!patient.is_finished(), "it was answered without a connection");
    drop(busy);
    patient.await.expect("no panic").expect("a free key");
    held.refresh_with(FORCE).await.expect("still held");
    eventually("what was given back is free", async || {
        !direct.exists("given").await.expect("it answers")
    })
    .await;
    held.release().await.expect("held");
}

/// A waiter needs no connection while it waits, and gets its turn when there is one again.
pub(crate) async fn a_waiter_outlasts_an_exhausted_pool() {
    let address = room().await;
    let (pool, locks) = small_pool(&address, 2).await;
    let direct = connect(&address).await;
    let held = direct.lock("key").ttl(secs(90)).acquire().await.expect("a free key");
    let next = waiter(&locks, "key");
    waiting(&direct, "key", 1).await;
    let busy = (pool.begin().await.expect("begun"), pool.begin().await.expect("begun"));
    held.release().await.expect("held");
    tokio::time::sleep(secs(1)).await;
    drop(busy);
    let next = tokio::time::timeout(SOON, next).await.expect("in time").expect("no panic");
    assert!(next.is_held());
    next.release().await.expect("held");
}

/// The server has too few connections for the pool: some wait longer, and nobody is let in twice.
pub(crate) async fn a_server_without_connections_is_an_outage() {
    let address = room().await;
    connect(&address).await.close().await;
    let name = format!("few_{:x}", Token::random().expose());
    let schema = address.rsplit_once('=').expect("a schema").1;
    admin(
        &address,
        &format!(
            "CREATE ROLE {name} LOGIN SUPERUSER PASSWORD 'hush'; \
             ALTER ROLE {name} NOSUPERUSER CONNECTION LIMIT 5; \
             GRANT USAGE ON SCHEMA {schema} TO {name}; \
             GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {name}; \
             GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {name}"
        ),
    )
    .await;
    let few = format!(
        "postgres://{name}:hush@{}/postgres?options[search_path]={schema}",
        place(&address)
    );
    let locks = connect(&few).await;
    let asks = (0..12).map(|n| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let asking = locks.lock(format!("key-{}", n % 4)).wait(secs(40)).acquire();
            let guard = asking.await.expect("within its time");
            // Who is not heard has queued its release, and the next one gets in by it.
            if let Err(error) = guard.release().await {
                assert_eq!(error.code(), "lock_unavailable", "{error}");
            }
        })
    });
    for asked in asks.collect::<Vec<_>>() {
        asked.await.expect("no panic");
    }
    locks.close().await;
    drop(locks);
    let admin_sql = format!("DROP OWNED BY {name}; DROP ROLE {name}");
    admin(&address, &admin_sql).await;
}
