//! The in-memory provider and the coordination core under a scheduler that tries many interleavings.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p latchwork-lock --test model`; `scripts/test` does it.
//! A lost wake-up shows as a deadlock, which shuttle reports with the schedule that led to it.
#![cfg(shuttle)]

#[path = "model/coordination.rs"]
mod coordination;

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use latchwork_lock::provider::{AcquireRequest, Acquired, LockProvider, Proof, Wait};
use latchwork_lock::{Clock, InMemoryLockProvider, Key, ManualClock, Mode};
use shuttle::future::block_on;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::thread;

const TTL: Duration = Duration::from_secs(30);

/// Random schedules and ones that favour rare orders, in equal parts.
fn explore(test: impl Fn() + Send + Sync + 'static) {
    let test = Arc::new(test);
    let again = test.clone();
    shuttle::check_random(move || test(), 3_000);
    shuttle::check_pct(move || again(), 3_000, 3);
}

#[derive(Clone)]
struct World {
    provider: InMemoryLockProvider,
    clock: ManualClock,
    readers: Arc<AtomicUsize>,
    writers: Arc<AtomicUsize>,
    done: Arc<AtomicBool>,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::new();
        World {
            provider: InMemoryLockProvider::with_clock(Arc::new(clock.clone())),
            clock,
            readers: Arc::new(AtomicUsize::new(0)),
            writers: Arc::new(AtomicUsize::new(0)),
            done: Arc::new(AtomicBool::new(false)),
        }
    }

    fn request(&self, mode: Mode, wait: Wait) -> AcquireRequest {
        let key = Key::new("key").expect("legal");
        AcquireRequest::new(key, TTL, self.clock.now()).with_mode(mode).with_wait(wait)
    }

    /// Takes the key as the front door would.
    fn take(&self, mode: Mode) -> AcquireRequest {
        let request = self.request(mode, Wait::Forever);
        let mut again = false;
        let answer = block_on(poll_fn(|cx| {
            let answer = self.provider.poll_acquire(&request, again, cx.waker());
            again = true;
            answer.expect("it answers in place")
        }));
        assert!(matches!(answer, Ok(Acquired::Granted(_))), "{answer:?}");
        request
    }

    /// Takes the key, checks that nobody is in who may not be, gives it back.
    fn visit(&self, mode: Mode) {
        let request = self.take(mode);
        self.inside(mode);
        self.give_back(&request);
    }

    fn inside(&self, mode: Mode) {
        let count = match mode {
            Mode::Exclusive => &self.writers,
            Mode::Shared => &self.readers,
        };
        count.fetch_add(1, Ordering::SeqCst);
        thread::yield_now();
        let readers = self.readers.load(Ordering::SeqCst);
        let writers = self.writers.load(Ordering::SeqCst);
        let legal = writers == 0 || (writers == 1 && readers == 0);
        assert!(legal, "{writers} writers and {readers} readers at once");
        count.fetch_sub(1, Ordering::SeqCst);
    }

    fn give_back(&self, request: &AcquireRequest) {
        self.provider.release_later(Proof { key: &request.key, token: request.token });
    }
}

type Part = Box<dyn FnOnce(World) + Send>;

fn together(world: &World, parts: Vec<Part>) {
    let threads: Vec<_> = parts
        .into_iter()
        .map(|part| {
            let world = world.clone();
            thread::spawn(move || part(world))
        })
        .collect();
    for thread in threads {
        thread.join().expect("no thread panics");
    }
    let left = block_on(world.provider.list("", &Default::default())).expect("lists");
    assert!(left.keys.is_empty(), "left behind: {left:?}");
}

#[test]
fn l01_writers_exclude_each_other_and_all_get_through() {
    fn part() -> Part {
        Box::new(|world| {
            world.visit(Mode::Exclusive);
            world.visit(Mode::Exclusive);
        })
    }
    explore(|| together(&World::new(), vec![part(), part(), part()]));
}

#[test]
fn l06_readers_and_writers_all_get_through() {
    explore(|| {
        together(
            &World::new(),
            vec![
                Box::new(|world| world.visit(Mode::Shared)),
                Box::new(|world| world.visit(Mode::Exclusive)),
                Box::new(|world| world.visit(Mode::Shared)),
                Box::new(|world| world.visit(Mode::Exclusive)),
            ],
        );
    });
}

#[test]
fn l05_a_request_dropped_at_any_poll_leaves_nothing_behind() {
    explore(|| {
        together(
            &World::new(),
            vec![
                Box::new(|world| world.visit(Mode::Exclusive)),
                Box::new(|world| {
                    let request = world.request(Mode::Exclusive, Wait::Forever);
                    let mut asking = Box::pin(world.provider.acquire(&request));
                    let waker = futures::task::noop_waker();
                    let mut granted = false;
                    for _ in 0..2 {
                        granted = asking.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
                        if granted {
                            break;
                        }
                        thread::yield_now();
                    }
                    drop(asking);
                    if granted {
                        world.inside(Mode::Exclusive);
                        world.give_back(&request);
                    }
                }),
                Box::new(|world| world.visit(Mode::Exclusive)),
            ],
        );
    });
}

/// A hand-off that its waiter does not claim passes on, while others come, go and are looked at:
/// what is kept plainly at first goes over to the full rules at any moment.
#[test]
fn l05_an_unclaimed_hand_off_passes_on_however_the_key_is_kept() {
    explore(|| {
        let world = World::new();
        let first = world.take(Mode::Exclusive);
        let sleeper = world.request(Mode::Exclusive, Wait::Forever);
        let asked = world.provider.poll_acquire(&sleeper, false, &futures::task::noop_waker());
        assert!(asked.is_some_and(|answer| answer.is_pending())); // and it never looks again
        let handed_on = Arc::new(AtomicBool::new(false));
        let seen = handed_on.clone();
        together(
            &world,
            vec![
                Box::new(move |world| {
                    world.give_back(&first);
                    handed_on.store(true, Ordering::SeqCst);
                }),
                Box::new(|world| {
                    world.visit(Mode::Exclusive);
                    world.done.store(true, Ordering::SeqCst);
                }),
                Box::new(|world| {
                    // Asked the long way, and so by the full rules.
                    let request = world.request(Mode::Exclusive, Wait::No);
                    let answer = block_on(world.provider.acquire(&request)).expect("answers");
                    if matches!(answer, Acquired::Granted(_)) {
                        world.inside(Mode::Exclusive);
                        world.give_back(&request);
                    }
                }),
                Box::new(move |world| {
                    while !seen.load(Ordering::SeqCst) {
                        thread::yield_now();
                    }
                    world.clock.advance(Duration::from_secs(3)); // longer than a claim may take
                    while !world.done.load(Ordering::SeqCst) {
                        world.provider.tick();
                        thread::yield_now();
                    }
                }),
            ],
        );
    });
}

#[test]
fn l02_a_lease_that_runs_out_lets_the_next_one_in() {
    explore(|| {
        let world = World::new();
        world.take(Mode::Exclusive); // and forgets it
        together(
            &world,
            vec![
                Box::new(|world| {
                    world.visit(Mode::Exclusive);
                    world.done.store(true, Ordering::SeqCst);
                }),
                Box::new(|world| {
                    world.clock.advance(TTL);
                    while !world.done.load(Ordering::SeqCst) {
                        world.provider.tick();
                        thread::yield_now();
                    }
                }),
            ],
        );
    });
}

#[test]
fn l12_a_break_races_with_releases_and_waiters() {
    explore(|| {
        together(
            &World::new(),
            vec![
                Box::new(|world| {
                    let request = world.take(Mode::Exclusive);
                    world.give_back(&request);
                }),
                Box::new(|world| {
                    let key = Key::new("key").expect("legal");
                    block_on(world.provider.break_lock(&key, None)).expect("breaks");
                }),
                Box::new(|world| {
                    let request = world.take(Mode::Shared);
                    world.give_back(&request);
                }),
            ],
        );
    });
}
