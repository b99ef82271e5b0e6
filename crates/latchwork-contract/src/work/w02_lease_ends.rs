//! W2: heartbeats, and the ends of a lease.

use std::time::Duration;

use latchwork_work::{Checkout, EventType, Failure, ItemState, LeaseId, OrderState, Submission};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, agent, event_names, events, item_state, lease, nothing, only_item, order_state, propose,
    quick_lease_is_over, submit, user,
};

cases![
    w02_heartbeats_of_many_have_each_their_answer,
    w02_a_release_gives_the_item_and_the_attempt_back,
    w02_a_snooze_puts_off_and_gives_the_attempt_back,
    w02_many_are_submitted_all_or_none,
    w02_a_failure_is_tried_again_and_fails_at_the_last_attempt,
    w02_a_permanent_failure_fails_at_once,
    w02_bug_an_agent_can_declare_a_failure_and_the_order_follows,
    w04_the_fence_grows_with_each_lease,
    w04_bug_a_submitted_item_cannot_be_submitted_again,
    w04_bug_submit_ends_the_lease_so_a_slow_approval_loses_nothing,
    w04_bug_the_same_agent_name_is_told_apart_by_its_lease,
    w02_bug_releasing_in_progress_queues_the_item,
];

async fn w02_heartbeats_of_many_have_each_their_answer(f: Fixture) {
    let work = f.manager().await;
    propose(&work, PLAIN, 4).await;
    let (one, two) = (agent(&work, "agent-1"), agent(&work, "agent-2"));
    let mine = one.checkout(Checkout::any().limit(2)).await.expect("checked out").leases;
    let (theirs, over) = (lease(&two).await, lease(&one).await);
    submit(&one, &over).await;
    let unknown = LeaseId::new(over.expires_at);
    let asked = [mine[0].id, mine[1].id, theirs.id, over.id, unknown];
    let answers = one.heartbeat_many(&asked).await.expect("answered");
    assert_eq!(answers.len(), 5);
    for held in &mine {
        let beat = answers[&held.id].as_ref().expect("held");
        assert!(beat.expires_at >= held.expires_at);
        assert_eq!(item_state(&work, held.item_id).await, ItemState::InProgress);
    }
    assert_eq!(answers[&theirs.id].as_ref().expect_err("foreign").code(), "lease_foreign");
    for id in [over.id, unknown] {
        assert_eq!(answers[&id].as_ref().expect_err("over").code(), "lease_expired");
    }
    assert_eq!(item_state(&work, theirs.item_id).await, ItemState::Leased, "not theirs to begin");
    assert_eq!(one.heartbeat_many(&[]).await.expect("nothing asked").len(), 0);
    let many = vec![unknown; 1_001];
    let error = one.heartbeat_many(&many).await.expect_err("too many");
    assert_eq!(error.code(), "invalid_argument");
}

async fn w02_a_release_gives_the_item_and_the_attempt_back(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1");
    for n in 1..=5 {
        let held = lease(&client).await;
        assert_eq!((held.attempt, held.fence), (1, n), "an attempt that does not count");
        if n % 2 == 0 {
            client.heartbeat(held.id).await.expect("held");
        }
        let item = client.release(held.id, Some("not mine")).await.expect("released");
        assert_eq!((item.state, item.attempts), (ItemState::Queued, 0));
        assert_eq!(order_state(&work, order.id).await, OrderState::Queued);
        let error = client.heartbeat(held.id).await.expect_err("over");
        assert_eq!(error.code(), "lease_expired");
    }
    let told = events(&work, order.id).await;
    let released = told.iter().find(|event| event.event == EventType::Released).expect("told");
    assert_eq!(released.message.as_deref(), Some("not mine"));
    assert_eq!(released.actor, *client.actor());
}

async fn w02_a_snooze_puts_off_and_gives_the_attempt_back(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let item = client.snooze(held.id, Duration::from_secs(3_600)).await.expect("snoozed");
    assert_eq!((item.state, item.attempts), (ItemState::Queued, 0));
    let before = work.now().await.expect("a time") + Duration::from_secs(3_500);
    assert!(item.available_at > before, "{}", item.available_at);
    nothing(&client).await;
    let names = event_names(&work, order.id).await;
    assert_eq!(names[2], EventType::Snoozed);
    // Somebody who cannot wait.
    let ada = user(&work, "ada");
    ada.cancel(order.id, "no time").await.expect("cancelled");
    propose(&work, PLAIN, 1).await;
    let held = lease(&client).await;
    let error = client.snooze(held.id, Duration::from_secs(400 * 24 * 3_600)).await;
    assert_eq!(error.expect_err("more than a year").code(), "invalid_argument");
    client.heartbeat(held.id).await.expect("still held");
}

async fn w02_many_are_submitted_all_or_none(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 4).await;
    let client = agent(&work, "agent-1");
    let held = client.checkout(Checkout::any().limit(3)).await.expect("checked out").leases;
    let foreign = lease(&agent(&work, "agent-2")).await;
    let all = |leases: &[latchwork_work::Lease]| {
        leases.iter().map(|lease| Submission::new(lease, json!({"n": 1}))).collect::<Vec<_>>()
    };
    let mut with_foreign = held.clone();
    with_foreign.push(foreign);
    let error = client.submit_many(all(&with_foreign)).await.expect_err("one is foreign");
    assert_eq!(error.code(), "lease_foreign");
    let twice = [held[0].clone(), held[0].clone()];
    let error = client.submit_many(all(&twice)).await.expect_err("one is there twice");
    assert_eq!(error.code(), "invalid_argument");
    for lease in &held {
        assert_eq!(item_state(&work, lease.item_id).await, ItemState::Leased, "none was taken");
    }
    let done = client.submit_many(all(&held)).await.expect("all");
    assert_eq!(
        done.iter().map(|one| one.item_id).collect::<Vec<_>>(),
        held.iter().map(|lease| lease.item_id).collect::<Vec<_>>()
    );
    assert_eq!(order_state(&work, order.id).await, OrderState::InProgress);
    for lease in &held {
        assert_eq!(item_state(&work, lease.item_id).await, ItemState::Submitted);
    }
}

async fn w02_a_failure_is_tried_again_and_fails_at_the_last_attempt(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, "quick", 1).await;
    let client = agent(&work, "agent-1");
    for attempt in 1..=3 {
        let held = lease(&client).await;
        assert_eq!(held.attempt, attempt);
        if attempt > 1 {
            let previous = held.previous.expect("what went wrong before");
            assert_eq!(previous["error"]["code"], "no_disk");
        }
        let item = client.fail(held.id, Failure::new("no_disk", "the disk is full")).await;
        let item = item.expect("failed");
        let expected = if attempt < 3 { ItemState::Queued } else { ItemState::Failed };
        assert_eq!(item.state, expected);
        assert_eq!(item.error.expect("kept")["message"], "the disk is full");
    }
    assert_eq!(order_state(&work, order.id).await, OrderState::Failed);
    let error = work.order(order.id).await.expect("an order").order.error.expect("an error");
    assert_eq!(error["code"], "items_failed");
    nothing(&client).await;
}

async fn w02_a_permanent_failure_fails_at_once(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, "quick", 2).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let failure = Failure::new("impossible", "there is no such file").permanent();
    let item = client.fail(held.id, failure).await.expect("failed");
    assert_eq!((item.state, item.attempts), (ItemState::Failed, 1));
    assert_eq!(order_state(&work, order.id).await, OrderState::Failed);
    nothing(&client).await;
}

async fn w02_bug_an_agent_can_declare_a_failure_and_the_order_follows(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, "quick", 1).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    client.fail(held.id, Failure::new("x", "y").permanent()).await.expect("failed");
    let names = event_names(&work, order.id).await;
    assert_eq!(names.iter().filter(|name| **name == EventType::Failed).count(), 2, "{names:?}");
    for error in [
        client.fail(held.id, Failure::new("x", "y")).await.expect_err("over"),
        client.snooze(held.id, Duration::ZERO).await.expect_err("over"),
    ] {
        assert_eq!(error.code(), "lease_expired");
    }
}

async fn w04_the_fence_grows_with_each_lease(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, "quick", 1).await;
    let client = agent(&work, "agent-1");
    let mut last = 0;
    for n in 0..6 {
        let held = lease(&client).await;
        assert!(held.fence > last, "{} after {last}", held.fence);
        last = held.fence;
        match n % 3 {
            0 => drop(client.release(held.id, None).await.expect("released")),
            1 => drop(client.fail(held.id, Failure::new("x", "y")).await.expect("failed")),
            _ => drop(user(&work, "ada").requeue(order.id, "again").await.expect("requeued")),
        }
    }
    assert_eq!(only_item(&work, order.id).await.fence, last);
}

async fn w04_bug_a_submitted_item_cannot_be_submitted_again(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 2).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    submit(&client, &held).await;
    let error = client.submit(Submission::new(&held, json!({"second": true}))).await;
    assert_eq!(error.expect_err("it is in").code(), "lease_expired");
    let details = work.item(held.item_id).await.expect("an item");
    assert_eq!(details.result.expect("the first").version, 1);
    assert_eq!(order_state(&work, order.id).await, OrderState::InProgress);
}

async fn w04_bug_submit_ends_the_lease_so_a_slow_approval_loses_nothing(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, "quick", 1).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    submit(&client, &held).await;
    // Longer than the lease would have lasted.
    quick_lease_is_over().await;
    assert_eq!(work.reclaim_expired().await.expect("looked"), 0);
    assert_eq!(item_state(&work, held.item_id).await, ItemState::Submitted);
    assert_eq!(order_state(&work, order.id).await, OrderState::Submitted);
}

async fn w04_bug_the_same_agent_name_is_told_apart_by_its_lease(f: Fixture) {
    let work = f.manager().await;
    propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1");
    let stale = lease(&client).await;
    user(&work, "ada").requeue(stale.order_id, "it hangs").await.expect("requeued");
    let held = lease(&client).await;
    let error = client.submit(Submission::new(&stale, json!(1))).await.expect_err("the old one");
    assert_eq!(error.code(), "lease_expired");
    submit(&client, &held).await;
}

async fn w02_bug_releasing_in_progress_queues_the_item(f: Fixture) {
    let work = f.manager().await;
    propose(&work, PLAIN, 1).await;
    let (one, two) = (agent(&work, "agent-1"), agent(&work, "agent-2"));
    let held = lease(&one).await;
    one.heartbeat(held.id).await.expect("held");
    one.release(held.id, None).await.expect("released");
    assert_eq!(item_state(&work, held.item_id).await, ItemState::Queued);
    lease(&two).await;
}
