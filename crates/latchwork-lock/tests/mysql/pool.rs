//! The user's own pool, when others have all of its connections; and a server without any left.

use latchwork_lock::{Locks, MySqlLockProvider};
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Executor, Row};

use crate::support::backend::mysql::{admin, database, place, room};
use crate::support::{SOON, connect, eventually, millis, secs, waiter, waiting};
use crate::{FORCE, number, open};

/// A pool that gives up soon, and locks in it.
async fn small_pool(address: &str, size: u32) -> (MySqlPool, Locks) {
    let options: MySqlConnectOptions = address.parse().expect("an address");
    let pool = MySqlPoolOptions::new().max_connections(size).acquire_timeout(millis(700));
    let pool = pool.connect_with(options).await.expect("there");
    let provider = MySqlLockProvider::from_pool(pool.clone()).await.expect("there");
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
    let name = format!("few_{:x}", rand::random::<u64>());
    let room = database(&address);
    admin(
        &address,
        &format!(
            "CREATE USER {name}@'127.0.0.1' IDENTIFIED BY 'hush' WITH MAX_USER_CONNECTIONS 3; \
             GRANT ALL ON {room}.* TO {name}@'127.0.0.1'"
        ),
    )
    .await;
    let few = format!("mysql://{name}:hush@{}/{room}", place(&address));
    let locks = connect(&few).await;
    let asks = (0..12).map(|n| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let asking = locks.lock(format!("key-{}", n % 4)).wait(secs(40)).acquire();
            let guard = asking.await.expect("within its time");
            guard.release().await.expect("held");
        })
    });
    for asked in asks.collect::<Vec<_>>() {
        asked.await.expect("no panic");
    }
    locks.close().await;
    drop(locks);
    admin(&address, &format!("DROP USER {name}@'127.0.0.1'")).await;
}

/// Locking and waiting on the user's own sessions leaves no setting behind, and asks for none.
pub(crate) async fn sessions_of_the_user_stay_as_they_were() {
    let address = room().await;
    let is_mariadb = number(&mut open(&address).await, "SELECT VERSION() LIKE '%MariaDB%'").await;
    // What only one of the two knows, or knows by another name.
    let (isolation, odd_mode) = match is_mariadb {
        1 => ("tx_isolation", ",SIMULTANEOUS_ASSIGNMENT"),
        _ => ("transaction_isolation", ""),
    };
    let shown = format!(
        "SELECT CONCAT_WS(' ', @@SESSION.wait_timeout, @@SESSION.innodb_lock_wait_timeout, \
         @@SESSION.{isolation}, @@SESSION.autocommit, @@SESSION.sql_mode)"
    );
    let options: MySqlConnectOptions = address.parse().expect("an address");
    let pool = MySqlPoolOptions::new().max_connections(1).after_connect(move |connection, _| {
        let odd = format!(
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
             SET SESSION wait_timeout = 1234, SESSION innodb_lock_wait_timeout = 77, \
             SESSION sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES{odd_mode}'"
        );
        let odd = sqlx::raw_sql(AssertSqlSafe(odd));
        Box::pin(async move { connection.execute(odd).await.map(drop) })
    });
    let pool = pool.connect_with(options).await.expect("there");
    let settings = async || {
        let row = pool.fetch_one(sqlx::raw_sql(AssertSqlSafe(shown.clone()))).await;
        let row = row.expect("settings");
        row.try_get_unchecked::<String, _>(0).expect("text")
    };
    let before = settings().await;
    assert!(before.starts_with("1234 77 REPEATABLE-READ "), "{before}");
    let locks = Locks::new(MySqlLockProvider::from_pool(pool.clone()).await.expect("there"));
    for _ in 0..2 {
        let guard = locks.lock("it's \\ \"odd\"").ttl(secs(60)).acquire().await.expect("free");
        let next = tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock("it's \\ \"odd\"").wait(secs(30)).acquire().await }
        });
        waiting(&locks, "it's \\ \"odd\"", 1).await;
        let fence = guard.fence();
        guard.release().await.expect("held");
        let next = next.await.expect("no panic").expect("its turn");
        assert_eq!(next.previous_fence(), Some(fence));
        next.release().await.expect("held");
    }
    assert_eq!(settings().await, before);
}
