//! The user's own pool, when others have all of its connections: the cases that every database has.

use std::time::Duration;

use latchwork_lock::{Locks, Refresh};
use sqlx::Pool;
use sqlx::pool::PoolOptions;

use super::{SOON, connect, eventually, millis, secs, waiter, waiting};

const FORCE: Refresh = Refresh { ttl: None, threshold: Some(Duration::ZERO) };

/// A database with locks that take the user's own pool.
pub trait PooledLocks: sqlx::Database {
    /// An address that nobody else uses.
    fn test_database() -> impl Future<Output = String>;
    fn locks(pool: Pool<Self>) -> impl Future<Output = Locks>;
}

/// A pool that gives up soon, and locks in it.
async fn small_pool<DB: PooledLocks>(address: &str, size: u32) -> (Pool<DB>, Locks) {
    let pool = PoolOptions::<DB>::new().max_connections(size).acquire_timeout(millis(700));
    let pool = pool.connect(address).await.expect("there");
    (pool.clone(), DB::locks(pool).await)
}

pub async fn a_pool_of_one_connection_is_enough<DB: PooledLocks>() {
    let (_, locks) = small_pool::<DB>(&DB::test_database().await, 1).await;
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
/// refusal or a loss. Leases are renewed all the same.
pub async fn an_exhausted_pool_is_an_outage_and_no_contention<DB: PooledLocks>() {
    let address = DB::test_database().await;
    let (pool, locks) = small_pool::<DB>(&address, 2).await;
    let direct = connect(&address).await;
    let held = locks.lock("held").ttl(secs(90)).acquire().await.expect("a free key");
    let given = locks.lock("given").ttl(secs(600)).acquire().await.expect("a free key");
    let busy = (pool.begin().await.expect("begun"), pool.begin().await.expect("begun"));

    let error = locks.lock("free").try_acquire().await.expect_err("no connection is left");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    assert!(error.to_string().contains("pool"), "{error}");
    let error = locks.lock("held").wait(secs(1)).acquire().await.expect_err("nobody was asked");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    held.refresh_with(FORCE).await.expect("renewals have a connection of their own");
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
pub async fn a_waiter_outlasts_an_exhausted_pool<DB: PooledLocks>() {
    let address = DB::test_database().await;
    let (pool, locks) = small_pool::<DB>(&address, 2).await;
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

/// A thread that blocks, with the only connection of its pool, while its lease must be renewed.
pub async fn a_blocked_thread_with_a_pool_of_one_keeps_its_lease<DB: PooledLocks>() {
    let address = DB::test_database().await;
    let direct = connect(&address).await;
    super::a_blocked_thread_keeps_its_lease(&direct, "key", async move || {
        let (pool, locks) = small_pool::<DB>(&address, 1).await;
        (locks, async move || pool.begin().await.expect("the only connection"))
    })
    .await;
}

/// Makes tests of these cases for a database.
macro_rules! pool_tests {
    ($database:ty: $($name:ident),* $(,)?) => {$(
        pub(crate) async fn $name() {
            $crate::support::pool::$name::<$database>().await;
        }
    )*};
}
pub(crate) use pool_tests;
