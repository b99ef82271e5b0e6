//! W8: a rejection hands its reasons on, and rework keeps what is good.

use latchwork_work::{
    Approval, EventType, Failure, ItemState, OrderState, Rejection, ReviewError, Submission,
};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, agent, apply_all, approve, events, hand_in, item_state, lease, nothing, order_state,
    submit, submitted, user,
};

cases![
    w08_bug_rework_queues_the_items_again,
    w08_the_next_lease_carries_result_errors_and_comments,
    w08_what_a_reviewer_asked_for_outlives_a_failed_attempt,
    w08_rework_of_named_items_keeps_the_others,
    w08_a_rejection_for_good_rejects_the_items,
    w08_a_rejected_order_can_be_requeued_with_its_reasons,
    w08_bad_rejections_change_nothing,
    w08_reject_rework_edit_approve,
];

fn wrong(message: &str) -> ReviewError {
    ReviewError::new("wrong", message)
}

/// In the reference this was always an illegal transition, and the items stayed submitted.
async fn w08_bug_rework_queues_the_items_again(f: Fixture) {
    let work = f.manager().await;
    let order = submitted(&work, PLAIN, 2).await;
    let bob = user(&work, "bob");
    let queued = bob.reject(Rejection::new(order, [wrong("no")]).rework()).await.expect("rejected");
    assert_eq!(queued.state, OrderState::Queued);
    for item in work.items(order, None, 10).await.expect("items") {
        assert_eq!((item.item.state, item.item.attempts), (ItemState::Queued, 0));
    }
    let told = events(&work, order).await;
    let of_order = told.iter().filter(|event| event.item_id.is_none()).map(|event| event.event);
    let last: Vec<_> = of_order.rev().take(2).collect();
    assert_eq!(last, [EventType::Requeued, EventType::Rejected]);
    hand_in(&work, order).await;
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
    approve(&work, order, "bob").await;
    assert_eq!(apply_all(&work).await, 1);
    assert_eq!(order_state(&work, order).await, OrderState::Completed);
}

async fn w08_the_next_lease_carries_result_errors_and_comments(f: Fixture) {
    let work = f.manager().await;
    let order = submitted(&work, PLAIN, 1).await;
    let bob = user(&work, "bob");
    bob.comment(order, "look at the units").await.expect("commented");
    let error = wrong("metres, not feet").field("/of");
    let rejection = Rejection::new(order, [error]).rework().comment("nearly");
    bob.reject(rejection).await.expect("rejected");
    let client = agent(&work, "agent-2");
    let held = lease(&client).await;
    let previous = held.previous.clone().expect("what was before");
    assert_eq!(previous["result"], json!({"of": {"n": 0}}));
    let review = &previous["review"];
    assert_eq!(review["errors"][0]["message"], "metres, not feet");
    assert_eq!(review["errors"][0]["field"], "/of");
    assert_eq!(review["comment"], "nearly");
    assert_eq!(review["comments"][0]["comment"], "look at the units");
    assert_eq!(review["by"]["id"], "bob");
    // A new result ends it.
    submit(&client, &held).await;
    bob.reject(Rejection::new(order, [wrong("still")]).rework()).await.expect("rejected");
    let held = lease(&client).await;
    let errors = &held.previous.expect("what was before")["review"]["errors"];
    assert_eq!(errors.as_array().expect("a list").len(), 1);
    assert_eq!(errors[0]["message"], "still");
}

async fn w08_what_a_reviewer_asked_for_outlives_a_failed_attempt(f: Fixture) {
    let work = f.manager().await;
    let order = submitted(&work, PLAIN, 1).await;
    let rejection = Rejection::new(order, [wrong("again")]).rework();
    user(&work, "bob").reject(rejection).await.expect("rejected");
    let client = agent(&work, "agent-2");
    let held = lease(&client).await;
    client.fail(held.id, Failure::new("x", "y").permanent()).await.expect("failed");
    user(&work, "bob").retry(order).await.expect("retried");
    let held = lease(&client).await;
    let previous = held.previous.expect("what was before");
    assert_eq!(previous["review"]["errors"][0]["message"], "again");
    assert_eq!(previous["error"]["code"], "x");
}

async fn w08_rework_of_named_items_keeps_the_others(f: Fixture) {
    let work = f.manager().await;
    let order = submitted(&work, PLAIN, 3).await;
    let items = work.items(order, None, 10).await.expect("items");
    let (good, bad) = (items[0].item.id, items[1].item.id);
    let errors = [wrong("this one").item(bad)];
    let rejection = Rejection::new(order, errors).rework_items([bad]);
    let order_now = user(&work, "bob").reject(rejection).await.expect("rejected");
    assert_eq!(order_now.state, OrderState::InProgress, "two results are in");
    assert_eq!(item_state(&work, good).await, ItemState::Submitted);
    let client = agent(&work, "agent-2");
    let held = lease(&client).await;
    assert_eq!(held.item_id, bad);
    nothing(&client).await;
    client.submit(Submission::new(&held, json!("better"))).await.expect("submitted");
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
    assert_eq!(work.item(good).await.expect("an item").item.results, 1, "nobody did it again");
}

async fn w08_a_rejection_for_good_rejects_the_items(f: Fixture) {
    let work = f.manager().await;
    let order = submitted(&work, PLAIN, 2).await;
    let bob = user(&work, "bob");
    let rejected = bob.reject(Rejection::new(order, [wrong("no")])).await.expect("rejected");
    assert_eq!(rejected.state, OrderState::Rejected);
    assert_eq!(rejected.error.as_ref().expect("why")["message"], "no");
    for item in work.items(order, None, 10).await.expect("items") {
        assert_eq!(item.item.state, ItemState::Rejected);
    }
    nothing(&agent(&work, "agent-1")).await;
    assert_eq!(apply_all(&work).await, 0);
    bob.dead_letter(order, "over").await.expect("given up");
}

async fn w08_a_rejected_order_can_be_requeued_with_its_reasons(f: Fixture) {
    let work = f.manager().await;
    let order = submitted(&work, PLAIN, 1).await;
    let bob = user(&work, "bob");
    bob.reject(Rejection::new(order, [wrong("no")])).await.expect("rejected");
    bob.requeue(order, "after all").await.expect("requeued");
    let held = lease(&agent(&work, "agent-2")).await;
    let previous = held.previous.expect("what was before");
    assert_eq!(previous["review"]["errors"][0]["message"], "no");
}

async fn w08_bad_rejections_change_nothing(f: Fixture) {
    let work = f.manager().await;
    let order = submitted(&work, PLAIN, 1).await;
    let other = submitted(&work, PLAIN, 1).await;
    let foreign = work.items(other, None, 1).await.expect("items")[0].item.id;
    let before = events(&work, order).await;
    let bob = user(&work, "bob");
    let bad = [
        Rejection::new(order, []),
        Rejection::new(order, [ReviewError::new("", "x")]),
        Rejection::new(order, [wrong(&"x".repeat(100_000))]),
        Rejection::new(order, [wrong("x")]).rework_items([foreign]),
        // A list that came out empty is a mistake, and no wish to do all of it again.
        Rejection::new(order, [wrong("x")]).rework_items([]),
        Rejection::new(order, [wrong("nul\0")]),
    ];
    for rejection in bad {
        let error = bob.reject(rejection).await.expect_err("refused");
        assert_eq!(error.code(), "invalid_argument", "{error}");
    }
    assert_eq!(events(&work, order).await, before);
}

async fn w08_reject_rework_edit_approve(f: Fixture) {
    let work = f.manager().await;
    let order = submitted(&work, PLAIN, 2).await;
    let items = work.items(order, None, 10).await.expect("items");
    let bob = user(&work, "bob");
    let rejection = Rejection::new(order, [wrong("the second")]).rework_items([items[1].item.id]);
    // A decision on an order that has changed since the reviewer looked is refused.
    let version = work.order(order).await.expect("an order").order.version;
    let late = bob.clone().if_version(version - 1);
    let error = late.reject(rejection.clone()).await.expect_err("another version");
    assert_eq!(error.code(), "version_mismatch");
    bob.clone().if_version(version).reject(rejection).await.expect("rejected");
    hand_in(&work, order).await;
    let preview = work.preview(order).await.expect("a preview");
    let edited = Approval::of(&preview).edit(items[0].item.id, json!({"edited": 1}));
    let error = late.approve(edited.clone()).await.expect_err("another version");
    assert_eq!(error.code(), "version_mismatch");
    let approved = bob.idempotent("once").approve(edited.clone()).await.expect("approved");
    assert_eq!(approved.order.state, OrderState::Approved);
    let again = user(&work, "bob").idempotent("once").approve(edited).await.expect("a replay");
    assert_eq!(again, approved);
    let versions = work.item_results(items[0].item.id).await.expect("results");
    let told: Vec<_> = versions.iter().map(|one| (one.version, one.edited_from)).collect();
    assert_eq!(told, [(1, None), (2, Some(1))]);
    assert_eq!(versions[1].result, json!({"edited": 1}));
    assert_eq!(work.item_results(items[1].item.id).await.expect("results").len(), 2);
    assert_eq!(apply_all(&work).await, 1);
    assert_eq!(order_state(&work, order).await, OrderState::Completed);
    work.seal().await.expect("sealed");
    assert!(work.verify().await.expect("verified").is_intact());
}
