//! F10 Sixteen events, in order, numbered; and an observer harms nothing.

use std::collections::BTreeSet;

use latchwork_flow::{
    Action as _, ActionResult, ChannelObserver, Event, GateResult, MergeDelta, Pause,
};

use super::Fixture;
use super::case::cases;
use super::machine_fixture::{KEY, MachineFixture, Order, draft, publish};

cases![
    f10_a_whole_run_in_order,
    f10_a_run_over_a_pause_is_numbered_through,
    f10_ends_are_told_before_the_lock_is_released,
    f10_contention_and_loss_are_told,
    f10_all_sixteen_can_happen,
    f10_a_panicking_observer_harms_nothing,
    f10_a_slow_listener_harms_nothing,
    f10_a_listener_that_is_gone_harms_nothing,
];

async fn f10_a_whole_run_in_order(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture
        .stored()
        .gate_fn("open", |_, _| GateResult::Allow)
        .action(fixture.noting("a"))
        .action(fixture.noting("b").behind(Done))
        .action(MergeDelta);
    let machine = machine.build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("no error");
    assert_eq!(
        fixture.event_names(),
        [
            "TransitionStarting",
            "LockAcquiring",
            "LockAcquired",
            "GateEvaluating",
            "GateEvaluated",
            "ActionExecuting",
            "ActionExecuted",
            "GateEvaluating",
            "GateEvaluated",
            "ActionSkipped",
            "ActionExecuting",
            "ActionExecuted",
            "TransitionCompleted",
            "LockReleased",
        ]
    );
    let events = fixture.events();
    for (number, event) in events.iter().enumerate() {
        assert_eq!((event.transition, event.sequence), (done.id(), number as u64));
        assert_eq!(event.machine, f.machine());
    }
    assert!(events.is_sorted_by_key(|event| event.at));
    assert_eq!((events[2].key.as_deref(), events[2].fence.is_some()), (Some(KEY), true));
    assert_eq!(
        (events[8].gate.as_deref(), events[8].action.as_deref()),
        (Some("not_b"), Some("b"))
    );
    assert_eq!((events[9].index, events[9].message.as_deref()), (Some(1), Some("done")));
}

/// Says that it has been done.
struct Done;

impl latchwork_flow::Gate<Order> for Done {
    fn name(&self) -> &str {
        "not_b"
    }

    async fn evaluate(
        &self,
        _: latchwork_flow::GateContext<'_, Order>,
    ) -> Result<GateResult, latchwork_flow::BoxError> {
        Ok(GateResult::skip("done"))
    }
}

async fn f10_a_run_over_a_pause_is_numbered_through(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture
        .stored()
        .action_fn("wait", |_| async { Ok(ActionResult::pause(Pause::new())) })
        .action(fixture.noting("a"));
    let machine = machine.build().expect("a machine");
    let id = machine.transition(draft(), publish()).execute().await.expect("no error").id();
    machine.resume(id).await.expect("paused").execute().await.expect("no error");
    assert_eq!(
        fixture.event_names(),
        [
            "TransitionStarting",
            "LockAcquiring",
            "LockAcquired",
            "ActionExecuting",
            "ActionExecuted",
            "TransitionPaused",
            "TransitionStarting",
            "LockRestored",
            "ActionExecuting",
            "ActionExecuted",
            "TransitionCompleted",
            "LockReleased",
        ]
    );
    for (number, event) in fixture.events().iter().enumerate() {
        assert_eq!((event.transition, event.sequence), (id, number as u64));
    }
}

async fn f10_ends_are_told_before_the_lock_is_released(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action_fn("stop", |_| async { Ok(ActionResult::stop()) });
    let machine = machine.build().expect("a machine");
    machine.transition(draft(), publish()).execute().await.expect("no error");
    assert!(fixture.event_names().ends_with(&["TransitionStopped", "LockReleased"]));
    let machine = fixture.stored().action_fn("fail", |_| async { Err("no".into()) });
    let machine = machine.build().expect("a machine");
    machine.transition(draft(), publish()).execute().await.expect_err("it fails");
    assert!(fixture.event_names().ends_with(&["TransitionFailed", "LockReleased"]));
}

async fn f10_contention_and_loss_are_told(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture
        .stored()
        .action_fn("wait", |_| async { Ok(ActionResult::pause(Pause::new())) })
        .action(fixture.noting("a"));
    let machine = machine.build().expect("a machine");
    let id = machine.transition(draft(), publish()).execute().await.expect("no error").id();
    machine.transition(draft(), publish()).execute().await.expect_err("it is taken");
    let events = fixture.events();
    let failed = events.iter().find(|event| event.name == "LockFailed").expect("it is told");
    assert_eq!(failed.key.as_deref(), Some(KEY));
    assert!(
        failed.message.as_deref().is_some_and(|said| said.contains(&id.to_string())),
        "who has it"
    );
    f.pass(fixture.too_long()).await;
    machine.resume(id).await.expect("paused").execute().await.expect_err("it ran out");
    assert_eq!(fixture.event_names().last(), Some(&"LockLost"));
}

async fn f10_all_sixteen_can_happen(f: Fixture) {
    let mut seen = BTreeSet::new();
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture
        .stored()
        .action_fn("wait", |_| async { Ok(ActionResult::pause(Pause::new())) })
        .action(fixture.noting("a").behind(Done));
    let machine = machine.build().expect("a machine");
    let paused = machine.transition(draft(), publish()).execute().await.expect("no error");
    machine.transition(draft(), publish()).execute().await.expect_err("it is taken");
    machine.resume(paused.id()).await.expect("paused").execute().await.expect("no error");
    let stop = fixture.stored().action_fn("stop", |_| async { Ok(ActionResult::stop()) });
    let stop = stop.build().expect("a machine");
    stop.transition(draft(), publish()).execute().await.expect("no error");
    let mut late = machine.transition(draft(), publish());
    late.execute().await.expect("no error");
    f.pass(fixture.too_long()).await;
    late.execute().await.expect_err("it ran out");
    seen.extend(fixture.event_names());
    assert_eq!(seen.len(), 16, "{seen:?}");
}

async fn f10_a_panicking_observer_harms_nothing(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let broken = |_: &Event<'_, Order>| panic!("I cannot look");
    let machine = fixture.stored().observe(broken).action(MergeDelta).build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("no error");
    assert!(done.is_completed() && !fixture.is_locked().await);
}

async fn f10_a_slow_listener_harms_nothing(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (observer, mut events) = ChannelObserver::new(2);
    let machine = fixture.stored().observe(observer.clone()).action(MergeDelta);
    let machine = machine.build().expect("a machine");
    // Nobody reads, and nobody waits for that.
    let done = machine.transition(draft(), publish()).execute().await.expect("no error");
    assert!(done.is_completed());
    let all = fixture.events();
    assert_eq!(observer.dropped(), all.len() as u64 - 2);
    assert_eq!(events.recv().await, Some(all[0].clone()));
    assert_eq!(events.recv().await.map(|event| event.sequence), Some(1));
    machine.transition(draft(), publish()).execute().await.expect("no error");
    assert_eq!(events.recv().await.map(|event| event.name), Some("TransitionStarting"));
}

async fn f10_a_listener_that_is_gone_harms_nothing(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (observer, events) = ChannelObserver::new(8);
    drop(events);
    let machine = fixture.stored().observe(observer.clone()).action(MergeDelta);
    let machine = machine.build().expect("a machine");
    assert!(
        machine.transition(draft(), publish()).execute().await.expect("no error").is_completed()
    );
    assert_eq!(observer.dropped(), fixture.events().len() as u64);
}
