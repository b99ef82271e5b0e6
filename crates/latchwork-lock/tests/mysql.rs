//! The MariaDB provider: what only real processes and a real server can show.
//!
//! Without a server every test is named as skipped, and fails where `CI` is set.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the helpers of a test fail it, and a child speaks by its output"
)]

#[path = "mysql/pool.rs"]
mod pool;
#[path = "mysql/relay.rs"]
mod relay;
mod support;
#[path = "mysql/tls.rs"]
mod tls;

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use latchwork_lock::{
    AcquireRequest, Acquired, Clock, Fence, Key, LockProvider, Locks, Mode, MySqlFenceGate,
    MySqlLockProvider, Refresh, SystemClock, Token, Wait,
};
use libtest_mimic::{Arguments, Failed, Trial};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row};
use support::backend::mysql::{self, admin, database, place, room, room_in};
use support::server::OwnServer;
use support::{SOON, Signal, block_on, connect, eventually, millis, secs, waiter, waiting};

const FORCE: Refresh = Refresh { ttl: None, threshold: Some(Duration::ZERO) };

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
        bad_addresses_say_what_is_wrong,
        another_kind_of_server_is_told_apart,
        a_user_without_rights_is_told_so,
        a_read_only_server_is_refused,
        a_token_is_in_no_table,
        keys_are_told_apart_by_every_byte,
        the_fence_gate_works_in_a_transaction,
        the_fence_gate_is_one_statement_for_other_drivers,
        many_may_start_at_once,
        the_schema_can_be_made_by_hand,
        fences_go_on_above_a_restored_copy,
        fences_grow_although_the_clock_was_set_back,
        keys_that_nobody_uses_go_and_their_fences_stay,
        every_shared_holder_has_its_own_fence,
        a_deadlock_is_tried_again,
        a_key_that_somebody_sits_on_is_an_outage,
        an_edit_of_a_stopped_process_ends,
        messages_are_as_few_as_declared,
        pool::a_pool_of_one_connection_is_enough,
        pool::an_exhausted_pool_is_an_outage_and_no_contention,
        pool::a_waiter_outlasts_an_exhausted_pool,
        pool::a_server_without_connections_is_an_outage,
        pool::sessions_of_the_user_stay_as_they_were,
        tls::certificates_are_checked,
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

fn trial(name: &'static str, test: impl FnOnce() + Send + 'static) -> Trial {
    let there = mysql::server().is_some();
    let in_ci = std::env::var_os("CI").is_some();
    Trial::test(name, move || {
        if !there {
            return Err(Failed::from(mysql::MISSING));
        }
        test();
        Ok(())
    })
    .with_ignored_flag(!there && !in_ci)
}

fn server() -> String {
    mysql::server().expect("looked at before")
}

async fn open(address: &str) -> MySqlConnection {
    MySqlConnection::connect(address).await.expect("the server is there")
}

/// One number.
async fn number(connection: &mut MySqlConnection, sql: &str) -> i64 {
    let row = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_one(connection).await;
    row.expect(sql).try_get_unchecked(0).expect("a number")
}

// ---- restarts ----------------------------------------------------------------------------------

async fn a_crash_of_the_server_takes_nothing_back() {
    survives(Signal::KILL).await;
}

async fn a_restart_of_the_server_takes_nothing_back() {
    survives(Signal::TERM).await;
}

/// Held and waited for while the server ends by a signal, and starts again.
async fn survives(signal: Signal) {
    let mut own = OwnServer::start("mariadb");
    let (ours, theirs) = (connect(&own.address).await, connect(&own.address).await);
    let guard = ours.lock("key").ttl(secs(90)).acquire().await.expect("a free key");
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
    let place = place(&good);
    refused(&format!("mysql://latchwork:hush@{place}/latchwork"), "lock_backend", "password").await;
    refused(&format!("mysql://nobody:hush@{place}/latchwork"), "lock_backend", "password").await;
    let (base, _) = good.rsplit_once('/').expect("a database");
    refused(&format!("{base}/nowhere"), "lock_backend", "no such database").await;
    refused(base, "invalid_argument", "names no database").await;
    refused("mysql://u:hush@127.0.0.1:1/d", "lock_unavailable", "port").await;
    refused(&format!("mysql://u:hush@{place}/d?sslmod=x"), "invalid_argument", "sslmod").await;
    let maybe = format!("mysql://u:hush@{place}/d?ssl-mode=maybe");
    refused(&maybe, "invalid_argument", "parameters").await;
    refused(&format!("{good}?ssl-mode=REQUIRED"), "lock_backend", "TLS").await;
    // By its other name it is the same.
    let named = good.replacen("mysql:", "mariadb:", 1);
    assert_eq!(connect(&named).await.provider_name(), "mysql");
}

/// One that speaks first, but not in MySQL's words, and one that waits for us to speak.
async fn another_kind_of_server_is_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.write_all(b"220 mail.example ESMTP\r\n");
        }
    });
    let other = format!("mysql://u:hush@127.0.0.1:{port}/d");
    refused(&other, "lock_unavailable", "another kind of server").await;

    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("bound").port();
    let other = format!("mysql://u:hush@127.0.0.1:{port}/d");
    refused(&other, "lock_unavailable", "another kind of server").await;
}

/// A user with a password of its own, and the address of a database for it.
async fn poor_user(address: &str) -> (String, String) {
    let name = format!("poor_{:x}", rand::random::<u64>());
    admin(address, &format!("CREATE USER {name}@'127.0.0.1' IDENTIFIED BY 'hush'")).await;
    let theirs = format!("mysql://{name}:hush@{}/{}", place(address), database(address));
    (format!("{name}@'127.0.0.1'"), theirs)
}

async fn a_user_without_rights_is_told_so() {
    let address = room().await;
    let (user, theirs) = poor_user(&address).await;
    refused(&theirs, "lock_backend", "right").await;
    let room = database(&address);
    admin(&address, &format!("GRANT SELECT ON {room}.* TO {user}")).await;
    refused(&theirs, "lock_backend", "right").await;

    // Who may only read gets no lease.
    connect(&address).await;
    let poor = connect(&theirs).await;
    let error = poor.lock("key").try_acquire().await.expect_err("it may not write");
    assert_eq!(error.code(), "lock_backend", "{error}");
    assert!(error.to_string().contains("right"), "{error}");
    assert!(poor.inspect("key").await.expect("it may read").holders.is_empty());

    // No right to create is needed where the tables are.
    admin(&address, &format!("GRANT INSERT, UPDATE, DELETE ON {room}.* TO {user}")).await;
    let modest = connect(&theirs).await;
    modest.lock("key").acquire().await.expect("a free key").release().await.expect("held");
    admin(&address, &format!("DROP USER {user}")).await;
}

async fn a_read_only_server_is_refused() {
    let own = OwnServer::start("mariadb");
    let address = room_in(&own.address).await;
    let (user, theirs) = poor_user(&address).await;
    admin(&address, &format!("GRANT ALL ON {}.* TO {user}", database(&address))).await;
    let locks = connect(&theirs).await;
    let guard = locks.lock("key").ttl(secs(90)).acquire().await.expect("a free key");
    admin(&address, "SET GLOBAL read_only = 1").await;
    refused(&theirs, "lock_backend", "read-only").await;
    // Who was there before may wait for it to pass: a primary may be made a replica, and back.
    let error = locks.lock("other").try_acquire().await.expect_err("read-only");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
    assert_eq!(locks.inspect("key").await.expect("it may read").holders.len(), 1);
    admin(&address, "SET GLOBAL read_only = 0").await;
    guard.release().await.expect("held");
}

// ---- what is stored ----------------------------------------------------------------------------

async fn a_token_is_in_no_table() {
    let address = room().await;
    let provider = MySqlLockProvider::connect(&address).await.expect("there");
    let request = |wait| AcquireRequest {
        key: Key::new("key").expect("legal"),
        mode: Mode::Exclusive,
        token: Token::random(),
        owner: None,
        note: None,
        ttl: secs(30),
        wait,
        retry_interval: millis(100),
        sent_at: SystemClock.now(),
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
async fn keys_are_told_apart_by_every_byte() {
    let locks = connect(&room().await).await;
    let mut guards = Vec::new();
    for key in ["key", "Key", "key ", "kéy", "ke\u{301}y", "key\u{a0}", "k%", "k_", "'; --", "\\"]
    {
        let guard = locks.lock(key).try_acquire().await.expect("it answers");
        guards.push(guard.unwrap_or_else(|| panic!("{key:?} was taken for another")));
    }
    let seen = locks.list("k", latchwork_lock::PageRequest::default()).await.expect("it answers");
    assert_eq!(seen.keys.len(), 7, "{seen:?}");
}

async fn the_fence_gate_works_in_a_transaction() {
    let address = room().await;
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
async fn the_fence_gate_is_one_statement_for_other_drivers() {
    let address = room().await;
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

async fn many_may_start_at_once() {
    let address = room().await;
    let starts = (0..8).map(|_| MySqlLockProvider::connect(&address));
    for started in futures::future::join_all(starts).await {
        started.expect("each of them");
    }
    let mut connection = open(&address).await;
    let steps = "SELECT COUNT(*) FROM latchwork_migrations";
    assert_eq!(number(&mut connection, steps).await, 1);
}

/// Who lets nobody make tables can make them before; the program then finds them.
async fn the_schema_can_be_made_by_hand() {
    let address = room().await;
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

// ---- fences ------------------------------------------------------------------------------------

async fn fence(locks: &Locks, key: &'static str) -> u64 {
    let guard = locks.lock(key).acquire().await.expect("a free key");
    let fence = guard.fence().get();
    guard.release().await.expect("held");
    fence
}

async fn fences_go_on_above_a_restored_copy() {
    let address = room().await;
    let before = fence(&connect(&address).await, "key").await;
    // As a copy from long ago would have it.
    admin(&address, "UPDATE latchwork_lock_key SET fence = 1000").await;
    let restored = fence(&connect(&address).await, "key").await;
    assert!(restored > before, "{restored} after {before}");
    admin(&address, "DELETE FROM latchwork_lock_key; UPDATE latchwork_lock_floor SET fence = 0")
        .await;
    let emptied = fence(&connect(&address).await, "key").await;
    assert!(emptied > restored, "{emptied} after {restored}");
}

/// An hour of fences was given by a clock that was ahead: on they go from there.
async fn fences_grow_although_the_clock_was_set_back() {
    let address = room().await;
    let locks = connect(&address).await;
    fence(&locks, "key").await;
    admin(&address, "UPDATE latchwork_lock_key SET fence = fence + 3600000000").await;
    let mut connection = open(&address).await;
    let last = number(&mut connection, "SELECT MAX(fence) FROM latchwork_lock_key").await;
    let last = last.unsigned_abs();
    assert_eq!(fence(&locks, "key").await, last + 1);
    // By the rules, too: somebody waits for it.
    let guard = locks.lock("key").acquire().await.expect("a free key");
    assert_eq!(guard.fence().get(), last + 2);
    let next = waiter(&locks, "key");
    waiting(&locks, "key", 1).await;
    guard.release().await.expect("held");
    let next = next.await.expect("no panic");
    assert_eq!(next.fence().get(), last + 3);
    assert_eq!(next.previous_fence().map(Fence::get), Some(last + 2));
    next.release().await.expect("held");
    // And when the row has gone meanwhile.
    let floor = "UPDATE latchwork_lock_floor SET fence = (SELECT MAX(fence) FROM latchwork_lock_key); \
                 DELETE FROM latchwork_lock_key";
    admin(&address, floor).await;
    assert_eq!(fence(&locks, "key").await, last + 4);
}

async fn keys_that_nobody_uses_go_and_their_fences_stay() {
    const ROWS: &str = "SELECT COUNT(*) FROM latchwork_lock_key";
    let address = room().await;
    let locks = connect(&address).await;
    let held = locks.lock("held").ttl(secs(90)).acquire().await.expect("a free key");
    for key in ["a", "b", "c"] {
        fence(&locks, key).await;
    }
    // An hour later.
    admin(&address, "UPDATE latchwork_lock_key SET fence = fence - 3600000000").await;
    fence(&locks, "c").await;
    let mut connection = open(&address).await;
    let newest = "SELECT MAX(fence) FROM latchwork_lock_key WHERE name IN ('lock/a', 'lock/b')";
    let newest = number(&mut connection, newest).await;
    assert_eq!(number(&mut connection, ROWS).await, 4);
    // Who opens it looks.
    connect(&address).await;
    eventually("two are gone", async || number(&mut connection, ROWS).await == 2).await;
    let floor = number(&mut connection, "SELECT fence FROM latchwork_lock_floor").await;
    assert_eq!(floor, newest);
    assert_eq!(locks.inspect("held").await.expect("it answers").holders.len(), 1);
    held.refresh_with(FORCE).await.expect("held");
    assert!(fence(&locks, "a").await > newest.unsigned_abs());
}

async fn every_shared_holder_has_its_own_fence() {
    let locks = connect(&room().await).await;
    let mut guards = Vec::new();
    for _ in 0..3 {
        guards.push(locks.lock("key").shared().acquire().await.expect("shared"));
    }
    let given: Vec<Fence> = guards.iter().map(|guard| guard.fence()).collect();
    assert!(given.is_sorted() && given[0] < given[1] && given[1] < given[2], "{given:?}");
    let seen = locks.inspect("key").await.expect("it answers");
    let told: Vec<Fence> = seen.holders.iter().map(|holder| holder.fence).collect();
    assert_eq!(told, given);
    // The first one goes, and another takes its row.
    guards.remove(0).release().await.expect("held");
    let seen = locks.inspect("key").await.expect("it answers");
    let told: Vec<Fence> = seen.holders.iter().map(|holder| holder.fence).collect();
    assert_eq!(told, given[1..]);
    for guard in guards {
        guard.release().await.expect("held");
    }
    assert!(fence(&locks, "key").await > given[2].get());
}

// ---- collisions --------------------------------------------------------------------------------

/// A deadlock that the server ends by undoing our edit: nobody notices.
async fn a_deadlock_is_tried_again() {
    const DEADLOCKS: &str = "SELECT CAST(variable_value AS SIGNED) \
        FROM information_schema.global_status WHERE variable_name = 'INNODB_DEADLOCKS'";
    let address = room().await;
    let locks = connect(&address).await;
    let guard = locks.lock("key").ttl(secs(90)).acquire().await.expect("a free key");
    let next = waiter(&locks, "key");
    waiting(&locks, "key", 1).await;
    let mut other = open(&address).await;
    let mut watch = open(&address).await;
    let before = number(&mut watch, DEADLOCKS).await;
    // It has done more than our edit will have, so ours is the one to be undone.
    let heavy = format!(
        "CREATE TABLE heavy (n INT); START TRANSACTION; INSERT INTO heavy VALUES {}; \
         SELECT * FROM latchwork_lock WHERE name = 'lock/key' FOR UPDATE",
        ["(1)"; 300].join(", ")
    );
    sqlx::raw_sql(AssertSqlSafe(heavy)).execute(&mut other).await.expect("locked");
    let release = tokio::spawn(guard.release());
    eventually("our edit waits for the other", async || {
        // The server shows the same again to whoever asks more often.
        tokio::time::sleep(millis(150)).await;
        let waits = format!(
            "SELECT COUNT(*) FROM information_schema.innodb_trx t \
             JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
             WHERE t.trx_state = 'LOCK WAIT' AND p.db = '{}'",
            database(&address)
        );
        number(&mut watch, &waits).await > 0
    })
    .await;
    let cross = "SELECT * FROM latchwork_lock_key WHERE name = 'lock/key' FOR UPDATE; COMMIT";
    sqlx::raw_sql(cross).execute(&mut other).await.expect("the other one goes on");
    assert!(number(&mut watch, DEADLOCKS).await > before, "there was no deadlock");
    release.await.expect("no panic").expect("it was tried again");
    next.await.expect("no panic").release().await.expect("its turn");
}

/// That is neither a refusal nor a grant, and it is bounded.
async fn a_key_that_somebody_sits_on_is_an_outage() {
    let address = room().await;
    let locks = connect(&address).await;
    fence(&locks, "key").await;
    let mut other = open(&address).await;
    let sit = "START TRANSACTION; SELECT * FROM latchwork_lock_key FOR UPDATE";
    sqlx::raw_sql(sit).execute(&mut other).await.expect("locked");
    let error = locks.lock("key").try_acquire().await.expect_err("nobody can tell");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    assert!(error.to_string().contains("middle of an edit"), "{error}");
    drop(other);
    let guard = locks.lock("key").wait(secs(30)).acquire().await.expect("a free key");
    guard.release().await.expect("held");
}

/// A process that is stopped in the middle of an edit has the key's row until the server loses
/// patience; the words of an edit say when.
async fn an_edit_of_a_stopped_process_ends() {
    let address = room().await;
    let locks = connect(&address).await;
    let guard = locks.lock("key").ttl(secs(90)).acquire().await.expect("a free key");
    let relay = relay::Relay::start(place(&address)).await;
    let through = address.replace(place(&address), &relay.address.to_string());
    let stopped = connect(&through).await;
    relay.swallow_commits();
    let lost = tokio::spawn(async move { stopped.lock("key").wait(secs(2)).acquire().await });
    relay.swallowed().await;
    // Its edit has the row, and its last word never comes: the release waits, or is tried again.
    let _ = guard.release().await;
    eventually("it is free again", async || !locks.exists("key").await.expect("it answers")).await;
    assert!(lost.await.expect("no panic").is_err());
}

// ---- messages ----------------------------------------------------------------------------------

/// How often the server is asked, counted on the wire: each time that the talk turns.
async fn messages_are_as_few_as_declared() {
    let address = room().await;
    connect(&address).await;
    let relay = relay::Relay::start(place(&address)).await;
    let through = address.replace(place(&address), &relay.address.to_string());
    let options: MySqlConnectOptions = through.parse().expect("an address");
    let pool = MySqlPoolOptions::new().max_connections(1).test_before_acquire(false);
    let pool = pool.connect_with(options).await.expect("there");
    let locks = Locks::new(MySqlLockProvider::from_pool(pool).await.expect("there"));
    // Every statement is prepared once for a connection, and the first sweep is over.
    let guard = locks.lock("key").acquire().await.expect("a free key");
    guard.refresh_with(FORCE).await.expect("held");
    guard.release().await.expect("held");
    relay.quiet().await;

    macro_rules! turns {
        ($job:expr) => {{
            let before = relay.turns();
            let out = $job.await.expect("it answers");
            (relay.turns() - before, out)
        }};
    }
    let (turns, held) = turns!(locks.lock("key").acquire());
    assert_eq!(turns, 1, "taking a key that was used lately");
    assert_eq!(turns!(held.refresh_with(FORCE)).0, 1, "renewing");
    assert_eq!(turns!(locks.inspect("key")).0, 1, "looking");
    let (turns, refused) = turns!(locks.lock("key").try_acquire());
    assert!(refused.is_none());
    assert_eq!(turns, 3, "being refused");
    assert_eq!(turns!(held.release()).0, 1, "giving back");
    let (turns, first) = turns!(locks.lock("new").shared().acquire());
    assert_eq!(turns, 2, "taking a key that is new");
    let (turns, second) = turns!(locks.lock("new").shared().acquire());
    assert_eq!(turns, 3, "taking a key that others share");
    assert_eq!(turns!(first.release()).0, 3, "giving back what others share");
    assert_eq!(turns!(second.release()).0, 1, "giving back what others have shared");
}
