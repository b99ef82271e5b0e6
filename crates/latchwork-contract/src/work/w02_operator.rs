//! W2: what operators do with orders and failed items.

use latchwork_work::{
    Checkout, EventNote, EventType, Failure, ItemState, Lease, OrderId, OrderState, Submission,
    WorkManager,
};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, agent, event_names, events, item_state, lease, nothing, order_state, propose, submit,
    user,
};

cases![
    w02_a_requeue_takes_the_leases_back,
    w02_bug_a_requeue_is_not_logged_as_proposed,
    w02_a_retry_tries_the_failed_items_and_no_other,
    w02_a_retry_of_one_item,
    w02_a_cancel_ends_the_order_and_its_items_from_every_state,
    w02_a_cancel_is_refused_once_approved,
    w02_dead_letter_gives_a_failed_order_up,
    w02_bug_a_dead_letter_leaves_its_events,
    w03_bug_items_of_rejected_and_dead_orders_are_unclaimable,
];

/// An order with its first item leased.
async fn leased(work: &WorkManager, items: u64) -> (OrderId, Lease) {
    let order = propose(work, PLAIN, items).await.id;
    (order, lease(&agent(work, "agent-1")).await)
}

async fn w02_a_requeue_takes_the_leases_back(f: Fixture) {
    let work = f.manager().await;
    let client = agent(&work, "agent-1");
    let (order, first) = leased(&work, 3).await;
    submit(&client, &first).await;
    let held = lease(&client).await;
    let ada = user(&work, "ada");
    ada.requeue(order, "the agent hangs").await.expect("requeued");
    assert_eq!(order_state(&work, order).await, OrderState::InProgress, "one result is in");
    let error = client.submit(Submission::new(&held, json!(1))).await.expect_err("taken back");
    assert_eq!(error.code(), "lease_expired");
    assert_eq!(item_state(&work, first.item_id).await, ItemState::Submitted, "it stays in");
    let again = client.checkout(Checkout::any().limit(9)).await.expect("checked out").leases;
    assert_eq!(again.len(), 2);
    assert!(again.iter().all(|lease| lease.attempt == 1), "the attempt did not count");
    for lease in &again {
        submit(&client, lease).await;
    }
    let error = ada.requeue(order, "too late").await.expect_err("it is submitted");
    assert_eq!(error.code(), "order_state");
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
}

async fn w02_bug_a_requeue_is_not_logged_as_proposed(f: Fixture) {
    let work = f.manager().await;
    let (order, _) = leased(&work, 1).await;
    let ada = user(&work, "ada");
    ada.requeue(order, "again").await.expect("requeued");
    let note = EventNote::new();
    ada.transition_order(order, OrderState::Rejected, note).await.expect("rejected");
    ada.requeue(order, "once more").await.expect("requeued");
    assert_eq!(order_state(&work, order).await, OrderState::Queued);
    let told = events(&work, order).await;
    let count = |name| told.iter().filter(|event| event.event == name).count();
    assert_eq!(count(EventType::Proposed), 1);
    assert!(count(EventType::Requeued) >= 3, "{told:?}");
    lease(&agent(&work, "agent-1")).await;
}

async fn w02_a_retry_tries_the_failed_items_and_no_other(f: Fixture) {
    let work = f.manager().await;
    let client = agent(&work, "agent-1");
    let (order, first) = leased(&work, 3).await;
    let ada = user(&work, "ada");
    let error = ada.retry(order).await.expect_err("nothing failed");
    assert_eq!(error.code(), "order_state");
    submit(&client, &first).await;
    let second = lease(&client).await;
    client.fail(second.id, Failure::new("x", "y").permanent()).await.expect("failed");
    assert_eq!(order_state(&work, order).await, OrderState::Failed);
    nothing(&client).await;
    let retried = ada.retry(order).await.expect("retried");
    assert!(retried.state.is_claimable(), "{}", retried.state);
    assert_eq!(retried.error, None);
    assert_eq!(item_state(&work, first.item_id).await, ItemState::Submitted, "it stays in");
    let names = event_names(&work, order).await;
    assert!(names.contains(&EventType::Retried), "{names:?}");
    let again = client.checkout(Checkout::any().limit(9)).await.expect("checked out").leases;
    assert_eq!(again.len(), 2);
    assert!(again.iter().all(|lease| lease.attempt == 1), "from the first attempt on");
    for lease in &again {
        submit(&client, lease).await;
    }
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
}

async fn w02_a_retry_of_one_item(f: Fixture) {
    let settings = latchwork_work::TypeSettings {
        failure: latchwork_work::FailurePolicy::BestEffort,
        ..super::fixture::quick()
    };
    let work = f.with_types([super::fixture::plain(PLAIN).settings(settings)]).await;
    let client = agent(&work, "agent-1");
    let (order, first) = leased(&work, 2).await;
    let ada = user(&work, "ada");
    let error = ada.retry_item(first.item_id).await.expect_err("it did not fail");
    assert_eq!(error.code(), "invalid_argument");
    assert_eq!(item_state(&work, first.item_id).await, ItemState::Leased);
    client.fail(first.id, Failure::new("x", "y").permanent()).await.expect("failed");
    let item = ada.retry_item(first.item_id).await.expect("retried");
    assert_eq!((item.state, item.attempts), (ItemState::Queued, 0));
    let again = client.checkout(Checkout::any().limit(9)).await.expect("checked out").leases;
    assert_eq!(again.len(), 2);
    for lease in &again {
        submit(&client, lease).await;
    }
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
    let error = ada.retry_item(first.item_id).await.expect_err("the order is submitted");
    assert_eq!(error.code(), "order_state");
}

async fn w02_a_cancel_ends_the_order_and_its_items_from_every_state(f: Fixture) {
    let work = f.manager().await;
    let (client, ada) = (agent(&work, "agent-1"), user(&work, "ada"));
    use OrderState::*;
    for state in [Queued, CheckedOut, InProgress, Submitted, Rejected, Failed] {
        let order = propose(&work, PLAIN, 2).await.id;
        let mut held = None;
        if matches!(state, CheckedOut | InProgress | Submitted | Failed) {
            held = Some(lease(&client).await);
        }
        match (state, &held) {
            (InProgress, Some(held)) => drop(client.heartbeat(held.id).await.expect("held")),
            (Submitted, Some(held)) => {
                submit(&client, held).await;
                let rest = lease(&client).await;
                submit(&client, &rest).await;
            }
            (Failed, Some(held)) => {
                let failure = Failure::new("x", "y").permanent();
                client.fail(held.id, failure).await.expect("failed");
            }
            (Rejected, _) => {
                let note = EventNote::new();
                ada.transition_order(order, Rejected, note).await.expect("rejected");
            }
            _ => {}
        }
        assert_eq!(order_state(&work, order).await, state);
        let cancelled = ada.cancel(order, "no longer wanted").await.expect("cancelled");
        assert_eq!(cancelled.state, DeadLettered, "from {state}");
        for item in work.items(order, None, 10).await.expect("items") {
            assert_eq!(item.item.state, ItemState::DeadLettered, "from {state}");
            assert_eq!(item.lease, None, "from {state}");
        }
        if let Some(held) = held {
            let error = client.heartbeat(held.id).await.expect_err("called off");
            assert_eq!(error.code(), "lease_expired");
        }
        let names = event_names(&work, order).await;
        assert!(names.contains(&EventType::Cancelled), "from {state}: {names:?}");
        nothing(&client).await;
        let error = ada.cancel(order, "again").await.expect_err("it is over");
        assert_eq!(error.code(), "order_state");
        assert_eq!(ada.retry(order).await.expect_err("it is over").code(), "order_state");
        assert_eq!(ada.requeue(order, "x").await.expect_err("over").code(), "order_state");
    }
}

async fn w02_a_cancel_is_refused_once_approved(f: Fixture) {
    let work = f.manager().await;
    let ada = user(&work, "ada");
    use OrderState::*;
    let mut way = vec![Submitted, Approved, Applied, Completed];
    while way.len() > 1 {
        let order = propose(&work, PLAIN, 1).await.id;
        for step in &way {
            ada.transition_order(order, *step, EventNote::new()).await.expect("a legal way");
        }
        let before = events(&work, order).await;
        let error = ada.cancel(order, "too late").await.expect_err("too late");
        assert_eq!(error.code(), "order_state");
        assert_eq!(order_state(&work, order).await, *way.last().expect("a state"));
        assert_eq!(events(&work, order).await, before, "nothing changed");
        way.pop();
    }
}

async fn w02_dead_letter_gives_a_failed_order_up(f: Fixture) {
    let work = f.manager().await;
    let (client, ada) = (agent(&work, "agent-1"), user(&work, "ada"));
    let (order, held) = leased(&work, 2).await;
    let error = ada.dead_letter(order, "x").await.expect_err("it did not fail");
    assert_eq!(error.code(), "illegal_transition");
    client.fail(held.id, Failure::new("x", "y").permanent()).await.expect("failed");
    let given_up = ada.dead_letter(order, "hopeless").await.expect("given up");
    assert_eq!(given_up.state, OrderState::DeadLettered);
    for item in work.items(order, None, 10).await.expect("items") {
        assert_eq!(item.item.state, ItemState::DeadLettered);
    }
}

async fn w02_bug_a_dead_letter_leaves_its_events(f: Fixture) {
    let work = f.manager().await;
    let (client, ada) = (agent(&work, "agent-1"), user(&work, "ada"));
    let (order, held) = leased(&work, 1).await;
    client.fail(held.id, Failure::new("x", "y").permanent()).await.expect("failed");
    ada.dead_letter(order, "hopeless").await.expect("given up");
    let told = events(&work, order).await;
    let last: Vec<_> = told.iter().filter(|e| e.event == EventType::DeadLettered).collect();
    let items: Vec<_> = last.iter().map(|event| event.item_id).collect();
    assert!(items.contains(&None) && items.contains(&Some(held.item_id)), "{items:?}");
    assert!(last.iter().all(|event| event.message.as_deref() == Some("hopeless")));
}

async fn w03_bug_items_of_rejected_and_dead_orders_are_unclaimable(f: Fixture) {
    let work = f.manager().await;
    let (client, ada) = (agent(&work, "agent-1"), user(&work, "ada"));
    for state in [OrderState::Rejected, OrderState::Failed] {
        let order = propose(&work, PLAIN, 2).await.id;
        let held = lease(&client).await;
        ada.transition_order(order, OrderState::Failed, EventNote::new()).await.expect("failed");
        // What was under way may come in still, or come back; it is leased no more.
        client.release(held.id, None).await.expect("released");
        nothing(&client).await;
        assert_eq!(client.checkout(Checkout::of_order(order)).await.expect("none").leases, []);
        if state == OrderState::Rejected {
            ada.dead_letter(order, "x").await.expect("given up");
            nothing(&client).await;
        } else {
            ada.retry(order).await.expect("retried");
            lease(&client).await;
            lease(&client).await;
        }
        nothing(&client).await;
    }
}
