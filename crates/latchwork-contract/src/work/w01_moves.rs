//! W1: one way to change a state, checked, with its event.

use latchwork_work::{
    Actor, ErrorKind, EventNote, EventType, ItemId, ItemState, OrderId, OrderState, WorkClient,
    WorkManager,
};

use super::Fixture;
use super::case::cases;
use super::fixture::{PLAIN, agent, events, item_state, only_item, order_state, propose, user};

cases![
    w01_every_cell_of_the_order_table,
    w01_every_cell_of_the_item_table,
    w01_special_timestamps_are_set,
    w01_a_move_keeps_payload_message_and_diff,
];

/// A way from `queued` to each state, by moves of the default table.
fn way_to_order(state: OrderState) -> Vec<OrderState> {
    use OrderState::*;
    match state {
        Queued => vec![],
        CheckedOut => vec![CheckedOut],
        InProgress => vec![CheckedOut, InProgress],
        Submitted => vec![Submitted],
        Approved => vec![Submitted, Approved],
        Applied => vec![Submitted, Approved, Applied],
        Completed => vec![Submitted, Approved, Applied, Completed],
        Rejected => vec![Rejected],
        Failed => vec![Failed],
        DeadLettered => vec![Failed, DeadLettered],
    }
}

fn way_to_item(state: ItemState) -> Vec<ItemState> {
    use ItemState::*;
    match state {
        Queued => vec![],
        Leased => vec![Leased],
        InProgress => vec![Leased, InProgress],
        Submitted => vec![Leased, InProgress, Submitted],
        Accepted => vec![Leased, InProgress, Submitted, Accepted],
        Rejected => vec![Leased, InProgress, Submitted, Rejected],
        Completed => vec![Leased, InProgress, Submitted, Accepted, Completed],
        Failed => vec![Failed],
        DeadLettered => vec![Failed, DeadLettered],
    }
}

async fn order_in(work: &WorkManager, client: &WorkClient, state: OrderState) -> OrderId {
    let id = propose(work, PLAIN, 1).await.id;
    for step in way_to_order(state) {
        client.transition_order(id, step, EventNote::new()).await.expect("a legal way");
    }
    id
}

async fn item_in(work: &WorkManager, client: &WorkClient, state: ItemState) -> (OrderId, ItemId) {
    let order = propose(work, PLAIN, 2).await.id;
    let item = work.items(order, None, 10).await.expect("items")[0].item.id;
    for step in way_to_item(state) {
        client.transition_item(item, step, EventNote::new()).await.expect("a legal way");
    }
    (order, item)
}

async fn w01_every_cell_of_the_order_table(f: Fixture) {
    let work = f.manager().await;
    let client = user(&work, "ada");
    for from in OrderState::ALL {
        for to in OrderState::ALL {
            let id = order_in(&work, &client, *from).await;
            let before = events(&work, id).await;
            let moved = client.transition_order(id, *to, EventNote::new()).await;
            let after = events(&work, id).await;
            if work.tables().order().can(from, to) {
                assert_eq!(moved.expect("allowed").state, *to);
                assert_eq!(order_state(&work, id).await, *to);
                assert_eq!(after.len(), before.len() + 1, "{from} to {to}: exactly one event");
                let last = after.last().expect("an event");
                assert_eq!(last.event, EventType::of_order(*to));
                assert_eq!(last.actor, *client.actor());
            } else {
                let error = moved.expect_err("not allowed");
                assert_eq!(error.code(), "illegal_transition");
                let ErrorKind::IllegalTransition { allowed, .. } = error.kind() else {
                    panic!("{error}")
                };
                let expected: Vec<_> =
                    work.tables().order().allowed_from(from).map(|s| s.to_string()).collect();
                assert_eq!(*allowed, expected);
                assert_eq!(order_state(&work, id).await, *from, "nothing changed");
                assert_eq!(after, before, "{from} to {to}: no event");
            }
        }
    }
}

async fn w01_every_cell_of_the_item_table(f: Fixture) {
    let work = f.manager().await;
    let client = agent(&work, "agent-1");
    for from in ItemState::ALL {
        for to in ItemState::ALL {
            let (order, item) = item_in(&work, &client, *from).await;
            let before = events(&work, order).await;
            let moved = client.transition_item(item, *to, EventNote::new()).await;
            let after = events(&work, order).await;
            if work.tables().item().can(from, to) {
                assert_eq!(moved.expect("allowed").state, *to);
                assert_eq!(item_state(&work, item).await, *to);
                let of_item = |events: &[latchwork_work::Event]| {
                    events.iter().filter(|event| event.item_id == Some(item)).count()
                };
                assert_eq!(of_item(&after), of_item(&before) + 1, "{from} to {to}: one event");
                let lease = work.item(item).await.expect("an item").lease;
                assert_eq!(lease.is_some(), to.is_leased(), "{to}: a lease while it is leased");
            } else {
                assert_eq!(moved.expect_err("not allowed").code(), "illegal_transition");
                assert_eq!(item_state(&work, item).await, *from, "nothing changed");
                assert_eq!(after, before, "{from} to {to}: no event");
            }
        }
    }
}

async fn w01_special_timestamps_are_set(f: Fixture) {
    let work = f.manager().await;
    let client = user(&work, "ada");
    let id = propose(&work, PLAIN, 1).await.id;
    let mut last = work.order(id).await.expect("an order").order;
    for step in way_to_order(OrderState::Completed) {
        let order = client.transition_order(id, step, EventNote::new()).await.expect("moved");
        assert!(order.last_transitioned_at > last.last_transitioned_at, "{step}");
        assert_eq!(order.applied_at.is_some(), step >= OrderState::Applied, "{step}");
        assert_eq!(order.completed_at.is_some(), step == OrderState::Completed, "{step}");
        assert_eq!(work.order(id).await.expect("an order").order, order, "as it is stored");
        last = order;
    }
    let id = propose(&work, PLAIN, 1).await.id;
    let item = only_item(&work, id).await;
    let agent = agent(&work, "agent-1");
    for step in way_to_item(ItemState::Accepted) {
        let moved = agent.transition_item(item.id, step, EventNote::new()).await.expect("moved");
        assert!(moved.leased_at.is_some());
        assert_eq!(moved.accepted_at.is_some(), step == ItemState::Accepted);
    }
}

async fn w01_a_move_keeps_payload_message_and_diff(f: Fixture) {
    let work = f.manager().await;
    let client = work.client(Actor::user("grace").expect("a name"));
    let id = propose(&work, PLAIN, 1).await.id;
    let note = EventNote::new()
        .payload(serde_json::json!({"reason": "manual review"}))
        .message("looks wrong; \"quoted\", ünïcode")
        .diff(serde_json::json!({"before": 1, "after": 2}));
    client.transition_order(id, OrderState::Rejected, note.clone()).await.expect("moved");
    let last = events(&work, id).await.pop().expect("an event");
    assert_eq!(last.event, EventType::Rejected);
    assert_eq!((last.payload, last.message, last.diff), (note.payload, note.message, note.diff));
    assert_eq!(last.actor, *client.actor());
    let nul = EventNote::new().message("a\0b");
    let error = client.record_order_event(id, EventType::Commented, nul).await.expect_err("NUL");
    assert_eq!(error.code(), "invalid_argument");
}
