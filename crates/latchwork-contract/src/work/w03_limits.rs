//! W3: limits of agents, types and concurrency keys. They hold at every instant, over all processes,
//! and never hold anything else back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_work::{
    Checkout, DynamicOrderType, Failure, ItemState, Lease, OrderState, OrderTypes, PlannedItem,
    Proposal, TypeSettings, WorkManager,
};
use serde_json::{Value, json};

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, agent, checkout, item_state, lease, nothing, order_state, plain, propose, quick,
    quick_lease_is_over, submit, user,
};

cases![
    w03_an_agent_has_no_more_leases_than_its_limit,
    w03_a_type_has_no_more_leases_than_its_limit,
    w03_a_key_has_no_more_leases_than_its_limit,
    w03_a_key_is_shared_by_types_and_orders,
    w03_an_ordered_key_goes_in_the_order_of_the_plan,
    w03_an_item_that_waits_for_its_retry_holds_back_those_behind_it,
    w03_an_item_that_failed_for_good_holds_nothing_back,
    w03_without_order_a_retry_holds_nothing_back,
    w03_bug_a_full_type_does_not_hide_others,
    w03_bug_a_full_type_does_not_hide_others_from_an_idempotent_checkout,
    w03_many_full_keys_do_not_hide_a_free_item,
    w03_bug_limits_hold_for_a_checkout_of_one_order,
    w03_bug_limits_are_not_check_then_act,
    w03_a_claim_reclaims_the_expired_leases_of_its_limit,
    w03_every_end_of_a_lease_frees_its_limits,
    w03_a_raised_limit_counts_at_once,
    w03_a_move_to_leased_counts_for_its_limits,
    w03_claims_that_come_together_share_what_limits_leave,
    w03_what_becomes_due_while_a_key_frees_is_not_forgotten,
];

/// Items that share keys: the payload's `keys` has one key, or null, for each item.
fn keyed(name: &str, limit: u32, ordered: bool) -> DynamicOrderType {
    let split = move |payload: &Value| {
        let item = |(n, key): (usize, &Value)| {
            let item = PlannedItem::new(json!({"n": n, "key": key}));
            match key.as_str() {
                Some(key) if ordered => item.ordered(key),
                Some(key) => item.concurrency(key, limit),
                None => item,
            }
        };
        Ok(payload["keys"].as_array().into_iter().flatten().enumerate().map(item).collect())
    };
    DynamicOrderType::new(name).plan(split)
}

async fn propose_keys(work: &WorkManager, name: &str, keys: Value) -> latchwork_work::OrderId {
    let proposal = Proposal::new(name, json!({ "keys": keys }));
    user(work, "ada").propose(proposal).await.expect("proposed").order.id
}

async fn w03_an_agent_has_no_more_leases_than_its_limit(f: Fixture) {
    let mut types = OrderTypes::new();
    types.add_dynamic(plain(PLAIN)).expect("a type");
    let work = f.open(WorkManager::builder(types).max_leases_per_agent(2)).await;
    propose(&work, PLAIN, 5).await;
    let (one, two) = (agent(&work, "agent-1"), agent(&work, "agent-2"));
    let (held, _) = checkout(&one, Checkout::any().limit(5)).await;
    assert_eq!(held.len(), 2);
    let (none, back) = checkout(&one, Checkout::any()).await;
    assert!(none.is_empty());
    let told: Vec<_> = back.iter().map(|b| (b.limit.as_str(), b.held, b.max)).collect();
    assert_eq!(told, [("agent:agent-1", 2, 2)]);
    assert_eq!(checkout(&two, Checkout::any()).await.0.len(), 1, "others are not held back");
    submit(&one, &held[0]).await;
    assert_eq!(checkout(&one, Checkout::any().limit(5)).await.0.len(), 1);
}

async fn w03_a_type_has_no_more_leases_than_its_limit(f: Fixture) {
    let settings = TypeSettings { max_leases: Some(2), ..TypeSettings::default() };
    let work = f.with_types([plain(PLAIN).settings(settings), plain("other")]).await;
    propose(&work, PLAIN, 5).await;
    let client = agent(&work, "agent-1");
    let (held, back) = checkout(&client, Checkout::any().limit(5)).await;
    assert_eq!(held.len(), 2);
    let told: Vec<_> = back.iter().map(|b| (b.limit.as_str(), b.held, b.max)).collect();
    assert_eq!(told, [("type:plain", 2, 2)]);
    client.release(held[0].id, None).await.expect("released");
    lease(&client).await;
    nothing(&client).await;
}

async fn w03_a_key_has_no_more_leases_than_its_limit(f: Fixture) {
    for limit in [1, 3] {
        let name = format!("keyed-{limit}");
        let work = f.with_types([keyed(&name, limit, false)]).await;
        let key = format!("repo:{limit}");
        propose_keys(&work, &name, json!([key, key, key, key, key])).await;
        let client = agent(&work, "agent-1");
        let wish = || Checkout::of_type(&name).limit(9);
        let (held, _) = checkout(&client, wish()).await;
        assert_eq!(held.len(), limit as usize);
        let (none, back) = checkout(&client, wish()).await;
        assert!(none.is_empty());
        let told: Vec<_> = back.iter().map(|b| (b.limit.as_str(), b.held, b.max)).collect();
        assert_eq!(told, [(format!("key:{key}").as_str(), limit, limit)]);
        submit(&client, &held[0]).await;
        assert_eq!(checkout(&client, wish()).await.0.len(), 1);
    }
}

async fn w03_a_key_is_shared_by_types_and_orders(f: Fixture) {
    let work = f.with_types([keyed("a", 1, false), keyed("b", 1, false)]).await;
    propose_keys(&work, "a", json!(["k"])).await;
    propose_keys(&work, "b", json!(["k"])).await;
    propose_keys(&work, "b", json!(["k", "free"])).await;
    let client = agent(&work, "agent-1");
    let (held, _) = checkout(&client, Checkout::any().limit(9)).await;
    let keys: Vec<_> = held.iter().map(|lease| lease.input["key"].clone()).collect();
    assert_eq!(keys, [json!("k"), json!("free")]);
    submit(&client, &held[0]).await;
    let next = lease(&client).await;
    assert_eq!((next.order_type.as_str(), &next.input["key"]), ("b", &json!("k")));
    nothing(&client).await;
}

async fn w03_an_ordered_key_goes_in_the_order_of_the_plan(f: Fixture) {
    let work = f.with_types([keyed("a", 1, true)]).await;
    propose_keys(&work, "a", json!(["k", "k", "k"])).await;
    propose_keys(&work, "a", json!(["k"])).await;
    let client = agent(&work, "agent-1");
    for n in [0, 1, 2, 0] {
        let held = lease(&client).await;
        assert_eq!(held.input["n"], n);
        nothing(&client).await;
        submit(&client, &held).await;
    }
}

/// Retries that a case need not wait for.
fn patient() -> TypeSettings {
    let hour = Duration::from_secs(3_600);
    let retry = latchwork_work::RetryPolicy {
        max_attempts: 3,
        backoff: hour,
        max_backoff: hour,
        jitter: Duration::ZERO,
    };
    TypeSettings { retry, failure: latchwork_work::FailurePolicy::BestEffort, ..quick() }
}

async fn w03_an_item_that_waits_for_its_retry_holds_back_those_behind_it(f: Fixture) {
    let work = f.with_types([keyed("a", 1, true).settings(patient())]).await;
    let order = propose_keys(&work, "a", json!(["k", "k", "other"])).await;
    let client = agent(&work, "agent-1");
    let first = lease(&client).await;
    client.fail(first.id, Failure::new("x", "y")).await.expect("failed");
    let (held, _) = checkout(&client, Checkout::any().limit(9)).await;
    let keys: Vec<_> = held.iter().map(|lease| lease.input["key"].clone()).collect();
    assert_eq!(keys, [json!("other")], "the second of k waits for the first");
    // Snoozed is the same.
    let order_2 = propose_keys(&work, "a", json!(["l", "l"])).await;
    let held = client.checkout(Checkout::of_order(order_2)).await.expect("leased").leases;
    client.snooze(held[0].id, Duration::from_secs(60)).await.expect("snoozed");
    nothing(&client).await;
    assert_eq!(order_state(&work, order).await, OrderState::CheckedOut);
}

async fn w03_an_item_that_failed_for_good_holds_nothing_back(f: Fixture) {
    let work = f.with_types([keyed("a", 1, true).settings(patient())]).await;
    propose_keys(&work, "a", json!(["k", "k"])).await;
    let client = agent(&work, "agent-1");
    let first = lease(&client).await;
    client.fail(first.id, Failure::new("x", "y").permanent()).await.expect("failed");
    assert_eq!(item_state(&work, first.item_id).await, ItemState::Failed);
    assert_eq!(lease(&client).await.input["n"], 1);
}

async fn w03_without_order_a_retry_holds_nothing_back(f: Fixture) {
    let work = f.with_types([keyed("a", 1, false).settings(patient())]).await;
    propose_keys(&work, "a", json!(["k", "k"])).await;
    let client = agent(&work, "agent-1");
    let first = lease(&client).await;
    client.fail(first.id, Failure::new("x", "y")).await.expect("failed");
    assert_eq!(lease(&client).await.input["n"], 1);
}

async fn full_type(f: &Fixture) -> WorkManager {
    let settings = TypeSettings { max_leases: Some(1), ..TypeSettings::default() };
    let work = f.with_types([plain("full").settings(settings), plain("free")]).await;
    let urgent = Proposal::new("full", json!({"items": 40})).priority(9);
    user(&work, "ada").propose(urgent).await.expect("proposed");
    propose(&work, "free", 2).await;
    assert_eq!(lease(&agent(&work, "agent-0")).await.order_type, "full");
    work
}

async fn w03_bug_a_full_type_does_not_hide_others(f: Fixture) {
    let work = full_type(&f).await;
    let (held, back) = checkout(&agent(&work, "agent-1"), Checkout::any()).await;
    assert_eq!(held.len(), 1);
    assert_eq!(held[0].order_type, "free");
    assert_eq!(back.iter().map(|b| b.limit.as_str()).collect::<Vec<_>>(), ["type:full"]);
}

async fn w03_bug_a_full_type_does_not_hide_others_from_an_idempotent_checkout(f: Fixture) {
    let work = full_type(&f).await;
    let client = agent(&work, "agent-1").idempotent("key-1");
    let (held, back) = checkout(&client, Checkout::any()).await;
    assert_eq!(held.len(), 1, "held back by {back:?}");
    assert_eq!(held[0].order_type, "free");
    let again = client.checkout_once(Checkout::any()).await.expect("the same");
    assert!(again.replayed);
    assert_eq!(again.value.leases[0].id, held[0].id);
}

async fn w03_many_full_keys_do_not_hide_a_free_item(f: Fixture) {
    let work = f.with_types([keyed("a", 1, false)]).await;
    // Forty keys, each with a lease and with an item that becomes due behind it.
    let keys: Vec<_> = (0..40).map(|n| json!(format!("k{n}"))).collect();
    let order = propose_keys(&work, "a", json!([keys.clone(), keys].concat())).await;
    let client = agent(&work, "agent-1");
    let (first, _) = checkout(&client, Checkout::any().limit(100)).await;
    assert_eq!(first.len(), 40);
    for held in &first {
        client.snooze(held.id, Duration::from_millis(50)).await.expect("snoozed");
    }
    let (second, _) = checkout(&client, Checkout::any().limit(40)).await;
    assert_eq!(second.len(), 40, "the others of the same keys");
    let free = propose_keys(&work, "a", json!([null])).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let got = client.checkout(Checkout::any()).await.expect("checked out");
    assert_eq!(got.leases.len(), 1, "the free one is behind forty that are held back");
    assert_eq!(got.leases[0].order_id, free);
    assert_ne!(order, free);
}

async fn w03_bug_limits_hold_for_a_checkout_of_one_order(f: Fixture) {
    let settings = TypeSettings { max_leases: Some(1), ..TypeSettings::default() };
    let work = f.with_types([plain(PLAIN).settings(settings)]).await;
    let order = propose(&work, PLAIN, 3).await.id;
    let client = agent(&work, "agent-1");
    assert_eq!(checkout(&client, Checkout::of_order(order).limit(3)).await.0.len(), 1);
    let (none, back) = checkout(&client, Checkout::of_order(order)).await;
    assert!(none.is_empty());
    assert_eq!(back[0].limit, "type:plain");
}

/// Who works on a limit right now. The counter goes up after the lease was got and down before it
/// is given back, so that it never counts more than there are.
#[derive(Default)]
struct Inside(Mutex<BTreeMap<String, (i64, i64)>>);

impl Inside {
    fn enter(&self, limit: &str) {
        let mut counts = self.0.lock().expect("no panic");
        let (now, most) = counts.entry(limit.to_owned()).or_default();
        *now += 1;
        *most = (*most).max(*now);
    }

    fn leave(&self, limit: &str) {
        self.0.lock().expect("no panic").get_mut(limit).expect("entered").0 -= 1;
    }

    fn most(&self) -> BTreeMap<String, i64> {
        let counts = self.0.lock().expect("no panic");
        counts.iter().map(|(limit, (_, most))| (limit.clone(), *most)).collect()
    }
}

async fn w03_bug_limits_are_not_check_then_act(f: Fixture) {
    let types = || {
        let capped = TypeSettings { max_leases: Some(3), ..TypeSettings::default() };
        let mut types = OrderTypes::new();
        types.add_dynamic(keyed("one", 1, false).settings(capped)).expect("a type");
        types.add_dynamic(keyed("two", 2, false)).expect("a type");
        types
    };
    let one = f.open(WorkManager::builder(types()).max_leases_per_agent(2)).await;
    let two = f.open(WorkManager::builder(types()).max_leases_per_agent(2)).await;
    let keys = |name: &str, n: usize| {
        (0..n).map(|at| json!(format!("{name}{}", at % 3))).collect::<Vec<_>>()
    };
    propose_keys(&one, "one", json!(keys("a", 40))).await;
    propose_keys(&two, "two", json!(keys("b", 40))).await;
    let (inside, left) = (Arc::new(Inside::default()), Arc::new(AtomicI64::new(80)));
    let agents = (0..16).map(|n| {
        let work = if n % 2 == 0 { one.clone() } else { two.clone() };
        let (inside, left) = (inside.clone(), left.clone());
        tokio::spawn(async move {
            // Two of one name share a limit.
            let name = format!("agent-{}", n % 8);
            let client = agent(&work, &name);
            while left.load(Ordering::SeqCst) > 0 {
                let wish = Checkout::any().limit(2).wait(Duration::from_millis(100));
                let got = client.checkout(wish).await.expect("checked out").leases;
                let limits = |lease: &Lease| {
                    let key = lease.input["key"].as_str().expect("a key").to_owned();
                    [
                        format!("type:{}", lease.order_type),
                        format!("key:{key}"),
                        format!("agent:{name}"),
                    ]
                };
                got.iter().flat_map(&limits).for_each(|limit| inside.enter(&limit));
                tokio::task::yield_now().await;
                for lease in &got {
                    limits(lease).iter().for_each(|limit| inside.leave(limit));
                    submit(&client, lease).await;
                    left.fetch_sub(1, Ordering::SeqCst);
                }
            }
        })
    });
    for task in agents.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    for (limit, most) in inside.most() {
        let max = match limit.as_str() {
            "type:one" => 3,
            "type:two" => 16,
            key if key.starts_with("key:a") => 1,
            _ => 2,
        };
        assert!(most <= max, "{limit}: {most} at once, and {max} are allowed");
    }
    assert_eq!(left.load(Ordering::SeqCst), 0);
}

async fn w03_a_claim_reclaims_the_expired_leases_of_its_limit(f: Fixture) {
    let types = || {
        let mut types = OrderTypes::new();
        let capped = TypeSettings { max_leases: Some(1), ..quick() };
        types.add_dynamic(plain("type").settings(capped)).expect("a type");
        types.add_dynamic(keyed("key", 1, false).settings(quick())).expect("a type");
        types.add_dynamic(plain("agent").settings(quick())).expect("a type");
        types
    };
    let work = f.open(WorkManager::builder(types()).max_leases_per_agent(1)).await;
    propose(&work, "type", 1).await;
    propose_keys(&work, "key", json!(["k"])).await;
    propose(&work, "agent", 1).await;
    let (dead, other, third) =
        (agent(&work, "dead"), agent(&work, "dead-2"), agent(&work, "agent-3"));
    for (client, name) in [(&dead, "type"), (&other, "key"), (&third, "agent")] {
        assert_eq!(checkout(client, Checkout::of_type(name)).await.0.len(), 1);
    }
    let alive = agent(&work, "alive");
    assert!(checkout(&alive, Checkout::any()).await.0.is_empty());
    propose(&work, "type", 1).await;
    propose_keys(&work, "key", json!(["k"])).await;
    propose(&work, "agent", 1).await;
    quick_lease_is_over().await;
    // Nobody else reclaims: the claims that the limits hold back do it themselves. What it takes back
    // may be leased by the claim after that.
    for (client, name) in [(&alive, "type"), (&agent(&work, "alive-2"), "key"), (&third, "agent")] {
        let mut tries = 0;
        while checkout(client, Checkout::of_type(name)).await.0.is_empty() {
            tries += 1;
            assert!(tries < 3, "{name}: held back by a dead agent");
        }
    }
}

async fn w03_every_end_of_a_lease_frees_its_limits(f: Fixture) {
    let types = || {
        let capped = TypeSettings { max_leases: Some(1), ..quick() };
        let mut types = OrderTypes::new();
        types.add_dynamic(keyed("a", 1, false).settings(capped)).expect("a type");
        types
    };
    let work = f.open(WorkManager::builder(types()).max_leases_per_agent(1)).await;
    let (client, ada) = (agent(&work, "agent-1"), user(&work, "ada"));
    for end in 0..7 {
        let order = propose_keys(&work, "a", json!(["k", "k"])).await;
        let held = lease(&client).await;
        nothing(&client).await;
        match end {
            0 => drop(client.release(held.id, None).await.expect("released")),
            1 => drop(client.snooze(held.id, Duration::from_secs(60)).await.expect("snoozed")),
            2 => submit(&client, &held).await,
            3 => drop(client.fail(held.id, Failure::new("x", "y")).await.expect("failed")),
            4 => drop(ada.requeue(order, "again").await.expect("requeued")),
            5 => {
                quick_lease_is_over().await;
                assert_eq!(work.reclaim_expired().await.expect("reclaimed"), 1);
            }
            _ => drop(ada.cancel(order, "x").await.expect("cancelled")),
        }
        if end < 6 {
            lease(&client).await;
            ada.cancel(order, "over").await.expect("cancelled");
        }
        nothing(&client).await;
    }
}

async fn w03_a_raised_limit_counts_at_once(f: Fixture) {
    let work = f.with_types([keyed("a", 1, false)]).await;
    propose_keys(&work, "a", json!(["k", "k", "k", "k"])).await;
    let client = agent(&work, "agent-1");
    assert_eq!(checkout(&client, Checkout::any().limit(9)).await.0.len(), 1);
    let raised = f.with_types([keyed("a", 3, false)]).await;
    propose_keys(&raised, "a", json!(["k"])).await;
    let client = agent(&raised, "agent-1");
    assert_eq!(checkout(&client, Checkout::any().limit(9)).await.0.len(), 2);
}

async fn w03_a_move_to_leased_counts_for_its_limits(f: Fixture) {
    let settings = TypeSettings { max_leases: Some(2), ..TypeSettings::default() };
    let mut types = OrderTypes::new();
    types.add_dynamic(keyed("a", 1, false).settings(settings)).expect("a type");
    let work = f.open(WorkManager::builder(types).max_leases_per_agent(1)).await;
    let order = propose_keys(&work, "a", json!(["k", "k", null, null])).await;
    let items: Vec<_> = work.items(order, None, 9).await.expect("items");
    let items: Vec<_> = items.into_iter().map(|found| found.item.id).collect();
    let (one, two) = (agent(&work, "agent-1"), agent(&work, "agent-2"));
    let take = |client: &latchwork_work::WorkClient, n: usize| {
        let (client, item) = (client.clone(), items[n]);
        async move {
            client.transition_item(item, ItemState::Leased, latchwork_work::EventNote::new()).await
        }
    };
    take(&one, 0).await.expect("leased");
    for (client, n, limit) in [(&one, 2, "agent:agent-1"), (&two, 1, "key:k")] {
        let refused = take(client, n).await.expect_err("the limit is reached");
        assert_eq!(refused.code(), "limit_reached");
        assert!(refused.to_string().contains(limit), "{refused}");
        assert_eq!(item_state(&work, items[n]).await, ItemState::Queued, "nothing changed");
    }
    take(&two, 2).await.expect("leased");
    let three = agent(&work, "agent-3");
    let refused = take(&three, 3).await.expect_err("the limit is reached");
    assert!(refused.to_string().contains("type:a"), "{refused}");
    nothing(&three).await;
    // The end of such a lease frees what it counted for.
    one.transition_item(items[0], ItemState::Queued, latchwork_work::EventNote::new())
        .await
        .expect("queued again");
    lease(&three).await;
    nothing(&one).await;
}

/// Agents of two processes, all at once: the sum is what the limits leave, and each lease is one
/// agent's.
async fn w03_claims_that_come_together_share_what_limits_leave(f: Fixture) {
    let settings = TypeSettings { max_leases: Some(9), ..TypeSettings::default() };
    let mut managers = Vec::new();
    for _ in 0..2 {
        let mut types = OrderTypes::new();
        types.add_dynamic(keyed("a", 2, false).settings(settings.clone())).expect("a type");
        managers.push(f.open(WorkManager::builder(types).max_leases_per_agent(2)).await);
    }
    let keys: Vec<_> = (0..60).map(|n| (n % 3 != 0).then(|| format!("k{}", n % 5))).collect();
    propose_keys(&managers[0], "a", json!(keys)).await;
    let mut done = 0;
    while done < 60 {
        let ask = |n: usize| {
            let client = agent(&managers[n % 2], &format!("agent-{n}"));
            let limit = u32::try_from(n % 3).unwrap_or(0) + 1;
            async move {
                let got = client.checkout(Checkout::any().limit(limit)).await;
                (client, limit, got.expect("checked out").leases)
            }
        };
        let got = futures::future::join_all((0..16).map(ask)).await;
        let mut by_key = BTreeMap::<String, usize>::new();
        let mut items = std::collections::BTreeSet::new();
        for (client, limit, leases) in &got {
            assert!(leases.len() <= (*limit).min(2) as usize, "an agent's limit");
            for lease in leases {
                assert_eq!(Some(&lease.agent), client.actor().id.as_ref());
                assert!(items.insert(lease.item_id), "one item has one lease");
                if let Some(key) = lease.input["key"].as_str() {
                    *by_key.entry(key.to_owned()).or_default() += 1;
                }
            }
        }
        assert!(!items.is_empty() && items.len() <= 9, "the type's limit: {}", items.len());
        assert!(by_key.values().all(|held| *held <= 2), "{by_key:?}");
        done += items.len();
        let ends = got.iter().flat_map(|(client, _, leases)| {
            leases.iter().map(move |lease| async move { submit(client, lease).await })
        });
        futures::future::join_all(ends).await;
    }
    nothing(&agent(&managers[0], "agent-0")).await;
}

/// The last lease of a key ends while another item of the key is queued: whichever comes first, the item
/// can be leased afterwards.
async fn w03_what_becomes_due_while_a_key_frees_is_not_forgotten(f: Fixture) {
    let (one, two) =
        (f.with_types([keyed("a", 1, false)]).await, f.with_types([keyed("a", 1, false)]).await);
    let client = agent(&one, "agent-1");
    for _ in 0..20 {
        propose_keys(&one, "a", json!(["k"])).await;
        let held = lease(&client).await;
        let proposed = propose_keys(&two, "a", json!(["k"]));
        futures::join!(submit(&client, &held), proposed);
        let next = lease(&client).await;
        submit(&client, &next).await;
    }
}
