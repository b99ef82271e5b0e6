//! W9: a request with a key has its effect once, and one answer.

use std::time::Duration;

use latchwork_work::{
    Checkout, DynamicOrderType, EventNote, EventType, Failure, OrderState, Proposal, Submission,
    TypeError, WorkClient, WorkManager,
};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{PLAIN, agent, events, lease, propose, user};

cases![
    w09_a_proposal_is_stored_once,
    w09_a_checkout_leases_once,
    w09_a_checkout_without_an_answer_may_be_sent_again,
    w09_a_submission_is_taken_once,
    w09_every_end_of_a_lease_happens_once,
    w09_every_operation_on_an_order_happens_once,
    w09_bug_another_request_with_the_key_is_a_conflict,
    w09_a_key_belongs_to_its_caller_and_operation,
    w09_bug_twins_at_once_have_one_effect,
    w09_a_refusal_is_not_stored,
    w09_an_illegal_key_is_refused,
];

fn with_key(client: &WorkClient, key: &str) -> WorkClient {
    client.clone().idempotent(key)
}

async fn orders(work: &WorkManager) -> u64 {
    work.order_states().await.expect("counts").iter().map(|one| one.count).sum()
}

async fn w09_a_proposal_is_stored_once(f: Fixture) {
    let (one, two) = (f.manager().await, f.manager().await);
    let proposal = || Proposal::new(PLAIN, json!({"items": 2}));
    let first = with_key(&user(&one, "ada"), "k").propose_once(proposal()).await.expect("stored");
    assert!(!first.replayed);
    let again = with_key(&user(&two, "ada"), "k").propose_once(proposal()).await.expect("stored");
    assert!(again.replayed, "marked as a replay");
    assert_eq!(again.value, first.value, "the same answer");
    assert_eq!(orders(&one).await, 1);
    let many = || vec![proposal(), proposal()];
    let ada = with_key(&user(&one, "ada"), "many");
    let first = ada.propose_many(many()).await.expect("stored");
    assert_eq!(ada.propose_many(many()).await.expect("stored"), first);
    assert_eq!(orders(&one).await, 3);
    let clone = with_key(&user(&one, "ada"), "clone");
    let id = first[0].order.id;
    let first = clone.clone_order(id, None).await.expect("cloned");
    assert_eq!(clone.clone_order(id, None).await.expect("cloned"), first);
    assert_eq!(orders(&one).await, 4);
}

async fn w09_a_checkout_leases_once(f: Fixture) {
    let work = f.manager().await;
    propose(&work, PLAIN, 3).await;
    let client = with_key(&agent(&work, "agent-1"), "k");
    let wish = || Checkout::any().limit(2);
    let first = client.checkout_once(wish()).await.expect("leased");
    let again = client.checkout_once(wish()).await.expect("leased");
    assert!(!first.replayed && again.replayed);
    assert_eq!(again.value.leases, first.value.leases);
    let bare = agent(&work, "agent-1");
    bare.submit(Submission::new(&first.value.leases[0], json!(1))).await.expect("submitted");
    let error = client.checkout_once(wish()).await.expect_err("one is over");
    assert_eq!(error.code(), "lease_expired");
}

async fn w09_a_checkout_without_an_answer_may_be_sent_again(f: Fixture) {
    let work = f.manager().await;
    let client = with_key(&agent(&work, "agent-1"), "k");
    let none = client.checkout_once(Checkout::any()).await.expect("nothing");
    assert!(none.value.leases.is_empty() && !none.replayed);
    propose(&work, PLAIN, 2).await;
    let got = client.checkout_once(Checkout::any()).await.expect("leased");
    assert!(got.value.leases.len() == 1 && !got.replayed, "an empty answer is not final");
    let again = client.checkout_once(Checkout::any()).await.expect("leased");
    assert_eq!((again.value.leases, again.replayed), (got.value.leases, true));
}

async fn w09_a_submission_is_taken_once(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 1).await.id;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let client = with_key(&client, "k");
    let submission = || Submission::new(&held, json!({"n": 1}));
    let first = client.submit_once(submission()).await.expect("submitted");
    let again = client.submit_once(submission()).await.expect("submitted");
    assert!(!first.replayed && again.replayed);
    assert_eq!(again.value, first.value);
    let told = events(&work, order).await;
    let submitted = told.iter().filter(|event| event.event == EventType::Submitted);
    assert_eq!(submitted.count(), 2, "the item's and the order's");
}

/// Runs something twice with a key, expects the same answer, and no events of the second time.
macro_rules! twice {
    ($work:expr, $order:expr, $client:expr, $key:literal, $c:ident => $call:expr) => {{
        let $c = with_key(&$client, $key);
        let first = $call.await.expect($key);
        assert!(!$c.was_replayed(), "{}: it is the first", $key);
        let before = events(&$work, $order).await;
        let second = $call.await.expect(concat!($key, " again"));
        assert_eq!(second, first, "{}: the same answer", $key);
        assert!($c.was_replayed(), "{}: it says so", $key);
        assert_eq!(events(&$work, $order).await, before, "{}: no second effect", $key);
    }};
}

async fn w09_every_end_of_a_lease_happens_once(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, "quick", 1).await.id;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    twice!(work, order, client, "release", c => c.release(held.id, Some("x")));
    let held = lease(&client).await;
    twice!(work, order, client, "fail", c => c.fail(held.id, Failure::new("x", "y")));
    let held = lease(&client).await;
    twice!(work, order, client, "snooze", c => c.snooze(held.id, Duration::from_secs(60)));
}

async fn w09_every_operation_on_an_order_happens_once(f: Fixture) {
    let work = f.manager().await;
    let (client, ada) = (agent(&work, "agent-1"), user(&work, "ada"));
    let order = propose(&work, "quick", 2).await.id;
    lease(&client).await;
    twice!(work, order, ada, "requeue", c => c.requeue(order, "again"));
    twice!(work, order, ada, "comment", c => c.comment(order, "hm"));
    let held = lease(&client).await;
    twice!(work, order, ada, "comment_item", c => c.comment_item(held.item_id, "hm"));
    let failure = || Failure::new("x", "y").permanent();
    client.fail(held.id, failure()).await.expect("failed");
    twice!(work, order, ada, "retry", c => c.retry(order));
    let note = EventNote::new;
    twice!(work, order, ada, "reject", c => c.transition_order(order, OrderState::Rejected, note()));
    twice!(work, order, ada, "dead_letter", c => c.dead_letter(order, "x"));
    let order = propose(&work, "quick", 2).await.id;
    twice!(work, order, ada, "cancel", c => c.cancel(order, "x"));
}

async fn w09_bug_another_request_with_the_key_is_a_conflict(f: Fixture) {
    let work = f.manager().await;
    let ada = with_key(&user(&work, "ada"), "k");
    ada.propose(Proposal::new(PLAIN, json!({"items": 1}))).await.expect("proposed");
    let other = ada.propose(Proposal::new(PLAIN, json!({"items": 2}))).await;
    assert_eq!(other.expect_err("another request").code(), "idempotency_conflict");
    assert_eq!(orders(&work).await, 1);
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let client = with_key(&client, "k");
    client.submit(Submission::new(&held, json!(1))).await.expect("submitted");
    let other = client.submit(Submission::new(&held, json!(2))).await;
    assert_eq!(other.expect_err("another request").code(), "idempotency_conflict");
}

async fn w09_a_key_belongs_to_its_caller_and_operation(f: Fixture) {
    let work = f.manager().await;
    let proposal = || Proposal::new(PLAIN, json!({"items": 1}));
    for name in ["ada", "grace"] {
        let answer = with_key(&user(&work, name), "k").propose_once(proposal()).await;
        assert!(!answer.expect("proposed").replayed, "{name}'s key is {name}'s");
    }
    // An agent of the same name is another caller.
    let answer = with_key(&agent(&work, "ada"), "k").propose_once(proposal()).await;
    assert!(!answer.expect("proposed").replayed);
    assert_eq!(orders(&work).await, 3);
    // The same key for another operation.
    let order = propose(&work, PLAIN, 1).await.id;
    with_key(&user(&work, "ada"), "k").cancel(order, "x").await.expect("cancelled");
}

async fn w09_bug_twins_at_once_have_one_effect(f: Fixture) {
    let (one, two) = (f.manager().await, f.manager().await);
    for round in 0..5 {
        let twins = (0..8).map(|n| {
            let work = if n % 2 == 0 { one.clone() } else { two.clone() };
            tokio::spawn(async move {
                let ada = user(&work, "ada").idempotent(format!("k{round}"));
                let answer = ada.propose_once(Proposal::new(PLAIN, json!({"items": 3}))).await;
                let answer = answer.expect("a twin waits for the other");
                (answer.value.order.id, answer.replayed)
            })
        });
        let mut answers = Vec::new();
        for twin in twins.collect::<Vec<_>>() {
            answers.push(twin.await.expect("no panic"));
        }
        assert!(answers.iter().all(|(id, _)| *id == answers[0].0), "one order: {answers:?}");
        let first = answers.iter().filter(|(_, replayed)| !replayed).count();
        assert_eq!(first, 1, "one did it: {answers:?}");
    }
    assert_eq!(orders(&one).await, 5);
}

async fn w09_a_refusal_is_not_stored(f: Fixture) {
    let refuse = |payload: &serde_json::Value| match payload["wrong"].as_bool() {
        Some(true) => Err(TypeError::invalid("/wrong", "wrong", "wrong")),
        _ => Ok(vec![latchwork_work::PlannedItem::new(json!(1))]),
    };
    let work = f.with_types([DynamicOrderType::new(PLAIN).plan(refuse)]).await;
    let ada = with_key(&user(&work, "ada"), "k");
    let wrong = ada.propose(Proposal::new(PLAIN, json!({"wrong": true}))).await;
    assert_eq!(wrong.expect_err("wrong").code(), "payload_invalid");
    let right = ada.propose_once(Proposal::new(PLAIN, json!({}))).await.expect("right");
    assert!(!right.replayed, "the key was free");
    let cancel = with_key(&user(&work, "ada"), "c");
    let unknown = latchwork_work::OrderId::new(right.value.order.created_at);
    assert_eq!(cancel.cancel(unknown, "x").await.expect_err("none").code(), "order_not_found");
    cancel.cancel(right.value.order.id, "x").await.expect("the key was free");
}

async fn w09_an_illegal_key_is_refused(f: Fixture) {
    let work = f.manager().await;
    let long = "x".repeat(256);
    for key in ["", "a\0b", "a\nb", &long] {
        let ada = with_key(&user(&work, "ada"), key);
        let error = ada.propose(Proposal::new(PLAIN, json!({"items": 1}))).await;
        assert_eq!(error.expect_err("illegal").code(), "invalid_argument", "{key:?}");
    }
    assert_eq!(orders(&work).await, 0);
}
