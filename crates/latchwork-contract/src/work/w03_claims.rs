//! W3: claims.

use std::collections::BTreeSet;

use latchwork_work::{Checkout, OrderState, Proposal};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{PLAIN, agent, lease, nothing, order_state, propose, submit, user};

cases![
    w03_no_two_agents_get_one_item,
    w03_the_most_urgent_comes_first_then_the_oldest,
    w03_a_rejected_order_leaves_its_items_queued_and_unclaimable,
];

async fn w03_no_two_agents_get_one_item(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 60).await;
    let claims = (0..12).map(|n| {
        let work = work.clone();
        tokio::spawn(async move {
            let client = agent(&work, &format!("agent-{n}"));
            let mut got = Vec::new();
            loop {
                let one = client.checkout(Checkout::any()).await.expect("checked out").leases;
                let Some(lease) = one.into_iter().next() else { return got };
                submit(&client, &lease).await;
                got.push(lease.item_id);
            }
        })
    });
    let mut all = Vec::new();
    for claim in claims.collect::<Vec<_>>() {
        all.extend(claim.await.expect("no panic"));
    }
    let distinct: BTreeSet<_> = all.iter().collect();
    assert_eq!((all.len(), distinct.len()), (60, 60), "each item once");
    assert_eq!(order_state(&work, order.id).await, OrderState::Submitted);
}

async fn w03_the_most_urgent_comes_first_then_the_oldest(f: Fixture) {
    let work = f.manager().await;
    let ada = user(&work, "ada");
    let mut expected = Vec::new();
    for (n, (name, priority)) in
        [(PLAIN, 0), ("other", 5), (PLAIN, 5), (PLAIN, -3), ("other", 0)].into_iter().enumerate()
    {
        let proposal = Proposal::new(name, json!({"items": 2})).priority(priority);
        let order = ada.propose(proposal).await.expect("proposed").order;
        for seq in 0..2 {
            expected.push((-i64::from(priority), n, seq, order.id));
        }
    }
    expected.sort();
    let client = agent(&work, "agent-1");
    for (_, _, seq, order) in expected {
        let lease = lease(&client).await;
        assert_eq!((lease.order_id, lease.input), (order, json!({ "n": seq })));
    }
    nothing(&client).await;
}

async fn w03_a_rejected_order_leaves_its_items_queued_and_unclaimable(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 2).await;
    let ada = user(&work, "ada");
    let note = latchwork_work::EventNote::new();
    ada.transition_order(order.id, OrderState::Rejected, note.clone()).await.expect("rejected");
    let client = agent(&work, "agent-1");
    nothing(&client).await;
    for item in work.items(order.id, None, 10).await.expect("items") {
        assert_eq!(item.item.state.as_str(), "queued");
    }
    ada.transition_order(order.id, OrderState::Queued, note).await.expect("queued again");
    lease(&client).await;
}
