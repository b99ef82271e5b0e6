//! W20: at most one live order of a type has a unique key.

use latchwork_work::{
    Checkout, ErrorKind, EventNote, Failure, ItemState, Order, OrderState, Proposal, WorkManager,
};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{PLAIN, agent, events, lease, order_state, submit, user};

cases![
    w20_a_clash_returns_the_live_order,
    w20_the_states_from_queued_to_applied_are_covered,
    w20_other_states_are_covered_by_choice,
    w20_a_manual_retry_may_be_a_conflict,
    w20_an_automatic_retry_is_never_blocked,
    w20_one_of_many_proposals_at_once_is_stored,
    w20_an_illegal_key_or_state_is_refused,
];

fn proposal() -> Proposal {
    Proposal::new(PLAIN, json!({"items": 1})).unique_key("k")
}

async fn propose(work: &WorkManager) -> (Order, bool) {
    let proposed = user(work, "ada").propose(proposal()).await.expect("proposed");
    (proposed.order, proposed.existing)
}

async fn w20_a_clash_returns_the_live_order(f: Fixture) {
    let (work, other) = (f.manager().await, f.manager().await);
    let (first, existing) = propose(&work).await;
    assert!(!existing);
    let before = events(&work, first.id).await;
    let (second, existing) = propose(&other).await;
    assert_eq!((second, existing), (first.clone(), true), "marked as existing");
    assert_eq!(events(&work, first.id).await, before);
    // Another type has keys of its own.
    let other = Proposal::new("other", json!({"items": 1})).unique_key("k");
    assert!(!user(&work, "ada").propose(other).await.expect("proposed").existing);
    let states = work.order_states().await.expect("counts");
    assert_eq!(states.iter().map(|one| one.count).sum::<u64>(), 2);
}

async fn w20_the_states_from_queued_to_applied_are_covered(f: Fixture) {
    let work = f.manager().await;
    let ada = user(&work, "ada");
    let (first, _) = propose(&work).await;
    use OrderState::*;
    for step in [CheckedOut, InProgress, Submitted, Approved, Applied] {
        ada.transition_order(first.id, step, EventNote::new()).await.expect("moved");
        assert!(propose(&work).await.1, "covered while {step}");
    }
    ada.transition_order(first.id, Completed, EventNote::new()).await.expect("moved");
    assert!(!propose(&work).await.1, "free once it is completed");
}

async fn w20_other_states_are_covered_by_choice(f: Fixture) {
    let work = f.manager().await;
    let ada = user(&work, "ada");
    use OrderState::*;
    let ways = [vec![Failed], vec![Rejected], vec![Failed, DeadLettered]];
    for (n, way) in ways.into_iter().enumerate() {
        let last = *way.last().expect("a state");
        for chosen in [false, true] {
            let key = format!("k-{n}-{chosen}");
            let proposal = || {
                let states = if chosen { way.clone() } else { vec![] };
                Proposal::new(PLAIN, json!({"items": 1})).unique_key(&key).unique_states(states)
            };
            let order = ada.propose(proposal()).await.expect("proposed").order;
            for step in &way {
                ada.transition_order(order.id, *step, EventNote::new()).await.expect("moved");
            }
            let second = ada.propose(proposal()).await.expect("proposed");
            assert_eq!(second.existing, chosen, "{last}, chosen: {chosen}");
        }
    }
}

async fn w20_a_manual_retry_may_be_a_conflict(f: Fixture) {
    let work = f.manager().await;
    let (client, ada) = (agent(&work, "agent-1"), user(&work, "ada"));
    let (first, _) = propose(&work).await;
    let held = lease(&client).await;
    client.fail(held.id, Failure::new("x", "y").permanent()).await.expect("failed");
    let (second, existing) = propose(&work).await;
    assert!(!existing);
    let before = events(&work, first.id).await;
    let error = ada.retry(first.id).await.expect_err("another one has the key");
    assert_eq!(error.code(), "unique_conflict");
    let ErrorKind::UniqueConflict { existing, .. } = error.kind() else { panic!("{error}") };
    assert_eq!(*existing, second.id, "it names the order");
    assert_eq!(order_state(&work, first.id).await, OrderState::Failed);
    let item = work.item(held.item_id).await.expect("an item").item;
    assert_eq!(item.state, ItemState::Failed, "nothing changed");
    assert_eq!(events(&work, first.id).await, before);
    ada.cancel(second.id, "x").await.expect("cancelled");
    ada.retry(first.id).await.expect("free again");
    assert!(propose(&work).await.1);
}

async fn w20_an_automatic_retry_is_never_blocked(f: Fixture) {
    let work = f.manager().await;
    let quick = || Proposal::new("quick", json!({"items": 1})).unique_key("k");
    let ada = user(&work, "ada");
    let order = ada.propose(quick()).await.expect("proposed").order;
    let client = agent(&work, "agent-1");
    for _ in 0..2 {
        let held = lease(&client).await;
        client.fail(held.id, Failure::new("x", "y")).await.expect("failed");
        assert!(ada.propose(quick()).await.expect("proposed").existing);
    }
    let held = lease(&client).await;
    submit(&client, &held).await;
    assert_eq!(order_state(&work, order.id).await, OrderState::Submitted);
}

async fn w20_one_of_many_proposals_at_once_is_stored(f: Fixture) {
    let (one, two) = (f.manager().await, f.manager().await);
    let all = (0..16).map(|n| {
        let work = if n % 2 == 0 { one.clone() } else { two.clone() };
        tokio::spawn(async move { propose(&work).await })
    });
    let mut got = Vec::new();
    for one in all.collect::<Vec<_>>() {
        got.push(one.await.expect("no panic"));
    }
    assert_eq!(got.iter().filter(|(_, existing)| !existing).count(), 1);
    assert!(got.iter().all(|(order, _)| order.id == got[0].0.id));
    let client = agent(&one, "agent-1");
    let leases = client.checkout(Checkout::any().limit(9)).await.expect("checked out").leases;
    assert_eq!(leases.len(), 1, "and with it its items");
}

async fn w20_an_illegal_key_or_state_is_refused(f: Fixture) {
    let work = f.manager().await;
    let ada = user(&work, "ada");
    let (nul, long) = (proposal().unique_key("a\0b"), proposal().unique_key("x".repeat(600)));
    let live = proposal().unique_states([OrderState::Queued]);
    for wrong in [proposal().unique_key(""), nul, long, live] {
        let error = ada.propose(wrong).await.expect_err("illegal");
        assert_eq!(error.code(), "invalid_argument");
    }
    assert_eq!(work.order_states().await.expect("counts"), []);
}
