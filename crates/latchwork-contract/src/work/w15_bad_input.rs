//! W15: bad input has a stable code, and changes nothing.

use latchwork_work::{
    Checkout, DynamicOrderType, ErrorKind, EventNote, EventType, Failure, ItemId, ItemState,
    LeaseId, OrderId, OrderState, PlannedItem, Proposal, Submission, TypeSettings, WorkManager,
};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{PLAIN, agent, events, lease, propose, user};

cases![
    w15_an_unknown_type_is_refused,
    w15_a_payload_against_its_schema_tells_every_path,
    w15_a_payload_that_is_too_large_is_refused,
    w15_what_is_not_there_is_told,
    w15_nul_characters_are_refused_or_kept,
    w15_an_address_that_is_none_is_refused,
    w15_times_come_from_the_database,
    w16_every_event_of_the_seed_can_be_recorded,
];

async fn empty(work: &WorkManager) {
    assert_eq!(work.order_states().await.expect("counts"), [], "nothing is stored");
    assert_eq!(work.verify().await.expect("verified").unsealed, 0, "no event");
}

async fn w15_an_unknown_type_is_refused(f: Fixture) {
    let work = f.manager().await;
    let error = user(&work, "ada").propose(Proposal::new("nothing", json!({}))).await;
    let error = error.expect_err("unknown");
    assert_eq!(error.code(), "order_type_not_found");
    assert!(error.to_string().contains(PLAIN), "it lists those that there are: {error}");
    empty(&work).await;
}

async fn w15_a_payload_against_its_schema_tells_every_path(f: Fixture) {
    let schema = json!({"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string"}, "list": {"type": "array", "items": {"type": "integer"}}}});
    let work = f.with_types([DynamicOrderType::new("strict").payload_schema(schema)]).await;
    let wrong = json!({"name": 1, "list": [1, "x", 3, null]});
    let error = user(&work, "ada").propose(Proposal::new("strict", wrong)).await;
    let error = error.expect_err("wrong");
    assert_eq!(error.code(), "payload_invalid");
    let ErrorKind::PayloadInvalid { violations, .. } = error.kind() else { panic!("{error}") };
    let mut fields: Vec<_> = violations.iter().map(|v| v.field.as_str()).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["/list/1", "/list/3", "/name"]);
    empty(&work).await;
}

async fn w15_a_payload_that_is_too_large_is_refused(f: Fixture) {
    let settings = TypeSettings { max_payload_bytes: 500, ..TypeSettings::default() };
    let work = f.with_types([DynamicOrderType::new(PLAIN).settings(settings)]).await;
    let ada = user(&work, "ada");
    let large = Proposal::new(PLAIN, json!({"text": "x".repeat(600)}));
    assert_eq!(ada.propose(large).await.expect_err("too large").code(), "too_large");
    let meta = Proposal::new(PLAIN, json!({})).meta("x", "x".repeat(70_000));
    assert_eq!(ada.propose(meta).await.expect_err("too large").code(), "invalid_argument");
    let many = vec![Proposal::new(PLAIN, json!({})); 1_001];
    assert_eq!(ada.propose_many(many).await.expect_err("too many").code(), "invalid_argument");
    empty(&work).await;
}

async fn w15_what_is_not_there_is_told(f: Fixture) {
    let work = f.manager().await;
    let now = work.now().await.expect("a time");
    let (order, item, gone) = (OrderId::new(now), ItemId::new(now), LeaseId::new(now));
    let (ada, client) = (user(&work, "ada"), agent(&work, "agent-1"));
    let note = EventNote::new;
    for error in [
        work.order(order).await.map(drop),
        work.items(order, None, 10).await.map(drop),
        ada.cancel(order, "x").await.map(drop),
        ada.retry(order).await.map(drop),
        ada.requeue(order, "x").await.map(drop),
        ada.dead_letter(order, "x").await.map(drop),
        ada.clone_order(order, None).await.map(drop),
        ada.transition_order(order, OrderState::Failed, note()).await.map(drop),
        ada.record_order_event(order, EventType::Commented, note()).await.map(drop),
    ] {
        assert_eq!(error.expect_err("no such order").code(), "order_not_found");
    }
    for error in [
        work.item(item).await.map(drop),
        ada.retry_item(item).await.map(drop),
        ada.transition_item(item, ItemState::Failed, note()).await.map(drop),
        ada.comment_item(item, "x").await.map(drop),
    ] {
        assert_eq!(error.expect_err("no such item").code(), "item_not_found");
    }
    propose(&work, PLAIN, 1).await;
    let held = lease(&client).await;
    ada.cancel(held.order_id, "x").await.expect("cancelled");
    for id in [gone, held.id] {
        let submission = Submission { lease: id, ..Submission::new(&held, json!(1)) };
        for error in [
            client.heartbeat(id).await.map(drop),
            client.release(id, None).await.map(drop),
            client.snooze(id, std::time::Duration::ZERO).await.map(drop),
            client.fail(id, Failure::new("x", "y")).await.map(drop),
            client.submit(submission).await.map(drop),
        ] {
            assert_eq!(error.expect_err("no such lease").code(), "lease_expired");
        }
    }
    for error in [
        ada.heartbeat(held.id).await.map(drop),
        ada.release(held.id, None).await.map(drop),
        ada.submit(Submission::new(&held, json!(1))).await.map(drop),
    ] {
        assert_eq!(error.expect_err("only agents have leases").code(), "invalid_argument");
    }
}

async fn w15_nul_characters_are_refused_or_kept(f: Fixture) {
    let work = f.manager().await;
    let ada = user(&work, "ada");
    let meta = Proposal::new(PLAIN, json!({"items": 1})).meta("a", "x\0y");
    assert_eq!(ada.propose(meta).await.expect_err("in meta").code(), "invalid_argument");
    let key = Proposal::new(PLAIN, json!({"items": 1})).meta("a\0", 1);
    assert_eq!(ada.propose(key).await.expect_err("in meta").code(), "invalid_argument");
    empty(&work).await;
    // JSON is kept as text, so a payload, an input, a result and evidence may hold one.
    let split = |payload: &serde_json::Value| Ok(vec![PlannedItem::new(payload.clone())]);
    let work = f.with_types([DynamicOrderType::new(PLAIN).plan(split)]).await;
    let (ada, client) = (user(&work, "ada"), agent(&work, "agent-1"));
    let payload = json!({"text": "a\0b", "a\0": 1});
    let order = ada.propose(Proposal::new(PLAIN, payload.clone())).await.expect("kept").order.id;
    assert_eq!(work.order(order).await.expect("an order").payload, payload);
    let held = lease(&client).await;
    assert_eq!(held.input, payload);
    for error in [
        client.release(held.id, Some("a\0b")).await.map(drop),
        client.fail(held.id, Failure::new("x", "a\0b")).await.map(drop),
        client.fail(held.id, Failure::new("x\0", "b")).await.map(drop),
        ada.cancel(order, "a\0b").await.map(drop),
        ada.comment(order, "a\0b").await.map(drop),
        client.submit(Submission::new(&held, json!(1)).notes("a\0b")).await.map(drop),
    ] {
        assert_eq!(error.expect_err("a NUL").code(), "invalid_argument");
    }
    let result = json!({"of": "a\0b"});
    let submission = Submission::new(&held, result.clone()).evidence(json!("\0"));
    client.submit(submission).await.expect("kept");
    let details = work.item(held.item_id).await.expect("an item");
    assert_eq!(details.result.expect("a result").result, result);
    work.seal().await.expect("sealed");
    assert!(work.verify().await.expect("verified").is_intact());
    // A backslash is no NUL.
    let meta = Proposal::new(PLAIN, json!({})).meta("path", "C:\\u0000");
    let order = ada.propose(meta).await.expect("legal").order;
    let wish = Checkout::any().meta("path", "C:\\u0000");
    let got = client.checkout(wish).await.expect("checked out").leases;
    assert_eq!(got[0].order_id, order.id);
    assert!(!events(&work, order.id).await.is_empty());
}

async fn w15_an_address_that_is_none_is_refused(f: Fixture) {
    for url in ["", "mysql://localhost/x", "nonsense", "sqlite"] {
        let builder = WorkManager::builder(super::fixture::types());
        let Err(error) = builder.connect(url).await else { panic!("{url:?} was opened") };
        assert_eq!(error.code(), "invalid_argument", "{url:?}: {error}");
    }
    let builder = WorkManager::builder(super::fixture::types()).max_leases_per_agent(0);
    let Err(error) = builder.connect(f.url()).await else { panic!("zero leases") };
    assert_eq!(error.code(), "invalid_argument");
}

async fn w15_times_come_from_the_database(f: Fixture) {
    let (one, two) = (f.manager().await, f.manager().await);
    let order = propose(&one, PLAIN, 1).await;
    let now = two.now().await.expect("a time");
    let age = now - order.created_at;
    assert!(age.num_seconds() < 60 && age.num_seconds() >= 0, "{age}");
    let held = lease(&agent(&two, "agent-1")).await;
    let left = held.expires_at - two.now().await.expect("a time");
    assert!(left.num_seconds() > 540 && left.num_seconds() <= 600, "{left}");
}

async fn w16_every_event_of_the_seed_can_be_recorded(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 1).await.id;
    let item = work.items(order, None, 1).await.expect("items")[0].item.id;
    let client = agent(&work, "agent-1");
    for event in EventType::ALL {
        let note = EventNote::new().message(event.as_str());
        client.record_order_event(order, *event, note.clone()).await.expect("recorded");
        client.record_item_event(item, *event, note).await.expect("recorded");
    }
    let told = events(&work, order).await;
    let names: Vec<_> = told.iter().skip(2).map(|event| event.event).collect();
    let expected: Vec<_> = EventType::ALL.iter().flat_map(|event| [*event, *event]).collect();
    assert_eq!(names, expected);
    work.seal().await.expect("sealed");
    assert!(work.verify().await.expect("verified").is_intact());
}
