//! The PostgreSQL provider: what only real processes and a real server can show.
//!
//! Without a server every test is named as skipped, and fails where `CI` is set.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the helpers of a test fail it, and a child speaks by its output"
)]

#[path = "postgres/idle.rs"]
mod idle;
#[path = "postgres/pool.rs"]
mod pool;
#[path = "postgres/pooler.rs"]
mod pooler;
#[path = "postgres/rights.rs"]
mod rights;
#[path = "postgres/runtimes.rs"]
mod runtimes;
#[path = "postgres/secrets.rs"]
mod secrets;
mod support;
#[path = "postgres/tls.rs"]
mod tls;

use std::io::{Read, Write};
use std::net::TcpListener;

use latchwork_lock::provider::{AcquireRequest, Acquired, LockProvider, Token};
use latchwork_lock::{
    Clock, Fence, Key, Locks, PostgresFenceGate, PostgresLockProvider, SystemClock, TransactionLock,
};
use libtest_mimic::{Arguments, Failed, Trial};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use support::backend::postgres::{self, admin, test_database};
use support::server::OwnServer;
use support::{SOON, Signal, block_on, connect, eventually, millis, secs, waiter, waiting};

fn main() {
    let mut trials = Vec::new();
    macro_rules! tests {
        ($($name:path),* $(,)?) => {$(
            trials.push(trial(stringify!($name), || block_on($name())));
        )*};
    }
    tests![
        a_crash_of_the_server_takes_nothing_back,
        a_restart_of_the_server_takes_nothing_back,
        a_replica_is_refused_and_one_that_is_promoted_serves,
        bad_addresses_say_what_is_wrong,
        a_user_without_rights_is_told_so,
        a_token_is_in_no_table,
        the_fence_gate_works_in_a_transaction,
        transaction_locks_end_with_their_transaction,
        many_may_start_at_once,
        an_upgrade_goes_on_with_what_is_held,
        fences_go_on_above_a_restored_copy,
        notices_that_are_lost_are_made_up_for,
        idle::idle_sessions_are_opened_again,
        idle::idle_clients_of_a_pooler_come_back,
        idle::a_pool_of_the_user_may_idle,
        idle::a_listener_may_idle,
        rights::what_is_granted_is_enough,
        rights::missing_rights_are_told_at_the_start,
        rights::a_renewal_outlasts_a_right_that_is_gone_for_a_while,
        pool::a_pool_of_one_connection_is_enough,
        pool::an_exhausted_pool_is_an_outage_and_no_contention,
        pool::a_waiter_outlasts_an_exhausted_pool,
        pool::a_blocked_thread_with_a_pool_of_one_keeps_its_lease,
        pool::a_server_without_connections_is_an_outage,
        pooler::a_start_takes_two_connections_at_most,
        pooler::a_pooler_with_one_connection_serves_many_starts,
        pooler::a_pooler_is_recognised,
        pooler::what_a_pooler_refuses_is_told_in_its_own_words,
        runtimes::two_runtimes_share_a_key,
        runtimes::a_runtime_that_ends_leaves_nothing_behind,
        runtimes::who_does_not_look_holds_nobody_up,
        secrets::no_secret_is_ever_said,
        tls::certificates_are_checked,
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

fn trial(name: &'static str, test: impl FnOnce() + Send + 'static) -> Trial {
    let there = postgres::server().is_some();
    let in_ci = std::env::var_os("CI").is_some();
    Trial::test(name, move || {
        if !there {
            return Err(Failed::from(postgres::MISSING));
        }
        test();
        Ok(())
    })
    .with_ignored_flag(!there && !in_ci)
}

fn server() -> String {
    postgres::server().expect("looked at before")
}

// ---- restarts ----------------------------------------------------------------------------------

async fn a_crash_of_the_server_takes_nothing_back() {
    // QUIT: without a checkpoint, so what was not in the log is gone.
    survives(Signal::QUIT).await;
}

async fn a_restart_of_the_server_takes_nothing_back() {
    survives(Signal::INT).await;
}

async fn a_replica_is_refused_and_one_that_is_promoted_serves() {
    let mut own = OwnServer::start("postgres");
    let locks = connect(&own.address).await;
    let guard = locks.lock("key").ttl(secs(600)).acquire().await.expect("a free key");
    let standby = own.data().join("data/standby.signal");
    std::fs::write(&standby, "").expect("written");
    own.end(Signal::INT);
    own.up();
    refused(&own.address, "lock_backend", "primary").await;
    // Who was there before the fail-over waits for the next one.
    let error = locks.lock("other").try_acquire().await.expect_err("nobody may write");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    assert!(error.to_string().contains("primary"), "{error}");
    let asking = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("other").wait(secs(40)).acquire().await.map(drop) }
    });
    admin(&own.address, "SELECT pg_promote()").await;
    asking.await.expect("no panic").expect("it serves again");
    guard.release().await.expect("it outlived that");
}

/// Held and waited for while the server ends by a signal, and starts again.
async fn survives(signal: Signal) {
    let mut own = OwnServer::start("postgres");
    let (ours, theirs) = (connect(&own.address).await, connect(&own.address).await);
    let guard = ours.lock("key").ttl(secs(60)).acquire().await.expect("a free key");
    let waiter = waiter(&theirs, "key");
    waiting(&ours, "key", 1).await;
    own.end(signal);
    let error = ours.lock("other").try_acquire().await.expect_err("nobody is there");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    own.up();
    assert!(guard.is_held());
    let seen = ours.inspect("key").await.expect("it is back");
    assert_eq!(seen.holders.len(), 1, "{seen:?}");
    assert_eq!(seen.holders[0].fence, guard.fence());
    let fence = guard.fence();
    guard.release().await.expect("it outlived the server");
    let next = tokio::time::timeout(SOON, waiter).await.expect("in time").expect("no panic");
    assert!(next.fence() > fence);
    next.release().await.expect("held");
}

// ---- bad input ---------------------------------------------------------------------------------

async fn refused(address: &str, code: &str, word: &str) {
    let error = Locks::connect(address).await.expect_err(word);
    let text = error.to_string();
    assert_eq!(error.code(), code, "{text}");
    assert!(text.contains(word), "{text:?} should say {word:?}");
    assert!(!text.contains("hush") && !text.contains("127.0.0.1"), "it tells too much: {text}");
}

async fn bad_addresses_say_what_is_wrong() {
    let good = server();
    let (_, host) = good.rsplit_once('@').expect("a user");
    let (place, _) = host.split_once('/').expect("a database");
    refused(&format!("postgres://postgres:hush@{host}"), "lock_backend", "password").await;
    refused(
        &good.replace("/postgres", "/nowhere").replace("://nowhere", "://postgres"),
        "lock_backend",
        "no such database",
    )
    .await;
    refused("postgres://postgres:hush@127.0.0.1:1/postgres", "lock_unavailable", "port").await;
    refused(&format!("postgres://u:hush@{place}/d?sslmod=require"), "invalid_argument", "sslmod")
        .await;
    refused(
        &format!("postgres://u:hush@{place}/d?sslmode=maybe"),
        "invalid_argument",
        "verify-full",
    )
    .await;
    for open in ["postgres://u:hu@sh/d@h/d", "postgres://u:9/hush@h/d", "postgres://u:a#hush@h/d"] {
        refused(open, "invalid_argument", "%40").await;
    }
    refused(&format!("{good}?sslmode=require"), "lock_backend", "offers no TLS").await;
    let read_only = format!("{good}?options=-c%20default_transaction_read_only%3Don");
    refused(&read_only, "lock_backend", "read-only").await;

    // Another kind of server: it answers, and not in PostgreSQL's words.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let other = format!("postgres://u:hush@127.0.0.1:{port}/d");
    refused(&other, "lock_backend", "protocol").await;
    // And whatever else runs here.
    for name in ["LATCHWORK_TEST_REDIS", "LATCHWORK_TEST_MYSQL", "LATCHWORK_TEST_ETCD"] {
        let Ok(address) = std::env::var(name) else { continue };
        let place = address.rsplit(['/', '@']).find(|part| part.contains(':')).expect("a port");
        let place = place.split(',').next().expect("one of them");
        let error = Locks::connect(&format!("postgres://u:hush@{place}/d")).await;
        let error = error.expect_err("another kind of server");
        // Some never answer what they do not understand.
        assert!(["lock_backend", "lock_unavailable"].contains(&error.code()), "{name}: {error}");
        assert!(!error.to_string().contains("hush"), "{error}");
    }
}

async fn a_user_without_rights_is_told_so() {
    let name = format!("poor_{:x}", Token::random().expose());
    admin(&server(), &format!("CREATE SCHEMA {name}; CREATE ROLE {name} LOGIN PASSWORD 'hush'"))
        .await;
    let good = server();
    let (_, host) = good.rsplit_once('@').expect("a user");
    let address = format!("postgres://{name}:hush@{host}?options[search_path]={name}");
    admin(&server(), &format!("GRANT USAGE ON SCHEMA {name} TO {name}")).await;
    refused(&address, "lock_backend", "right").await;

    // Nor may one lock who may only read. The tables are made as somebody would who lets nobody else.
    let mut owner = PgConnection::connect(&format!("{good}?options[search_path]={name}"))
        .await
        .expect("the server is there");
    let schema = PostgresLockProvider::schema();
    sqlx::raw_sql(AssertSqlSafe(schema)).execute(&mut owner).await.expect("the tables are made");
    owner.close().await.expect("closed");
    admin(&server(), &format!("GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {name}")).await;
    refused(&address, "lock_backend", "INSERT on latchwork_lock").await;
    // The providers look for what was left behind when they start, and may still be at it.
    let drop = format!("DROP SCHEMA {name} CASCADE; DROP ROLE {name}");
    for _ in 0..10 {
        let mut admin = PgConnection::connect(&server()).await.expect("the server is there");
        let done = sqlx::raw_sql(AssertSqlSafe(drop.clone())).execute(&mut admin).await;
        admin.close().await.expect("closed");
        if done.is_ok() {
            return;
        }
    }
    admin(&server(), &drop).await;
}

// ---- what is stored ----------------------------------------------------------------------------

async fn a_token_is_in_no_table() {
    let address = test_database().await;
    let provider = PostgresLockProvider::connect(&address).await.expect("there");
    let key = Key::new("key").expect("legal");
    let request = AcquireRequest::new(key, secs(30), SystemClock.now());
    let answer = provider.acquire(&request).await.expect("it answers");
    assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
    let mut admin = PgConnection::connect(&address).await.expect("there");
    let rows = sqlx::raw_sql("SELECT row_to_json(l)::text FROM latchwork_lock l");
    let rows = rows.fetch_all(&mut admin).await.expect("rows");
    assert_eq!(rows.len(), 1);
    let text: String = rows[0].try_get(0).expect("text");
    let token = request.token.expose();
    assert!(!text.contains(&format!("{token:032x}")) && !text.contains(&token.to_string()));
}

async fn the_fence_gate_works_in_a_transaction() {
    let address = test_database().await;
    connect(&address).await;
    let mut one = PgConnection::connect(&address).await.expect("there");
    let mut other = PgConnection::connect(&address).await.expect("there");
    let check = async |connection: &mut PgConnection, fence| {
        PostgresFenceGate::check(connection, "key", Fence::new(fence)).await.expect("it answers")
    };
    // What is rolled back was never seen.
    let mut tx = one.begin().await.expect("begun");
    check(&mut tx, 9).await.expect("the first");
    tx.rollback().await.expect("rolled back");
    check(&mut one, 5).await.expect("newer than nothing");
    check(&mut one, 5).await.expect("again and again");
    let stale = check(&mut one, 4).await.expect_err("older");
    assert_eq!((stale.fence, stale.newest), (Fence::new(4), Fence::new(5)));

    // A newer holder waits for a write that has passed.
    let mut tx = one.begin().await.expect("begun");
    check(&mut tx, 5).await.expect("not older");
    let advance = PostgresFenceGate::advance(&mut other, "key", Fence::new(6));
    let mut advance = std::pin::pin!(advance);
    assert!(tokio::time::timeout(millis(200), &mut advance).await.is_err(), "it went past a write");
    tx.commit().await.expect("committed");
    advance.await.expect("it answers").expect("newer");
    check(&mut one, 5).await.expect_err("older now");
}

async fn transaction_locks_end_with_their_transaction() {
    let address = test_database().await;
    let mut one = PgConnection::connect(&address).await.expect("there");
    let mut other = PgConnection::connect(&address).await.expect("there");
    let name = format!("{:x}", Token::random().expose());
    let mut tx = one.begin().await.expect("begun");
    TransactionLock::lock(&mut tx, &name).await.expect("free");
    let mut second = other.begin().await.expect("begun");
    assert!(!TransactionLock::try_lock(&mut second, &name).await.expect("it answers"));
    tx.commit().await.expect("committed");
    assert!(TransactionLock::try_lock(&mut second, &name).await.expect("it answers"));
    second.rollback().await.expect("rolled back");

    admin(&address, "CREATE TABLE \"my orders\" (id int); INSERT INTO \"my orders\" VALUES (1)")
        .await;
    let mut tx = one.begin().await.expect("begun");
    assert!(TransactionLock::lock_row(&mut tx, "my orders", "id", 1).await.expect("locked"));
    assert!(!TransactionLock::lock_row(&mut tx, "my orders", "id", 2).await.expect("no such row"));
    let behind = TransactionLock::lock_row(&mut other, "my orders", "id", 1);
    assert!(tokio::time::timeout(millis(200), behind).await.is_err(), "two at once");
}

// ---- pools and notices -------------------------------------------------------------------------

async fn many_may_start_at_once() {
    let address = test_database().await;
    let starts = (0..8).map(|_| PostgresLockProvider::connect(&address));
    for started in futures::future::join_all(starts).await {
        started.expect("each of them");
    }
}

async fn an_upgrade_goes_on_with_what_is_held() {
    let address = test_database().await;
    // What the version before has made: all but the last step.
    let schema = PostgresLockProvider::schema();
    let third = schema.find("VALUES ('lock', 3,").expect("the third step");
    let end = third + schema[third..].find(';').expect("its end");
    admin(&address, &schema[..=end]).await;
    // A process of that version, which holds the key and outlives the upgrade.
    // The turn of a key is that of all its namesakes in the database, which other tests have too: where
    // they are slow, every client asks again.
    let execute = async |sql: String| {
        eventually("it is done", async || {
            let mut old = PgConnection::connect(&address).await.expect("there");
            sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(&mut old).await.is_ok()
        })
        .await;
    };
    let turn = "('x' || encode(substr(sha256('latchwork_lock:lock/upgraded'), 1, 8), \
                'hex'))::bit(64)::bigint";
    let id = "00000000000000000000000000000001";
    execute(format!(
        "SELECT latchwork_lock_ask_one('0a', 'host:1', {turn}, 'lock/upgraded', '{id}', false, NULL, \
         NULL, 60000000, NULL)"
    ))
    .await;
    let ours = connect(&address).await;
    let seen = ours.inspect("upgraded").await.expect("it answers");
    assert_eq!(seen.holders.len(), 1, "{seen:?}");
    assert!(ours.lock("upgraded").try_acquire().await.expect("it answers").is_none());
    let waiter = waiter(&ours, "upgraded");
    waiting(&ours, "upgraded", 1).await;
    execute(format!("SELECT latchwork_lock_give_one('0a', {turn}, 'lock/upgraded', '{id}')")).await;
    let next = tokio::time::timeout(SOON, waiter).await.expect("in time").expect("no panic");
    assert!(next.fence() > seen.holders[0].fence);
    assert_eq!(next.previous_fence(), Some(seen.holders[0].fence));
    next.release().await.expect("held");
    let again = connect(&address).await.lock("upgraded").acquire().await;
    again.expect("a second start changes nothing").release().await.expect("held");
}

async fn fences_go_on_above_a_restored_copy() {
    let address = test_database().await;
    let before = connect(&address).await.lock("key").acquire().await.expect("a free key");
    let fence = before.fence();
    before.release().await.expect("held");
    // As a copy from long ago would have it.
    admin(&address, "SELECT setval('latchwork_lock_fence', 1000)").await;
    let after = connect(&address).await.lock("key").acquire().await.expect("a free key");
    assert!(after.fence() > fence, "{} after {fence}", after.fence());
}

async fn notices_that_are_lost_are_made_up_for() {
    let address = test_database().await;
    // By this name the server knows the connections of the one that waits from those of other tests.
    let name = format!("cut_{:x}", Token::random().expose());
    let named = format!("{address}&application_name={name}");
    let (ours, theirs) = (connect(&address).await, connect(&named).await);
    let guard = ours.lock("key").acquire().await.expect("a free key");
    let waiter = waiter(&theirs, "key");
    waiting(&ours, "key", 1).await;
    let mut admin = PgConnection::connect(&server()).await.expect("there");
    let mut cut = async move || {
        let cut = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE application_name LIKE '{name}%' AND query LIKE 'LISTEN \"latchwork_lock_%'"
        );
        let cut = sqlx::raw_sql(AssertSqlSafe(cut)).fetch_all(&mut admin).await;
        !cut.expect("an answer").is_empty()
    };
    eventually("a listener that is cut off", &mut cut).await;
    // And again and again, while the key is handed over.
    let cutter = tokio::spawn(async move {
        loop {
            cut().await;
            tokio::time::sleep(millis(10)).await;
        }
    });
    guard.release().await.expect("held");
    let next = tokio::time::timeout(SOON, waiter).await.expect("in time").expect("no panic");
    next.release().await.expect("held");
    cutter.abort();
}
