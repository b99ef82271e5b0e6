//! W6: submissions are checked by schema and by code, and refusals are kept.

use latchwork_work::{
    DynamicOrderType, ErrorKind, Event, EventType, Failure, ItemState, OrderId, Submission,
    TypeError, TypeSettings, WorkManager,
};
use serde_json::{Value, json};

use super::Fixture;
use super::case::cases;
use super::fixture::{PLAIN, agent, events, item_state, lease, propose};

cases![
    w06_bug_a_refused_result_is_kept_as_an_event,
    w06_bug_code_is_asked_without_a_schema_too,
    w06_refusals_are_coalesced_per_actor,
    w06_the_agent_can_correct_itself,
    w06_a_foreign_submission_is_kept_as_an_event,
    w06_every_use_of_a_foreign_lease_is_kept_as_an_event,
    w06_a_result_that_is_too_large_is_refused,
];

fn strict() -> DynamicOrderType {
    let schema = json!({"type": "object", "required": ["a", "b"],
        "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 3}}});
    let settings = TypeSettings { max_result_bytes: 200, ..TypeSettings::default() };
    DynamicOrderType::new(PLAIN).result_schema(schema).settings(settings)
}

async fn refusals(work: &WorkManager, order: OrderId) -> Vec<Event> {
    let all = events(work, order).await.into_iter();
    all.filter(|event| event.event == EventType::ValidationFailed).collect()
}

async fn w06_bug_a_refused_result_is_kept_as_an_event(f: Fixture) {
    let work = f.with_types([strict()]).await;
    let order = propose(&work, PLAIN, 1).await.id;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let wrong = json!({"a": "x", "b": "too long"});
    let error = client.submit(Submission::new(&held, wrong)).await.expect_err("wrong");
    assert_eq!(error.code(), "result_invalid");
    let ErrorKind::ResultInvalid { violations, .. } = error.kind() else { panic!("{error}") };
    let fields: Vec<_> = violations.iter().map(|v| v.field.as_str()).collect();
    assert_eq!(fields, ["/a", "/b"], "every violation with its path");
    let kept = refusals(&work, order).await;
    assert_eq!(kept.len(), 1);
    assert_eq!((kept[0].item_id, &kept[0].actor), (Some(held.item_id), client.actor()));
    let payload = kept[0].payload.as_ref().expect("what was wrong");
    assert_eq!(payload["violations"].as_array().map(Vec::len), Some(2), "{payload}");
    assert_eq!(item_state(&work, held.item_id).await, ItemState::Leased, "the lease goes on");
}

async fn w06_bug_code_is_asked_without_a_schema_too(f: Fixture) {
    let refuse = |input: &Value, _: &Value| match input["items"].as_u64() {
        Some(1) => Err(TypeError::invalid("/x", "wrong", "it is wrong")),
        _ => Ok(()),
    };
    let work = f.with_types([DynamicOrderType::new(PLAIN).validate_submission(refuse)]).await;
    propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let error = client.submit(Submission::new(&held, json!(1))).await.expect_err("by code");
    assert_eq!(error.code(), "result_invalid");
    assert!(error.to_string().contains("it is wrong"), "{error}");
}

async fn w06_refusals_are_coalesced_per_actor(f: Fixture) {
    let work = f.with_types([strict()]).await;
    let order = propose(&work, PLAIN, 1).await.id;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    for _ in 0..20 {
        client.submit(Submission::new(&held, json!(1))).await.expect_err("wrong");
    }
    assert_eq!(refusals(&work, order).await.len(), 1, "a loop does not flood the trail");
    let other = agent(&work, "agent-2");
    for _ in 0..3 {
        other.submit(Submission::new(&held, json!(1))).await.expect_err("foreign");
    }
    assert_eq!(refusals(&work, order).await.len(), 2, "another actor's is another event");
}

async fn w06_the_agent_can_correct_itself(f: Fixture) {
    let work = f.with_types([strict()]).await;
    propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1").idempotent("submit-1");
    let held = lease(&agent(&work, "agent-1")).await;
    client.submit(Submission::new(&held, json!({}))).await.expect_err("wrong");
    let right = Submission::new(&held, json!({"a": 1, "b": "x"})).evidence(json!({"log": "…"}));
    // A refusal is not stored, so even the key is free.
    client.submit(right.notes("by hand")).await.expect("right");
    let details = work.item(held.item_id).await.expect("an item");
    assert_eq!(details.item.state, ItemState::Submitted);
    assert_eq!(details.item.error, None);
    let told = events(&work, held.order_id).await;
    let submitted = told.iter().find(|e| e.event == EventType::Submitted).expect("submitted");
    let payload = submitted.payload.as_ref().expect("a payload");
    assert_eq!((&payload["evidence"]["log"], &payload["notes"]), (&json!("…"), &json!("by hand")));
}

async fn w06_a_foreign_submission_is_kept_as_an_event(f: Fixture) {
    let work = f.with_types([strict()]).await;
    let order = propose(&work, PLAIN, 1).await.id;
    let held = lease(&agent(&work, "agent-1")).await;
    let thief = agent(&work, "agent-2");
    let result = json!({"a": 1, "b": "x"});
    let error = thief.submit(Submission::new(&held, result)).await.expect_err("foreign");
    assert_eq!(error.code(), "lease_foreign");
    let kept = refusals(&work, order).await;
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].actor, *thief.actor());
    assert_eq!(kept[0].payload.as_ref().expect("a payload")["code"], "lease_foreign");
}

async fn w06_a_result_that_is_too_large_is_refused(f: Fixture) {
    let work = f.with_types([strict()]).await;
    propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let large = json!({"a": 1, "b": "x", "c": "x".repeat(300)});
    let error = client.submit(Submission::new(&held, large)).await.expect_err("too large");
    assert_eq!(error.code(), "too_large");
    assert_eq!(item_state(&work, held.item_id).await, ItemState::Leased);
    let notes = Submission::new(&held, json!({"a": 1, "b": "x"})).notes("x".repeat(20_000));
    assert_eq!(client.submit(notes).await.expect_err("too long").code(), "invalid_argument");
}

async fn w06_every_use_of_a_foreign_lease_is_kept_as_an_event(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 1).await.id;
    let held = lease(&agent(&work, "agent-1")).await;
    let use_by = async |name: &str, how: u8| {
        let thief = agent(&work, name);
        let error = match how {
            0 => thief.heartbeat(held.id).await.map(drop),
            1 => thief.release(held.id, None).await.map(drop),
            _ => thief.fail(held.id, Failure::new("x", "y")).await.map(drop),
        };
        assert_eq!(error.expect_err("foreign").code(), "lease_foreign");
        thief.actor().clone()
    };
    let thieves = [use_by("t0", 0).await, use_by("t1", 1).await, use_by("t2", 2).await];
    let kept: Vec<_> = refusals(&work, order).await.into_iter().map(|event| event.actor).collect();
    assert_eq!(kept, thieves);
}
