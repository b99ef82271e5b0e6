//! The three concurrency tests that seed 001 demands, on threads and in tasks, over three lock
//! providers.

use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::Duration;

use latchwork_payments::application::ports::{CaptureRepository as _, lock_key};
use latchwork_payments::application::{CapturePaymentResponse, Result};
use latchwork_payments::domain::{PaymentId, PaymentState};

use crate::hooked::Hooked;
#[cfg(target_os = "linux")]
use crate::support::OnFiles;
use crate::support::{InMemory, OnSqlite, Setting, World, request, runtime, soon, waiters};

const ROUNDS: usize = 4;

macro_rules! over_providers {
    ($($test:ident,)*) => {
        over_providers!(@ memory InMemory $($test)*);
        #[cfg(target_os = "linux")]
        over_providers!(@ file OnFiles $($test)*);
        over_providers!(@ sqlite OnSqlite $($test)*);
    };
    (@ $name:ident $setting:ident $($test:ident)*) => {
        mod $name {
            $(#[test]
            fn $test() {
                super::$test(super::$setting::new());
            })*
        }
    };
}

over_providers! {
    same_payment_same_key_on_threads,
    same_payment_same_key_in_tasks,
    same_payment_different_keys_on_threads,
    same_payment_different_keys_in_tasks,
    lock_is_released_on_exception_on_threads,
    lock_is_released_on_exception_in_tasks,
}

type Answers = [Result<CapturePaymentResponse>; 2];

/// Two threads that ask at once, each through connections of its own.
fn on_threads<W: Setting>(setting: &W, id: PaymentId, keys: [&str; 2]) -> Answers {
    let together = Barrier::new(2);
    let ask = |key: &str| {
        let runtime = runtime();
        let world = runtime.block_on(setting.open());
        let capture = world.blocking();
        together.wait();
        capture.execute(request(id, key, 10_000))
    };
    std::thread::scope(|threads| {
        let asked = keys.map(|key| threads.spawn(move || ask(key)));
        asked.map(|thread| thread.join().expect("no panic"))
    })
}

/// Two tasks that ask at once: both wait in the queue when it begins to move.
async fn in_tasks<W: Setting>(setting: &W, id: PaymentId, keys: [&str; 2]) -> Answers {
    let world = setting.open().await;
    let door = world.locks.lock(lock_key(id)).acquire().await.expect("free");
    let mut tasks = Vec::new();
    for key in keys {
        let (service, request) = (setting.open().await.service, request(id, key, 10_000));
        tasks.push(tokio::spawn(async move { service.capture.execute(request).await }));
    }
    waiters(&world.locks, &lock_key(id), 2).await;
    door.release().await.expect("held");
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(soon("both tasks end", task).await.expect("no panic"));
    }
    answers.try_into().expect("two")
}

/// Test 1 of the seed: one capture, and both get it.
async fn captured_once_for_both<W: Setting>(
    world: &World<W::Store>,
    id: PaymentId,
    answers: Answers,
) {
    let [one, two] = answers.map(|answer| answer.expect("captured"));
    assert_eq!(one.capture, two.capture, "both get the same result");
    assert!(one.replayed != two.replayed, "one of them is a replay");
    assert_eq!(world.store.captures_of(id).await.expect("read"), [one.capture]);
    assert_eq!(world.payment(id).await.state(), PaymentState::Captured);
}

/// Test 2 of the seed: one succeeds, and the other learns that it was late.
async fn captured_once_for_one<W: Setting>(
    world: &World<W::Store>,
    id: PaymentId,
    answers: Answers,
) {
    let (captured, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    let captured: Vec<_> = captured.into_iter().flatten().map(|answer| answer.capture).collect();
    let refused: Vec<_> = refused.into_iter().filter_map(Result::err).collect();
    assert_eq!(captured.len(), 1, "exactly one capture succeeds: {refused:?}");
    assert_eq!(refused[0].code(), "payment_already_captured");
    assert_eq!(world.store.captures_of(id).await.expect("read"), captured);
    assert_eq!(world.payment(id).await.state(), PaymentState::Captured);
}

fn same_payment_same_key_on_threads<W: Setting>(setting: W) {
    let runtime = runtime();
    let world = runtime.block_on(setting.open());
    for _ in 0..ROUNDS {
        let id = runtime.block_on(world.authorized(10_000));
        let answers = on_threads(&setting, id, ["key-1", "key-1"]);
        runtime.block_on(captured_once_for_both::<W>(&world, id, answers));
    }
}

fn same_payment_same_key_in_tasks<W: Setting>(setting: W) {
    runtime().block_on(async {
        let world = setting.open().await;
        for _ in 0..ROUNDS {
            let id = world.authorized(10_000).await;
            let answers = in_tasks(&setting, id, ["key-1", "key-1"]).await;
            captured_once_for_both::<W>(&world, id, answers).await;
        }
    });
}

fn same_payment_different_keys_on_threads<W: Setting>(setting: W) {
    let runtime = runtime();
    let world = runtime.block_on(setting.open());
    for _ in 0..ROUNDS {
        let id = runtime.block_on(world.authorized(10_000));
        let answers = on_threads(&setting, id, ["key-1", "key-2"]);
        runtime.block_on(captured_once_for_one::<W>(&world, id, answers));
    }
}

fn same_payment_different_keys_in_tasks<W: Setting>(setting: W) {
    runtime().block_on(async {
        let world = setting.open().await;
        for _ in 0..ROUNDS {
            let id = world.authorized(10_000).await;
            let answers = in_tasks(&setting, id, ["key-1", "key-2"]).await;
            captured_once_for_one::<W>(&world, id, answers).await;
        }
    });
}

/// A world whose captures end in a panic inside the critical section.
async fn broken<W: Setting>(setting: &W) -> World<Hooked<W::Store>> {
    let world = setting.open().await;
    let store = Hooked::new(world.store, || async { panic!("simulated failure") });
    World::new(world.locks, latchwork_lock::SystemClock, store)
}

/// Test 3 of the seed. The lease would last for 30 s, so who gets the lock sooner got it because
/// it was released.
fn lock_is_released_on_exception_on_threads<W: Setting>(setting: W) {
    let runtime = runtime();
    let world = runtime.block_on(setting.open());
    let id = runtime.block_on(world.authorized(10_000));
    let failing = runtime.block_on(broken(&setting)).blocking();
    let failed = std::thread::spawn(move || failing.execute(request(id, "key-1", 10_000))).join();
    assert!(failed.is_err(), "the panic reaches the caller");
    let (capture, (tell, told)) = (world.blocking(), channel());
    std::thread::spawn(move || tell.send(capture.execute(request(id, "key-2", 10_000))));
    let next = told.recv_timeout(Duration::from_secs(25)).expect("no deadlock occurs");
    assert!(!next.expect("captured").replayed);
    let captures = runtime.block_on(world.store.captures_of(id)).expect("read");
    assert_eq!(captures.len(), 1, "what panicked has left nothing");
}

fn lock_is_released_on_exception_in_tasks<W: Setting>(setting: W) {
    runtime().block_on(async {
        let world = setting.open().await;
        let id = world.authorized(10_000).await;
        let failing = broken(&setting).await.service;
        let failed = tokio::spawn(async move {
            let _ = failing.capture.execute(request(id, "key-1", 10_000)).await;
        });
        assert!(failed.await.expect_err("it panicked").is_panic());
        let next = soon("no deadlock occurs", world.capture(id, "key-2", 10_000)).await;
        assert!(!next.expect("captured").replayed);
        assert_eq!(world.store.captures_of(id).await.expect("read").len(), 1);
    });
}

/// Not only two: everybody asks, and one capture is made.
#[test]
fn a_crowd_with_one_key_captures_once() {
    runtime().block_on(async {
        let setting = OnSqlite::new();
        let world = setting.open().await;
        let id = world.authorized(10_000).await;
        let mut tasks = Vec::new();
        for _ in 0..16 {
            let service = world.service.clone();
            tasks.push(tokio::spawn(async move {
                service.capture.execute(request(id, "key", 10_000)).await
            }));
        }
        let mut fresh = 0;
        for task in tasks {
            let answer = soon("everybody ends", task).await.expect("no panic");
            fresh += usize::from(!answer.expect("captured").replayed);
        }
        assert_eq!(fresh, 1);
        assert_eq!(world.store.captures_of(id).await.expect("read").len(), 1);
    });
}
