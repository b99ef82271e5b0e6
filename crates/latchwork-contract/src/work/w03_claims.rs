//! W3: claims.

use std::collections::BTreeSet;
use std::time::Duration;

use latchwork_work::query::LeaseQuery;
use latchwork_work::{Checkout, EventType, ItemState, OrderState, Proposal, Submission};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, Timer, agent, events, lease, nothing, order_state, propose, submit, user,
};

cases![
    w03_no_two_agents_get_one_item,
    w03_bug_the_loser_of_one_order_gets_its_next_item,
    w03_a_dropped_request_is_done_or_not_done,
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

async fn w03_bug_the_loser_of_one_order_gets_its_next_item(f: Fixture) {
    let (one, two) = (f.manager().await, f.manager().await);
    let order = propose(&one, PLAIN, 12).await.id;
    let ask = |n: usize| {
        let client = agent(if n.is_multiple_of(2) { &one } else { &two }, &format!("agent-{n}"));
        async move { client.checkout(Checkout::of_order(order)).await.expect("no conflict").leases }
    };
    let got = futures::future::join_all((0..12).map(ask)).await;
    assert!(got.iter().all(|leases| leases.len() == 1), "one for each: {got:?}");
    let distinct: BTreeSet<_> = got.iter().flatten().map(|lease| lease.item_id).collect();
    assert_eq!(distinct.len(), 12);
}

/// Dropped sooner and later, until it comes through.
async fn w03_a_dropped_request_is_done_or_not_done(f: Fixture) {
    const ITEMS: usize = 40;
    let work = f.manager().await;
    let order = propose(&work, PLAIN, ITEMS as u64).await.id;
    let client = agent(&work, "agent-1");
    let soon = |n: u64| Duration::from_micros(n * n * 40);
    let mut held = Vec::new();
    for n in 0..20 {
        let claim = client.checkout(Checkout::any());
        if let Ok(got) = tokio::time::timeout(soon(n), claim).await {
            held.extend(got.expect("checked out").leases);
        }
    }
    // What was leased for nobody has its lease, and the rest is there for others.
    let begun = Timer::start();
    loop {
        let got = client.checkout(Checkout::any().limit(100)).await.expect("checked out").leases;
        held.extend(got);
        let all = work.list_leases(&LeaseQuery::default()).await.expect("leases").leases;
        let items: BTreeSet<_> = all.iter().map(|found| found.lease.item_id).collect();
        assert_eq!(items.len(), all.len(), "one lease an item");
        if all.len() == ITEMS {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{} of {ITEMS}", all.len());
    }
    assert!(held.len() >= 20, "those that nobody dropped");
    for (n, lease) in (0..).zip(&held) {
        let submission = || Submission::new(lease, json!(n));
        let _ = tokio::time::timeout(soon(n), client.submit(submission())).await;
        match client.submit(submission()).await {
            Ok(done) => assert_eq!(done.result_version, 1),
            Err(error) => assert_eq!(error.code(), "lease_expired", "it was done: {error}"),
        }
        let details = work.item(lease.item_id).await.expect("an item");
        assert_eq!((details.item.state, details.lease), (ItemState::Submitted, None));
        assert_eq!(details.result.expect("a result").version, 1, "and once");
    }
    nothing(&client).await;
    let told = events(&work, order).await;
    let submitted =
        told.iter().filter(|it| it.item_id.is_some() && it.event == EventType::Submitted);
    assert_eq!(submitted.count(), held.len());
    work.seal().await.expect("sealed");
    assert!(work.verify().await.expect("verified").is_intact());
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
