//! F11 A table of moves, as a gate.

use latchwork_flow::{LegalMove, MergeDelta, TransitionTable};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::machine_fixture::{Change, MachineFixture, Order, draft, publish};

cases![f11_a_table_is_a_gate];

async fn f11_a_table_is_a_gate(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let s = |name: &str| name.to_owned();
    let table = TransitionTable::builder("order")
        .initial(s("draft"))
        .allow(s("draft"), [s("published")])
        .allow(s("published"), [s("archived")])
        .terminal([s("archived")]);
    let gate = LegalMove::new(table.build().expect("it holds together"));
    let machine = fixture.stored().gate(gate).action(MergeDelta).build().expect("a machine");
    let run = async |order: Order, to: &str| {
        let change = Change { status: Some(to.to_owned()) };
        machine.transition(order, change).execute().await.expect("no error")
    };
    assert_eq!(run(draft(), "published").await.state().expect("a state").status, "published");
    let stopped = run(draft(), "archived").await;
    assert!(stopped.is_stopped());
    let why = "order: draft cannot become archived; from draft it can become published";
    assert_eq!(stopped.metadata(), Some(&json!({"denied_by": "legal_move", "message": why})));
    let again = machine.transition(Order { status: "published".into(), ..draft() }, publish());
    let again = { again }.execute().await.expect("no error");
    assert!(again.is_completed() && again.action_executions().is_empty(), "it was there already");
}
