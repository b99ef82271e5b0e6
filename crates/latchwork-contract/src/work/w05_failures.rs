//! W5: attempts, back-off, and what failed items mean for their order.

use std::time::Duration;

use latchwork_work::{
    Checkout, EventNote, EventType, Failure, FailurePolicy, ItemState, OrderState, RetryPolicy,
    TypeSettings, WorkManager,
};

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, agent, events, lease, nothing, order_state, plain, propose, quick, quick_lease_is_over,
    submit, user,
};

cases![
    w05_a_retry_comes_after_its_back_off,
    w05_an_expired_lease_gives_no_attempt_back_and_backs_off,
    w05_bug_an_order_with_a_failed_item_is_not_stuck,
    w05_best_effort_goes_on_with_what_succeeds,
    w05_a_quorum_decides,
    w05_all_failed_fails_under_every_policy,
    w05_an_order_completes_only_from_applied,
    w05_bug_attempts_are_counted_at_the_claim,
    w05_an_expired_lease_of_a_failed_order_does_not_come_back,
    w05_a_result_may_come_in_for_a_failed_order_and_counts_at_the_retry,
];

fn with_retry(backoff: Duration) -> TypeSettings {
    let retry =
        RetryPolicy { max_attempts: 5, backoff, max_backoff: backoff * 8, jitter: Duration::ZERO };
    TypeSettings { retry, ..quick() }
}

async fn w05_a_retry_comes_after_its_back_off(f: Fixture) {
    let backoff = Duration::from_secs(100);
    let work = f.with_types([plain(PLAIN).settings(with_retry(backoff))]).await;
    propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let item = client.fail(held.id, Failure::new("x", "y")).await.expect("failed");
    let left = item.available_at - work.now().await.expect("a time");
    assert!(left.num_seconds() > 80 && left.num_seconds() <= 100, "{left}");
    nothing(&client).await;
}

async fn w05_an_expired_lease_gives_no_attempt_back_and_backs_off(f: Fixture) {
    let backoff = Duration::from_secs(100);
    let work = f.with_types([plain(PLAIN).settings(with_retry(backoff))]).await;
    let order = propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    quick_lease_is_over().await;
    assert_eq!(work.reclaim_expired().await.expect("reclaimed"), 1);
    let item = work.item(held.item_id).await.expect("an item").item;
    assert_eq!((item.state, item.attempts), (ItemState::Queued, 1));
    assert!(item.available_at > work.now().await.expect("a time") + Duration::from_secs(80));
    nothing(&client).await;
    let told = events(&work, order.id).await;
    let expired: Vec<_> = told.iter().filter(|e| e.event == EventType::LeaseExpired).collect();
    assert_eq!(expired.len(), 1);
    assert_eq!(expired[0].payload.as_ref().expect("a payload")["agent"], "agent-1");
    assert_eq!(order_state(&work, order.id).await, OrderState::Queued);
}

async fn with_policy(f: &Fixture, policy: FailurePolicy) -> WorkManager {
    let settings = TypeSettings { failure: policy, ..quick() };
    f.with_types([plain(PLAIN).settings(settings)]).await
}

/// The same where no lease runs out, however slow the machine is.
async fn with_long_leases(f: &Fixture, failure: FailurePolicy) -> WorkManager {
    let settings = TypeSettings { failure, lease_ttl: Duration::from_secs(600), ..quick() };
    f.with_types([plain(PLAIN).settings(settings)]).await
}

/// An order of three items, of which so many fail and the others succeed, in this order.
async fn run(work: &WorkManager, failing: usize) -> OrderState {
    let order = propose(work, PLAIN, 3).await.id;
    let client = agent(work, "agent-1");
    for n in 0..3 {
        let got = client.checkout(Checkout::of_order(order)).await.expect("checked out").leases;
        let Some(held) = got.first() else { break };
        if n < failing {
            client.fail(held.id, Failure::new("x", "y").permanent()).await.expect("failed");
        } else {
            submit(&client, held).await;
        }
    }
    order_state(work, order).await
}

async fn w05_bug_an_order_with_a_failed_item_is_not_stuck(f: Fixture) {
    let work = with_long_leases(&f, FailurePolicy::FailFast).await;
    assert_eq!(run(&work, 1).await, OrderState::Failed);
    nothing(&agent(&work, "agent-1")).await;
}

async fn w05_best_effort_goes_on_with_what_succeeds(f: Fixture) {
    let work = with_long_leases(&f, FailurePolicy::BestEffort).await;
    assert_eq!(run(&work, 0).await, OrderState::Submitted);
    assert_eq!(run(&work, 2).await, OrderState::Submitted);
}

async fn w05_a_quorum_decides(f: Fixture) {
    let work = with_long_leases(&f, FailurePolicy::Quorum(2)).await;
    assert_eq!(run(&work, 1).await, OrderState::Submitted);
    assert_eq!(run(&work, 2).await, OrderState::Failed);
}

async fn w05_all_failed_fails_under_every_policy(f: Fixture) {
    for policy in [FailurePolicy::FailFast, FailurePolicy::BestEffort, FailurePolicy::Quorum(2)] {
        let work = with_long_leases(&f, policy).await;
        assert_eq!(run(&work, 3).await, OrderState::Failed, "{policy:?}");
    }
}

async fn w05_an_order_completes_only_from_applied(f: Fixture) {
    let work = f.manager().await;
    let (ada, client) = (user(&work, "ada"), agent(&work, "agent-1"));
    let order = propose(&work, PLAIN, 2).await.id;
    let mut items = Vec::new();
    for _ in 0..2 {
        let held = lease(&client).await;
        submit(&client, &held).await;
        items.push(held.item_id);
    }
    let note = EventNote::new;
    for step in [OrderState::Approved, OrderState::Applied] {
        ada.transition_order(order, step, note()).await.expect("moved");
    }
    for (n, item) in items.into_iter().enumerate() {
        for step in [ItemState::Accepted, ItemState::Completed] {
            ada.transition_item(item, step, note()).await.expect("moved");
        }
        let expected = if n == 0 { OrderState::Applied } else { OrderState::Completed };
        assert_eq!(order_state(&work, order).await, expected);
    }
}

async fn w05_bug_attempts_are_counted_at_the_claim(f: Fixture) {
    let work = with_policy(&f, FailurePolicy::FailFast).await;
    let order = propose(&work, PLAIN, 1).await.id;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    assert_eq!(work.item(held.item_id).await.expect("an item").item.attempts, 1);
    client.fail(held.id, Failure::new("x", "y")).await.expect("failed");
    let held = lease(&client).await;
    assert_eq!(held.attempt, 2);
    quick_lease_is_over().await;
    work.reclaim_expired().await.expect("reclaimed");
    let held = lease(&client).await;
    assert_eq!((held.attempt, held.max_attempts), (3, 3));
    quick_lease_is_over().await;
    work.reclaim_expired().await.expect("reclaimed");
    assert_eq!(order_state(&work, order).await, OrderState::Failed);
    let item = work.item(held.item_id).await.expect("an item").item;
    assert_eq!((item.state, item.attempts), (ItemState::Failed, 3));
}

async fn w05_an_expired_lease_of_a_failed_order_does_not_come_back(f: Fixture) {
    let work = with_policy(&f, FailurePolicy::FailFast).await;
    let order = propose(&work, PLAIN, 2).await.id;
    let client = agent(&work, "agent-1");
    let (one, two) = (lease(&client).await, lease(&client).await);
    client.fail(one.id, Failure::new("x", "y").permanent()).await.expect("failed");
    assert_eq!(order_state(&work, order).await, OrderState::Failed);
    quick_lease_is_over().await;
    assert_eq!(work.reclaim_expired().await.expect("reclaimed"), 1);
    let item = work.item(two.item_id).await.expect("an item");
    assert_eq!((item.item.state, item.lease), (ItemState::Queued, None));
    nothing(&client).await;
    assert_eq!(order_state(&work, order).await, OrderState::Failed);
    user(&work, "ada").retry(order).await.expect("retried");
    let got = client.checkout(Checkout::any().limit(9)).await.expect("checked out").leases;
    assert_eq!(got.len(), 2);
}

async fn w05_a_result_may_come_in_for_a_failed_order_and_counts_at_the_retry(f: Fixture) {
    let work = with_policy(&f, FailurePolicy::FailFast).await;
    let order = propose(&work, PLAIN, 2).await.id;
    let client = agent(&work, "agent-1");
    let (one, two) = (lease(&client).await, lease(&client).await);
    client.fail(one.id, Failure::new("x", "y").permanent()).await.expect("failed");
    submit(&client, &two).await;
    assert_eq!(order_state(&work, order).await, OrderState::Failed);
    user(&work, "ada").retry(order).await.expect("retried");
    let held = lease(&client).await;
    assert_eq!(held.item_id, one.item_id);
    submit(&client, &held).await;
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
}
