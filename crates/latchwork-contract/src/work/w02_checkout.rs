//! W2: checking out, by wish and with waiting.

use std::collections::BTreeSet;
use std::time::Duration;

use latchwork_work::{Checkout, EventNote, OrderId, OrderState, Proposal, WorkClient};
use serde_json::{Value, json};

use super::Fixture;
use super::case::cases;
use super::fixture::{PLAIN, Timer, agent, lease, nothing, propose, submit, user};

cases![
    w02_checkout_of_one_order,
    w02_checkout_by_type_and_priority,
    w02_checkout_by_meta_means_the_same_everywhere,
    w02_checkout_of_many,
    w02_a_waiting_checkout_is_woken_by_a_proposal_of_another_process,
    w02_a_waiting_checkout_is_woken_by_a_release,
    w02_a_waiting_checkout_is_woken_when_a_limit_frees,
    w02_a_waiting_checkout_of_another_type_is_woken_when_a_shared_key_frees,
    w02_a_waiting_checkout_of_another_type_is_woken_when_the_agent_may_lease,
    w02_a_waiting_checkout_gets_what_becomes_due,
    w02_many_waiters_share_what_comes,
    w02_a_checkout_that_waited_in_vain_says_so,
];

async fn orders(client: &WorkClient, checkout: Checkout) -> Vec<OrderId> {
    let got = client.checkout(checkout).await.expect("checked out");
    got.leases.into_iter().map(|lease| lease.order_id).collect()
}

async fn w02_checkout_of_one_order(f: Fixture) {
    let work = f.manager().await;
    propose(&work, PLAIN, 2).await;
    let second = propose(&work, "other", 2).await;
    let client = agent(&work, "agent-1");
    for _ in 0..2 {
        assert_eq!(orders(&client, Checkout::of_order(second.id)).await, [second.id]);
    }
    assert_eq!(orders(&client, Checkout::of_order(second.id)).await, []);
    let unknown = OrderId::new(second.created_at);
    let error = client.checkout(Checkout::of_order(unknown)).await.expect_err("none");
    assert_eq!(error.code(), "order_not_found");
    // Who does not know its type could never submit.
    let stranger = f.with_types([latchwork_work::DynamicOrderType::new("strange")]).await;
    let third = propose(&work, PLAIN, 1).await;
    let stranger = agent(&stranger, "stranger");
    let error = stranger.checkout(Checkout::of_order(third.id)).await.expect_err("unknown");
    assert_eq!(error.code(), "order_type_not_found");
}

async fn w02_checkout_by_type_and_priority(f: Fixture) {
    let work = f.manager().await;
    let ada = user(&work, "ada");
    let urgent = Proposal::new(PLAIN, json!({"items": 1})).priority(5);
    let urgent = ada.propose(urgent).await.expect("proposed").order;
    let usual = propose(&work, "other", 1).await;
    let client = agent(&work, "agent-1");
    assert_eq!(orders(&client, Checkout::of_type("quick")).await, []);
    assert_eq!(orders(&client, Checkout::any().min_priority(6)).await, []);
    assert_eq!(orders(&client, Checkout::of_type("other").min_priority(1)).await, []);
    assert_eq!(orders(&client, Checkout::of_type("other")).await, [usual.id]);
    assert_eq!(orders(&client, Checkout::of_type("quick").or_type(PLAIN)).await, [urgent.id]);
    let error = client.checkout(Checkout::of_type("nothing")).await.expect_err("unknown");
    assert_eq!(error.code(), "order_type_not_found");
}

async fn w02_checkout_by_meta_means_the_same_everywhere(f: Fixture) {
    let work = f.manager().await;
    let ada = user(&work, "ada");
    let stored = json!({"n": 1, "s": "a", "b": true, "z": null, "o": {"x": 1, "y": [2, 3]}});
    let mut proposal = Proposal::new(PLAIN, json!({"items": 30}));
    for (key, value) in stored.as_object().expect("an object") {
        proposal = proposal.meta(key, value.clone());
    }
    ada.propose(proposal).await.expect("proposed");
    ada.propose(Proposal::new(PLAIN, json!({"items": 1})).priority(9)).await.expect("no meta");
    let client = agent(&work, "agent-1");
    let cases: [(&str, Value, bool); 15] = [
        ("n", json!(1), true),
        ("n", json!(2), false),
        ("n", json!("1"), false),
        ("s", json!("a"), true),
        ("s", json!("A"), false),
        ("b", json!(true), true),
        ("b", json!(false), false),
        ("b", json!("true"), false),
        ("z", json!(null), true),
        ("absent", json!(null), false),
        ("o", json!({"x": 1, "y": [2, 3]}), true),
        ("o", json!({"y": [2, 3], "x": 1}), true),
        ("o", json!({"x": 1}), false),
        ("o", json!({"x": 1, "y": [3, 2]}), false),
        ("absent", json!(1), false),
    ];
    for (key, value, expected) in cases {
        let got = orders(&client, Checkout::any().meta(key, value.clone())).await;
        assert_eq!(!got.is_empty(), expected, "meta {key} = {value}");
    }
    let both = Checkout::any().meta("n", 1).meta("s", "a");
    assert_eq!(orders(&client, both).await.len(), 1);
    let one = Checkout::any().meta("n", 1).meta("s", "b");
    assert_eq!(orders(&client, one).await.len(), 0);
    let nul = client.checkout(Checkout::any().meta("s", "a\0b")).await;
    assert_eq!(nul.expect_err("no database keeps it").code(), "invalid_argument");
}

async fn w02_checkout_of_many(f: Fixture) {
    let work = f.manager().await;
    propose(&work, PLAIN, 3).await;
    propose(&work, "other", 3).await;
    let client = agent(&work, "agent-1");
    let four = client.checkout(Checkout::any().limit(4)).await.expect("checked out").leases;
    let kinds: Vec<_> = four.iter().map(|lease| lease.order_type.as_str()).collect();
    assert_eq!(kinds, [PLAIN, PLAIN, PLAIN, "other"]);
    let rest = client.checkout(Checkout::any().limit(100)).await.expect("checked out").leases;
    assert_eq!(rest.len(), 2);
    let distinct: BTreeSet<_> = four.iter().chain(&rest).map(|lease| lease.item_id).collect();
    assert_eq!(distinct.len(), 6);
    for limit in [0, 1_001] {
        let error = client.checkout(Checkout::any().limit(limit)).await.expect_err("illegal");
        assert_eq!(error.code(), "invalid_argument");
    }
}

/// Longer than a fallback look takes, on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// Waits until somebody waits: a waiter has looked once by then, and found nothing.
async fn waiting(client: &WorkClient, checkout: Checkout) -> tokio::task::JoinHandle<usize> {
    let client = client.clone();
    let waiter = tokio::spawn(async move {
        client.checkout(checkout.wait(LONG)).await.expect("checked out").leases.len()
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiter.is_finished(), "there is nothing yet");
    waiter
}

/// The fastest of some tries, so that a busy machine does not matter: well below the fallback look,
/// which comes every 1.5 s.
const WOKEN: Duration = Duration::from_millis(700);

async fn w02_a_waiting_checkout_is_woken_by_a_proposal_of_another_process(f: Fixture) {
    let (one, two) = (f.manager().await, f.manager().await);
    let client = agent(&one, "agent-1");
    let mut fastest = LONG;
    for _ in 0..3 {
        let waiter = waiting(&client, Checkout::of_type(PLAIN)).await;
        let begun = Timer::start();
        propose(&two, PLAIN, 1).await;
        assert_eq!(waiter.await.expect("no panic"), 1);
        fastest = fastest.min(begun.elapsed());
    }
    // Behind a pooler there are no notices, and the fallback look finds it.
    let bound =
        if f.url().contains("work_") && !f.url().contains("search_path") { LONG } else { WOKEN };
    assert!(fastest < bound, "woken and not polling: {fastest:?}");
}

async fn w02_a_waiting_checkout_is_woken_by_a_release(f: Fixture) {
    let work = f.manager().await;
    propose(&work, PLAIN, 1).await;
    let (one, two) = (agent(&work, "agent-1"), agent(&work, "agent-2"));
    let mut fastest = LONG;
    for _ in 0..3 {
        let held = lease(&one).await;
        let waiter = waiting(&two, Checkout::any()).await;
        let begun = Timer::start();
        one.release(held.id, None).await.expect("released");
        assert_eq!(waiter.await.expect("no panic"), 1);
        fastest = fastest.min(begun.elapsed());
        let again = work.agents().await.expect("agents");
        assert_eq!(again[0].id, "agent-2");
        let order = held.order_id;
        user(&work, "ada").requeue(order, "again").await.expect("requeued");
    }
    assert!(fastest < WOKEN, "woken and not polling: {fastest:?}");
}

async fn w02_a_waiting_checkout_is_woken_when_a_limit_frees(f: Fixture) {
    let split = |_: &Value| {
        let item = |n| latchwork_work::PlannedItem::new(json!(n)).concurrency("repo:1", 1);
        Ok((0..8).map(item).collect())
    };
    let work = f.with_types([latchwork_work::DynamicOrderType::new(PLAIN).plan(split)]).await;
    propose(&work, PLAIN, 8).await;
    let (one, two) = (agent(&work, "agent-1"), agent(&work, "agent-2"));
    let mut fastest = LONG;
    for _ in 0..3 {
        let held = lease(&one).await;
        let waiter = waiting(&two, Checkout::any()).await;
        let begun = Timer::start();
        submit(&one, &held).await;
        assert_eq!(waiter.await.expect("no panic"), 1);
        fastest = fastest.min(begun.elapsed());
        user(&work, "ada").requeue(held.order_id, "again").await.expect("requeued");
    }
    assert!(fastest < WOKEN, "woken and not polling: {fastest:?}");
}

/// A type whose only item has the key that all of them share.
fn of_one_key(name: &str) -> latchwork_work::DynamicOrderType {
    let item = || latchwork_work::PlannedItem::new(json!(null)).concurrency("repo:1", 1);
    latchwork_work::DynamicOrderType::new(name).plan(move |_: &Value| Ok(vec![item()]))
}

async fn w02_a_waiting_checkout_of_another_type_is_woken_when_a_shared_key_frees(f: Fixture) {
    let work = f.with_types([of_one_key("a"), of_one_key("b")]).await;
    let (one, two) = (agent(&work, "agent-1"), agent(&work, "agent-2"));
    for by_submission in [true, false] {
        let mut fastest = LONG;
        for _ in 0..3 {
            propose(&work, "a", 1).await;
            let held = lease(&one).await;
            let b = propose(&work, "b", 1).await;
            let waiter = waiting(&two, Checkout::of_type("b")).await;
            let begun = Timer::start();
            match by_submission {
                true => submit(&one, &held).await,
                false => {
                    let failure = latchwork_work::Failure::new("x", "y").permanent();
                    one.fail(held.id, failure).await.expect("failed");
                }
            }
            assert_eq!(waiter.await.expect("no panic"), 1);
            fastest = fastest.min(begun.elapsed());
            user(&work, "ada").requeue(b.id, "again").await.expect("requeued");
            let again = lease(&two).await;
            submit(&two, &again).await;
        }
        assert!(fastest < WOKEN, "woken and not polling: {fastest:?}");
    }
}

async fn w02_a_waiting_checkout_of_another_type_is_woken_when_the_agent_may_lease(f: Fixture) {
    let builder = latchwork_work::WorkManager::builder(super::fixture::types());
    let work = f.open(builder.max_leases_per_agent(1)).await;
    let client = agent(&work, "agent-1");
    let mut fastest = LONG;
    for _ in 0..3 {
        propose(&work, PLAIN, 1).await;
        let held = lease(&client).await;
        let other = propose(&work, "other", 1).await;
        let waiter = waiting(&client, Checkout::of_type("other")).await;
        let begun = Timer::start();
        submit(&client, &held).await;
        assert_eq!(waiter.await.expect("no panic"), 1);
        fastest = fastest.min(begun.elapsed());
        user(&work, "ada").requeue(other.id, "again").await.expect("requeued");
        let again = lease(&client).await;
        submit(&client, &again).await;
    }
    assert!(fastest < WOKEN, "woken and not polling: {fastest:?}");
}

async fn w02_a_waiting_checkout_gets_what_becomes_due(f: Fixture) {
    let work = f.manager().await;
    propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let span = Duration::from_millis(600);
    let begun = Timer::start();
    client.snooze(held.id, span).await.expect("snoozed");
    nothing(&client).await;
    let got = client.checkout(Checkout::any().wait(LONG)).await.expect("checked out");
    assert_eq!(got.leases.len(), 1);
    assert!(begun.elapsed() >= span, "not before its time: {:?}", begun.elapsed());
}

async fn w02_many_waiters_share_what_comes(f: Fixture) {
    let (one, two) = (f.manager().await, f.manager().await);
    let mut waiters = Vec::new();
    for n in 0..6 {
        let work = if n % 2 == 0 { &one } else { &two };
        waiters.push(waiting(&agent(work, &format!("agent-{n}")), Checkout::any()).await);
    }
    propose(&one, PLAIN, 6).await;
    for waiter in waiters {
        assert_eq!(waiter.await.expect("no panic"), 1, "each gets one");
    }
}

async fn w02_a_checkout_that_waited_in_vain_says_so(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 1).await;
    let note = EventNote::new();
    let ada = user(&work, "ada");
    ada.transition_order(order.id, OrderState::Rejected, note).await.expect("rejected");
    let wait = Duration::from_millis(200);
    let begun = Timer::start();
    let got = agent(&work, "agent-1").checkout(Checkout::any().wait(wait)).await;
    assert_eq!(got.expect("an answer").leases, []);
    assert!(begun.elapsed() >= wait && begun.elapsed() < LONG);
    let error = ada.checkout(Checkout::any()).await.expect_err("a person leases nothing");
    assert_eq!(error.code(), "invalid_argument");
}
