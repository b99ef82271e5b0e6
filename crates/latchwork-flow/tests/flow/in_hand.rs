//! A paused context that was never written goes on like one that was.

use latchwork_flow::{
    ActionResult, Configuration, EntityKey, JsonState, MergeDelta, Pause, StateMachine,
    StateMachineBuilder,
};
use latchwork_lock::{InMemoryLockProvider, Locks};
use serde_json::json;

fn builder() -> StateMachineBuilder<JsonState> {
    StateMachine::builder("in hand")
        .locks(Locks::new(InMemoryLockProvider::new()), EntityKey::new())
        .action_fn("first", |_| async { Ok(ActionResult::proceed()) })
        .action_fn("wait", |_| async { Ok(ActionResult::pause(Pause::new())) })
        .action_fn("then", |_| async { Ok(ActionResult::proceed()) })
        .action(MergeDelta)
}

async fn goes_on(machine: StateMachine<JsonState>) {
    let state = JsonState::new(json!({"id": "one"})).unwrap();
    let delta = JsonState::delta(json!({"done": true})).unwrap();
    let paused = machine.run(state.clone(), delta.clone()).await.unwrap();
    assert!(paused.is_paused());
    let mut worker = machine.from_context(paused).unwrap();
    let left: Vec<_> = worker.context().remaining_actions().iter().map(|name| &**name).collect();
    assert_eq!(left, ["then", "merge_delta"]);
    let text = worker.context().to_json().unwrap();
    let read = machine.read_context(&text).unwrap();
    assert_eq!(read.remaining_actions(), worker.context().remaining_actions());
    let done = worker.execute().await.unwrap();
    let ran: Vec<_> = done.action_executions().iter().map(|ran| &*ran.action).collect();
    assert_eq!(ran, ["first", "wait", "then", "merge_delta"]);
    assert!(done.is_completed());
    assert_eq!(done.state().unwrap().get("done"), Some(&json!(true)));
    // And one that has not begun begins.
    let pending = machine.transition(state, delta);
    let mut worker = machine.from_context(pending.context().clone()).unwrap();
    assert!(worker.execute().await.unwrap().is_paused());
}

#[tokio::test]
async fn f07_a_context_in_hand_goes_on_where_it_stood() {
    goes_on(builder().build().unwrap()).await;
}

#[tokio::test]
async fn f07_also_where_the_actions_were_chosen() {
    let all = ["first", "wait", "then", "merge_delta"];
    let chosen = move |_: &JsonState, _: &_| Configuration::new().actions(all);
    goes_on(builder().configure(chosen).build().unwrap()).await;
}
