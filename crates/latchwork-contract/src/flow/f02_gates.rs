//! F2 Gates: deny stops, skip completes, a later denial wins; an action's gate skips that action.

use latchwork_flow::{Action, BoxError, Gate, GateContext, GateResult, GateVerdict, Status};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::machine_fixture::{MachineFixture, Order, draft, publish};

cases![
    f02_a_denial_stops_with_the_gates_message,
    f02_a_skip_completes_without_actions,
    f02_a_later_denial_wins_over_a_skip,
    f02_gates_are_asked_in_order_until_one_denies,
    f02_an_actions_gate_skips_that_action_only,
    f02_every_look_is_remembered,
    f02_a_gate_can_wait,
];

async fn f02_a_denial_stops_with_the_gates_message(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().gate_fn("never", |_, _| GateResult::deny("not today"));
    let machine = machine.action(fixture.noting("a")).build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("no error");
    assert!(done.is_stopped());
    assert_eq!(done.metadata(), Some(&json!({"denied_by": "never", "message": "not today"})));
    assert!(fixture.ran().is_empty() && done.action_executions().is_empty());
    assert!(!fixture.is_locked().await);
}

async fn f02_a_skip_completes_without_actions(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().gate_fn("done", |_, _| GateResult::skip("done before"));
    let machine = machine.action(fixture.noting("a")).build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("no error");
    assert_eq!((done.status(), done.state().expect("a state")), (Status::Completed, &draft()));
    assert_eq!(done.metadata(), Some(&json!({"skipped_by": "done", "message": "done before"})));
    assert!(fixture.ran().is_empty());
    assert!(!fixture.is_locked().await);
}

async fn f02_a_later_denial_wins_over_a_skip(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture
        .stored()
        .gate_fn("done", |_, _| GateResult::skip("done before"))
        .gate_fn("allowed", |_, _| GateResult::Allow)
        .gate_fn("never", |_, _| GateResult::deny("not today"));
    let machine = machine.action(fixture.noting("a")).build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("no error");
    assert!(done.is_stopped());
    let verdicts: Vec<_> = done.gate_evaluations().iter().map(|gate| gate.verdict).collect();
    assert_eq!(verdicts, [GateVerdict::SkipIdempotent, GateVerdict::Allow, GateVerdict::Deny]);
}

async fn f02_gates_are_asked_in_order_until_one_denies(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let mut machine = fixture.stored();
    for (name, deny) in [("a", false), ("b", true), ("c", false)] {
        let witness = fixture.clone();
        machine = machine.gate_fn(name, move |_, _| {
            witness.note(name);
            GateResult::allow_if(!deny, "no")
        });
    }
    let machine = machine.build().expect("a machine");
    machine.transition(draft(), publish()).execute().await.expect("no error");
    assert_eq!(fixture.ran(), ["a", "b"]);
}

/// Says what it is told, after a moment.
struct Slow(GateResult);

impl Gate<Order> for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    async fn evaluate(&self, at: GateContext<'_, Order>) -> Result<GateResult, BoxError> {
        tokio::task::yield_now().await;
        assert_eq!(at.outcome().status, "published");
        Ok(self.0.clone())
    }
}

async fn f02_an_actions_gate_skips_that_action_only(f: Fixture) {
    for (said, verdict) in [
        (GateResult::deny("no"), GateVerdict::Deny),
        (GateResult::skip("no"), GateVerdict::SkipIdempotent),
    ] {
        let fixture = MachineFixture::new(&f).await;
        let machine = fixture
            .stored()
            .action(fixture.noting("a"))
            .action(fixture.noting("b").behind(Slow(said)))
            .action(fixture.noting("c").behind(Slow(GateResult::Allow)));
        let machine = machine.build().expect("a machine");
        let done = machine.transition(draft(), publish()).execute().await.expect("no error");
        assert!(done.is_completed());
        assert_eq!(fixture.ran(), ["a", "c"]);
        let skip = &done.action_skips()[0];
        assert_eq!((&*skip.action, skip.index, &*skip.gate), ("b", 1, "slow"));
        assert_eq!((skip.verdict, skip.message.as_deref()), (verdict, Some("no")));
        let ran: Vec<_> = done.action_executions().iter().map(|action| action.index).collect();
        assert_eq!(ran, [0, 2], "places are those of the configuration");
    }
}

async fn f02_every_look_is_remembered(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture
        .stored()
        .gate_fn("first", |_, _| GateResult::Allow)
        .action(fixture.noting("a").behind(Slow(GateResult::deny("no"))));
    let machine = machine.build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("no error");
    let looks = done.gate_evaluations();
    assert_eq!((&*looks[0].gate, looks[0].action.as_deref()), ("first", None));
    assert_eq!((&*looks[1].gate, looks[1].action.as_deref()), ("slow", Some("a")));
    assert_eq!(looks[1].message.as_deref(), Some("no"));
    assert!(looks[0].at <= looks[1].at);
}

async fn f02_a_gate_can_wait(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine =
        fixture.stored().gate(Slow(GateResult::deny("later"))).build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("no error");
    assert!(done.is_stopped());
}
