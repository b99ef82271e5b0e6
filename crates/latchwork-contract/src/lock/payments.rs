//! The three concurrency tests that seed 001 demands, in the form of the lock layer: a payment
//! is captured once, however often and by however many callers it is requested.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use latchwork_lock::blocking::Locks;

use super::case::case;
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(l01_payment_same_idempotency_key_captures_once, [Exclusion, Wait]),
    case!(l01_payment_different_idempotency_keys_capture_once, [Exclusion, Wait]),
    case!(l14_payment_lock_is_released_on_exception, [Exclusion, Wait]),
];

/// A store without any locking of its own: between its calls anything may happen.
#[derive(Default)]
struct Store {
    captured: Mutex<bool>,
    captures: Mutex<HashMap<String, u64>>,
    writes: Mutex<u64>,
}

#[derive(Debug, PartialEq, Eq)]
enum Refused {
    AlreadyCaptured,
}

impl Store {
    /// Check, then act: right only where nobody else is in.
    fn capture(&self, idempotency_key: &str) -> Result<u64, Refused> {
        let known = self.captures.lock().expect("no panic").get(idempotency_key).copied();
        std::thread::yield_now();
        if let Some(capture) = known {
            return Ok(capture);
        }
        let captured = *self.captured.lock().expect("no panic");
        std::thread::sleep(std::time::Duration::from_millis(2));
        if captured {
            return Err(Refused::AlreadyCaptured);
        }
        *self.captured.lock().expect("no panic") = true;
        let mut writes = self.writes.lock().expect("no panic");
        *writes += 1;
        self.captures.lock().expect("no panic").insert(idempotency_key.to_owned(), *writes);
        Ok(*writes)
    }
}

/// Two threads that ask at once, each through a connection of its own.
async fn race(
    f: &Fixture,
    round: usize,
    keys: [&'static str; 2],
) -> (Vec<Result<u64, Refused>>, u64) {
    let store = Arc::new(Store::default());
    let together = Arc::new(std::sync::Barrier::new(2));
    let mut threads = Vec::new();
    for idempotency_key in keys {
        let (locks, key) = (Locks::from(f.open().await), f.key(&format!("payment:{round}")));
        let (store, together) = (store.clone(), together.clone());
        threads.push(tokio::task::spawn_blocking(move || {
            together.wait();
            locks.scoped(&key, |_| store.capture(idempotency_key)).expect("its turn comes")
        }));
    }
    let mut answers = Vec::new();
    for thread in threads {
        answers.push(f.soon("both threads end", thread).await);
    }
    let writes = *store.writes.lock().expect("no panic");
    (answers, writes)
}

async fn l01_payment_same_idempotency_key_captures_once(f: Fixture) {
    for round in 0..f.rounds(10) {
        let (answers, writes) = race(&f, round, ["key-1", "key-1"]).await;
        assert_eq!(writes, 1, "exactly one capture is created");
        assert_eq!(answers, [Ok(1), Ok(1)], "both get the same result");
    }
}

async fn l01_payment_different_idempotency_keys_capture_once(f: Fixture) {
    for round in 0..f.rounds(10) {
        let (answers, writes) = race(&f, round, ["key-1", "key-2"]).await;
        assert_eq!(writes, 1, "the payment is captured exactly once");
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
        assert!(answers.contains(&Err(Refused::AlreadyCaptured)), "{answers:?}");
    }
}

async fn l14_payment_lock_is_released_on_exception(f: Fixture) {
    let locks = Locks::from(f.open().await);
    let key = f.key("test-resource");
    let (own, name) = (locks.clone(), key.clone());
    let raised = tokio::task::spawn_blocking(move || {
        own.scoped(&name, |_| -> () { panic!("simulated failure") })
    });
    assert!(raised.await.expect_err("it panicked").is_panic());
    // Another thread gets it, and no deadlock occurs.
    let next = tokio::task::spawn_blocking(move || locks.scoped(&key, |held| held.is_held()));
    assert!(f.soon("no deadlock", next).await.expect("its turn comes"));
}
