//! The file provider: what only real processes and real files can show.
#![cfg(all(feature = "file", target_os = "linux"))]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the helpers of a test fail it, and a child speaks by its output"
)]

mod support;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use latchwork_lock::{
    AcquireRequest, Acquired, FileLockProvider, Key, Lease, LockProvider, Locks, Mode, PageRequest,
    Token, Wait, blocking,
};
use support::child::{hold, say, told};
use support::log::kill_at_any_instant;
use support::{Child, Part, Signal, secs, until};

// ---- the other process -------------------------------------------------------------------------

/// Not a test of its own: what [`Child`] runs.
#[test]
fn child_process() {
    support::child::play(|part| {
        let dir = Path::new(part.address.strip_prefix("file://").expect("a directory"));
        match part.name.as_str() {
            "companion" => {
                let pid = part.place.parse().expect("a number");
                let builder = FileLockProvider::builder(dir).companion(pid);
                let locks = blocking::Locks::new(builder.open().expect("a directory"));
                hold(locks.lock(&part.key).ttl(part.ttl).acquire().expect("acquired"));
            }
            "open" => {
                let answer = blocking::Locks::connect(&part.address).and_then(|locks| {
                    locks.lock(&part.key).acquire().map(|guard| drop(guard.release()))
                });
                say(&match answer {
                    Ok(()) => "opened ok".to_owned(),
                    Err(error) => format!("opened {} {error}", error.code()),
                });
            }
            "exhaust" => exhaust(&locks(dir), &part.key),
            "rounds" => {
                say("ready");
                while let Some(line) = told() {
                    let locks = locks(&dir.join(line));
                    let guard = locks.lock(&part.key).ttl(part.ttl).wait(secs(20)).acquire();
                    let guard = guard.expect("acquired");
                    let fence = guard.fence();
                    guard.release().expect("released");
                    say(&format!("fence {fence}"));
                }
            }
            _ => return false,
        }
        true
    });
}

/// Opens files until the limit is reached, and asks for a lock then.
fn exhaust(locks: &blocking::Locks, key: &str) {
    locks.lock(key).acquire().expect("free").release().expect("released");
    let mut all = Vec::new();
    while let Ok(file) = fs::File::open("/dev/null") {
        all.push(file);
    }
    let error = locks.lock(key).acquire().expect_err("no descriptor is left");
    drop(all);
    say(&format!("exhausted {} {error}", error.code()));
    let again = locks.lock(key).acquire();
    say(&format!("again {}", again.map_or_else(|e| e.code(), |_| "ok")));
}

fn part(name: &str, dir: &Path, key: &str, ttl: Duration) -> Part {
    Part::new(name, &address(dir), key, ttl)
}

fn child(name: &str, dir: &Path, key: &str, ttl: Duration) -> Child {
    part(name, dir, key, ttl).start()
}

fn holder(dir: &Path, key: &str, ttl: Duration) -> (Child, u64) {
    Child::hold(&address(dir), key, ttl)
}

// ---- helpers -----------------------------------------------------------------------------------

fn address(dir: &Path) -> String {
    format!("file://{}", dir.display())
}

async fn connect(dir: &Path) -> Locks {
    Locks::connect(&address(dir)).await.expect("a directory")
}

fn locks(dir: &Path) -> blocking::Locks {
    blocking::Locks::connect(&address(dir)).expect("a directory")
}

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(dir).expect("reads").map(|e| e.expect("an entry").path()).collect();
    found.sort();
    found
}

/// The shards that were used.
fn shards(dir: &Path) -> Vec<PathBuf> {
    let mut found = files(&dir.join("shards"));
    found.retain(|path| path.file_name().is_some_and(|name| name.len() == 2));
    found
}

/// The one record there is.
fn record(dir: &Path) -> PathBuf {
    let found = files(&dir.join("keys"));
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

fn replace(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).expect("reads");
    assert!(text.contains(from), "{from} is not in {text}");
    fs::write(path, text.replace(from, to)).expect("written");
}

fn waiters(locks: &blocking::Locks, key: &str) -> usize {
    locks.inspect(key).expect("inspected").waiters.len()
}

// ---- the tests ---------------------------------------------------------------------------------

#[tokio::test]
async fn the_front_door_works() {
    let dir = tempfile::tempdir().expect("a directory");
    let locks = connect(dir.path()).await;
    assert_eq!(locks.provider_name(), "file");
    let guard = locks.lock("order:1").note("smoke").acquire().await.expect("free");
    assert!(locks.lock("order:1").try_acquire().await.expect("asked").is_none());
    let other = connect(dir.path()).await;
    let waiting = tokio::spawn(async move {
        let guard = other.lock("order:1").wait(secs(10)).acquire().await.expect("its turn");
        (guard.waited(), guard.fence(), guard.release().await)
    });
    let queued = Instant::now();
    while locks.inspect("order:1").await.expect("inspected").waiters.is_empty() {
        assert!(queued.elapsed() < secs(5), "it never queued");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let page = locks.list("", PageRequest::default()).await.expect("listed");
    assert_eq!(page.keys.len(), 1);
    assert_eq!(page.keys[0].key, "order:1");
    assert_eq!(page.keys[0].holders[0].note.as_deref(), Some("smoke"));
    let first = guard.fence();
    let released = Instant::now();
    guard.release().await.expect("released");
    let (waited, fence, release) = waiting.await.expect("ended");
    println!("hand-over in {:?}", released.elapsed());
    assert!(waited && fence > first);
    release.expect("released");

    let a = locks.lock("s").shared().acquire().await.expect("free");
    let b = locks.lock("s").shared().acquire().await.expect("shared");
    assert!(locks.lock("s").try_acquire().await.expect("asked").is_none());
    drop((a, b));
    locks.close().await;
    let guard = locks.lock("s").acquire().await.expect("close flushed the drops");
    assert_eq!(locks.break_lock("s").await.expect("broken").len(), 1);
    assert_eq!(guard.release().await.expect_err("broken").code(), "lock_lost");

    let guard = locks.lock("r").acquire().await.expect("free");
    let old = guard.fence();
    let lease = guard.into_lease().await.expect("a lease");
    let guard = locks.resume(lease.clone()).await.expect("resumed");
    assert!(guard.fence() > old);
    assert_eq!(locks.resume(lease).await.expect_err("one wins").code(), "lock_lost");
    guard.release().await.expect("released");
    let left: Vec<_> = std::fs::read_dir(dir.path().join("keys")).expect("reads").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_killed_holder_frees_at_once() {
    let dir = temp();
    let locks = locks(dir.path());
    let (child, fence) = holder(dir.path(), "k", secs(600));
    let waiting = std::thread::spawn({
        let locks = locks.clone();
        move || locks.lock("k").wait(secs(60)).acquire().map(|guard| guard.fence().get())
    });
    until("it waits", || waiters(&locks, "k") == 1);
    child.signal(Signal::KILL); // and not waited for: a zombie holds nothing
    let killed = Instant::now();
    let got = waiting.join().expect("ended").expect("acquired");
    assert!(killed.elapsed() < secs(5), "{:?}", killed.elapsed());
    println!("freed {:?} after the kill", killed.elapsed());
    assert!(got > fence);
}

#[test]
fn a_lease_lives_while_a_companion_does() {
    let dir = temp();
    let locks = locks(dir.path());
    let mut companion = Command::new("sleep").arg("600").spawn().expect("started");
    let part = part("companion", dir.path(), "k", secs(600));
    let child = part.writing_to(&companion.id().to_string()).start();
    child.hear("held");
    child.kill();
    let taken = locks.lock("k").wait(Duration::from_millis(600)).acquire().expect_err("held");
    assert_eq!(taken.code(), "lock_taken");
    companion.kill().expect("killed");
    let killed = Instant::now();
    let _guard = locks.lock("k").wait(secs(60)).acquire().expect("free");
    assert!(killed.elapsed() < secs(5), "{:?}", killed.elapsed());
    companion.wait().expect("ended");
    let gone = FileLockProvider::builder(dir.path()).companion(companion.id()).open();
    assert_eq!(gone.expect_err("it is dead").code(), "invalid_argument");
}

/// Where syncing costs nothing, edits are many more; and no dead process is waited for.
#[test]
fn kills_at_any_instant_leave_order_in_memory() {
    let dir = match tempfile::tempdir_in("/dev/shm") {
        Ok(dir) => dir,
        Err(error) => {
            println!("SKIPPED kills_at_any_instant_leave_order_in_memory: {error}");
            return;
        }
    };
    let log = dir.path().join("log").display().to_string();
    let part = part("loop", dir.path(), "k", secs(600)).writing_to(&log);
    let last = kill_at_any_instant(&part, 4, Duration::from_millis(5));
    let locks = locks(dir.path());
    let guard = locks.lock("k").wait(secs(10)).acquire().expect("no damage, nobody left");
    assert!(guard.fence().get() > last);
    assert!(locks.inspect("k").expect("inspected").waiters.is_empty());
    guard.release().expect("released");
    assert!(files(&dir.path().join("keys")).is_empty());
}

#[test]
fn a_stopped_waiter_does_not_block_the_queue() {
    let dir = temp();
    let locks = locks(dir.path());
    let guard = locks.lock("k").ttl(secs(600)).acquire().expect("free");
    let mut first = child("wait", dir.path(), "k", secs(600));
    until("the first waits", || waiters(&locks, "k") == 1);
    let mut second = child("wait", dir.path(), "k", secs(600));
    until("the second waits", || waiters(&locks, "k") == 2);
    first.signal(Signal::STOP);
    guard.release().expect("released");
    let released = Instant::now();
    second.hear("held");
    assert!(released.elapsed() > Duration::from_millis(1_500), "it was the first one's turn");
    assert!(released.elapsed() < secs(6), "{:?}", released.elapsed());
    first.signal(Signal::CONT);
    until("the first queues again", || waiters(&locks, "k") == 1);
    second.tell("release");
    assert_eq!(second.hear("released"), "ok");
    first.hear("held");
    first.tell("release");
    assert_eq!(first.hear("released"), "ok");
}

#[test]
fn a_reboot_frees_everything() {
    let dir = temp();
    let locks = locks(dir.path());
    let (child, fence) = holder(dir.path(), "k", secs(600));
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("reads");
    replace(&record(dir.path()), boot.trim(), "00000000-0000-0000-0000-000000000000");
    assert!(!locks.exists("k").expect("inspected"));
    let guard = locks.lock("k").acquire().expect("that was before the reboot");
    assert!(guard.fence().get() > fence);
    drop(child);
}

#[test]
fn a_reused_pid_is_another_process() {
    let dir = temp();
    let locks = locks(dir.path());
    let (child, fence) = holder(dir.path(), "k", secs(600));
    replace(&record(dir.path()), "\"start_ticks\": ", "\"start_ticks\": 1");
    let guard = locks.lock("k").acquire().expect("its process is gone");
    assert!(guard.fence().get() > fence);
    drop(child);
}

#[test]
fn a_process_of_another_namespace_lives_until_its_ttl() {
    let dir = temp();
    let locks = locks(dir.path());
    let (child, _) = holder(dir.path(), "k", secs(2));
    replace(&record(dir.path()), "pid:[", "pid:[9");
    child.kill();
    assert!(locks.lock("k").try_acquire().expect("asked").is_none(), "who knows whether it lives");
    let _guard = locks.lock("k").wait(secs(20)).acquire().expect("the ttl ended it");
}

#[test]
fn many_processes_open_a_fresh_directory_at_once() {
    let dir = temp();
    let mut children: Vec<Child> =
        (0..8).map(|_| child("rounds", dir.path(), "k", secs(60))).collect();
    children.iter().for_each(|c| drop(c.hear("ready")));
    for round in 0..25 {
        children.iter_mut().for_each(|c| c.tell(&format!("a/b/{round}")));
        let fences: BTreeSet<String> = children.iter().map(|c| c.hear("fence")).collect();
        assert_eq!(fences.len(), 8, "each has its own: {fences:?}");
    }
}

#[test]
fn a_lease_outlives_its_process_when_handed_over() {
    let dir = temp();
    let locks = locks(dir.path());
    let mut child = child("lease", dir.path(), "k", secs(600));
    let lease: Lease = serde_json::from_str(&child.hear("lease")).expect("a lease");
    assert!(child.ends_well());
    assert!(locks.lock("k").try_acquire().expect("asked").is_none(), "it is still held");
    let old = lease.fence;
    let guard = locks.resume(lease.clone()).expect("resumed");
    assert!(guard.fence() > old);
    assert_eq!(locks.resume(lease).expect_err("one wins").code(), "lock_lost");
    let text = fs::read_to_string(record(dir.path())).expect("reads");
    assert!(text.contains(&format!("\"pid\": {}", std::process::id())), "{text}");
    assert!(text.contains("\"handed_over\": false"), "{text}");
    guard.release().expect("released");
}

#[test]
fn a_damaged_record_is_not_free_and_can_be_broken() {
    let dir = temp();
    let locks = locks(dir.path());
    let mut last = 0;
    for damage in ["", "{", "[]", "{\"format\": 1}", "cut"] {
        let other = locks.lock("other").acquire().expect("free");
        let guard = locks.lock("k").acquire().expect("free");
        assert!(guard.fence().get() > last);
        last = guard.fence().get();
        let path = dir.path().join("keys/lock%2Fk.json");
        match damage {
            "cut" => {
                let text = fs::read(&path).expect("reads");
                fs::write(&path, &text[..text.len() / 2]).expect("written");
            }
            text => fs::write(&path, text).expect("written"),
        }
        let before = fs::read(&path).expect("reads");
        for error in [
            locks.lock("k").acquire().expect_err("not free"),
            locks.lock("k").wait(secs(5)).acquire().expect_err("not free"),
            locks.inspect("k").expect_err("not free"),
            guard.release().expect_err("cannot tell"),
        ] {
            assert_eq!(error.code(), "lock_backend", "{error}");
            assert!(error.to_string().contains("lock%2Fk.json"), "{error}");
        }
        assert_eq!(fs::read(&path).expect("reads"), before, "nothing was changed");
        let page = locks.list("", PageRequest::default()).expect("listed");
        assert_eq!(page.keys.len(), 1, "the others are listed");
        assert!(locks.break_lock("k").expect("broken").is_empty());
        assert!(!path.exists());
        other.release().expect("released");
    }
    // A healthy record of another key, or of a later version, is not ours to remove.
    let _guard = locks.lock("k").acquire().expect("free");
    let path = dir.path().join("keys/lock%2Fk.json");
    replace(&path, "\"lock/k\"", "\"lock/K\"");
    let error = locks.lock("k").acquire().expect_err("another key's");
    assert!(error.code() == "lock_backend" && error.to_string().contains("lock/K"), "{error}");
    assert_eq!(locks.break_lock("k").expect_err("another key's").code(), "lock_backend");
    replace(&path, "\"lock/K\"", "\"lock/k\"");
    replace(&path, "\"format\": 1", "\"format\": 2");
    assert_eq!(locks.break_lock("k").expect_err("a later version's").code(), "lock_backend");
    assert!(path.exists());
}

#[test]
fn what_a_power_cut_damaged_is_removed_after_it() {
    let dir = temp();
    let fence = locks(dir.path()).lock("k").acquire().expect("free").fence();
    let path = dir.path().join("keys/lock%2Fk.json");
    let marker = dir.path().join("boot");
    fs::write(&path, "").expect("written");
    fs::remove_file(&marker).expect("removed");
    // Nobody knows whose it is.
    let error = locks(dir.path()).lock("k").acquire().expect_err("damaged");
    assert_eq!(error.code(), "lock_backend", "{error}");
    fs::write(&marker, "00000000-0000-0000-0000-000000000000\n").expect("written");
    let guard = locks(dir.path()).lock("k").acquire().expect("it was of another boot");
    assert!(guard.fence() > fence);
    guard.release().expect("released");
}

#[test]
fn a_torn_fence_is_skipped_and_a_lost_one_refused() {
    let dir = temp();
    let locks = locks(dir.path());
    let fence = || {
        let guard = locks.lock("k").acquire()?;
        let fence = guard.fence().get();
        guard.release().map(|()| fence)
    };
    let (a, b) = (fence().expect("a fence"), fence().expect("a fence"));
    assert_eq!(b, a + 1);
    let shard = shards(dir.path());
    assert_eq!(shard.len(), 1, "{shard:?}");
    let file = OpenOptions::new().write(true).open(&shard[0]).expect("opens");
    file.write_all_at(b"?", 4096 + 20).expect("torn"); // the newer one
    let c = fence().expect("a fence");
    assert!(c > b, "the torn one may have been the last: {c}");
    assert!(fence().expect("healed") > c);
    file.write_all_at(b"?", 20).expect("torn");
    file.write_all_at(b"?", 4096 + 20).expect("torn");
    let error = fence().expect_err("no fence is left");
    assert_eq!(error.code(), "lock_backend");
    assert!(error.to_string().contains(shard[0].to_str().expect("text")), "{error}");
    assert!(files(&dir.path().join("keys")).is_empty(), "nothing was granted");
}

#[test]
fn every_legal_key_has_its_own_record() {
    let dir = temp();
    let locks = locks(dir.path()).with_prefix("").expect("a prefix");
    let long = |end: &str| format!("{}{end}", "ö".repeat(255));
    let keys = [
        ".",
        "..",
        "...",
        "/",
        "//",
        "a/b",
        "a%2Fb",
        "../../etc/passwd",
        ".hidden",
        "Case",
        "case",
        "a b",
        " ",
        "~",
        "%",
        "*?[]",
        "\\",
        "ü",
        "u\u{308}",
        "日本",
        "🦀",
        "-rf",
        "a.json",
        "a",
    ];
    let long = [long("xx"), long("xy"), "x".repeat(512), "/".repeat(512)];
    let keys: Vec<&str> = keys.into_iter().chain(long.iter().map(String::as_str)).collect();
    let guards: Vec<_> =
        keys.iter().map(|key| locks.lock(key).acquire().expect("its own")).collect();
    for key in &keys {
        assert!(locks.lock(key).try_acquire().expect("asked").is_none(), "{key:?}");
    }
    let names = files(&dir.path().join("keys"));
    assert_eq!(names.len(), keys.len());
    for name in &names {
        let name = name.file_name().and_then(|n| n.to_str()).expect("a name");
        assert!(name.is_ascii() && !name.starts_with('.'), "{name}");
    }
    let page = locks.list("", PageRequest::default()).expect("listed");
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    assert_eq!(page.keys.iter().map(|i| i.key.as_str()).collect::<Vec<_>>(), sorted);
    guards.into_iter().for_each(|g| g.release().expect("released"));
    assert!(files(&dir.path().join("keys")).is_empty());
}

#[test]
fn no_file_has_a_token() {
    let dir = temp();
    let locks = locks(dir.path());
    let lease = locks.lock("k").acquire().expect("free").into_lease().expect("a lease");
    let _child = child("wait", dir.path(), "k", secs(60));
    until("it waits", || waiters(&locks, "k") == 1);
    let token = lease.token.expose();
    let shapes = [
        format!("{token:x}"),
        format!("{token:X}"),
        token.to_string(),
        format!("{:x}", token.swap_bytes()),
    ];
    let mut looked = 0;
    for path in ["", "keys", "shards"].iter().flat_map(|part| files(&dir.path().join(part))) {
        if !path.is_file() {
            continue;
        }
        let bytes = fs::read(&path).expect("reads");
        let text = String::from_utf8_lossy(&bytes);
        looked += 1;
        assert!(shapes.iter().all(|s| !text.contains(s.as_str())), "{}", path.display());
        assert!(bytes.windows(16).all(|w| w != token.to_be_bytes() && w != token.to_le_bytes()));
    }
    assert!(looked >= 2);
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(&dir.path().join("keys")), 0o700);
    assert_eq!(mode(&record(dir.path())), 0o600);
    drop(locks.resume(lease).expect("resumed"));
}

#[test]
fn a_drop_without_a_runtime_is_flushed_by_close() {
    let dir = temp();
    let locks = locks(dir.path());
    for _ in 0..20 {
        let guards: Vec<_> = (0..5)
            .map(|n| locks.lock(format!("k{n}")).acquire().expect("flushed before"))
            .collect();
        std::thread::spawn(move || drop(guards)).join().expect("dropped");
        locks.close();
        assert!(files(&dir.path().join("keys")).is_empty());
    }
}

#[tokio::test]
async fn a_dropped_question_leaves_nothing() {
    let dir = temp();
    let locks = connect(dir.path()).await;
    for round in 0..60_u32 {
        // Dropped before, in and after the edit, with and without a wait.
        let patience = Duration::from_micros(u64::from(round) * 150);
        let held = match round % 2 {
            0 => None,
            _ => Some(locks.lock("k").acquire().await.expect("nothing was left")),
        };
        let asking = locks.lock("k").wait(secs(60)).acquire();
        let got = tokio::time::timeout(patience, asking).await;
        drop(got);
        drop(held);
        locks.close().await;
        let left = files(&dir.path().join("keys"));
        // An edit that was under way ends after the close, and then sees that nobody wants it.
        assert!(left.is_empty(), "round {round}: {}", fs::read_to_string(&left[0]).expect("reads"));
    }
}

#[test]
fn a_question_that_nobody_waits_for_is_not_asked() {
    let dir = temp();
    // The thread for edits is busy: the question is still to be asked when it is dropped.
    one_blocking_thread().block_on(async {
        let locks = connect(dir.path()).await;
        let lease = locks.lock("r").acquire().await.expect("free").into_lease().await;
        let lease = lease.expect("a lease");
        let (go, wait) = channel();
        let busy = tokio::task::spawn_blocking(move || wait.recv());
        let soon = Duration::from_millis(20);
        let asked = tokio::time::timeout(soon, locks.lock("k").acquire()).await;
        assert!(asked.is_err(), "nobody can answer");
        let resumed = tokio::time::timeout(soon, locks.resume(lease.clone())).await;
        assert!(resumed.is_err(), "nobody can answer");
        locks.close().await;
        go.send(()).expect("heard");
        busy.await.expect("ended").expect("told");
        tokio::task::spawn_blocking(|| ()).await.expect("after the question");
        assert!(!locks.exists("k").await.expect("inspected"), "a grant without an owner");
        // The lease was not rotated to a token that nobody has.
        locks.resume(lease).await.expect("still there").release().await.expect("released");
    });
}

#[test]
fn a_waiter_whose_time_is_over_is_not_let_in_out_of_turn() {
    let dir = temp();
    let other = locks(dir.path());
    let held = other.lock("k").acquire().expect("free");
    one_blocking_thread().block_on(async {
        let locks = connect(dir.path()).await;
        let asking = tokio::spawn(async move {
            locks.lock("k").wait(Duration::from_millis(300)).acquire().await.map(drop)
        });
        let began = Instant::now();
        let queued = async |count| {
            while waiters(&other, "k") != count {
                assert!(began.elapsed() < secs(20), "never {count} waiters");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        queued(1).await;
        // Its last question comes late.
        let (go, wait) = channel();
        let busy = tokio::task::spawn_blocking(move || wait.recv());
        queued(0).await;
        held.release().expect("released");
        other.lock("k").acquire().expect("the next one's turn").release().expect("released");
        go.send(()).expect("heard");
        busy.await.expect("ended").expect("told");
        let late = asking.await.expect("ended").expect_err("others were served meanwhile");
        assert_eq!(late.code(), "lock_taken");
    });
}

fn one_blocking_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .expect("a runtime")
}

#[tokio::test]
async fn a_provider_needs_no_front_door_to_leave_the_queue() {
    let dir = temp();
    let provider = FileLockProvider::open(dir.path()).expect("a directory");
    let request = |wait| AcquireRequest {
        key: Key::new("k").expect("a key"),
        mode: Mode::Exclusive,
        token: Token::random(),
        owner: None,
        note: None,
        ttl: secs(600),
        wait,
        retry_interval: secs(1),
        sent_at: provider.clock().now(),
    };
    let first = request(Wait::No);
    let granted = provider.acquire(&first).await.expect("asked");
    assert!(matches!(granted, Acquired::Granted(_)), "{granted:?}");
    let second = request(Wait::Forever);
    let waiting = tokio::time::timeout(Duration::from_millis(300), provider.acquire(&second));
    assert!(waiting.await.is_err());
    provider.close().await;
    let found = provider.inspect(&first.key).await.expect("inspected");
    assert_eq!((found.holders.len(), found.waiters.len()), (1, 0));
    // Asked again, the same grant (L17).
    let Acquired::Granted(again) = provider.acquire(&first).await.expect("asked") else {
        panic!("it is ours");
    };
    assert_eq!(again.fence, found.holders[0].fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_all_get_their_turn() {
    let dir = temp();
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let locks = connect(dir.path()).await;
        for _ in 0..20 {
            let (locks, inside) = (locks.clone(), inside.clone());
            tasks.push(tokio::spawn(async move {
                let guard = locks.lock("k").wait(secs(60)).acquire().await.expect("its turn");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                let fence = guard.fence().get();
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.expect("held to the end");
                fence
            }));
        }
    }
    let began = Instant::now();
    let mut fences = BTreeSet::new();
    for task in tasks {
        fences.insert(task.await.expect("ended"));
    }
    println!("60 turns in {:?}", began.elapsed());
    // Without notices each would take the fallback second.
    assert!(began.elapsed() < secs(30), "{:?}", began.elapsed());
    assert_eq!(fences.len(), 60);
    assert!(files(&dir.path().join("keys")).is_empty());
}

#[test]
fn opening_sweeps_now_and_then() {
    let dir = temp();
    let (child, _) = holder(dir.path(), "forgotten", secs(600));
    child.kill();
    let _open = locks(dir.path());
    assert_eq!(files(&dir.path().join("keys")).len(), 1, "it was swept just before");
    let swept = OpenOptions::new().write(true).open(dir.path().join("swept")).expect("opens");
    swept.set_modified(std::time::UNIX_EPOCH).expect("set");
    let _open = locks(dir.path());
    until("it is swept", || files(&dir.path().join("keys")).is_empty());
}

#[test]
fn listing_cleans_up_after_the_dead() {
    let dir = temp();
    let locks = locks(dir.path());
    let children: Vec<Child> =
        ["a", "b", "c"].iter().map(|key| holder(dir.path(), key, secs(600)).0).collect();
    assert_eq!(locks.list("", PageRequest::default()).expect("listed").keys.len(), 3);
    children.into_iter().for_each(Child::kill);
    assert_eq!(files(&dir.path().join("keys")).len(), 3);
    assert!(locks.list("", PageRequest::default()).expect("listed").keys.is_empty());
    assert!(files(&dir.path().join("keys")).is_empty());
}

#[test]
fn whoever_is_stopped_in_an_edit_is_an_outage_and_no_contention() {
    let dir = temp();
    let locks = locks(dir.path());
    locks.lock("k").acquire().expect("free").release().expect("released");
    let shard = shards(dir.path());
    let file = OpenOptions::new().write(true).open(&shard[0]).expect("opens");
    file.lock().expect("locked");
    let error = locks.lock("k").acquire().expect_err("somebody edits");
    assert_eq!(error.code(), "lock_unavailable");
    assert!(error.to_string().contains("/proc/locks"), "{error}");
    file.unlock().expect("unlocked");
    locks.close();
    let _guard = locks.lock("k").acquire().expect("free");
}

#[test]
fn addresses_are_checked() {
    let dir = temp();
    let base = address(dir.path());
    for bad in [
        format!("{base}?allow-network-fs=maybe"),
        format!("{base}?wait=1"),
        "file:locks".into(),
        "file://".into(),
        "file://elsewhere/locks".into(),
    ] {
        let error = blocking::Locks::connect(&bad).expect_err(&bad);
        assert_eq!(error.code(), "invalid_argument", "{bad}: {error}");
    }
    blocking::Locks::connect(&format!("{base}?allow-network-fs=true")).expect("known");
    fs::write(dir.path().join("file"), "").expect("written");
    let error = blocking::Locks::connect(&format!("{base}/file")).expect_err("no directory");
    assert_eq!(error.code(), "lock_backend", "{error}");
}

#[test]
fn a_directory_without_permission_is_a_clear_error() {
    use std::os::unix::fs::PermissionsExt;
    let dir = temp();
    let inside = dir.path().join("locks");
    locks(&inside).lock("k").acquire().expect("free").release().expect("released");
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("set");
    let said = if rustix::process::geteuid().is_root() {
        // The build directory may be closed to others, so the program moves.
        let program = dir.path().join("program");
        fs::copy(std::env::current_exe().expect("this program"), &program).expect("copied");
        let mut run = Command::new("setpriv");
        run.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        let child = part("open", &inside, "k", secs(10)).start_as(run);
        child.hear("opened")
    } else {
        fs::set_permissions(&inside, PermissionsExt::from_mode(0o000)).expect("set");
        let child = child("open", &inside, "k", secs(10));
        let said = child.hear("opened");
        fs::set_permissions(&inside, PermissionsExt::from_mode(0o700)).expect("set");
        said
    };
    assert!(said.starts_with("lock_backend"), "{said}");
    assert!(said.contains("permission denied") && said.contains("locks"), "{said}");
}

#[test]
fn a_full_disk_is_an_outage_and_loses_nothing() {
    let dir = temp();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
        .arg(dir.path())
        .stderr(Stdio::null())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        println!("SKIPPED a_full_disk_is_an_outage_and_loses_nothing: needs the right to mount");
        return;
    }
    let _unmount = Unmount(dir.path().to_owned());
    let locks = locks(dir.path());
    let held = locks.lock("held").acquire().expect("free");
    let fence = held.fence();
    let fill = dir.path().join("fill");
    let mut file = fs::File::create(&fill).expect("created");
    while file.write_all(&[0; 1024]).is_ok() {}

    let error = locks.lock("k").acquire().expect_err("no space");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    assert!(error.is_temporary() && error.to_string().contains("space"), "{error}");
    assert!(!locks.exists("k").expect("inspected"), "nothing was granted");
    let error = held.refresh_with(latchwork_lock::Refresh {
        threshold: Some(Duration::ZERO),
        ..Default::default()
    });
    assert_eq!(error.expect_err("no space").code(), "lock_unavailable");
    let holders = locks.inspect("held").expect("inspected").holders;
    assert_eq!(holders[0].fence, fence, "nothing was lost");
    held.release().expect("a release needs no space");
    assert!(!locks.exists("held").expect("inspected"));

    drop(file);
    fs::remove_file(&fill).expect("removed");
    let guard = locks.lock("held").acquire().expect("there is space");
    assert!(guard.fence() > fence);
}

#[test]
fn too_many_open_files_are_an_outage() {
    let dir = temp();
    // A shell sets the limit, so that it is the child's alone.
    let mut run = Command::new("sh");
    run.args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""]);
    run.arg(std::env::current_exe().expect("this program"));
    let child = part("exhaust", dir.path(), "k", secs(10)).start_as(run);
    let said = child.hear("exhausted");
    assert!(said.starts_with("lock_unavailable") && said.contains("ulimit"), "{said}");
    assert_eq!(child.hear("again"), "ok");
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
