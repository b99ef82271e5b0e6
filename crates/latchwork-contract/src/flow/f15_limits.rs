//! F15 Actions have a time limit, and are dropped when their transition is lost or called off.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use latchwork_flow::store::{Cancelled, ContextStore};
use latchwork_flow::{Action, FlowRunner, Gate, GateContext};
use latchwork_flow::{
    ActionContext, ActionPolicy, ActionResult, BoxError, Contexts, GateResult, Result,
    StateMachine, StateMachineBuilder, Status, TransitionContext, TransitionId, action_fn,
};
use latchwork_lock::{LockConfig, OnLoss};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::Fixture;
use super::case::cases;
use super::entities::{Orders, take};
use super::fixture::code;
use super::machine_fixture::{MachineFixture, Order, draft, publish};

cases![
    f15_an_action_beyond_its_limit_is_dropped,
    f15_a_gate_beyond_the_limit_is_dropped,
    f15_a_cancellation_drops_the_action,
    f15_a_lost_lock_drops_the_action,
    f15_an_action_that_outlasts_its_lock_is_quarantined,
    f15_what_is_stale_is_quarantined_and_says_why,
    f15_a_load_or_a_save_that_panics_is_quarantined,
    f15_a_lost_run_drops_the_action,
    f15_a_dropped_call_does_not_disturb_the_next_run,
    f15_an_action_may_ask_to_finish,
    f15_an_action_sees_what_is_left_to_it,
    f15_a_damaged_context_is_quarantined_and_hinders_nobody,
];

/// True once it was dropped.
struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// An action that never ends, and what can be seen of it.
#[derive(Clone, Default)]
struct Endless {
    inside: Arc<Notify>,
    dropped: Arc<AtomicBool>,
}

impl Endless {
    fn action(&self) -> impl Action<Order> + use<> {
        let this = self.clone();
        action_fn("endless", move |_: ActionContext<Order>| {
            let this = this.clone();
            async move {
                let _flag = Flag(this.dropped.clone());
                this.inside.notify_one();
                pending::<()>().await;
                Ok(ActionResult::proceed())
            }
        })
    }

    fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::SeqCst)
    }
}

type Ended = Result<Arc<TransitionContext<Order>>>;

/// Begins a transition in a task of its own.
fn begin(builder: StateMachineBuilder<Order>) -> (latchwork_flow::TransitionId, JoinHandle<Ended>) {
    let mut worker = builder.build().expect("a machine").transition(draft(), publish());
    let id = worker.context().id();
    (id, tokio::spawn(async move { worker.execute().await }))
}

/// Lets time pass until it has ended.
async fn end(f: &Fixture, task: JoinHandle<Ended>) -> Ended {
    for _ in 0..2_000 {
        if task.is_finished() {
            return task.await.expect("no panic");
        }
        f.pass(f.unit() / 10).await;
        // Where the clock is moved by hand, the others need a moment too.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("it never ends");
}

async fn f15_an_action_beyond_its_limit_is_dropped(f: Fixture) {
    for own in [true, false] {
        let fixture = MachineFixture::new(&f).await;
        let (endless, limit) = (Endless::default(), f.unit());
        let machine = match own {
            true => {
                let time_limit = Some(limit);
                let policy = ActionPolicy { time_limit, ..ActionPolicy::default() };
                fixture.stored().action(endless.action().with_policy(policy))
            }
            false => fixture.stored().action_limit(limit).action(endless.action()),
        };
        let (id, task) = begin(machine.action(fixture.noting("next")));
        endless.inside.notified().await;
        assert_eq!(code(end(&f, task).await), "action_timed_out");
        assert!(endless.is_dropped());
        let shown = fixture.store.show(id).await.expect("it is stored");
        assert_eq!(shown.status, Status::Failed);
        assert_eq!(shown.details.failure.expect("it says why").code, "action_timed_out");
        assert!(fixture.ran().is_empty() && !fixture.is_locked().await);
    }
}

/// A gate that never answers.
struct Silent;

impl Gate<Order> for Silent {
    fn name(&self) -> &str {
        "silent"
    }

    async fn evaluate(
        &self,
        _: GateContext<'_, Order>,
    ) -> std::result::Result<GateResult, BoxError> {
        pending().await
    }
}

async fn f15_a_gate_beyond_the_limit_is_dropped(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action_limit(f.unit()).gate(Silent).action(fixture.noting("a"));
    let (_, task) = begin(machine);
    assert_eq!(code(end(&f, task).await), "gate_failed");
    assert!(fixture.ran().is_empty());
}

async fn f15_a_cancellation_drops_the_action(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let endless = Endless::default();
    let machine = fixture.stored().run_lease(f.unit() * 3).action(endless.action());
    let (id, task) = begin(machine.action(fixture.noting("next")));
    endless.inside.notified().await;
    let asked = Contexts::cancel(&fixture.store, id, "enough").await.expect("it is not over");
    assert_eq!(asked, Cancelled::Asked);
    let ended = end(&f, task).await.expect("that is no error");
    assert!(ended.is_cancelled() && endless.is_dropped());
    let shown = fixture.store.show(id).await.expect("it is stored");
    assert_eq!((shown.status, shown.due_at), (Status::Cancelled, None));
    assert!(fixture.ran().is_empty() && !fixture.is_locked().await);
}

async fn f15_a_lost_lock_drops_the_action(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let endless = Endless::default();
    let short = LockConfig { ttl: f.unit() * 2, ..LockConfig::default() };
    let (id, task) = begin(fixture.stored().lock_config(short).action(endless.action()));
    endless.inside.notified().await;
    assert_eq!(code(end(&f, task).await), "lock_expired");
    assert!(endless.is_dropped());
    let shown = fixture.store.show(id).await.expect("it is stored");
    assert_eq!((shown.status, shown.runner), (Status::Running, None), "another may go on");
}

async fn f15_an_action_that_outlasts_its_lock_is_quarantined(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let short = LockConfig { ttl: f.unit(), ..LockConfig::default() };
    let builder = fixture.stored().lock_config(short).action(Endless::default().action());
    let machine = Orders::with(draft()).machine(builder).build().expect("a machine");
    let id = machine.submit_of("ORD-123", publish()).await.expect("stored");
    let why = quarantined(&f, &fixture, &machine, id).await;
    assert!(why.contains("flow:entity:ORD-123"), "{why}");
}

async fn f15_what_is_stale_is_quarantined_and_says_why(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action(fixture.noting("a")).action(fixture.noting("b"));
    let machine = machine.build().expect("a machine");
    let mut worker = machine.transition(draft(), publish());
    worker.run_next_action().await.expect("no error");
    let id = worker.context().id();
    worker.release_lock().await.expect("it is held"); // others may have the order from here on
    std::mem::forget(worker);
    f.pass(fixture.too_long()).await;
    let why = quarantined(&f, &fixture, &machine, id).await;
    assert!(why.contains("reload"), "{why}");
    assert_eq!(fixture.ran(), ["a"]);
}

/// Else it would be tried again for ever, and keep the entity from others each time.
async fn f15_a_load_or_a_save_that_panics_is_quarantined(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::with(draft());
    let machine = orders.machine(fixture.stored()).save(|_| async { panic!("the save fell over") });
    let machine = machine.action(fixture.noting("a")).build().expect("a machine");
    let id = machine.submit_of("ORD-123", publish()).await.expect("it is stored");
    let why = quarantined(&f, &fixture, &machine, id).await;
    assert!(why.contains("the save fell over"), "{why}");
    assert_eq!(fixture.ran(), ["a"]);

    let machine = orders.machine(fixture.stored()).load(|_| async { panic!("the load fell over") });
    let machine = machine.build().expect("a machine");
    let id = machine.submit_of("ORD-7", publish()).await.expect("it is stored");
    let why = quarantined(&f, &fixture, &machine, id).await;
    assert!(why.contains("the load fell over"), "{why}");
}

/// Runs a transition that cannot go on until it is quarantined, and gives the reason.
async fn quarantined(
    f: &Fixture,
    fixture: &MachineFixture,
    machine: &StateMachine<Order>,
    id: TransitionId,
) -> String {
    let runner = FlowRunner::new(machine).expect("a store").max_attempts(2);
    let runner = runner.retry(Duration::from_millis(5)).tick(Duration::from_millis(20)).start();
    for _ in 0..2_000 {
        let shown = fixture.store.show(id).await.expect("it is there");
        if shown.status == Status::Quarantined {
            runner.stop().await.expect("it did well");
            return shown.last_error.expect("it is said");
        }
        f.pass(f.unit() / 10).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never");
}

async fn f15_a_lost_run_drops_the_action(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let endless = Endless::default();
    let (id, task) = begin(fixture.stored().run_lease(f.unit() * 3).action(endless.action()));
    endless.inside.notified().await;
    // Another process thinks that it is dead: as if it had been stopped for long.
    let row = Contexts::load(&fixture.store, id).await.expect("it is stored");
    let token = row.head.run.expect("it runs").token;
    let proof = latchwork_flow::store::Proof { id, token };
    let other = f.open().await;
    other.release(proof, &Default::default()).await.expect("it answers");
    other.claim(id, None, &f.long()).await.expect("nobody is at it");
    assert_eq!(code(end(&f, task).await), "context_conflict");
    assert!(endless.is_dropped());
}

async fn f15_a_dropped_call_does_not_disturb_the_next_run(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (endless, orders) = (Endless::default(), Orders::with(draft()));
    let builder = fixture.stored().run_lease(f.unit() * 2).action(fixture.noting("a"));
    let machine = orders.machine(builder.action(endless.action())).build().expect("a machine");
    let mut dropped = machine.transition_of("ORD-123", publish());
    tokio::select! {
        ended = dropped.execute() => panic!("it never ends: {ended:?}"),
        () = endless.inside.notified() => {}
    }
    f.pass(f.unit() * 3).await;
    let mut next = take(&fixture, &machine).await;
    let running = tokio::spawn(async move { next.execute().await.map(drop) });
    endless.inside.notified().await;
    assert_eq!(code(dropped.execute().await), "context_conflict");
    assert!(!running.is_finished() && fixture.is_locked().await, "the next run goes on");
    running.abort();
}

async fn f15_an_action_may_ask_to_finish(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (inside, witness) = (Arc::new(Notify::new()), fixture.clone());
    let told = inside.clone();
    let careful = action_fn("careful", move |at: ActionContext<Order>| {
        let (told, witness) = (told.clone(), witness.clone());
        async move {
            assert!(at.is_held());
            told.notify_one();
            at.lost().await;
            assert!(!at.is_held());
            witness.note("finished");
            Ok(ActionResult::proceed())
        }
    });
    let policy = ActionPolicy { on_loss: OnLoss::Finish, ..ActionPolicy::default() };
    let machine = fixture.stored().run_lease(f.unit() * 3).action(careful.with_policy(policy));
    let (id, task) = begin(machine.action(fixture.noting("next")));
    inside.notified().await;
    Contexts::cancel(&fixture.store, id, "enough").await.expect("it is not over");
    assert!(end(&f, task).await.expect("that is no error").is_cancelled());
    assert_eq!(fixture.ran(), ["finished"]);
}

async fn f15_an_action_sees_what_is_left_to_it(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (witness, unit) = (fixture.clone(), f.unit());
    let machine = fixture.stored().action_fn("looks", move |at| {
        let witness = witness.clone();
        async move {
            assert!(at.is_held() && at.fence().is_some());
            let remaining = at.remaining().expect("it is bounded");
            assert!(remaining <= unit * 10, "{remaining:?}");
            witness.note(format!("attempt {}", at.attempt()));
            Ok(ActionResult::proceed())
        }
    });
    let machine = machine.build().expect("a machine");
    machine.transition(draft(), publish()).execute().await.expect("no error");
    assert_eq!(fixture.ran(), ["attempt 1"]);
    // A process has died with it once.
    let id = machine.submit(draft(), publish()).await.expect("stored");
    fixture.store.claim(id, None, &f.short()).await.expect("nobody is at it");
    f.pass(f.unit() * 2).await;
    machine.resume(id).await.expect("it is there").execute().await.expect("no error");
    assert_eq!(fixture.ran(), ["attempt 1", "attempt 2"]);
}

async fn f15_a_damaged_context_is_quarantined_and_hinders_nobody(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action(fixture.noting("a")).action(fixture.noting("b"));
    let machine = machine.build().expect("a machine");
    let mut damaged = Vec::new();
    for status in ["running", "paused"] {
        // A body that does not say which actions are left, as a hand or a disk may leave it.
        let mut draft = f.draft(Status::of_name(status).expect("a status"));
        draft.details = r#"{"definition":1}"#.to_owned();
        draft.waiting = Some(latchwork_flow::store::Waiting {
            wake_at: Some(f.clock().wall()),
            ..Default::default()
        });
        draft.body = format!(
            r#"{{"format":1,"machine":{:?},"definition":1,"id":"{}","revision":1,"status":"{status}",
                "state":{{"id":"ORD-123","status":"draft","note":""}},"delta":{{}},
                "created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z"}}"#,
            f.machine(),
            draft.id,
        );
        fixture.store.create(&draft, None).await.expect("it is new");
        damaged.push(draft.id);
        let mut worker = match machine.resume(draft.id).await {
            Err(error) => {
                assert_eq!(error.code(), "corrupt_context");
                continue;
            }
            Ok(worker) => worker,
        };
        panic!("it goes on: {:?}", worker.execute().await);
    }
    let good = machine.submit(draft(), publish()).await.expect("stored");
    let runner = FlowRunner::new(&machine).expect("a store").max_attempts(2);
    let runner = runner.retry(Duration::from_millis(5)).tick(Duration::from_millis(20)).start();
    for _ in 0..2_000 {
        let mut all = true;
        for (id, status) in [
            (good, Status::Completed),
            (damaged[0], Status::Quarantined),
            (damaged[1], Status::Quarantined),
        ] {
            all &= fixture.store.show(id).await.expect("it is there").status == status;
        }
        if all {
            runner.stop().await.expect("it did well");
            let shown = fixture.store.show(damaged[0]).await.expect("it is there");
            let why = shown.last_error.expect("it is said");
            assert!(why.contains("actions are left"), "{why}");
            return;
        }
        f.pass(f.unit() / 10).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never");
}
