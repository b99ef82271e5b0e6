//! What lies in the directory: readable, damaged, swept.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use latchwork_lock::PageRequest;

use crate::support::{Child, eventually, secs, until};
use crate::{child, connect, files, holder, locks, record, replace, shards, temp, waiters};

#[tokio::test]
async fn the_front_door_works() {
    let dir = tempfile::tempdir().expect("a directory");
    let locks = connect(dir.path()).await;
    assert_eq!(locks.provider_name(), "file");
    let guard = locks.lock("order:1").note("smoke").acquire().await.expect("free");
    assert!(locks.lock("order:1").try_acquire().await.expect("asked").is_none());
    let other = connect(dir.path()).await;
    let waiting = tokio::spawn(async move {
        let guard = other.lock("order:1").wait(secs(60)).acquire().await.expect("its turn");
        (guard.waited(), guard.fence(), guard.release().await)
    });
    eventually("it queues", async || {
        !locks.inspect("order:1").await.expect("inspected").waiters.is_empty()
    })
    .await;
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
