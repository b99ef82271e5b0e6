//! F16 Retry and repeat: of an action by its policy, of a failed transition by hand, and of an action
//! that asks for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use latchwork_flow::store::{ContextStore, Due, DueClaim, RunClaim};
use latchwork_flow::{
    Action, ActionContext, ActionPolicy, ActionResult, Contexts, ErrorKind, Execution, GateResult,
    Pause, Retry, StateMachine, StateWorker, Status, Woken, action_fn,
};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::entities::Orders;
use super::fixture::code;
use super::machine_fixture::{MachineFixture, Order, draft, publish};

cases![
    f16_an_action_is_tried_again,
    f16_the_last_failure_is_the_transitions,
    f16_only_these_errors_are_tried_again,
    f16_a_panic_is_not_tried_again,
    f16_a_failed_transition_goes_on_from_the_action_that_failed,
    f16_one_that_failed_before_its_actions_begins_anew,
    f16_what_has_not_failed_cannot_be_retried,
    f16_an_action_asks_to_be_run_again_later,
    f16_a_signal_repeats_the_action,
    f16_repetitions_do_not_pile_up,
    f16_somebody_wakes_it_by_hand,
];

/// An action that fails so often first, and notes its attempts.
fn shaky(fixture: &MachineFixture, failures: u32) -> impl Action<Order> + use<> {
    let (witness, tried) = (fixture.clone(), Arc::new(AtomicU32::new(0)));
    action_fn("shaky", move |at: ActionContext<Order>| {
        let (witness, tried) = (witness.clone(), tried.clone());
        async move {
            witness.note(format!("{} {}", at.attempt(), at.idempotency_key().ends_with(":0")));
            match tried.fetch_add(1, Ordering::SeqCst) < failures {
                true => Err("not yet".into()),
                false => Ok(ActionResult::proceed()),
            }
        }
    })
}

fn policy(retry: Retry) -> ActionPolicy {
    let retry = retry.back_off(Duration::from_millis(1), Duration::from_millis(4));
    ActionPolicy { retry, ..ActionPolicy::default() }
}

/// Executes, while time passes.
async fn execute(f: &Fixture, mut worker: StateWorker<Order>) -> latchwork_flow::Result<Status> {
    let task = tokio::spawn(async move { worker.execute().await.map(|done| done.status()) });
    while !task.is_finished() {
        f.pass(Duration::from_millis(5)).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    task.await.expect("no panic")
}

async fn f16_an_action_is_tried_again(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let shaky = shaky(&fixture, 2).with_policy(policy(Retry::times(3)));
    let machine = fixture.stored().action(shaky).action(fixture.noting("next"));
    let machine = machine.build().expect("a machine");
    let ended = execute(&f, machine.transition(draft(), publish())).await;
    assert_eq!(ended.expect("no error"), Status::Completed);
    assert_eq!(fixture.ran(), ["1 true", "2 true", "3 true", "next"]);
}

async fn f16_the_last_failure_is_the_transitions(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let shaky = shaky(&fixture, 9).with_policy(policy(Retry::times(2)));
    let machine = fixture.stored().action(shaky).build().expect("a machine");
    assert_eq!(code(execute(&f, machine.transition(draft(), publish())).await), "action_failed");
    assert_eq!(fixture.ran().len(), 2);
    assert!(!fixture.is_locked().await);
}

async fn f16_only_these_errors_are_tried_again(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let never = Retry::times(5).when(|error| match error.kind() {
        ErrorKind::ActionFailed { reason, .. } => reason != "not yet",
        _ => true,
    });
    let machine = fixture.stored().action(shaky(&fixture, 9).with_policy(policy(never)));
    let machine = machine.build().expect("a machine");
    let ended = execute(&f, machine.transition(draft(), publish())).await;
    assert_eq!(code(ended), "action_failed");
    assert_eq!(fixture.ran().len(), 1);
}

async fn f16_a_panic_is_not_tried_again(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let witness = fixture.clone();
    let panics = action_fn("panics", move |_: ActionContext<Order>| {
        witness.note("panics");
        async { panic!("simulated failure") }
    });
    let machine = fixture.stored().action(panics.with_policy(policy(Retry::times(5))));
    let machine = machine.build().expect("a machine");
    let ended = execute(&f, machine.transition(draft(), publish())).await;
    assert_eq!(code(ended), "action_failed");
    assert_eq!(fixture.ran(), ["panics"]);
}

/// What a runner does: claims one context that is due.
async fn take(
    fixture: &MachineFixture,
    machine: &StateMachine<Order>,
) -> Option<StateWorker<Order>> {
    let claim = RunClaim::new(fixture.f.unit() * 10);
    let due = DueClaim::new(fixture.f.machine(), 1, &claim);
    let row = fixture.store.claim_due(&due).await.expect("it answers").into_iter().next()?;
    Some(machine.take(row, claim).expect("its own"))
}

async fn f16_a_failed_transition_goes_on_from_the_action_that_failed(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (witness, broken) = (fixture.clone(), Arc::new(AtomicU32::new(1)));
    let orders = Orders::with(draft());
    let machine = fixture.stored().action(fixture.noting("a")).action_fn("b", move |at| {
        witness.note(format!("b {}", at.idempotency_key().ends_with(":1")));
        let fails = broken.swap(0, Ordering::SeqCst) == 1;
        async move { if fails { Err("away".into()) } else { Ok(ActionResult::proceed()) } }
    });
    let machine = orders.machine(machine.action(fixture.noting("c"))).build().expect("a machine");
    let mut worker = machine.transition_of("ORD-123", publish());
    let id = worker.context().id();
    assert_eq!(code(worker.execute().await), "action_failed");
    assert!(take(&fixture, &machine).await.is_none(), "it is over");
    let elsewhere = f.open().await;
    Contexts::retry(&elsewhere, id).await.expect("it has failed");
    let shown = fixture.store.show(id).await.expect("it is there");
    assert_eq!((shown.status, shown.attempts), (Status::Running, 0));
    let mut worker = take(&fixture, &machine).await.expect("it is due");
    let done = worker.execute().await.expect("no error");
    assert!(done.is_completed() && done.failure().is_none());
    assert_eq!(fixture.ran(), ["a", "b true", "b true", "c"]);
    assert_eq!((orders.saves(), orders.read("ORD-123").status.as_str()), (1, "published"));
}

async fn f16_one_that_failed_before_its_actions_begins_anew(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let broken = Arc::new(AtomicU32::new(1));
    let machine = fixture.stored().gate_fn("shaky", move |_, _| {
        assert!(broken.swap(0, Ordering::SeqCst) == 0, "simulated failure");
        GateResult::Allow
    });
    let machine = machine.action(fixture.noting("a")).build().expect("a machine");
    let id = machine.submit(draft(), publish()).await.expect("stored");
    let mut worker = take(&fixture, &machine).await.expect("it is due");
    assert_eq!(code(worker.execute().await), "gate_failed");
    Contexts::retry(&fixture.store, id).await.expect("it has failed");
    assert_eq!(fixture.store.show(id).await.expect("it is there").status, Status::Pending);
    let mut worker = take(&fixture, &machine).await.expect("it is due");
    assert!(worker.execute().await.expect("no error").is_completed());
    assert_eq!(fixture.ran(), ["a"]);
}

async fn f16_what_has_not_failed_cannot_be_retried(f: Fixture) {
    let store = f.open().await;
    for status in [Status::Pending, Status::Running, Status::Paused, Status::Completed] {
        let draft = f.draft(status);
        store.create(&draft, None).await.expect("it is new");
        assert_eq!(code(Contexts::retry(&store, draft.id).await), "invalid_argument");
    }
    let nobody = f.draft(Status::Failed).id;
    assert_eq!(code(Contexts::retry(&store, nobody).await), "context_not_found");
}

/// An action that answers with a pause until the third time.
fn polling<P>(fixture: &MachineFixture, pause: P) -> impl Action<Order> + use<P>
where
    P: Fn() -> ActionResult<Order> + Send + Sync + 'static,
{
    let (witness, asked) = (fixture.clone(), AtomicU32::new(0));
    action_fn("polls", move |at: ActionContext<Order>| {
        let woken = match at.woken() {
            None => "first".to_owned(),
            Some(Woken::Time) => "time".to_owned(),
            Some(Woken::Signal { name, .. }) => name.clone(),
            Some(woken) => format!("{woken:?}"),
        };
        assert_eq!((at.index(), at.attempt()), (0, 1));
        assert!(at.idempotency_key().ends_with(":0"));
        witness.note(woken);
        let answer = match asked.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => pause(),
            _ => ActionResult::proceed(),
        };
        async move { Ok(answer) }
    })
}

async fn f16_an_action_asks_to_be_run_again_later(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let span = f.unit();
    let polls = polling(&fixture, move || ActionResult::retry_after(span));
    let machine = fixture.stored().action(polls).action(fixture.noting("next"));
    let machine = machine.build().expect("a machine");
    let mut worker = machine.transition(draft(), publish());
    let first = worker.execute().await.expect("no error");
    assert!(first.is_paused() && first.next_index() == 0);
    for _ in 0..2 {
        assert!(take(&fixture, &machine).await.is_none(), "not yet");
        assert!(fixture.is_locked().await, "the lock is kept");
        f.pass(f.unit() * 2).await;
        let mut worker = take(&fixture, &machine).await.expect("it is due");
        assert_eq!(worker.due(), Some(&Due::Time));
        worker.execute().await.expect("no error");
    }
    let shown = fixture.store.show(first.id()).await.expect("it is there");
    assert_eq!((shown.status, shown.attempts), (Status::Completed, 0));
    assert_eq!(fixture.ran(), ["first", "time", "time", "next"]);
}

async fn f16_a_signal_repeats_the_action(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let pause = || ActionResult::pause(Pause::new().on_signal("again").repeat());
    let machine = fixture.stored().action(polling(&fixture, pause)).action(fixture.noting("next"));
    let machine = machine.build().expect("a machine");
    let id = machine.submit(draft(), publish()).await.expect("stored");
    for _ in 0..3 {
        let mut worker = take(&fixture, &machine).await.expect("it is due");
        worker.execute().await.expect("no error");
        if !worker.context().status().is_over() {
            Contexts::signal(&fixture.store, id, "again", json!(null)).await.expect("it waits");
        }
    }
    assert_eq!(fixture.ran(), ["first", "again", "again", "next"]);
}

async fn f16_repetitions_do_not_pile_up(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let polls = polling(&fixture, || ActionResult::retry_after(Duration::ZERO));
    let machine = fixture.stored().action(polls).build().expect("a machine");
    let id = machine.submit(draft(), publish()).await.expect("stored");
    for repeats in 0..2 {
        f.pass(Duration::from_millis(2)).await;
        let mut worker = take(&fixture, &machine).await.expect("it is due");
        let paused = worker.execute().await.expect("no error");
        let [ran] = paused.action_executions() else { panic!("one: {paused:?}") };
        assert_eq!((ran.execution, ran.repeats), (Execution::Repeat, repeats));
    }
    f.pass(Duration::from_millis(2)).await;
    let done = take(&fixture, &machine).await.expect("it is due").execute().await;
    let done = done.expect("no error");
    let [ran] = done.action_executions() else { panic!("one: {done:?}") };
    assert_eq!((ran.execution, ran.repeats), (Execution::Continue, 2));
    assert_eq!(done.id(), id);
}

async fn f16_somebody_wakes_it_by_hand(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let witness = fixture.clone();
    let machine = fixture
        .stored()
        .action_fn("pauses", |_| async {
            Ok(ActionResult::pause(Pause::new().wake_after(Duration::from_secs(3_600))))
        })
        .action_fn("next", move |at| {
            witness.note(format!("{:?}", at.woken()));
            async { Ok(ActionResult::proceed()) }
        });
    let machine = machine.build().expect("a machine");
    let paused = machine.transition(draft(), publish()).execute().await.expect("no error");
    Contexts::wake(&fixture.store, paused.id()).await.expect("it is paused");
    let mut worker = take(&fixture, &machine).await.expect("it is due");
    worker.execute().await.expect("no error");
    assert_eq!(fixture.ran(), ["Some(Hand)"]);
}
