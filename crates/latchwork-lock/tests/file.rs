//! The file provider: what only real processes and real files can show.
#![cfg(all(feature = "file", target_os = "linux"))]

use std::path::Path;
use std::time::{Duration, Instant};

use latchwork_lock::{Locks, PageRequest};

fn address(dir: &Path) -> String {
    format!("file://{}", dir.display())
}

async fn connect(dir: &Path) -> Locks {
    Locks::connect(&address(dir)).await.expect("a directory")
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

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
