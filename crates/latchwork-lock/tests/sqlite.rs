//! The SQLite provider: what only real processes and real files can show.
#![cfg(all(feature = "sqlite", target_os = "linux"))]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the helpers of a test fail it, and a child speaks by its output"
)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use latchwork_lock::{
    Fence, Lease, Locks, PageRequest, SqliteFenceGate, SqliteLockProvider, StaleFence, blocking,
};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

// ---- the other process -------------------------------------------------------------------------

/// This test binary once more, in the part that `LATCHWORK_SQLITE_CHILD` names.
struct Child {
    process: std::process::Child,
    said: Receiver<String>,
}

impl Child {
    fn start(part: &str, file: &Path, key: &str, ttl: Duration) -> Child {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "child_process", "--nocapture"])
            .env("LATCHWORK_SQLITE_CHILD", part)
            .env("LATCHWORK_SQLITE_FILE", file)
            .env("LATCHWORK_SQLITE_KEY", key)
            .env("LATCHWORK_SQLITE_TTL", ttl.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let out = BufReader::new(process.stdout.take().expect("piped"));
        let (tell, said) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                // The harness writes on the same line.
                if let Some((_, word)) = line.split_once("@ ") {
                    let _ = tell.send(word.to_owned());
                }
            }
        });
        Child { process, said }
    }

    fn hold(file: &Path, key: &str, ttl: Duration) -> (Child, u64) {
        let child = Child::start("hold", file, key, ttl);
        let fence = child.hear("held");
        (child, fence.parse().expect("a fence"))
    }

    /// Waits for a word, and gives what was said with it.
    fn hear(&self, word: &str) -> String {
        let said = self.said.recv_timeout(secs(20)).unwrap_or_else(|_| panic!("no {word:?}"));
        let rest = said.strip_prefix(word).unwrap_or_else(|| panic!("{said:?} and not {word:?}"));
        rest.trim().to_owned()
    }

    fn tell(&mut self, line: &str) {
        let to = self.process.stdin.as_mut().expect("piped");
        writeln!(to, "{line}").expect("told");
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, signal).expect("signalled");
    }

    fn kill(mut self) {
        self.signal(Signal::KILL);
        self.process.wait().expect("ended");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Not a test of its own: what [`Child`] runs.
#[test]
fn child_process() {
    let Ok(part) = std::env::var("LATCHWORK_SQLITE_CHILD") else { return };
    let var = |name: &str| std::env::var(name).expect("set by the parent");
    let file = PathBuf::from(var("LATCHWORK_SQLITE_FILE"));
    let key = var("LATCHWORK_SQLITE_KEY");
    let ttl = Duration::from_millis(var("LATCHWORK_SQLITE_TTL").parse().expect("a number"));
    let locks = locks(&file);
    let request = locks.lock(&key).ttl(ttl);
    match part.as_str() {
        "hold" | "wait" => {
            let request = if part == "wait" { request.wait(secs(60)) } else { request };
            let guard = request.acquire().expect("acquired");
            say(&format!("held {}", guard.fence()));
            // Until it is told to, or the parent is gone.
            let mut line = String::new();
            if std::io::stdin().read_line(&mut line).is_ok_and(|n| n > 0) {
                let answer = guard.release();
                say(&format!("released {}", answer.map_or_else(|e| e.code(), |()| "ok")));
            }
        }
        "write" => {
            let guard = request.acquire().expect("acquired");
            say(&format!("held {}", guard.fence()));
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).expect("told");
            let answer = write(&file, &key, guard.fence(), "late");
            say(&format!("wrote {}", answer.map_or_else(|_| StaleFence::CODE, |()| "ok")));
        }
        "loop" => {
            say("ready");
            let mut log = fs::OpenOptions::new()
                .append(true)
                .open(file.with_extension("log"))
                .expect("a log");
            let me = std::process::id();
            loop {
                let guard = locks.lock(&key).ttl(ttl).wait(secs(60)).acquire().expect("acquired");
                let fence = guard.fence();
                log.write_all(format!("enter {fence} {me}\n").as_bytes()).expect("written");
                std::thread::sleep(Duration::from_micros(u64::from(me % 7) * 300));
                log.write_all(format!("leave {fence} {me}\n").as_bytes()).expect("written");
                guard.release().expect("held to the end");
            }
        }
        "lease" => {
            let lease = request.acquire().expect("acquired").into_lease().expect("a lease");
            say(&format!("lease {}", serde_json::to_string(&lease).expect("serialises")));
        }
        other => panic!("no part {other}"),
    }
}

fn say(line: &str) {
    println!("@ {line}");
}

// ---- helpers -----------------------------------------------------------------------------------

fn address(file: &Path) -> String {
    format!("sqlite://{}", file.display())
}

fn locks(file: &Path) -> blocking::Locks {
    blocking::Locks::connect(&address(file)).expect("a database")
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn temp() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("locks.db");
    (dir, file)
}

/// A bounded wait for a condition.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < secs(20), "never: {what}");
        std::thread::sleep(millis(5));
    }
}

fn waiters(locks: &blocking::Locks, key: &str) -> usize {
    locks.inspect(key).expect("inspected").waiters.len()
}

async fn pool(file: &Path) -> SqlitePool {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    SqlitePool::connect_with(options).await.expect("a pool")
}

fn block<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime").block_on(future)
}

/// A user's write, guarded by the fence of the lease that it is made under.
fn write(file: &Path, key: &str, fence: Fence, what: &str) -> Result<(), StaleFence> {
    block(async {
        let pool = pool(file).await;
        let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await.expect("begun");
        SqliteFenceGate::check(&mut transaction, key, fence).await.expect("asked")?;
        sqlx::query("INSERT INTO written VALUES (?1)")
            .bind(what)
            .execute(&mut *transaction)
            .await
            .expect("written");
        transaction.commit().await.expect("committed");
        pool.close().await;
        Ok(())
    })
}

// ---- the tests ---------------------------------------------------------------------------------

#[test]
fn two_processes_exclude_each_other() {
    let (_dir, file) = temp();
    let locks = locks(&file);
    let (mut child, fence) = Child::hold(&file, "k", secs(60));
    let error = locks.lock("k").acquire().expect_err("taken");
    assert_eq!(error.code(), "lock_taken");
    assert!(error.to_string().contains(&child.process.id().to_string()), "{error}");
    child.tell("release");
    assert_eq!(child.hear("released"), "ok");
    let guard = locks.lock("k").acquire().expect("free");
    assert!(guard.fence().get() > fence);
}

#[test]
fn processes_wait_in_the_order_in_which_they_came() {
    let (_dir, file) = temp();
    let locks = locks(&file);
    let guard = locks.lock("k").ttl(secs(60)).acquire().expect("free");
    let mut children = Vec::new();
    for n in 1..=3 {
        children.push(Child::start("wait", &file, "k", secs(60)));
        until("it waits", || waiters(&locks, "k") == n);
    }
    let mut last = guard.fence().get();
    let mut released = Instant::now();
    guard.release().expect("held");
    for mut child in children {
        let fence: u64 = child.hear("held").parse().expect("a fence");
        println!("handed over in {:?}", released.elapsed());
        assert!(fence > last, "in turn");
        last = fence;
        released = Instant::now();
        child.tell("release");
        assert_eq!(child.hear("released"), "ok");
    }
}

#[test]
fn a_killed_holder_ends_at_its_ttl() {
    let (_dir, file) = temp();
    let locks = locks(&file);
    let began = Instant::now();
    let (child, fence) = Child::hold(&file, "k", secs(2));
    let held = Instant::now();
    child.kill();
    let guard = locks.lock("k").wait(secs(20)).acquire().expect("its ttl is over");
    assert!(guard.fence().get() > fence && guard.waited());
    assert!(began.elapsed() >= secs(2), "not before");
    assert!(held.elapsed() < secs(2) + millis(1_500), "{:?}", held.elapsed());
    println!("freed {:?} after the grant, of a ttl of 2 s", held.elapsed());
}

#[test]
fn a_waiter_of_a_killed_process_disappears() {
    let (_dir, file) = temp();
    let locks = locks(&file);
    let guard = locks.lock("k").ttl(secs(60)).acquire().expect("free");
    let child = Child::start("wait", &file, "k", secs(60));
    until("it waits", || waiters(&locks, "k") == 1);
    // It lives, and is believed to for longer than one heartbeat lasts.
    std::thread::sleep(secs(9));
    assert_eq!(waiters(&locks, "k"), 1);
    child.kill();
    until("it is gone", || waiters(&locks, "k") == 0);
    guard.release().expect("held");
    let _next = locks.lock("k").acquire().expect("nobody is ahead");
}

#[test]
fn a_stopped_waiter_lets_others_ahead_and_still_gets_its_turn() {
    let (_dir, file) = temp();
    let locks = locks(&file);
    let guard = locks.lock("k").ttl(secs(60)).acquire().expect("free");
    let mut child = Child::start("wait", &file, "k", secs(60));
    until("it waits", || waiters(&locks, "k") == 1);
    child.signal(Signal::STOP);
    guard.release().expect("held");
    // Reserved for it, unclaimed, and passed on.
    let guard = locks.lock("k").wait(secs(20)).acquire().expect("passed on");
    child.signal(Signal::CONT);
    until("it waits again", || waiters(&locks, "k") == 1);
    guard.release().expect("held");
    child.hear("held");
    child.tell("release");
    assert_eq!(child.hear("released"), "ok");
}

#[test]
fn a_late_write_of_a_stopped_holder_is_refused() {
    let (_dir, file) = temp();
    let locks = locks(&file);
    block(async {
        let pool = pool(&file).await;
        sqlx::raw_sql("CREATE TABLE written (what TEXT)").execute(&pool).await.expect("made");
        pool.close().await;
    });
    let mut child = Child::start("write", &file, "k", millis(700));
    child.hear("held");
    child.signal(Signal::STOP);
    let guard = locks.lock("k").wait(secs(20)).acquire().expect("its ttl is over");
    write(&file, "k", guard.fence(), "in time").expect("the newest fence");
    child.signal(Signal::CONT);
    child.tell("write");
    assert_eq!(child.hear("wrote"), "stale_fence");
    let written: Vec<String> = block(async {
        let all =
            sqlx::query_scalar("SELECT what FROM written").fetch_all(&pool(&file).await).await;
        all.expect("read")
    });
    assert_eq!(written, ["in time"]);
}

#[test]
fn a_lease_outlives_its_process() {
    let (_dir, file) = temp();
    let mut child = Child::start("lease", &file, "k", secs(60));
    let lease = child.hear("lease");
    child.process.wait().expect("ended");
    let locks = locks(&file);
    assert_eq!(locks.lock("k").acquire().expect_err("held").code(), "lock_taken");
    let lease: Lease = serde_json::from_str(&lease).expect("a lease");
    let old = lease.fence;
    let guard = locks.resume(lease.clone()).expect("resumed");
    assert!(guard.fence() > old);
    assert_eq!(locks.resume(lease).expect_err("one wins").code(), "lock_lost");
}

#[test]
fn eight_processes_may_open_a_new_file_at_once() {
    for _ in 0..3 {
        let (_dir, file) = temp();
        let children: Vec<_> = (0..8).map(|_| Child::start("wait", &file, "k", secs(60))).collect();
        let mut waiting: Vec<Option<Child>> = children.into_iter().map(Some).collect();
        for _ in 0..waiting.len() {
            let mut next = None;
            until("one holds", || {
                let held = |c: &Option<Child>| {
                    c.as_ref().is_some_and(|child| child.said.try_recv().is_ok())
                };
                next = waiting.iter().position(held);
                next.is_some()
            });
            let mut child = next.and_then(|at| waiting[at].take()).expect("one of them");
            child.tell("release");
            assert_eq!(child.hear("released"), "ok");
        }
    }
}

#[test]
fn kills_at_any_instant_leave_order() {
    let (_dir, file) = temp();
    let log = file.with_extension("log");
    fs::write(&log, "").expect("written");
    let start = || Child::start("loop", &file, "k", secs(1));
    let mut children: Vec<Child> = (0..3).map(|_| start()).collect();
    children.iter().for_each(|c| drop(c.hear("ready")));
    let began = Instant::now();
    let mut kills = 0;
    while began.elapsed() < secs(4) {
        // A different instant each time; where in its loop that hits nobody knows.
        std::thread::sleep(Duration::from_micros(60_000 + 7_117 * (kills % 41)));
        let victim = (kills % 3) as usize;
        std::mem::replace(&mut children[victim], start()).kill();
        kills += 1;
    }
    children.into_iter().for_each(Child::kill);
    let log = fs::read_to_string(log).expect("reads");
    let (mut last, mut inside) = (0, None);
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let fence: u64 = words[1].parse().expect("a fence");
        if words[0] == "enter" {
            assert!(fence > last, "fences grow: {line}");
            (last, inside) = (fence, Some(fence)); // whoever was inside was killed there
        } else {
            assert_eq!(inside.take(), Some(fence), "somebody else came in: {line}");
        }
    }
    println!("{kills} kills, {} entries", log.lines().filter(|l| l.starts_with("enter")).count());
    assert!(kills > 10 && last > 0);
    let locks = locks(&file);
    locks.lock("k").wait(secs(20)).acquire().expect("no damage").release().expect("held");
    until("nothing is left", || {
        locks.list("", PageRequest::default()).expect("listed").keys.is_empty()
    });
}

#[test]
fn bad_inputs_are_refused_with_what_to_do() {
    let (dir, file) = temp();
    let refused = |address: &str, code: &str, hint: &str| {
        let error = blocking::Locks::connect(address).expect_err(address);
        assert_eq!(error.code(), code, "{address}: {error}");
        let text = error.to_string();
        assert!(text.contains(hint), "{address}: {text}");
        assert!(!text.contains(&dir.path().display().to_string()), "no address: {text}");
    };
    fs::write(&file, "certainly no database, and longer than a header has bytes".repeat(20))
        .expect("written");
    refused(&address(&file), "lock_backend", "not an SQLite database");
    refused(&address(dir.path()), "lock_backend", "is a directory");
    refused(&address(&dir.path().join("no/such.db")), "lock_backend", "directory does not exist");
    let missing = dir.path().join("missing.db");
    refused(&format!("{}?mode=rw", address(&missing)), "lock_backend", "mode=rwc");
    assert!(!missing.exists());
    refused("sqlite::memory:", "invalid_argument", "memory:");
    refused("sqlite:", "invalid_argument", "names no file");
    refused("sqlite:///x?cache=shared", "invalid_argument", "synchronous=normal");

    let good = dir.path().join("good.db");
    drop(locks(&good));
    fs::set_permissions(&good, fs::Permissions::from_mode(0o444)).expect("set");
    refused(&address(&good), "lock_backend", "read-only");

    let corrupt = dir.path().join("corrupt.db");
    let mut header = b"SQLite format 3\0".to_vec();
    header.extend([0xff; 4080]);
    fs::write(&corrupt, header).expect("written");
    refused(&address(&corrupt), "lock_backend", "");
}

#[test]
fn a_token_is_not_in_the_file() {
    let (dir, file) = temp();
    let locks = locks(&file);
    let guard = locks.lock("k").note("findme").acquire().expect("free");
    let lease = guard.into_lease().expect("a lease");
    let token = lease.token.expose();
    let found = |what: &[u8]| {
        let files = fs::read_dir(dir.path()).expect("reads").map(|e| e.expect("an entry").path());
        let hit = |text: Vec<u8>| text.windows(what.len()).any(|part| part == what);
        files.map(|path| fs::read(path).expect("reads")).any(hit)
    };
    assert!(found(b"findme"), "the search works");
    assert!(!found(&token.to_be_bytes()) && !found(&token.to_le_bytes()));
    assert!(!found(format!("{token:032x}").as_bytes()) && !found(token.to_string().as_bytes()));
}

#[tokio::test]
async fn the_users_own_pool_is_left_alone() {
    let (_dir, file) = temp();
    let pool = pool(&file).await;
    let locks = Locks::new(SqliteLockProvider::from_pool(&pool).await.expect("the pool's file"));
    let size = pool.size();
    let mut guards = Vec::new();
    for n in 0..20 {
        guards.push(locks.lock(format!("k{n}")).acquire().await.expect("free"));
    }
    assert_eq!(pool.size(), size);
    // The same file by its address.
    let other = Locks::connect(&address(&file)).await.expect("a database");
    assert!(other.lock("k7").try_acquire().await.expect("asked").is_none());

    let memory = SqlitePool::connect("sqlite::memory:").await.expect("a pool");
    let error = SqliteLockProvider::from_pool(&memory).await.expect_err("in memory");
    assert!(error.to_string().contains("use a file"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_stays_is_an_outage_and_no_contention() {
    let (_dir, file) = temp();
    let locks = Locks::connect(&address(&file)).await.expect("a database");
    let pool = pool(&file).await;
    let blocking = pool.begin_with("BEGIN IMMEDIATE").await.expect("begun");
    let error = locks.lock("k").acquire().await.expect_err("locked");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    blocking.rollback().await.expect("undone");
    let again = locks.lock("k").wait(secs(10)).acquire().await.expect("it works again");
    again.release().await.expect("held");
}

#[tokio::test]
async fn the_schema_is_what_is_made() {
    let (_dir, file) = temp();
    let _locks = Locks::connect(&address(&file)).await.expect("a database");
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
    )
    .fetch_all(&pool(&file).await)
    .await
    .expect("read");
    for table in tables {
        assert!(table.starts_with("latchwork_"), "{table}");
        let shown = SqliteLockProvider::schema().contains(&format!("CREATE TABLE {table} "));
        assert!(shown || table == "latchwork_migrations", "{table}");
    }
}

#[tokio::test]
async fn a_file_that_was_removed_grants_nothing() {
    let (_dir, file) = temp();
    let old = Locks::connect(&address(&file)).await.expect("a database");
    let held = old.lock("k").acquire().await.expect("free");
    fs::remove_file(&file).expect("removed");
    let new = Locks::connect(&address(&file)).await.expect("a new one");
    let guard = new.lock("k").acquire().await.expect("it knows nothing of the old one");
    assert!(guard.fence() > held.fence(), "fences grow all the same");
    let error = old.lock("other").acquire().await.expect_err("the old one");
    assert_eq!(error.code(), "lock_backend");
    assert!(error.to_string().contains("start them again"), "{error}");
}
