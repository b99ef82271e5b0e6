//! The parts of the coordination core.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use latchwork_lock::coordination::batcher::{
    Batch, BatchHandler, BatchedRequest, Batcher, InFlight,
};
use latchwork_lock::coordination::cancel::CancelOnDrop;
use latchwork_lock::coordination::deferred_release::{DeferredReleases, Lease, ReleaseBackend};
use latchwork_lock::coordination::grant_slot::{GrantSlot, SlotState};
use latchwork_lock::coordination::waiters::WaiterRegistry;
use latchwork_lock::provider::{AcquireRequest, Grant, Moment, Wait};
use latchwork_lock::{Clock, Fence, Key, ManualClock, Result};
use shuttle::future::block_on;
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::thread;

use super::explore;

fn key() -> Key {
    Key::new("key").expect("legal")
}

fn request() -> AcquireRequest {
    AcquireRequest::new(key(), Duration::from_secs(30), Moment::default()).with_wait(Wait::Forever)
}

/// A grant goes to its waiter or is reclaimed, never both and never neither.
#[test]
fn a_grant_is_taken_or_reclaimed_once() {
    explore(|| {
        let slot = Arc::new(GrantSlot::default());
        slot.mark_waiting();
        slot.put(Grant::first(Fence::new(1)), Moment::default());
        let reclaimer = {
            let slot = slot.clone();
            thread::spawn(move || slot.reclaim(Moment::from_nanos(5), Duration::from_nanos(1)))
        };
        let taken = matches!(slot.take(), SlotState::Granted(_));
        let reclaimed = reclaimer.join().expect("no panic");
        assert!(taken != reclaimed, "taken {taken}, reclaimed {reclaimed}");
    });
}

/// A waiter takes every grant that was delivered to it while it waits: no wake-up is lost.
#[test]
fn a_delivered_grant_wakes_its_waiter() {
    explore(|| {
        let registry = Arc::new(WaiterRegistry::default());
        let handle = registry.register(&request(), 1);
        registry.mark_queued(1);
        let deliver = {
            let registry = registry.clone();
            thread::spawn(move || {
                registry.set_grant_in_flight(1, true);
                registry.deliver_grant(1, Grant::first(Fence::new(7)), Moment::default());
            })
        };
        let clock = ManualClock::new();
        let grant = block_on(async {
            loop {
                if let Some(grant) = handle.take_grant().await {
                    return grant;
                }
                registry.mark_queued(1); // its request was answered: it is still queued
                handle.changed(&clock, Moment::NEVER).await;
            }
        });
        assert_eq!(grant.fence, Fence::new(7));
        deliver.join().expect("no panic");
        drop(handle);
        assert!(registry.is_empty());
    });
}

/// A waiter that queues while the poller falls asleep is seen by it, or wakes it.
#[test]
fn a_poller_does_not_sleep_through_a_new_waiter() {
    explore(|| {
        let registry = Arc::new(WaiterRegistry::default());
        let waiter = {
            let registry = registry.clone();
            thread::spawn(move || {
                let handle = registry.register(&request(), 1);
                registry.mark_queued(1);
                registry.wake_idle_poller();
                handle
            })
        };
        block_on(async {
            while registry.begin_pause().is_none() {
                registry.poller_woken().await; // deadlocks if the wake-up is lost
                registry.end_pause();
            }
        });
        drop(waiter.join().expect("no panic"));
    });
}

/// A job that is decided after the release of its cancelled caller sees the cancellation.
#[test]
fn a_cancelled_job_grants_nothing_after_the_release() {
    explore(|| {
        // The key's lock, and whether it is held by the job's caller.
        let held = Arc::new(Mutex::new(false));
        let caller = CancelOnDrop::new();
        let flag = caller.flag();
        let job = {
            let held = held.clone();
            thread::spawn(move || {
                let mut held = held.lock().expect("not poisoned");
                *held = !flag.is_cancelled();
            })
        };
        drop(caller);
        *held.lock().expect("not poisoned") = false; // the release
        job.join().expect("no panic");
        assert!(!*held.lock().expect("not poisoned"), "nobody will release it");
    });
}

/// Counts what it is asked to send.
#[derive(Default)]
struct Doubler {
    sent: AtomicUsize,
}

impl BatchHandler for Doubler {
    type Item = usize;
    type Answer = usize;
    type Resource = ();

    async fn prepare(&self) {
        shuttle::future::yield_now().await;
    }

    fn is_usable(&self, (): &()) -> bool {
        true
    }

    async fn send(&self, (): (), batch: &mut Batch<Self>) {
        batch.mark_sent();
        assert!(batch.len() <= 2, "the batch is bounded");
        shuttle::future::yield_now().await;
        for request in batch.drain() {
            self.sent.fetch_add(1, Ordering::SeqCst);
            let _ = request.reply.send(2 * request.item);
        }
    }

    fn is_cancellable(&self, _: &usize) -> bool {
        true
    }

    fn recover(&self, _: BatchedRequest<Self>, _: bool) {
        panic!("no worker is dropped");
    }
}

/// Every request of several callers gets its own answer, and the workers end with the last sender.
#[test]
fn each_request_of_a_batch_gets_its_own_answer() {
    explore(|| {
        let handler = Arc::new(Doubler::default());
        let (batcher, workers) = Batcher::new(handler.clone(), InFlight::default(), 2, 2);
        let workers: Vec<_> = workers.into_iter().map(shuttle::future::spawn).collect();
        let batcher = Arc::new(batcher);
        let callers: Vec<_> = (0..4)
            .map(|item| {
                let batcher = batcher.clone();
                thread::spawn(move || {
                    let answer = batcher.submit(item).expect("open");
                    assert_eq!(block_on(answer), Ok(2 * item));
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().expect("no panic"));
        drop(batcher);
        block_on(async {
            for worker in workers {
                worker.await.expect("ends");
            }
        });
        assert_eq!(handler.sent.load(Ordering::SeqCst), 4);
    });
}

/// Counts releases; even ids are waited for and must be released one by one.
#[derive(Default)]
struct Releases {
    together: AtomicUsize,
    alone: AtomicUsize,
}

impl ReleaseBackend for Releases {
    fn spawn(&self, job: BoxFuture<'static, ()>) -> Result<()> {
        shuttle::future::spawn(job);
        Ok(())
    }

    async fn release_together(&self, leases: &[Lease]) -> Result<Vec<Lease>> {
        shuttle::future::yield_now().await;
        let (left, done): (Vec<Lease>, Vec<Lease>) =
            leases.iter().cloned().partition(|(_, id)| id % 2 == 0);
        self.together.fetch_add(done.len(), Ordering::SeqCst);
        Ok(left)
    }

    async fn release(&self, _: &Key, _: u128) -> Result<bool> {
        self.alone.fetch_add(1, Ordering::SeqCst);
        Ok(true)
    }
}

/// Every queued release is made once, also while the queue is being drained.
#[test]
fn every_deferred_release_is_made() {
    explore(|| {
        let backend = Arc::new(Releases::default());
        let releases = DeferredReleases::new(&backend);
        let other = {
            let releases = releases.clone();
            thread::spawn(move || (0..2).for_each(|id| releases.defer(key(), id)))
        };
        (2..4).for_each(|id| releases.defer(key(), id));
        other.join().expect("no panic");
        block_on(releases.flush());
        assert_eq!(releases.pending(), 0);
        assert_eq!(backend.together.load(Ordering::SeqCst), 2);
        assert_eq!(backend.alone.load(Ordering::SeqCst), 2);
    });
}

/// The clock of a model stands still.
#[test]
fn a_woken_waiter_does_not_need_the_clock() {
    explore(|| {
        let registry = Arc::new(WaiterRegistry::default());
        let handle = registry.register(&request(), 1);
        registry.mark_queued(1);
        let woken = Arc::new(AtomicBool::new(false));
        let waker = {
            let (registry, woken) = (registry.clone(), woken.clone());
            thread::spawn(move || {
                woken.store(true, Ordering::SeqCst);
                registry.wake(1);
            })
        };
        let clock = ManualClock::new();
        let deadline = clock.now().after(Duration::from_secs(60));
        block_on(handle.changed(&clock, deadline));
        assert!(woken.load(Ordering::SeqCst), "it ends by the wake-up only");
        waker.join().expect("no panic");
    });
}
