//! The PostgreSQL provider: what only real processes and a real server can show.
//!
//! Without a server every test is named as skipped, and fails where `CI` is set.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the helpers of a test fail it, and a child speaks by its output"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use latchwork_lock::{
    AcquireRequest, Acquired, Clock, Fence, Guard, Key, LockProvider, Locks, Mode,
    PostgresFenceGate, PostgresLockProvider, SystemClock, Token, TransactionLock, Wait,
};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

fn main() {
    if let Ok(part) = std::env::var("LATCHWORK_POSTGRES_CHILD") {
        return block_on(child(&part));
    }
    let mut trials = Vec::new();
    macro_rules! tests {
        ($($name:ident),* $(,)?) => {$(
            trials.push(trial(stringify!($name), || block_on($name())));
        )*};
    }
    tests![
        two_processes_exclude_each_other,
        a_killed_holder_ends_at_its_ttl,
        a_killed_waiter_is_forgotten,
        a_crash_of_the_server_takes_nothing_back,
        bad_addresses_say_what_is_wrong,
        a_user_without_rights_is_told_so,
        a_token_is_in_no_table,
        the_fence_gate_works_in_a_transaction,
        transaction_locks_end_with_their_transaction,
        many_may_start_at_once,
        fences_go_on_above_a_restored_copy,
        a_pool_of_one_connection_is_enough,
        notices_that_are_lost_are_made_up_for,
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

fn trial(name: &'static str, test: impl FnOnce() + Send + 'static) -> Trial {
    let there = std::env::var_os("LATCHWORK_TEST_POSTGRES").is_some();
    let in_ci = std::env::var_os("CI").is_some();
    Trial::test(name, move || {
        if !there {
            return Err(Failed::from("no server; `scripts/services up postgres` starts one"));
        }
        test();
        Ok(())
    })
    .with_ignored_flag(!there && !in_ci)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(secs(60), future).await.expect("it ends") })
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

// ---- the server --------------------------------------------------------------------------------

fn server() -> String {
    std::env::var("LATCHWORK_TEST_POSTGRES").expect("looked at before")
}

/// An address with a schema of its own.
async fn room() -> String {
    let name = format!("room_{:x}", Token::random().expose());
    admin(&server(), &format!("CREATE SCHEMA {name}")).await;
    format!("{}?options[search_path]={name}", server())
}

async fn admin(address: &str, sql: &str) {
    try_admin(address, sql).await.expect(sql);
}

async fn try_admin(address: &str, sql: &str) -> sqlx::Result<()> {
    let mut admin = PgConnection::connect(address).await.expect("the server is there");
    let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut admin).await;
    admin.close().await.expect("closed");
    done.map(drop)
}

async fn locks(address: &str) -> Locks {
    Locks::connect(address).await.expect("the server is there")
}

/// Ends when so many wait for the key.
async fn waiting(locks: &Locks, key: &str, count: usize) {
    for _ in 0..1_500 {
        if locks.inspect(key).await.is_ok_and(|seen| seen.waiters.len() == count) {
            return;
        }
        tokio::time::sleep(millis(10)).await;
    }
    panic!("never {count} in the queue");
}

fn waiter(locks: &Locks, key: &'static str) -> tokio::task::JoinHandle<Guard> {
    let locks = locks.clone();
    tokio::spawn(async move { locks.lock(key).wait(secs(40)).acquire().await.expect("its turn") })
}

/// A server that only one test uses, so that it may be killed.
struct OwnServer {
    directory: tempfile::TempDir,
    base: u16,
    address: String,
}

impl OwnServer {
    fn start() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let open = std::fs::Permissions::from_mode(0o711);
        std::fs::set_permissions(directory.path(), open).expect("its own");
        let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
        let base = free.port() - 1;
        let mut own = OwnServer { directory, base, address: String::new() };
        own.up();
        own
    }

    fn services(&self, command: &str) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services");
        let out = Command::new(script)
            .args([command, "postgres"])
            .env("LATCHWORK_SERVICES_DIR", self.directory.path().join("s"))
            .env("LATCHWORK_SERVICES_PORT", self.base.to_string())
            .output()
            .expect("started");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("text")
    }

    fn up(&mut self) {
        let lines = self.services("up");
        let address = lines.split_once('=').expect("an assignment").1;
        self.address = address.trim().to_owned();
    }

    /// Without a checkpoint: what was not in the log is gone.
    fn crash(&self) {
        let file = self.directory.path().join("s/postgres.pid");
        let text = std::fs::read_to_string(file).expect("it runs");
        let pid: i32 = text.split(' ').next().expect("a number").parse().expect("a number");
        kill_process(Pid::from_raw(pid).expect("not zero"), Signal::QUIT).expect("signalled");
        let begun = Instant::now();
        while self.services("status").contains("runs") {
            assert!(begun.elapsed() < secs(20), "it does not stop");
            std::thread::sleep(millis(20));
        }
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.services("down");
    }
}

// ---- the other process -------------------------------------------------------------------------

/// This test binary once more, in the part that `LATCHWORK_POSTGRES_CHILD` names.
struct Child {
    process: std::process::Child,
    said: Receiver<String>,
}

impl Child {
    fn start(part: &str, address: &str) -> Child {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .env("LATCHWORK_POSTGRES_CHILD", part)
            .env("LATCHWORK_POSTGRES_ADDRESS", address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let out = BufReader::new(process.stdout.take().expect("piped"));
        let (tell, said) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        Child { process, said }
    }

    fn hear(&self, word: &str) {
        let said = self.said.recv_timeout(secs(20)).unwrap_or_else(|_| panic!("no {word:?}"));
        assert_eq!(said, word);
    }

    fn tell(&mut self) {
        writeln!(self.process.stdin.as_mut().expect("piped"), "go").expect("told");
    }

    fn kill(&mut self) {
        self.process.kill().expect("alive");
        self.process.wait().expect("reaped");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn child(part: &str) {
    let address = std::env::var("LATCHWORK_POSTGRES_ADDRESS").expect("told");
    let locks = locks(&address).await;
    match part {
        "hold" => {
            let guard = locks.lock("key").ttl(secs(2)).acquire().await.expect("a free key");
            println!("held");
            std::io::stdin().read_line(&mut String::new()).expect("told");
            guard.release().await.expect("still held");
            println!("released");
        }
        "wait" => {
            println!("waits");
            let _guard = locks.lock("key").wait_forever().acquire().await.expect("its turn");
            println!("held");
            std::future::pending().await
        }
        other => panic!("no such part: {other}"),
    }
}

// ---- processes ---------------------------------------------------------------------------------

async fn two_processes_exclude_each_other() {
    let address = room().await;
    let locks = locks(&address).await;
    let mut child = Child::start("hold", &address);
    child.hear("held");
    assert!(locks.lock("key").try_acquire().await.expect("it answers").is_none());
    let waiter = waiter(&locks, "key");
    waiting(&locks, "key", 1).await;
    child.tell();
    child.hear("released");
    let guard = waiter.await.expect("no panic");
    assert!(guard.waited());
    guard.release().await.expect("held");
}

async fn a_killed_holder_ends_at_its_ttl() {
    let address = room().await;
    let locks = locks(&address).await;
    let before = Instant::now();
    let mut child = Child::start("hold", &address);
    child.hear("held");
    let held = Instant::now();
    let waiter = waiter(&locks, "key");
    waiting(&locks, "key", 1).await;
    child.kill();
    waiter.await.expect("no panic").release().await.expect("held");
    assert!(before.elapsed() >= secs(2), "let in after {:?}", before.elapsed());
    assert!(held.elapsed() < secs(2) + millis(1_000), "let in after {:?}", held.elapsed());
}

async fn a_killed_waiter_is_forgotten() {
    let address = room().await;
    let locks = locks(&address).await;
    let guard = locks.lock("key").ttl(secs(60)).acquire().await.expect("a free key");
    let mut child = Child::start("wait", &address);
    child.hear("waits");
    waiting(&locks, "key", 1).await;
    let next = waiter(&locks, "key");
    waiting(&locks, "key", 2).await;
    child.kill();
    waiting(&locks, "key", 1).await;
    let released = Instant::now();
    guard.release().await.expect("held");
    next.await.expect("no panic").release().await.expect("held");
    assert!(released.elapsed() < secs(1), "handed on after {:?}", released.elapsed());
}

async fn a_crash_of_the_server_takes_nothing_back() {
    let mut own = OwnServer::start();
    let (ours, theirs) = (locks(&own.address).await, locks(&own.address).await);
    let guard = ours.lock("key").ttl(secs(60)).acquire().await.expect("a free key");
    let waiter = waiter(&theirs, "key");
    waiting(&ours, "key", 1).await;
    own.crash();
    let error = ours.lock("other").try_acquire().await.expect_err("nobody is there");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    own.up();
    assert!(guard.is_held());
    let seen = ours.inspect("key").await.expect("it is back");
    assert_eq!(seen.holders.len(), 1, "{seen:?}");
    assert_eq!(seen.holders[0].fence, guard.fence());
    let fence = guard.fence();
    guard.release().await.expect("it outlived the crash");
    let next = tokio::time::timeout(secs(8), waiter).await.expect("in time").expect("no panic");
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
        "parameters",
    )
    .await;
    refused(&format!("{good}?sslmode=require"), "lock_backend", "TLS").await;
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

    // Who may only read gets no lease.
    locks(&format!("{good}?options[search_path]={name}")).await;
    admin(&server(), &format!("GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {name}")).await;
    let poor = locks(&address).await;
    let error = poor.lock("key").try_acquire().await.expect_err("it may not write");
    assert_eq!(error.code(), "lock_backend", "{error}");
    // The providers look for what was left behind when they start, and may still be at it.
    let drop = format!("DROP SCHEMA {name} CASCADE; DROP ROLE {name}");
    for _ in 0..10 {
        if try_admin(&server(), &drop).await.is_ok() {
            return;
        }
    }
    admin(&server(), &drop).await;
}

// ---- what is stored ----------------------------------------------------------------------------

async fn a_token_is_in_no_table() {
    let address = room().await;
    let provider = PostgresLockProvider::connect(&address).await.expect("there");
    let request = AcquireRequest {
        key: Key::new("key").expect("legal"),
        mode: Mode::Exclusive,
        token: Token::random(),
        owner: None,
        note: None,
        ttl: secs(30),
        wait: Wait::No,
        retry_interval: millis(100),
        sent_at: SystemClock.now(),
    };
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
    let address = room().await;
    locks(&address).await;
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
    let address = room().await;
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
    let address = room().await;
    let starts = (0..8).map(|_| PostgresLockProvider::connect(&address));
    for started in futures::future::join_all(starts).await {
        started.expect("each of them");
    }
}

async fn fences_go_on_above_a_restored_copy() {
    let address = room().await;
    let before = locks(&address).await.lock("key").acquire().await.expect("a free key");
    let fence = before.fence();
    before.release().await.expect("held");
    // As a copy from long ago would have it.
    admin(&address, "SELECT setval('latchwork_lock_fence', 1000)").await;
    let after = locks(&address).await.lock("key").acquire().await.expect("a free key");
    assert!(after.fence() > fence, "{} after {fence}", after.fence());
}

async fn a_pool_of_one_connection_is_enough() {
    let options = room().await.parse().expect("an address");
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect_with(options);
    let pool = pool.await.expect("there");
    let locks = Locks::new(PostgresLockProvider::from_pool(pool).await.expect("there"));
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

async fn notices_that_are_lost_are_made_up_for() {
    let address = room().await;
    let (ours, theirs) = (locks(&address).await, locks(&address).await);
    let guard = ours.lock("key").acquire().await.expect("a free key");
    let waiter = waiter(&theirs, "key");
    waiting(&ours, "key", 1).await;
    // Whoever listens is cut off, again and again, while the key is handed over.
    let cutter = tokio::spawn(async {
        let mut admin = PgConnection::connect(&server()).await.expect("there");
        for _ in 0..20 {
            let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                       WHERE query LIKE 'LISTEN \"latchwork_lock_%'";
            sqlx::raw_sql(cut).execute(&mut admin).await.expect("cut");
            tokio::time::sleep(millis(50)).await;
        }
    });
    tokio::time::sleep(millis(300)).await;
    guard.release().await.expect("held");
    let next = tokio::time::timeout(secs(4), waiter).await.expect("in time").expect("no panic");
    next.release().await.expect("held");
    cutter.await.expect("no panic");
}
