//! What is in the tables: keys and no tokens, the schema, and the gate for fences.

use latchwork_lock::provider::{AcquireRequest, Acquired, LockProvider, Wait};
use latchwork_lock::{Clock, Fence, Key, Locks, MySqlFenceGate, MySqlLockProvider, SystemClock};
use sqlx::{Connection, MySqlConnection, Row};

use crate::doors::poor_user;
use crate::support::backend::mysql::{admin, database, test_database};
use crate::support::{connect, eventually, millis, secs};
use crate::{number, open};

pub(crate) async fn a_token_is_in_no_table() {
    let address = test_database().await;
    let provider = MySqlLockProvider::connect(&address).await.expect("there");
    let request = |wait| {
        let key = Key::new("key").expect("legal");
        AcquireRequest::new(key, secs(30), SystemClock.now()).with_wait(wait)
    };
    let (holds, waits) = (request(Wait::No), request(Wait::For(secs(30))));
    let answer = provider.acquire(&holds).await.expect("it answers");
    assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
    let waiting = tokio::spawn({
        let (provider, waits) = (provider.clone(), waits.clone());
        async move { provider.acquire(&waits).await }
    });
    let mut connection = open(&address).await;
    eventually("it waits", async || {
        number(&mut connection, "SELECT COUNT(*) FROM latchwork_lock").await == 1
    })
    .await;
    let stored = "SELECT HEX(id), HEX(client), process FROM latchwork_lock_key \
                  UNION ALL SELECT HEX(id), HEX(client), process FROM latchwork_lock";
    let rows = sqlx::raw_sql(stored).fetch_all(&mut connection).await.expect("rows");
    assert_eq!(rows.len(), 2);
    for token in [holds.token.expose(), waits.token.expose()] {
        for row in &rows {
            for at in 0..3 {
                let text: String = row.try_get_unchecked(at).expect("text");
                assert!(!text.is_empty());
                assert!(!text.to_lowercase().contains(&format!("{token:032x}")));
            }
        }
    }
    waiting.abort();
}

/// A server would take some of these for equal, were they text.
pub(crate) async fn keys_are_told_apart_by_every_byte() {
    let locks = connect(&test_database().await).await;
    let mut guards = Vec::new();
    for key in ["key", "Key", "key ", "kéy", "ke\u{301}y", "key\u{a0}", "k%", "k_", "'; --", "\\"]
    {
        let guard = locks.lock(key).try_acquire().await.expect("it answers");
        guards.push(guard.unwrap_or_else(|| panic!("{key:?} was taken for another")));
    }
    let seen = locks.list("k", latchwork_lock::PageRequest::default()).await.expect("it answers");
    assert_eq!(seen.keys.len(), 7, "{seen:?}");
}

pub(crate) async fn the_fence_gate_works_in_a_transaction() {
    let address = test_database().await;
    connect(&address).await;
    let mut one = open(&address).await;
    let mut other = open(&address).await;
    let check = async |connection: &mut MySqlConnection, fence| {
        MySqlFenceGate::check(connection, "key", Fence::new(fence)).await.expect("it answers")
    };
    // What is rolled back was never seen.
    let mut tx = one.begin().await.expect("begun");
    check(&mut tx, 9).await.expect("the first");
    tx.rollback().await.expect("rolled back");
    check(&mut one, 5).await.expect("newer than nothing");
    check(&mut one, 5).await.expect("again and again");
    let stale = check(&mut one, 4).await.expect_err("older");
    assert_eq!((stale.fence, stale.newest), (Fence::new(4), Fence::new(5)));
    // Names that differ in case only are two.
    MySqlFenceGate::check(&mut one, "KEY", Fence::new(1)).await.expect("asked").expect("another");

    // A newer holder waits for a write that has passed.
    let mut tx = one.begin().await.expect("begun");
    check(&mut tx, 5).await.expect("not older");
    let advance = MySqlFenceGate::advance(&mut other, "key", Fence::new(6));
    let mut advance = std::pin::pin!(advance);
    assert!(tokio::time::timeout(millis(200), &mut advance).await.is_err(), "it went past a write");
    tx.commit().await.expect("committed");
    advance.await.expect("it answers").expect("newer");
    check(&mut one, 5).await.expect_err("older now");
}

/// As the documentation says it, without a driver that tells the insert id.
pub(crate) async fn the_fence_gate_is_one_statement_for_other_drivers() {
    let address = test_database().await;
    let mut connection = open(&address).await;
    sqlx::raw_sql(MySqlFenceGate::SCHEMA).execute(&mut connection).await.expect("made");
    for (fence, newest) in [(7_i64, 7), (7, 7), (6, 7), (8, 8)] {
        let check = sqlx::query(MySqlFenceGate::CHECK).bind("key").bind(fence).bind(fence);
        check.execute(&mut connection).await.expect("asked");
        assert_eq!(number(&mut connection, "SELECT LAST_INSERT_ID()").await, newest, "{fence}");
    }
    // Who has only the gate can have the locks in the same database later.
    connect(&address).await;
}

/// What the row of a key says of the others is written in several ways, and is always so.
pub(crate) async fn a_key_tells_truly_who_stands_behind_it() {
    const WRONG: &str = "SELECT COUNT(*) FROM latchwork_lock_key k WHERE \
        k.others <> (SELECT COUNT(*) FROM latchwork_lock l WHERE l.name = k.name) OR \
        NOT (k.head <=> (SELECT MIN(l.place) FROM latchwork_lock l WHERE l.name = k.name)) OR \
        NOT (k.next_us <=> (SELECT MIN(l.expires_us) FROM latchwork_lock l WHERE l.name = k.name))";
    let address = test_database().await;
    let processes = [connect(&address).await, connect(&address).await];
    let asks = (0..12).map(|n| {
        let locks = processes[n % 2].clone();
        tokio::spawn(async move {
            for round in 0..8 {
                let asked = locks.lock("key").wait(secs(60));
                let guard = match (n + round) % 5 {
                    0 => asked.shared().acquire().await,
                    1 => asked.note("with a note").acquire().await,
                    2 => {
                        // Nobody waits for the answer.
                        let _ = tokio::time::timeout(millis(5), asked.acquire()).await;
                        continue;
                    }
                    _ => asked.acquire().await,
                };
                guard.expect("its turn").release().await.expect("held");
            }
        })
    });
    let mut all = std::pin::pin!(futures::future::join_all(asks));
    let mut connection = open(&address).await;
    let done = loop {
        assert_eq!(number(&mut connection, WRONG).await, 0);
        if let Ok(done) = tokio::time::timeout(millis(3), &mut all).await {
            break done;
        }
    };
    done.into_iter().for_each(|done| done.expect("no panic"));
    eventually("nobody is left", async || {
        number(&mut connection, "SELECT COUNT(*) FROM latchwork_lock").await == 0
    })
    .await;
    assert_eq!(number(&mut connection, WRONG).await, 0);
}

pub(crate) async fn many_may_start_at_once() {
    let address = test_database().await;
    let starts = (0..8).map(|_| MySqlLockProvider::connect(&address));
    for started in futures::future::join_all(starts).await {
        started.expect("each of them");
    }
    let mut connection = open(&address).await;
    let steps = "SELECT COUNT(*) FROM latchwork_migrations";
    assert_eq!(number(&mut connection, steps).await, 1);
}

/// Who lets nobody make tables can make them before; the program then finds them.
pub(crate) async fn the_schema_can_be_made_by_hand() {
    let address = test_database().await;
    let schema = Locks::schema("mysql:").expect("it has one");
    admin(&address, &schema).await;
    // Said twice it does no harm.
    admin(&address, &schema).await;
    let (user, theirs) = poor_user(&address).await;
    let rights = "SELECT, INSERT, UPDATE, DELETE";
    admin(&address, &format!("GRANT {rights} ON {}.* TO {user}", database(&address))).await;
    let locks = connect(&theirs).await;
    locks.lock("key").acquire().await.expect("a free key").release().await.expect("held");
    admin(&address, &format!("DROP USER {user}")).await;
}
