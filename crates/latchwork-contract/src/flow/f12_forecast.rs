//! F12 What would happen, without lock or action.

use latchwork_flow::{
    Action as _, BoxError, Configuration, Gate, GateContext, GateResult, GateVerdict, MergeDelta,
};

use super::Fixture;
use super::case::cases;
use super::machine_fixture::{Change, KEY, MachineFixture, Order, draft, publish};

cases![
    f12_can_asks_the_gates_and_nothing_else,
    f12_a_dry_run_says_which_gates_refuse_and_why,
    f12_a_dry_run_tells_who_holds_the_lock,
    f12_a_dry_run_survives_a_broken_gate,
    f12_a_dry_run_asks_the_provider,
];

struct Says(GateResult, &'static str);

impl Gate<Order> for Says {
    fn name(&self) -> &str {
        self.1
    }

    async fn evaluate(&self, _: GateContext<'_, Order>) -> Result<GateResult, BoxError> {
        match &self.0 {
            GateResult::Deny(message) if message == "error" => Err("it is broken".into()),
            said => Ok(said.clone()),
        }
    }
}

async fn f12_can_asks_the_gates_and_nothing_else(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture
        .stored()
        .gate_fn("drafts", |order, _| GateResult::allow_if(order.status == "draft", "no draft"))
        .action(fixture.noting("a"));
    let machine = machine.build().expect("a machine");
    assert!(machine.can(&draft(), &publish()).await.expect("it answers"));
    let other = Order { status: "archived".into(), ..draft() };
    assert!(!machine.can(&other, &publish()).await.expect("it answers"));
    assert!(fixture.ran().is_empty() && fixture.events().is_empty() && !fixture.is_locked().await);
}

async fn f12_a_dry_run_says_which_gates_refuse_and_why(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture
        .stored()
        .gate(Says(GateResult::Allow, "one"))
        .gate(Says(GateResult::deny("too early"), "two"))
        .gate(Says(GateResult::deny("too dear"), "three"))
        .action(fixture.noting("a"))
        .action(fixture.noting("b").behind(Says(GateResult::skip("done"), "four")));
    let machine = machine.build().expect("a machine");
    let forecast = machine.dry_run(&draft(), &publish()).await.expect("it answers");
    assert!(!forecast.is_allowed() && !forecast.is_done_already());
    let blockers: Vec<_> =
        forecast.blockers().map(|gate| (&*gate.gate, gate.message.as_deref())).collect();
    assert_eq!(blockers, [("two", Some("too early")), ("three", Some("too dear"))], "all of them");
    let actions: Vec<_> = forecast.actions.iter().map(|a| (&*a.action, a.would_run)).collect();
    assert_eq!(actions, [("a", true), ("b", false)]);
    assert_eq!(forecast.gates[3].action.as_deref(), Some("b"));
    assert_eq!(forecast.gates[3].verdict, Some(GateVerdict::SkipIdempotent));
    assert!(fixture.ran().is_empty() && fixture.events().is_empty() && !fixture.is_locked().await);
}

async fn f12_a_dry_run_tells_who_holds_the_lock(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action(MergeDelta).build().expect("a machine");
    let forecast = machine.dry_run(&draft(), &publish()).await.expect("it answers");
    assert_eq!((forecast.lock_key.as_deref(), forecast.holder), (Some(KEY), None));
    let held = fixture.locks.lock(KEY).owner("ana").acquire().await.expect("it is free");
    let forecast = machine.dry_run(&draft(), &publish()).await.expect("it answers");
    assert_eq!(forecast.holder.expect("somebody has it").who(), "ana");
    assert!(held.is_held());
}

async fn f12_a_dry_run_survives_a_broken_gate(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture
        .stored()
        .gate(Says(GateResult::deny("error"), "fails"))
        .gate_fn("panics", |_, _| panic!("no"));
    let machine = machine.build().expect("a machine");
    let forecast = machine.dry_run(&draft(), &publish()).await.expect("it answers");
    let blockers: Vec<_> = forecast.blockers().map(|gate| gate.verdict).collect();
    assert_eq!(blockers, [None, None]);
    assert!(forecast.gates[0].message.as_deref().is_some_and(|said| said.contains("broken")));
    assert!(!machine.can(&draft(), &publish()).await.expect("it answers"));
}

async fn f12_a_dry_run_asks_the_provider(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action(fixture.noting("a")).action(fixture.noting("b"));
    let machine = machine.configure(|_: &Order, _: &Change| Configuration::new().actions(["b"]));
    let machine = machine.build().expect("a machine");
    let forecast = machine.dry_run(&draft(), &publish()).await.expect("it answers");
    assert!(forecast.is_allowed());
    assert_eq!(forecast.actions.len(), 1);
}
