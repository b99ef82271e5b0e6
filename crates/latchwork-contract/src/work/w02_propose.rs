//! W2: proposing and planning, and the small operations on an order as a whole.

use latchwork_work::{DynamicOrderType, EventType, ItemState, OrderState, PlannedItem, Proposal};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, agent, event_names, events, lease, nothing, order_state, propose, user,
};

cases![
    w02_a_proposal_stores_the_order_and_its_items,
    w02_many_are_proposed_all_or_none,
    w02_a_plan_stores_nothing,
    w02_bug_a_plan_without_items_is_refused,
    w02_bug_a_clone_is_planned_once,
    w02_comments_stand_in_the_trail,
    w02_provenance_is_kept_for_real,
];

async fn w02_a_proposal_stores_the_order_and_its_items(f: Fixture) {
    let work = f.manager().await;
    let proposal = Proposal::new(PLAIN, json!({"items": 3, "text": "\"é\" \u{1f600} \\u0000"}))
        .priority(7)
        .meta("tenant", 42);
    let proposed = user(&work, "ada").propose(proposal.clone()).await.expect("proposed");
    assert!(!proposed.existing);
    let found = work.order(proposed.order.id).await.expect("an order");
    assert_eq!(found.order, proposed.order, "as it is stored");
    assert_eq!(found.payload, proposal.payload);
    assert_eq!((found.order.state, found.order.priority), (OrderState::Queued, 7));
    assert_eq!(found.item_counts.get(ItemState::Queued), 3);
    let items = work.items(found.order.id, None, 10).await.expect("items");
    let inputs: Vec<_> = items.iter().map(|item| item.input.clone()).collect();
    assert_eq!(inputs, [json!({"n": 0}), json!({"n": 1}), json!({"n": 2})]);
    let told = events(&work, found.order.id).await;
    let names: Vec<_> = told.iter().map(|event| event.event).collect();
    assert_eq!(names, [EventType::Proposed, EventType::Planned]);
    assert_eq!(told[0].actor, *user(&work, "ada").actor());
    assert_eq!(told[1].payload, Some(json!({"item_count": 3})));
    // A page behind the first item.
    let rest = work.items(found.order.id, Some(0), 10).await.expect("items");
    assert_eq!(rest.len(), 2);
}

async fn w02_many_are_proposed_all_or_none(f: Fixture) {
    let work = f.manager().await;
    let ada = user(&work, "ada");
    let good = || Proposal::new(PLAIN, json!({"items": 2}));
    let all = ada.propose_many(vec![good(), good().unique_key("k"), good()]).await.expect("all");
    assert_eq!(all.len(), 3);
    for wrong in [Proposal::new("unknown", json!({})), good().unique_key("")] {
        ada.propose_many(vec![good(), wrong]).await.expect_err("one of them is wrong");
    }
    assert_eq!(ada.propose_many(Vec::new()).await.expect_err("none").code(), "invalid_argument");
    let counts = work.order_states().await.expect("counts");
    assert_eq!(counts.iter().map(|one| one.count).sum::<u64>(), 3, "none of the refused");
    // One call may hold two of the same key: the second gets the first.
    let twice = vec![good().unique_key("twice"), good().unique_key("twice")];
    let twice = ada.propose_many(twice).await.expect("proposed");
    assert_eq!(twice[0].order.id, twice[1].order.id);
    assert!(!twice[0].existing && twice[1].existing);
}

async fn w02_a_plan_stores_nothing(f: Fixture) {
    let work = f.manager().await;
    let plan = user(&work, "ada").plan(&Proposal::new(PLAIN, json!({"items": 2}))).await;
    assert_eq!(plan.expect("a plan").len(), 2);
    assert_eq!(work.order_states().await.expect("counts"), []);
    nothing(&agent(&work, "agent-1")).await;
}

async fn w02_bug_a_plan_without_items_is_refused(f: Fixture) {
    let work = f.manager().await;
    let proposal = Proposal::new(PLAIN, json!({"items": 0}));
    let error = user(&work, "ada").propose(proposal).await.expect_err("it could never end");
    assert_eq!(error.code(), "plan_empty");
    assert_eq!(work.order_states().await.expect("counts"), []);
}

async fn w02_bug_a_clone_is_planned_once(f: Fixture) {
    let work = f.manager().await;
    let ada = user(&work, "ada");
    let proposal = Proposal::new(PLAIN, json!({"items": 2})).unique_key("k").meta("tenant", 1);
    let old = ada.propose(proposal).await.expect("proposed").order;
    ada.cancel(old.id, "no longer wanted").await.expect("cancelled");
    let new = ada.clone_order(old.id, Some(9)).await.expect("cloned").order;
    assert_eq!((new.items, new.priority, new.unique_key), (2, 9, None));
    let meta = new.meta.expect("a meta");
    assert_eq!((&meta["cloned_from"], &meta["tenant"]), (&json!(old.id), &json!(1)));
    assert_eq!(work.items(new.id, None, 10).await.expect("items").len(), 2, "planned once");
    let planned = events(&work, new.id).await;
    assert_eq!(planned.iter().filter(|event| event.event == EventType::Planned).count(), 1);
    assert_eq!(order_state(&work, old.id).await, OrderState::DeadLettered);
}

async fn w02_comments_stand_in_the_trail(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 1).await;
    let held = lease(&agent(&work, "agent-1")).await;
    let ada = user(&work, "ada");
    let of_order = ada.comment(order.id, "please hurry").await.expect("a comment");
    let of_item = ada.comment_item(held.item_id, "look here").await.expect("a comment");
    let told = events(&work, order.id).await;
    let found = |id| told.iter().find(|event| event.id == id).expect("it stands there");
    assert_eq!(found(of_order).message.as_deref(), Some("please hurry"));
    assert_eq!(
        (found(of_item).event, found(of_item).item_id),
        (EventType::Commented, Some(held.item_id))
    );
    let unknown = latchwork_work::OrderId::new(order.created_at);
    assert_eq!(ada.comment(unknown, "x").await.expect_err("none").code(), "order_not_found");
}

async fn w02_provenance_is_kept_for_real(f: Fixture) {
    let split = |_: &serde_json::Value| Ok(vec![PlannedItem::new(json!(1))]);
    let work = f.with_types([DynamicOrderType::new(PLAIN).plan(split)]).await;
    let order = propose(&work, PLAIN, 1).await;
    let provenance = latchwork_work::Provenance {
        agent_name: Some("coder".into()),
        agent_version: Some("1.2.3".into()),
        model: Some("m-1".into()),
        runtime: Some("linux".into()),
        request_id: Some("r\u{7}-1".into()),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        unverified: true,
    };
    let client = agent(&work, "agent-1").provenance(provenance.clone());
    lease(&client).await;
    let told = events(&work, order.id).await;
    let leased = told.iter().find(|event| event.event == EventType::Leased).expect("leased");
    assert_eq!(leased.provenance, provenance);
    assert_eq!(event_names(&work, order.id).await.len(), 2);
}
