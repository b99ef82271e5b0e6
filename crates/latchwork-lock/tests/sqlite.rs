//! The SQLite provider: what only real files can show.
#![cfg(all(feature = "sqlite", target_os = "linux"))]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the helpers of a test fail it, and a child speaks by its output"
)]

mod support;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use latchwork_lock::{Locks, PageRequest, SqliteLockProvider, blocking};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use support::{Part, eventually, millis, secs, time_namespace};
use tokio::runtime;

// ---- helpers -----------------------------------------------------------------------------------

fn address(file: &Path) -> String {
    format!("sqlite://{}", file.display())
}

fn locks(file: &Path) -> blocking::Locks {
    blocking::Locks::connect(&address(file)).expect("a database")
}

fn temp() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("locks.db");
    (dir, file)
}

async fn pool(file: &Path) -> SqlitePool {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    SqlitePool::connect_with(options).await.expect("a pool")
}

/// Takes a key again and again, for ever.
async fn keep_locking(locks: Locks, key: String, grants: Arc<AtomicU32>) {
    loop {
        // Long enough that nothing ends by itself.
        let guard = locks.lock(&*key).ttl(secs(600)).wait(secs(60)).acquire().await;
        grants.fetch_add(1, Ordering::Relaxed);
        guard.expect("in time").release().await.expect("held");
    }
}

/// Not a test of its own: what another process runs.
#[test]
fn child_process() {
    support::child::play(|part| {
        if part.name != "open" {
            return false;
        }
        let answer = blocking::Locks::connect(&part.address)
            .and_then(|locks| locks.lock(&part.key).acquire().map(|guard| drop(guard.release())));
        support::child::print_line(&match answer {
            Ok(()) => "opened ok".to_owned(),
            Err(error) => format!("opened {} {error}", error.code()),
        });
        true
    });
}

// ---- the tests ---------------------------------------------------------------------------------

#[test]
fn a_full_disk_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"])
        .arg(dir.path())
        .stderr(Stdio::null())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        println!("SKIPPED a_full_disk_is_named: needs the right to mount");
        return;
    }
    let _unmount = Unmount(dir.path().to_owned());
    let fill = |name: &str| {
        let mut file = fs::File::create(dir.path().join(name)).expect("created");
        while file.write_all(&[0; 1024]).is_ok() {}
    };
    let is_full = |error: latchwork_lock::Error| {
        assert_eq!(error.code(), "lock_unavailable", "{error}");
        assert!(error.is_temporary() && error.to_string().contains("disk is full"), "{error}");
    };
    let locks = locks(&dir.path().join("locks.db"));
    let held = locks.lock("held").acquire().expect("free");
    fill("fill");
    let keys = (0..100).map(|n| locks.lock(format!("key-{n}")).acquire());
    is_full(keys.filter_map(Result::err).next().expect("no space for all"));
    assert_eq!(locks.inspect("held").expect("read").holders[0].fence, held.fence());
    fs::remove_file(dir.path().join("fill")).expect("removed");
    held.release().expect("there is space");

    // A file for which there is some space, and none for the index of its log.
    let address = address(&dir.path().join("other.db"));
    let mut some = 0;
    while some < 64 {
        fill("fill");
        let filled = fs::File::options().write(true).open(dir.path().join("fill")).expect("there");
        let left = filled.metadata().expect("there").len().saturating_sub(some * 1024);
        filled.set_len(left).expect("shorter");
        match blocking::Locks::connect(&address) {
            Ok(_) => break,
            Err(error) => is_full(error),
        }
        some += 4;
    }
    assert!(some > 0, "the disk was full at first");
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
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

/// The transaction that meets it is rolled back, and nobody else is kept from writing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_row_stops_its_own_key_only() {
    let (_dir, file) = temp();
    let locks = Locks::connect(&address(&file)).await.expect("a database");
    let held = locks.lock("bad").acquire().await.expect("free");
    let pool = pool(&file).await;
    let damage = async |mode: &'static str| {
        let update = sqlx::query("UPDATE latchwork_lock_holder SET mode = ? WHERE mode <> ?");
        let done = update.bind(mode).bind(mode).execute(&pool).await.expect("updated");
        assert_eq!(done.rows_affected(), 1, "the one row");
    };
    damage("nonsense").await;
    // At once, so that they share a transaction.
    let [a, bad, b] = ["a", "bad", "b"].map(|key| locks.lock(key).try_acquire());
    let (a, bad, b) = futures::join!(a, bad, b);
    assert!(a.expect("asked").is_some() && b.expect("asked").is_some());
    let error = bad.expect_err("damaged");
    assert_eq!(error.code(), "lock_backend", "{error}");
    assert!(error.to_string().contains("is damaged"), "{error}");

    let other = Locks::connect(&address(&file)).await.expect("a database");
    other.lock("c").acquire().await.expect("free").release().await.expect("held");
    locks.close().await;
    damage("exclusive").await;
    held.release().await.expect("as it was");
}

/// Cut off anywhere: while asking, while waiting, while holding and while giving back.
#[tokio::test]
async fn a_runtime_that_ends_leaves_nothing_behind() {
    let (_dir, file) = temp();
    let locks = Locks::connect(&address(&file)).await.expect("a database");
    for round in 0..12 {
        let mut other = match round % 2 {
            0 => runtime::Builder::new_multi_thread(),
            _ => runtime::Builder::new_current_thread(),
        };
        let other = other.worker_threads(2).enable_all().build().expect("a runtime");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let grants = Arc::new(AtomicU32::new(0));
        for task in 0..16 {
            // Some have a key for themselves, and others share one.
            let key = format!("key-{}", if task < 8 { task } else { 8 });
            other.spawn(keep_locking(locks.clone(), key, grants.clone()));
        }
        let ends = std::thread::spawn(move || {
            let _ = other.block_on(stopped);
            match round % 3 {
                0 => other.shutdown_background(),
                _ => drop(other),
            }
        });
        eventually("they are at it", async || grants.load(Ordering::Relaxed) > 16).await;
        tokio::time::sleep(millis(round)).await;
        drop(stop);
        ends.join().expect("no panic");
        eventually("nothing is left", async || {
            locks.list("", PageRequest::default()).await.expect("it answers").keys.is_empty()
        })
        .await;
    }
    // And the process that stays has its locks as before.
    locks.lock("key-8").acquire().await.expect("a free key").release().await.expect("held");
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
        let shown = ["", "IF NOT EXISTS "].iter().any(|unless| {
            SqliteLockProvider::schema().contains(&format!("CREATE TABLE {unless}{table} "))
        });
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

#[test]
fn another_time_namespace_is_refused() {
    let Some(elsewhere) = time_namespace("another_time_namespace_is_refused") else { return };
    let (_dir, file) = temp();
    let here = locks(&file);
    let part = |name: &str| Part::new(name, &address(&file), "k", secs(60));
    let open = || part("open").start_as(elsewhere()).expect_line("opened");

    // Held here, wanted there.
    let guard = here.lock("k").ttl(secs(60)).acquire().expect("free");
    let said = open();
    assert!(said.starts_with("lock_backend") && said.contains("time namespace"), "{said}");
    guard.release().expect("held to the end");
    assert_eq!(open(), "ok", "a free key may be had there");

    // Held there, wanted here.
    let mut child = part("hold").start_as(elsewhere());
    child.expect_line("held");
    for error in [
        here.lock("k").acquire().expect_err("held"),
        here.lock("k").wait(secs(5)).acquire().expect_err("held"),
        here.inspect("k").expect_err("who can tell"),
        here.list("", PageRequest::default()).expect_err("who can tell"),
    ] {
        assert_eq!(error.code(), "lock_backend", "{error}");
        assert!(error.to_string().contains("time namespace"), "{error}");
    }
    here.lock("other").acquire().expect("another key").release().expect("released");
    let said = open();
    assert!(said.starts_with("lock_taken"), "one clock is one namespace: {said}");
    assert_eq!(child.release(), "ok");
    here.lock("k").acquire().expect("free").release().expect("released");
}
