//! The user's own pool, when others have all of its connections; and a server without any left.

use latchwork_lock::{Locks, MySqlLockProvider};
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Executor, MySql, Row};

use crate::support::backend::mysql::{admin, database, place, test_database};
use crate::support::pool::{PooledLocks, pool_tests};
use crate::support::{connect, secs, waiting};
use crate::{number, open};

impl PooledLocks for MySql {
    async fn test_database() -> String {
        test_database().await
    }

    async fn locks(pool: MySqlPool) -> Locks {
        Locks::new(MySqlLockProvider::from_pool(pool).await.expect("there"))
    }
}

pool_tests![MySql:
    a_pool_of_one_connection_is_enough,
    an_exhausted_pool_is_an_outage_and_no_contention,
    a_waiter_outlasts_an_exhausted_pool,
    a_blocked_thread_with_a_pool_of_one_keeps_its_lease,
];

/// The server has too few connections for the pool: some wait longer, and nobody is let in twice.
pub(crate) async fn a_server_without_connections_is_an_outage() {
    let address = test_database().await;
    connect(&address).await.close().await;
    let name = format!("few_{:x}", rand::random::<u64>());
    let test_database = database(&address);
    admin(
        &address,
        &format!(
            "CREATE USER {name}@'127.0.0.1' IDENTIFIED BY 'hush' WITH MAX_USER_CONNECTIONS 3; \
             GRANT ALL ON {test_database}.* TO {name}@'127.0.0.1'"
        ),
    )
    .await;
    let few = format!("mysql://{name}:hush@{}/{test_database}", place(&address));
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
    let address = test_database().await;
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
