//! L16, measured: what a million keys leave of the in-memory provider's bytes.
//!
//! Alone in its binary, because the count is of the whole process.
#![expect(unsafe_code, reason = "an allocator that counts is an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

use latchwork_lock::{InMemoryLockProvider, Locks, ManualClock};

struct Counting;

static BYTES: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged, and the counter touches no memory
// that either of them manages. A layout is never larger than `isize::MAX`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: `at` came from `alloc` above, and so from the system.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const KEYS: usize = 1_000_000;

/// What the test's own harness may allocate meanwhile on its thread.
const NOISE: isize = 8_192;

#[tokio::test]
async fn l16_a_million_keys_leave_the_bytes_as_they_began() {
    let clock = ManualClock::new();
    let locks = Locks::new(InMemoryLockProvider::with_clock(Arc::new(clock.clone())));
    // What is made once and kept on purpose: the thread's random numbers, the hash's seed.
    drop(locks.lock("first").acquire().await.expect("free"));
    let began = BYTES.load(Ordering::Relaxed);
    let assert_as_it_began = |after: &str| {
        let more = BYTES.load(Ordering::Relaxed) - began;
        assert!(more < NOISE, "{more} bytes are left after {after}");
    };

    // One after the other.
    for i in 0..KEYS {
        drop(locks.lock(format!("one:{i}")).acquire().await.expect("free"));
    }
    assert_as_it_began("a million keys in turn");

    // All at once.
    let mut guards = Vec::with_capacity(KEYS);
    for i in 0..KEYS {
        guards.push(locks.lock(format!("all:{i}")).acquire().await.expect("free"));
    }
    let held = BYTES.load(Ordering::Relaxed) - began;
    assert!(held > 100 * KEYS as isize, "{held} bytes: the count counts nothing");
    drop(guards);
    assert_as_it_began("a million keys at once");

    // Handed over and never resumed: nobody's drop cleans up, only the end of their time.
    for i in 0..KEYS / 10 {
        let guard = locks.lock(format!("lost:{i}")).acquire().await.expect("free");
        drop(guard.into_lease().await.expect("held"));
    }
    clock.advance(Duration::from_secs(60));
    // Each shard notices at its next request.
    for i in 0..20_000 {
        drop(locks.lock(format!("later:{i}")).acquire().await.expect("free"));
    }
    assert_as_it_began("leases that were never resumed");

    // Waited for, and given up.
    let guard = locks.lock("waited").acquire().await.expect("free");
    for _ in 0..1_000 {
        let asking = locks.lock("waited").wait_forever().acquire();
        assert!(futures::poll!(std::pin::pin!(asking)).is_pending());
    }
    drop(guard);
    // The timer's thread, started by the first waiter, stays with the provider.
    assert_as_it_began("requests that were given up");
}
