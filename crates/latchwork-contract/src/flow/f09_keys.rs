//! F9 What is locked: an entity, a kind of transition, a snapshot, or what the user says.

use latchwork_flow::{
    ActionResult, LockKeyProvider, Pause, SnapshotKey, StateMachine, TransitionKey,
};
use latchwork_lock::Key;

use super::Fixture;
use super::case::cases;
use super::fixture::code;
use super::machine_fixture::{Change, MachineFixture, Order, draft, publish};

cases![
    f09_an_entity_moves_one_way_at_a_time,
    f09_other_kinds_of_transition_go_on,
    f09_only_the_same_snapshot_is_excluded,
    f09_the_users_own_key,
];

/// A machine that holds its lock over a pause.
fn holding(fixture: &MachineFixture, keys: impl LockKeyProvider<Order>) -> StateMachine<Order> {
    let machine = StateMachine::builder(fixture.f.machine()).locks(&fixture.locks, keys);
    let machine = machine.action_fn("wait", |_| async { Ok(ActionResult::pause(Pause::new())) });
    machine.build().expect("a machine")
}

fn archive() -> Change {
    Change { status: Some("archived".into()) }
}

async fn f09_an_entity_moves_one_way_at_a_time(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = holding(&fixture, latchwork_flow::EntityKey::new());
    let paused = machine.transition(draft(), publish()).execute().await.expect("it is free");
    assert_eq!(paused.lock_state().key.as_deref(), Some("flow:entity:ORD-123"));
    assert_eq!(code(machine.transition(draft(), archive()).execute().await), "lock_taken");
    let other = Order { id: "ORD-124".into(), ..draft() };
    machine.transition(other, publish()).execute().await.expect("another entity is free");
}

async fn f09_other_kinds_of_transition_go_on(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = holding(&fixture, TransitionKey::new());
    let paused = machine.transition(draft(), publish()).execute().await.expect("it is free");
    let key = "flow:entity:ORD-123:transition:draft->published";
    assert_eq!(paused.lock_state().key.as_deref(), Some(key));
    machine.transition(draft(), archive()).execute().await.expect("another kind");
    assert_eq!(code(machine.transition(draft(), publish()).execute().await), "lock_taken");
    assert_eq!(
        code(machine.transition(draft(), Change::default()).execute().await),
        "no_entity_id"
    );
}

async fn f09_only_the_same_snapshot_is_excluded(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = holding(&fixture, SnapshotKey::new());
    machine.transition(draft(), publish()).execute().await.expect("it is free");
    let other = Order { note: "other".into(), ..draft() };
    machine.transition(other, publish()).execute().await.expect("another snapshot");
    machine.transition(draft(), archive()).execute().await.expect("another change");
    assert_eq!(code(machine.transition(draft(), publish()).execute().await), "lock_taken");
}

async fn f09_the_users_own_key(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let by_note = |order: &Order, _: &Change| -> latchwork_flow::Result<Key> {
        Ok(Key::new(&format!("note:{}", order.note))?)
    };
    let machine = holding(&fixture, by_note);
    let paused = machine.transition(draft(), publish()).execute().await.expect("it is free");
    assert_eq!(paused.lock_state().key.as_deref(), Some("note:"));
    let other = Order { id: "another".into(), ..draft() };
    assert_eq!(code(machine.transition(other, publish()).execute().await), "lock_taken");
}
