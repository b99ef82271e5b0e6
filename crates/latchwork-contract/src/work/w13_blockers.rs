//! W13: what an order or an item waits for.

use std::time::Duration;

use latchwork_work::{
    Blocker, BlockerCode, DynamicOrderType, EventNote, Failure, FailurePolicy, ItemId, OrderId,
    OrderState, PlannedItem, RetryPolicy, TypeSettings, WorkManager,
};
use serde_json::{Value, json};

use super::Fixture;
use super::case::cases;
use super::fixture::{PLAIN, agent, lease, plain, propose, quick, submit, user};

cases![
    w13_a_leased_item_names_its_agent_and_the_end_of_the_lease,
    w13_an_item_behind_a_limit_names_the_limit,
    w13_an_item_that_waits_for_its_retry_says_when_and_holds_back_its_lane,
    w13_an_order_names_what_it_waits_for_in_each_state,
    w13_an_order_counts_its_reasons,
    w13_a_failed_item_says_why,
];

async fn of_item(work: &WorkManager, item: ItemId) -> Blocker {
    let told = work.explain_item(item).await.expect("explained");
    let blocker = told.blocker.expect("it waits for something");
    assert_eq!(blocker.item_id, Some(item));
    blocker
}

async fn items(work: &WorkManager, order: OrderId) -> Vec<ItemId> {
    let items = work.items(order, None, 100).await.expect("items");
    items.into_iter().map(|item| item.item.id).collect()
}

/// The codes of an order with their counts.
async fn codes(work: &WorkManager, order: OrderId) -> Vec<(BlockerCode, u32)> {
    let told = work.explain_order(order).await.expect("explained");
    for group in &told.blockers {
        assert!(!group.first.is_empty(), "{group:?}");
        assert!(group.first.iter().all(|blocker| blocker.code == group.code), "{group:?}");
    }
    told.blockers.iter().map(|group| (group.code, group.count)).collect()
}

/// Items that share a key: `{"items": 3, "limit": 2}`; in order where there is no limit.
fn keyed() -> DynamicOrderType {
    let split = |payload: &Value| {
        let item = |n| {
            let item = PlannedItem::new(json!({ "n": n }));
            match payload["limit"].as_u64() {
                Some(limit) => item.concurrency("repo:42", u32::try_from(limit).unwrap_or(1)),
                None => item.ordered("repo:42"),
            }
        };
        Ok((0..payload["items"].as_u64().unwrap_or(1)).map(item).collect())
    };
    let retry = RetryPolicy {
        max_attempts: 2,
        backoff: Duration::from_secs(60),
        max_backoff: Duration::from_secs(60),
        jitter: Duration::ZERO,
    };
    let failure = FailurePolicy::BestEffort;
    DynamicOrderType::new("keyed").plan(split).settings(TypeSettings {
        retry,
        failure,
        ..TypeSettings::default()
    })
}

async fn propose_keyed(work: &WorkManager, payload: Value) -> OrderId {
    let proposal = latchwork_work::Proposal::new("keyed", payload);
    user(work, "ada").propose(proposal).await.expect("proposed").order.id
}

async fn w13_a_leased_item_names_its_agent_and_the_end_of_the_lease(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 1).await;
    let item = items(&work, order.id).await[0];
    let waiting = of_item(&work, item).await;
    assert_eq!(waiting.code, BlockerCode::Unclaimed);
    assert!(waiting.message.contains("no agent has asked for it"), "{}", waiting.message);
    let client = agent(&work, "agent-7");
    let held = lease(&client).await;
    let blocker = of_item(&work, item).await;
    assert_eq!(blocker.code, BlockerCode::Leased);
    assert_eq!(blocker.agent.as_deref(), Some("agent-7"));
    assert_eq!(blocker.until, Some(held.expires_at));
    assert!(blocker.message.contains("waits for agent agent-7, its lease ends in"), "{blocker:?}");
    assert_eq!(codes(&work, order.id).await, [(BlockerCode::Leased, 1)]);
    submit(&client, &held).await;
    assert_eq!(of_item(&work, item).await.code, BlockerCode::Approval);

    let order = propose(&work, "quick", 1).await;
    let held = lease(&client).await;
    while work.now().await.expect("a time") < held.expires_at {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let blocker = of_item(&work, held.item_id).await;
    assert_eq!(blocker.code, BlockerCode::LeaseExpired);
    assert!(blocker.message.contains("is over since"), "{}", blocker.message);
    assert_eq!(codes(&work, order.id).await, [(BlockerCode::LeaseExpired, 1)]);
}

async fn w13_an_item_behind_a_limit_names_the_limit(f: Fixture) {
    let limited = TypeSettings { max_leases: Some(1), ..TypeSettings::default() };
    let work = f.with_types([keyed(), plain("capped").settings(limited)]).await;
    let order = propose_keyed(&work, json!({"items": 4, "limit": 2})).await;
    let ids = items(&work, order).await;
    let client = agent(&work, "agent-1");
    for _ in 0..2 {
        lease(&client).await;
    }
    let blocker = of_item(&work, ids[3]).await;
    assert_eq!(blocker.code, BlockerCode::Limit);
    assert_eq!(blocker.message, "held back by the limit of 2 on `repo:42`");
    let limit = blocker.limit.expect("it names the limit");
    assert_eq!((limit.limit.as_str(), limit.held, limit.max), ("key:repo:42", 2, 2));
    assert_eq!(codes(&work, order).await, [(BlockerCode::Leased, 2), (BlockerCode::Limit, 2)]);

    let order = propose(&work, "capped", 2).await;
    let ids = items(&work, order.id).await;
    assert_eq!(of_item(&work, ids[1]).await.code, BlockerCode::Unclaimed);
    lease(&client).await;
    let blocker = of_item(&work, ids[1]).await;
    assert_eq!(blocker.code, BlockerCode::Limit);
    assert_eq!(blocker.message, "held back by the limit of 1 on the type `capped`");
    assert_eq!(blocker.limit.expect("a limit").limit, "type:capped");
}

async fn w13_an_item_that_waits_for_its_retry_says_when_and_holds_back_its_lane(f: Fixture) {
    let work = f.with_types([keyed()]).await;
    let order = propose_keyed(&work, json!({"items": 3})).await;
    let ids = items(&work, order).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let failed = client.fail(held.id, Failure::new("flaky", "the network is down")).await;
    let due = failed.expect("failed once").available_at;
    let first = of_item(&work, ids[0]).await;
    assert_eq!((first.code, first.until), (BlockerCode::Backoff, Some(due)));
    assert!(first.message.starts_with("retries at "), "{}", first.message);
    assert!(first.message.contains("after attempt 1 of 2: the network is down"), "{first:?}");
    let second = of_item(&work, ids[1]).await;
    assert_eq!((second.code, second.until), (BlockerCode::Ordered, Some(due)));
    assert_eq!(second.behind, Some(ids[0]));
    assert!(second.message.contains("`repo:42`"), "{}", second.message);
    let expected = [(BlockerCode::Backoff, 1), (BlockerCode::Ordered, 2)];
    assert_eq!(codes(&work, order).await, expected);

    let work = f.with_types([plain("snoozy")]).await;
    let order = propose(&work, "snoozy", 1).await;
    let client = agent(&work, "agent-2");
    let held = lease(&client).await;
    let item = client.snooze(held.id, Duration::from_secs(90)).await.expect("put off");
    let blocker = of_item(&work, held.item_id).await;
    assert_eq!((blocker.code, blocker.until), (BlockerCode::Backoff, Some(item.available_at)));
    assert!(blocker.message.contains("was put off"), "{}", blocker.message);
    assert_eq!(codes(&work, order.id).await, [(BlockerCode::Backoff, 1)]);
}

async fn w13_an_order_names_what_it_waits_for_in_each_state(f: Fixture) {
    let work = f.manager().await;
    let ada = user(&work, "ada");
    use BlockerCode as Code;
    use OrderState::{Applied, Approved, DeadLettered, Failed, Rejected, Submitted};
    for (way, code, says) in [
        (vec![Submitted], Code::Approval, "waits for approval"),
        (vec![Submitted, Approved], Code::Apply, "waits to be applied"),
        (vec![Submitted, Approved, Applied], Code::Apply, "waits for its items"),
        (vec![Rejected], Code::OrderState, "is rejected"),
        (vec![Failed], Code::OrderState, "the order failed"),
        (vec![Failed, DeadLettered], Code::OrderState, "dead_lettered"),
    ] {
        let order = propose(&work, PLAIN, 1).await.id;
        for step in &way {
            ada.transition_order(order, *step, EventNote::new()).await.expect("a legal way");
        }
        let told = work.explain_order(order).await.expect("explained");
        assert_eq!(told.blockers.len(), 1, "{told:?}");
        let group = &told.blockers[0];
        assert_eq!((group.code, group.count), (code, 1), "{way:?}");
        assert!(group.first[0].message.contains(says), "{group:?}");
        let item = items(&work, order).await[0];
        assert_eq!(of_item(&work, item).await.code, code, "the item waits for its order");
        let json = serde_json::to_value(group).expect("JSON");
        assert_eq!(json["code"], code.as_str());
    }
    let order = propose(&work, PLAIN, 1).await.id;
    let way = [Submitted, Approved, Applied, OrderState::Completed];
    for step in way {
        ada.transition_order(order, step, EventNote::new()).await.expect("a legal way");
    }
    assert_eq!(codes(&work, order).await, [], "nothing blocks what is done");
    let now = work.now().await.expect("a time");
    let error = work.explain_order(OrderId::new(now)).await.expect_err("none");
    assert_eq!(error.code(), "order_not_found");
    let error = work.explain_item(ItemId::new(now)).await.expect_err("none");
    assert_eq!(error.code(), "item_not_found");
}

async fn w13_an_order_counts_its_reasons(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 20).await;
    let client = agent(&work, "agent-1");
    for _ in 0..7 {
        lease(&client).await;
    }
    let done = lease(&client).await;
    submit(&client, &done).await;
    let expected = [(BlockerCode::Leased, 7), (BlockerCode::Unclaimed, 12)];
    assert_eq!(codes(&work, order.id).await, expected);
    assert_eq!(of_item(&work, done.item_id).await.code, BlockerCode::Siblings);
    let told = work.explain_order(order.id).await.expect("explained");
    assert_eq!(told.item_counts.total(), 20);
    assert!(told.blockers.iter().all(|group| group.first.len() == 5), "the first few only");
}

async fn w13_a_failed_item_says_why(f: Fixture) {
    let lenient = TypeSettings { failure: FailurePolicy::BestEffort, ..quick() };
    let work = f.with_types([plain("lenient").settings(lenient)]).await;
    let order = propose(&work, "lenient", 2).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let broken = Failure::new("broken", "no such file").permanent();
    client.fail(held.id, broken).await.expect("failed");
    let blocker = of_item(&work, held.item_id).await;
    assert_eq!(blocker.code, BlockerCode::Failed);
    assert!(blocker.message.contains("attempt 1 of 3: no such file"), "{}", blocker.message);
    let expected = [(BlockerCode::Unclaimed, 1), (BlockerCode::Failed, 1)];
    assert_eq!(codes(&work, order.id).await, expected);
    for _ in 0..3 {
        let held = lease(&client).await;
        client.fail(held.id, Failure::new("flaky", "again")).await.expect("failed");
    }
    let told = work.explain_order(order.id).await.expect("explained");
    assert_eq!(told.state, OrderState::Failed);
    let all: Vec<_> = told.blockers.iter().map(|group| (group.code, group.count)).collect();
    assert_eq!(all, [(BlockerCode::OrderState, 1), (BlockerCode::Failed, 2)]);
    let last = &told.blockers[1].first[1].message;
    assert!(last.contains("its 3 attempts are used up: again"), "{last}");
}
