//! F8 A stored transition: saved after every action, taken over from the dead, woken, called off.

use std::sync::Arc;
use std::time::Duration;

use latchwork_flow::store::{ContextStore, Due, DueClaim, RunClaim};
use latchwork_flow::{
    ActionResult, Contexts, GateResult, OnTimeout, Pause, Reloaded, StateMachine,
    StateMachineBuilder, StateWorker, Status, Woken,
};
use latchwork_lock::{LockConfig, LockStrategy};
use serde_json::json;
use tokio::sync::Notify;

use super::Fixture;
use super::case::cases;
use super::fixture::code;
use super::machine_fixture::{KEY, MachineFixture, Order, draft, publish};

cases![
    f08_it_is_saved_after_every_action,
    f08_what_never_acted_is_not_stored,
    f08_a_finished_action_is_not_run_again,
    f08_an_interrupted_action_is_run_again_with_the_same_key,
    f08_the_lock_of_the_dead_is_taken_over_at_once,
    f08_a_late_process_cannot_save_and_stops,
    f08_a_heartbeat_keeps_a_long_action,
    f08_a_signal_brings_its_payload,
    f08_a_signal_outlives_a_renewal,
    f08_a_time_wakes_a_pause,
    f08_a_timeout_stops,
    f08_a_timeout_fails,
    f08_a_timeout_resumes,
    f08_a_pause_keeps_the_lock_as_long_as_it_says,
    f08_a_lock_is_renewed_by_whoever_runs,
    f08_a_running_transition_is_called_off_after_its_action,
    f08_a_pause_that_is_called_off_gives_its_lock_back,
    f08_a_submitted_transition_is_begun_by_a_runner,
    f08_a_submitted_transition_waits_for_its_lock,
];

/// What a runner does: claims one context that is due.
async fn take(
    fixture: &MachineFixture,
    machine: &StateMachine<Order>,
) -> Option<StateWorker<Order>> {
    let claim = RunClaim::new(fixture.f.unit() * 10);
    let rows = fixture
        .store
        .claim_due(&DueClaim::new(fixture.f.machine(), 1, &claim))
        .await
        .expect("it answers");
    let row = rows.into_iter().next()?;
    Some(machine.take(row, claim).expect("its own"))
}

async fn f08_it_is_saved_after_every_action(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let mut machine = fixture.stored();
    for index in 0..3_usize {
        let fixture = fixture.clone();
        machine = machine.action_fn(["a", "b", "c"][index], move |at| {
            let fixture = fixture.clone();
            async move {
                let row = Contexts::load(&fixture.store, at.transition().id()).await?;
                let shown = row.head.summary();
                fixture.note(format!(
                    "{} {} {}",
                    shown.status,
                    shown.details.done,
                    shown.runner.is_some()
                ));
                assert_eq!(at.index(), index);
                Ok(ActionResult::proceed())
            }
        });
    }
    let machine = machine.build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("no error");
    assert_eq!(fixture.ran(), ["running 0 true", "running 1 true", "running 2 true"]);
    let row = Contexts::load(&fixture.store, done.id()).await.expect("it is stored");
    assert_eq!((row.head.status, row.head.run, row.head.due_at), (Status::Completed, None, None));
    assert_eq!(row.head.entity.as_deref(), Some("ORD-123"));
}

async fn f08_what_never_acted_is_not_stored(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().gate_fn("no", |_, _| GateResult::deny("no"));
    let machine = machine.action(fixture.noting("a")).build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("no error");
    assert_eq!(code(fixture.store.show(done.id()).await), "context_not_found");
}

/// A machine whose second action waits for ever the first time.
fn stuck(fixture: &MachineFixture, reached: &Arc<Notify>, stuck: bool) -> StateMachine<Order> {
    stuck_with(fixture, reached, stuck, fixture.stored().run_lease(fixture.f.unit()))
}

fn stuck_with(
    fixture: &MachineFixture,
    reached: &Arc<Notify>,
    stuck: bool,
    builder: StateMachineBuilder<Order>,
) -> StateMachine<Order> {
    let (witness, reached) = (fixture.clone(), reached.clone());
    builder
        .action(fixture.noting("a"))
        .action_fn("b", move |at| {
            witness.note(format!("b {} {}", at.idempotency_key(), at.fence().expect("locked")));
            let reached = reached.clone();
            async move {
                if stuck {
                    reached.notify_one();
                    std::future::pending::<()>().await;
                }
                Ok(ActionResult::proceed())
            }
        })
        .action(fixture.noting("c"))
        .build()
        .expect("a machine")
}

/// A transition whose process stands still in the middle of its second action, for ever.
async fn stopped_in_the_middle(
    fixture: &MachineFixture,
) -> (StateWorker<Order>, tokio::task::JoinHandle<()>) {
    let reached = Arc::new(Notify::new());
    let machine = stuck(fixture, &reached, true);
    let mut worker = machine.transition(draft(), publish());
    worker.run_next_action().await.expect("no error");
    // From here on no heartbeat: this is how a stopped process looks to all others.
    let waits = tokio::spawn(async move { reached.notified().await });
    (worker, waits)
}

async fn f08_a_finished_action_is_not_run_again(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (dead, _) = stopped_in_the_middle(&fixture).await;
    assert_eq!(fixture.ran(), ["a"]);
    f.pass(f.unit() * 2).await;
    let elsewhere = fixture.elsewhere().await;
    let machine = stuck(&elsewhere, &Arc::default(), false);
    let mut worker = take(&elsewhere, &machine).await.expect("it is an orphan");
    assert_eq!(worker.due(), Some(&Due::GoOn));
    let done = worker.execute().await.expect("no error");
    assert!(done.is_completed());
    let ran = fixture.ran();
    assert_eq!((ran.len(), &*ran[0], &*ran[2]), (3, "a", "c"));
    drop(dead);
}

async fn f08_an_interrupted_action_is_run_again_with_the_same_key(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let reached = Arc::new(Notify::new());
    let machine = stuck(&fixture, &reached, true);
    let mut worker = machine.transition(draft(), publish());
    let id = worker.context().id();
    let task = tokio::spawn(async move { worker.execute().await });
    reached.notified().await;
    task.abort(); // dies inside the second action
    let _ = task.await;
    fixture.locks.close().await;
    f.pass(f.unit() * 2).await;
    let elsewhere = fixture.elsewhere().await;
    let machine = stuck(&elsewhere, &reached, false);
    let mut worker = take(&elsewhere, &machine).await.expect("it is an orphan");
    // The dropped run gave its lock back, so that others may have been at the order since.
    let look = |_| async { Ok(Reloaded::GoOn(draft())) };
    assert!(worker.execute_or_reacquire(look).await.expect("no error").is_completed());
    let ran = fixture.ran();
    let keys: Vec<_> = ran.iter().filter_map(|note| note.split(' ').nth(1)).collect();
    assert_eq!(keys, [format!("{id}:1"), format!("{id}:1")], "{ran:?}");
    let fences: Vec<u64> =
        ran.iter().filter_map(|note| note.split(' ').nth(2)?.parse().ok()).collect();
    assert!(fences[0] < fences[1], "{ran:?}");
    assert_eq!((ran.len(), &*ran[0], &*ran[3]), (4, "a", "c"));
}

async fn f08_the_lock_of_the_dead_is_taken_over_at_once(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    // A lock that lasts far longer than the run-lease.
    let hour = LockConfig { ttl: Duration::from_secs(3_600), ..fixture.lock_config() };
    let builder = || fixture.stored().run_lease(f.unit()).lock_config(hour.clone());
    let machine = stuck_with(&fixture, &Arc::default(), true, builder());
    let mut dead = machine.transition(draft(), publish());
    dead.run_next_action().await.expect("no error");
    f.pass(f.unit() * 2).await;
    assert!(fixture.is_locked().await, "the dead one's lock is still there");
    let machine = stuck_with(&fixture, &Arc::default(), false, builder());
    let mut worker = take(&fixture, &machine).await.expect("it is an orphan");
    assert!(worker.execute().await.expect("it takes over").is_completed());
}

async fn f08_a_late_process_cannot_save_and_stops(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let reached = Arc::new(Notify::new());
    let machine = stuck(&fixture, &reached, false);
    let mut late = machine.transition(draft(), publish());
    late.run_next_action().await.expect("no error");
    f.pass(f.unit() * 2).await;
    let elsewhere = fixture.elsewhere().await;
    let other = stuck(&elsewhere, &reached, false);
    let mut worker = take(&elsewhere, &other).await.expect("it is an orphan");
    worker.run_next_action().await.expect("no error");
    let before = Contexts::load(&fixture.store, late.context().id()).await.expect("stored");
    let error = late.execute().await.expect_err("it is another's");
    assert_eq!(error.code(), "context_conflict");
    let after = Contexts::load(&fixture.store, late.context().id()).await.expect("stored");
    assert_eq!(before, after, "the late one changed nothing");
    assert!(worker.execute().await.expect("it is not disturbed").is_completed());
    assert_eq!(fixture.ran().last().map(String::as_str), Some("c"));
}

async fn f08_a_heartbeat_keeps_a_long_action(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let gate = Arc::new(Notify::new());
    let (reached, go) = (Arc::new(Notify::new()), gate.clone());
    let tell = reached.clone();
    let machine = fixture.stored().run_lease(f.unit()).action_fn("long", move |_| {
        let (go, tell) = (go.clone(), tell.clone());
        async move {
            tell.notify_one();
            go.notified().await;
            Ok(ActionResult::proceed())
        }
    });
    let machine = machine.build().expect("a machine");
    let mut worker = machine.transition(draft(), publish());
    let id = worker.context().id();
    let task = tokio::spawn(async move { worker.execute().await });
    reached.notified().await;
    let first = Contexts::load(&fixture.store, id).await.expect("stored").head.run.expect("held");
    crate::lock::eventually("a heartbeat renews the run-lease", async || {
        // A manual clock moves only by what a case lets pass.
        f.pass(f.unit() / 10).await;
        let run = Contexts::load(&fixture.store, id).await.expect("stored").head.run;
        run.is_some_and(|run| run.expires_at > first.expires_at + f.unit())
    })
    .await;
    gate.notify_one();
    assert!(task.await.expect("no panic").expect("it was not taken over").is_completed());
}

/// A machine that pauses as it is told, and then tells what woke it.
fn pausing(fixture: &MachineFixture, pause: Pause) -> StateMachine<Order> {
    pausing_with(fixture, fixture.lock_config(), pause)
}

fn pausing_with(fixture: &MachineFixture, lock: LockConfig, pause: Pause) -> StateMachine<Order> {
    let witness = fixture.clone();
    fixture
        .stored()
        .lock_config(lock)
        .action_fn("wait", move |_| {
            let pause = pause.clone();
            async move { Ok(ActionResult::pause(pause)) }
        })
        .action_fn("after", move |at| {
            witness.note(match at.woken().expect("it was paused") {
                Woken::Signal { name, payload, .. } => format!("{name} {payload}"),
                Woken::Time => "time".to_owned(),
                Woken::Timeout => "timeout".to_owned(),
                _ => "hand".to_owned(),
            });
            async { Ok(ActionResult::proceed()) }
        })
        .build()
        .expect("a machine")
}

async fn f08_a_signal_brings_its_payload(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = pausing(&fixture, Pause::new().on_signal("approved"));
    let id = machine.transition(draft(), publish()).execute().await.expect("no error").id();
    assert!(take(&fixture, &machine).await.is_none());
    fixture.store.signal(id, "approved", json!({"by": "ana"})).await.expect("it waits");
    let mut worker = take(&fixture, &machine).await.expect("it is due");
    assert!(worker.execute().await.expect("no error").is_completed());
    assert_eq!(fixture.ran(), [r#"approved {"by":"ana"}"#]);
}

async fn f08_a_signal_outlives_a_renewal(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = pausing(&fixture, Pause::new().on_signal("approved"));
    let id = machine.transition(draft(), publish()).execute().await.expect("no error").id();
    fixture.store.signal(id, "approved", json!(1)).await.expect("it waits");
    machine.resume(id).await.expect("paused").renew_lock().await.expect("it is kept");
    let mut worker = take(&fixture, &machine).await.expect("it is still due");
    assert!(worker.execute().await.expect("no error").is_completed());
    assert_eq!(fixture.ran(), ["approved 1"]);
    assert!(fixture.store.load(id).await.expect("stored").head.signals.is_empty());
}

async fn f08_a_time_wakes_a_pause(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = pausing(&fixture, Pause::new().wake_after(f.unit()));
    machine.transition(draft(), publish()).execute().await.expect("no error");
    f.pass(f.unit() * 2).await;
    let mut worker = take(&fixture, &machine).await.expect("it is due");
    assert!(worker.execute().await.expect("no error").is_completed());
    assert_eq!(fixture.ran(), ["time"]);
}

async fn timed_out(f: &Fixture, then: OnTimeout) -> (MachineFixture, StateWorker<Order>) {
    let fixture = MachineFixture::new(f).await;
    let pause = Pause::new().on_signal("never").timeout(f.unit(), then);
    let machine = pausing(&fixture, pause);
    machine.transition(draft(), publish()).execute().await.expect("no error");
    assert!(take(&fixture, &machine).await.is_none());
    f.pass(f.unit() * 2).await;
    let worker = take(&fixture, &machine).await.expect("it is due");
    (fixture, worker)
}

async fn f08_a_timeout_stops(f: Fixture) {
    let (fixture, mut worker) = timed_out(&f, OnTimeout::Stop).await;
    let done = worker.execute().await.expect("no error");
    assert!(done.is_stopped());
    assert!(done.metadata().expect("why").get("pause_timed_out").is_some());
    assert!(fixture.ran().is_empty() && !fixture.is_locked().await);
    assert_eq!(fixture.store.show(done.id()).await.expect("stored").status, Status::Stopped);
}

async fn f08_a_timeout_fails(f: Fixture) {
    let (fixture, mut worker) = timed_out(&f, OnTimeout::Fail).await;
    assert_eq!(code(worker.execute().await), "pause_timed_out");
    assert!(worker.context().is_failed());
    assert!(fixture.ran().is_empty() && !fixture.is_locked().await);
    let shown = fixture.store.show(worker.context().id()).await.expect("stored");
    assert_eq!(shown.status, Status::Failed);
}

async fn f08_a_timeout_resumes(f: Fixture) {
    let (fixture, mut worker) = timed_out(&f, OnTimeout::Resume).await;
    assert!(worker.execute().await.expect("no error").is_completed());
    assert_eq!(fixture.ran(), ["timeout"]);
}

async fn f08_a_pause_keeps_the_lock_as_long_as_it_says(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = pausing(&fixture, Pause::new().keep_lock_for(fixture.too_long() * 3));
    let paused = machine.transition(draft(), publish()).execute().await.expect("no error");
    assert_eq!(paused.lock_state().ttl, Some(fixture.too_long() * 3));
    f.pass(fixture.too_long()).await;
    assert!(fixture.is_locked().await);
    let mut worker = machine.resume(paused.id()).await.expect("it is paused");
    worker.run_gates().await.expect("it is kept");
    assert_eq!(worker.lock_state().ttl, Some(fixture.lock_config().ttl), "the pause is over");
    assert!(worker.execute().await.expect("no error").is_completed());
}

async fn f08_a_lock_is_renewed_by_whoever_runs(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    // Long, so that a busy machine comes in time.
    let lock = LockConfig { ttl: f.unit() * 20, ..fixture.lock_config() };
    let machine = pausing_with(&fixture, lock, Pause::new().on_signal("go").renew_lock());
    let paused = machine.transition(draft(), publish()).execute().await.expect("no error");
    for _ in 0..2 {
        f.pass(f.unit() * 11).await;
        let mut worker = take(&fixture, &machine).await.expect("its lock must be renewed");
        assert_eq!(worker.due(), Some(&Due::RenewLock));
        worker.renew_lock().await.expect("it is kept");
        assert!(take(&fixture, &machine).await.is_none(), "not yet again");
    }
    let mut worker = machine.resume(paused.id()).await.expect("it is paused");
    assert!(worker.execute().await.expect("it is still kept").is_completed());
}

async fn f08_a_running_transition_is_called_off_after_its_action(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let own = fixture.clone();
    let machine = fixture
        .stored()
        .action_fn("a", move |at| {
            let fixture = own.clone();
            async move {
                fixture.store.cancel(at.transition().id(), "changed our minds").await?;
                fixture.note("a");
                Ok(ActionResult::proceed())
            }
        })
        .action(fixture.noting("b"));
    let machine = machine.build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("no error");
    assert!(done.is_cancelled());
    assert_eq!(done.metadata(), Some(&json!({"cancelled": "changed our minds"})));
    assert_eq!(fixture.ran(), ["a"]);
    assert!(!fixture.is_locked().await);
    assert_eq!(fixture.store.show(done.id()).await.expect("stored").status, Status::Cancelled);
}

async fn f08_a_pause_that_is_called_off_gives_its_lock_back(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = pausing(&fixture, Pause::new().on_signal("go"));
    let id = machine.transition(draft(), publish()).execute().await.expect("no error").id();
    fixture.store.cancel(id, "no longer wanted").await.expect("it is paused");
    assert!(fixture.is_locked().await);
    assert_eq!(code(machine.resume(id).await), "transition_over", "a runner gives the lock back");
    let mut worker = take(&fixture, &machine).await.expect("there is a lock to give back");
    assert_eq!(worker.due(), Some(&Due::ReleaseLock));
    let done = worker.execute().await.expect("no error");
    assert!(done.is_cancelled() && !fixture.is_locked().await);
    assert!(fixture.ran().is_empty());
    let head = fixture.store.load(id).await.expect("stored").head;
    assert_eq!((head.status, head.due_at, head.holds_lock), (Status::Cancelled, None, false));
}

async fn f08_a_submitted_transition_is_begun_by_a_runner(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action(fixture.noting("a")).build().expect("a machine");
    let id = machine.submit(draft(), publish()).await.expect("it is stored");
    assert!(fixture.ran().is_empty());
    let mut worker = take(&fixture, &machine).await.expect("it is due");
    assert_eq!(worker.due(), Some(&Due::Begin));
    let done = worker.execute().await.expect("no error");
    assert!(done.is_completed() && done.id() == id);
    assert_eq!(fixture.store.show(id).await.expect("stored").status, Status::Completed);
    // Also one that a gate stops is then known.
    let machine = fixture.stored().gate_fn("no", |_, _| GateResult::deny("no"));
    let machine = machine.action(fixture.noting("a")).build().expect("a machine");
    let id = machine.submit(draft(), publish()).await.expect("it is stored");
    let mut worker = take(&fixture, &machine).await.expect("it is due");
    assert!(worker.execute().await.expect("no error").is_stopped());
    assert_eq!(fixture.store.show(id).await.expect("stored").status, Status::Stopped);
}

async fn f08_a_submitted_transition_waits_for_its_lock(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let config = LockConfig { strategy: LockStrategy::FailFast, ..fixture.lock_config() };
    let machine = fixture.stored().lock_config(config).action(fixture.noting("a"));
    let machine = machine.build().expect("a machine");
    let id = machine.submit(draft(), publish()).await.expect("it is stored");
    let other = fixture.locks.lock(KEY).acquire().await.expect("it is free");
    let mut worker = take(&fixture, &machine).await.expect("it is due");
    assert_eq!(code(worker.execute().await), "lock_taken");
    assert_eq!(fixture.store.show(id).await.expect("stored").status, Status::Pending);
    other.release().await.expect("it was not disturbed");
    let mut worker = take(&fixture, &machine).await.expect("it is still due");
    assert!(worker.execute().await.expect("no error").is_completed());
}
