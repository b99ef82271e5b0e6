//! The user's own pool, when others have all of its connections; and a server without any left.

use latchwork_lock::provider::Token;
use latchwork_lock::{Locks, PostgresLockProvider};
use sqlx::{PgPool, Postgres};

use crate::support::backend::postgres::{admin, place, test_database};
use crate::support::pool::{PooledLocks, pool_tests};
use crate::support::{connect, secs};

impl PooledLocks for Postgres {
    async fn test_database() -> String {
        test_database().await
    }

    async fn locks(pool: PgPool) -> Locks {
        Locks::new(PostgresLockProvider::from_pool(pool).await.expect("there"))
    }
}

pool_tests![Postgres:
    a_pool_of_one_connection_is_enough,
    an_exhausted_pool_is_an_outage_and_no_contention,
    a_waiter_outlasts_an_exhausted_pool,
    a_blocked_thread_with_a_pool_of_one_keeps_its_lease,
];

/// The server has too few connections for the pool: some wait longer, and nobody is let in twice.
pub(crate) async fn a_server_without_connections_is_an_outage() {
    let address = test_database().await;
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
            let asking = locks.lock(format!("key-{}", n % 4)).wait(secs(80)).acquire();
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
