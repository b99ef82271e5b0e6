//! W7: an apply is leased, so that a worker which dies or is slow does not hold it up or record it twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use latchwork_work::{ApplySettings, Diff, DynamicOrderType, EventType, OrderState, TypeError};

use super::Fixture;
use super::case::cases;
use super::fixture::{events, order_state};
use super::w07_apply::{UNHURRIED, applied_by, apply_one, approved, hurried};

cases![
    w07_a_worker_that_lost_its_lease_records_nothing,
    w07_a_worker_that_does_not_know_of_its_loss_records_nothing,
    w07_the_next_worker_has_the_same_key_and_a_higher_fence,
    w07_an_apply_that_kills_every_worker_ends,
    w07_a_worker_that_is_told_to_stop_finishes_its_order,
    w07_a_fence_gate_refuses_a_worker_that_was_overtaken,
];

/// A type whose apply waits for a signal, and counts its runs.
fn waiting(
    gate: &Arc<tokio::sync::Semaphore>,
    fences: &Arc<std::sync::Mutex<Vec<(String, u64)>>>,
    settings: ApplySettings,
) -> DynamicOrderType {
    let (gate, fences) = (gate.clone(), fences.clone());
    applied_by(settings).apply(move |_, step| {
        fences.lock().expect("no panic").push((step.idempotency_key(), step.fence()));
        let gate = gate.clone();
        Box::pin(async move {
            gate.acquire().await.expect("open").forget();
            Ok(Diff::empty())
        })
    })
}

/// Takes the order from its worker, as if that one had slept past its lease.
async fn w07_a_worker_that_lost_its_lease_records_nothing(f: Fixture) {
    let (gate, fences) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::default());
    let lease_ttl = Duration::from_secs(3);
    let settings = ApplySettings { lease_ttl, time_limit: UNHURRIED, ..hurried() };
    let work = f.with_types([waiting(&gate, &fences, settings)]).await;
    let other = f.manager().await;
    let order = approved(&work, 1).await;
    let slow = {
        let worker = work.apply_worker("slow").expect("legal");
        tokio::spawn(async move { worker.apply(order).await.expect("the store answers") })
    };
    while fences.lock().expect("no panic").is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // It keeps its lease as long as it lives.
    tokio::time::sleep(lease_ttl * 3 / 2).await;
    assert_eq!(other.apply_worker("b").expect("legal").apply(order).await.expect("asked"), None);
    work.take_back_apply(order).await.expect("taken back");
    let done = other.apply_worker("b").expect("legal").apply(order).await.expect("asked");
    assert_eq!(done.expect("taken over").state, OrderState::Completed);
    gate.add_permits(9);
    slow.await.expect("no panic");
    let told = events(&work, order).await;
    let applied: Vec<_> = told.iter().filter(|e| e.event == EventType::Applied).collect();
    assert_eq!(applied.len(), 1, "recorded once");
    assert_eq!(applied[0].payload.as_ref().expect("a payload")["worker"], "b");
    assert!(told.iter().any(|event| event.event == EventType::LeaseExpired), "told");
}

/// It comes to its end before its next sign of life, and while the next worker is not done: then only the
/// fence tells the two apart.
async fn w07_a_worker_that_does_not_know_of_its_loss_records_nothing(f: Fixture) {
    let gates = ["a", "b"].map(|name| (name, Arc::new(tokio::sync::Semaphore::new(0))));
    let (open, begun) = (gates.clone(), Arc::new(AtomicU32::new(0)));
    let counted = begun.clone();
    let settings =
        ApplySettings { lease_ttl: Duration::from_secs(600), time_limit: UNHURRIED, ..hurried() };
    let waits = applied_by(settings).apply(move |_, step| {
        let mut gates = gates.iter();
        let gate = gates.find(|(name, _)| *name == step.worker()).expect("a or b").1.clone();
        counted.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            gate.acquire().await.expect("open").forget();
            Ok(Diff::empty())
        })
    });
    let work = f.with_types([waits]).await;
    let order = approved(&work, 1).await;
    let start = |name: &str| {
        let worker = work.apply_worker(name).expect("legal");
        tokio::spawn(async move { worker.apply(order).await.expect("the store answers") })
    };
    let begins = async |count| {
        while begun.load(Ordering::SeqCst) < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let slow = start("a");
    begins(1).await;
    work.take_back_apply(order).await.expect("taken back");
    let next = start("b");
    begins(2).await;
    open[0].1.add_permits(1);
    let left = slow.await.expect("no panic").expect("it had the order");
    assert_eq!(left.state, OrderState::Approved, "the other one is at it");
    open[1].1.add_permits(1);
    let done = next.await.expect("no panic").expect("it has the order");
    assert_eq!(done.state, OrderState::Completed);
    let told = events(&work, order).await;
    let applied = told.iter().find(|event| event.event == EventType::Applied).expect("applied");
    assert_eq!(applied.payload.as_ref().expect("a payload")["worker"], "b");
}

async fn w07_the_next_worker_has_the_same_key_and_a_higher_fence(f: Fixture) {
    let (gate, fences) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::default());
    let settings = ApplySettings { time_limit: Duration::from_secs(20), ..hurried() };
    let work = f.with_types([waiting(&gate, &fences, settings)]).await;
    let order = approved(&work, 1).await;
    for n in 1..=2 {
        let worker = work.apply_worker(format!("w-{n}")).expect("legal");
        let dies = tokio::spawn(async move { worker.apply(order).await });
        while fences.lock().expect("no panic").len() < n {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        dies.abort();
        let _ = dies.await;
        while work.apply_lease(order).await.expect("asked").is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    gate.add_permits(9);
    assert_eq!(apply_one(&work, order).await.state, OrderState::Completed);
    let key = order.to_string();
    assert_eq!(*fences.lock().expect("no panic"), [(key.clone(), 1), (key.clone(), 2), (key, 3)]);
}

async fn w07_an_apply_that_kills_every_worker_ends(f: Fixture) {
    let runs = Arc::default();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let settings =
        ApplySettings { max_attempts: 2, lease_ttl: UNHURRIED, time_limit: UNHURRIED, ..hurried() };
    let work = f.with_types([waiting(&gate, &runs, settings)]).await;
    let order = approved(&work, 1).await;
    for n in 1..=2 {
        let worker = work.apply_worker("w").expect("legal");
        let dies = tokio::spawn(async move { worker.apply(order).await });
        while runs.lock().expect("no panic").len() < n {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        dies.abort();
        let _ = dies.await;
        work.take_back_apply(order).await.expect("expired");
    }
    let failed = apply_one(&work, order).await;
    assert_eq!(failed.state, OrderState::Failed);
    assert_eq!(failed.error.expect("why")["code"], "apply_attempts");
    assert_eq!(runs.lock().expect("no panic").len(), 2);
}

async fn w07_a_worker_that_is_told_to_stop_finishes_its_order(f: Fixture) {
    let (gate, fences) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::default());
    let settings = ApplySettings { lease_ttl: UNHURRIED, time_limit: UNHURRIED, ..hurried() };
    let work = f.with_types([waiting(&gate, &fences, settings)]).await;
    let (first, second) = (approved(&work, 1).await, approved(&work, 1).await);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = work.apply_worker("w").expect("legal");
    let running = tokio::spawn(worker.run_until(async { drop(stopped.await) }));
    while fences.lock().expect("no panic").is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.send(()).expect("it listens");
    gate.add_permits(9);
    running.await.expect("it ends");
    assert_eq!(order_state(&work, first).await, OrderState::Completed, "finished");
    assert_eq!(order_state(&work, second).await, OrderState::Approved, "not begun");
}

/// What a worker began elsewhere goes on when its lease is lost; where it writes, the fence stops it.
async fn w07_a_fence_gate_refuses_a_worker_that_was_overtaken(f: Fixture) {
    use latchwork_lock::{Fence, FenceGate};
    let (gate, written) = (Arc::new(FenceGate::new()), Arc::new(std::sync::Mutex::new(Vec::new())));
    let (go_on, asked) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(AtomicU32::new(0)));
    let settings = ApplySettings { lease_ttl: UNHURRIED, time_limit: UNHURRIED, ..hurried() };
    let writing = {
        let (gate, written, go_on, asked) =
            (gate.clone(), written.clone(), go_on.clone(), asked.clone());
        applied_by(settings).apply(move |_, step| {
            let (key, fence) = (step.idempotency_key(), step.fence());
            let (gate, written, go_on) = (gate.clone(), written.clone(), go_on.clone());
            let first = asked.fetch_add(1, Ordering::SeqCst) == 0;
            let write = tokio::spawn(async move {
                if first {
                    go_on.acquire().await.expect("open").forget();
                }
                let write = || written.lock().expect("no panic").push(fence);
                gate.write(&key, Fence::new(fence), write).map_err(|stale| stale.newest)
            });
            Box::pin(async move {
                match write.await.expect("no panic") {
                    Ok(()) => Ok(Diff::empty()),
                    Err(newest) => Err(TypeError::Failed(format!("overtaken by {newest}").into())),
                }
            })
        })
    };
    let work = f.with_types([writing]).await;
    let order = approved(&work, 1).await;
    let slow = {
        let worker = work.apply_worker("slow").expect("legal");
        tokio::spawn(async move { worker.apply(order).await.expect("the store answers") })
    };
    while asked.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    work.take_back_apply(order).await.expect("taken back");
    assert_eq!(apply_one(&work, order).await.state, OrderState::Completed);
    go_on.add_permits(1);
    slow.await.expect("no panic");
    let refused = gate.check(&order.to_string(), Fence::new(1)).expect_err("an older fence");
    assert!(refused.newest > Fence::new(1));
    let written = written.lock().expect("no panic").clone();
    assert_eq!(written, [refused.newest.get()], "the overtaken worker wrote nothing");
}
