//! F1 The user merges; the machine never does by itself.

use latchwork_flow::{ActionResult, JsonState, MergeDelta, StateMachine};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::machine_fixture::{MachineFixture, Order, draft, publish};

cases![
    f01_merge_delta_merges_as_the_state_says,
    f01_without_an_action_nothing_changes,
    f01_an_action_may_change_more_than_the_delta,
    f01_each_action_sees_what_the_one_before_left,
    f01_a_map_is_a_state_too,
];

async fn f01_merge_delta_merges_as_the_state_says(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action(MergeDelta).build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("nothing fails");
    assert!(done.is_completed());
    assert_eq!(*done.state().expect("a state"), Order { status: "published".into(), ..draft() });
}

async fn f01_without_an_action_nothing_changes(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("nothing fails");
    assert!(done.is_completed());
    assert_eq!(*done.state().expect("a state"), draft());
}

async fn f01_an_action_may_change_more_than_the_delta(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action_fn("stamp", |at| async move {
        Ok(ActionResult::proceed_with(Order {
            note: "stamped".into(),
            ..at.state().with_delta(&at)
        }))
    });
    let machine = machine.build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("nothing fails");
    assert_eq!(
        (&*done.state().expect("a state").status, &*done.state().expect("a state").note),
        ("published", "stamped")
    );
}

async fn f01_each_action_sees_what_the_one_before_left(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let mut machine = fixture.stored();
    for name in ["a", "b", "c"] {
        machine = machine.action_fn(name, move |at| async move {
            let note = format!("{}{name}", at.state().note);
            Ok(ActionResult::proceed_with(Order { note, ..at.state().clone() }))
        });
    }
    let machine = machine.build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("nothing fails");
    assert_eq!(done.state().expect("a state").note, "abc");
}

async fn f01_a_map_is_a_state_too(f: Fixture) {
    let machine = StateMachine::<JsonState>::builder(f.machine()).store(f.open().await);
    let machine = machine.action(MergeDelta).build().expect("a machine");
    let state = JsonState::new(json!({"id": 1, "status": "draft", "old": true})).expect("a map");
    let delta = JsonState::delta(json!({"status": "published", "old": null})).expect("a map");
    let done = machine.transition(state, delta).execute().await.expect("nothing fails");
    assert_eq!(
        done.state().expect("a state").fields().clone(),
        *json!({"id": 1, "status": "published"}).as_object().expect("a map")
    );
}

impl Order {
    fn with_delta(&self, at: &latchwork_flow::ActionContext<Order>) -> Order {
        latchwork_flow::State::with(self, at.delta())
    }
}
