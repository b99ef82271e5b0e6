//! W2: a result may come in parts, which are checked one by one and assembled under the lease.

use std::collections::BTreeMap;

use latchwork_work::{
    DynamicOrderType, ErrorKind, Event, EventType, Finalize, ItemState, Lease, OrderId, OrderState,
    PartQuery, PartSettings, PartStatus, PartSubmission, Submission, TypeError, TypeSettings,
    WorkManager,
};
use serde_json::{Value, json};

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, agent, events, item_state, lease, nothing, order_state, propose, quick,
    quick_lease_is_over,
};

cases![
    w02_bug_a_rejected_part_outlives_an_idempotent_request,
    w02_bug_a_long_part_key_fits_an_idempotent_request,
    w02_two_agents_hand_in_parts_and_only_the_lease_counts,
    w02_parts_are_assembled_into_the_result,
    w02_bug_sequences_of_one_key_are_assembled_in_order,
    w02_bug_a_rejected_part_is_kept_and_never_replaces_a_validated_one,
    w02_bug_limits_of_parts_hold,
    w02_bug_finalize_checks_the_lease,
    w02_bug_finalize_runs_the_same_acceptance_as_submit,
    w02_bug_required_parts_are_required,
    w02_bug_parts_have_events_of_their_own,
    w02_a_strict_finalize_refuses_gaps_and_drafts,
    w02_parts_outlive_the_lease_of_their_agent,
    w02_a_part_is_handed_in_again,
    w02_parts_and_finalize_are_idempotent,
    w02_a_part_that_comes_with_the_finalize_is_in_the_result_or_refused,
    w02_illegal_parts_are_refused,
    w02_rejected_parts_of_one_agent_hinder_no_other,
    w02_evidence_is_bounded,
    w02_a_part_of_an_unknown_key_is_refused_and_not_kept,
    w02_bug_of_parts_in_one_place_the_last_one_counts,
];

/// A type whose result has a `title` of at most five characters and a `page` or several.
fn book() -> DynamicOrderType {
    let schemas = BTreeMap::from([
        ("title".to_owned(), json!({"type": "string", "maxLength": 5})),
        ("page".to_owned(), json!({"type": "integer"})),
    ]);
    let parts = PartSettings {
        required: vec!["title".to_owned()],
        schemas,
        max_parts: 5,
        max_part_bytes: 100,
        max_total_bytes: 40,
    };
    let settings = TypeSettings { parts, ..TypeSettings::default() };
    DynamicOrderType::new(PLAIN).settings(settings)
}

fn part(lease: &Lease, key: &str, payload: Value) -> PartSubmission {
    PartSubmission::new(lease, key, payload)
}

/// The latest result of an item.
async fn result(work: &WorkManager, lease: &Lease) -> Value {
    work.item(lease.item_id).await.expect("an item").result.expect("a result").result
}

async fn told(work: &WorkManager, order: OrderId, event: EventType) -> Vec<Event> {
    let all = events(work, order).await.into_iter();
    all.filter(|one| one.event == event).collect()
}

async fn statuses(work: &WorkManager, lease: &Lease) -> Vec<(String, Option<u32>, PartStatus)> {
    let parts = work.list_parts(lease.item_id, &PartQuery::default()).await.expect("parts");
    parts.into_iter().map(|part| (part.key, part.seq, part.status)).collect()
}

async fn w02_parts_are_assembled_into_the_result(f: Fixture) {
    let work = f.with_types([book()]).await;
    let order = propose(&work, PLAIN, 1).await.id;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let title = part(&held, "title", json!("A")).evidence(json!({"log": 1})).notes("by hand");
    let done = client.submit_part(title).await.expect("a part");
    assert_eq!((done.status, done.replaced, done.seq), (PartStatus::Validated, false, None));
    assert_eq!(item_state(&work, held.item_id).await, ItemState::InProgress, "work has begun");
    client.submit_part(part(&held, "page", json!(7))).await.expect("a part");
    let query = PartQuery { key: Some("title".to_owned()), bodies: true, ..PartQuery::default() };
    let listed = work.list_parts(held.item_id, &query).await.expect("parts");
    assert_eq!(listed.len(), 1);
    let body = listed[0].body.as_ref().expect("asked for");
    assert_eq!((&body.payload, body.notes.as_deref()), (&json!("A"), Some("by hand")));
    assert_eq!(body.evidence, Some(json!({"log": 1})));
    assert_eq!((listed[0].checksum.len(), listed[0].bytes), (64, 3));
    assert_eq!((listed[0].agent.as_str(), listed[0].fence), ("agent-1", held.fence));
    client.finalize(Finalize::strict(&held).notes("done")).await.expect("finalized");
    assert_eq!(result(&work, &held).await, json!({"title": "A", "page": 7}));
    assert_eq!(item_state(&work, held.item_id).await, ItemState::Submitted);
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
    nothing(&client).await;
}

async fn w02_bug_sequences_of_one_key_are_assembled_in_order(f: Fixture) {
    let work = f.with_types([book()]).await;
    propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    client.submit_part(part(&held, "title", json!("A"))).await.expect("a part");
    for seq in [2, 0, 1] {
        let page = part(&held, "page", json!(seq * 10)).seq(seq);
        client.submit_part(page).await.expect("a part");
    }
    client.finalize(Finalize::strict(&held)).await.expect("finalized");
    assert_eq!(result(&work, &held).await, json!({"title": "A", "page": [0, 10, 20]}));
}

async fn w02_bug_a_rejected_part_is_kept_and_never_replaces_a_validated_one(f: Fixture) {
    let work = f.with_types([book()]).await;
    let order = propose(&work, PLAIN, 1).await.id;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let wrong = part(&held, "title", json!("too long"));
    let error = client.submit_part(wrong.clone()).await.expect_err("rejected");
    assert_eq!(error.code(), "part_invalid");
    let ErrorKind::PartInvalid { violations, .. } = error.kind() else { panic!("{error}") };
    assert_eq!(violations[0].code, "maxLength");
    let listed = work.list_parts(held.item_id, &PartQuery::default()).await.expect("parts");
    assert_eq!((listed.len(), listed[0].status), (1, PartStatus::Rejected), "it is kept");
    assert_eq!(listed[0].errors, *violations);
    client.submit_part(part(&held, "title", json!("A"))).await.expect("a part");
    assert_eq!(client.submit_part(wrong).await.expect_err("again").code(), "part_invalid");
    let listed = work.list_parts(held.item_id, &PartQuery::default()).await.expect("parts");
    assert_eq!((listed.len(), listed[0].status), (1, PartStatus::Validated));
    assert_eq!(listed[0].errors, []);
    let rejected = told(&work, order, EventType::PartRejected).await;
    assert_eq!(rejected.len(), 1, "once a minute");
    assert!(rejected[0].payload.as_ref().expect("why")["violations"][0]["code"] == "maxLength");
    client.finalize(Finalize::strict(&held)).await.expect("finalized");
    assert_eq!(result(&work, &held).await, json!({"title": "A"}));
}

async fn w02_bug_limits_of_parts_hold(f: Fixture) {
    let work = f.with_types([book()]).await;
    propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let large = part(&held, "title", json!("x".repeat(200)));
    assert_eq!(client.submit_part(large).await.expect_err("too large").code(), "too_large");
    for seq in 0..5 {
        client.submit_part(part(&held, "page", json!(1)).seq(seq)).await.expect("a part");
    }
    let sixth = part(&held, "page", json!(1)).seq(5);
    let error = client.submit_part(sixth).await.expect_err("too many");
    assert_eq!(error.code(), "part_limit");
    client.submit_part(part(&held, "page", json!(2)).seq(0)).await.expect("no new one");
    // Four of one byte leave 36 of the 40.
    let sum = part(&held, "page", json!(1)).seq(1).draft();
    client.submit_part(sum).await.expect_err("a draft for a validated one");
    let big = json!(u64::MAX);
    client.submit_part(part(&held, "page", big.clone()).seq(0)).await.expect("20 bytes");
    let error = client.submit_part(part(&held, "page", big).seq(1)).await.expect_err("too large");
    assert_eq!(error.code(), "part_limit");
    assert_eq!(statuses(&work, &held).await.len(), 5, "nothing of what was refused is kept");
}

async fn w02_bug_finalize_checks_the_lease(f: Fixture) {
    let work = f.with_types([DynamicOrderType::new(PLAIN).settings(quick())]).await;
    let order = propose(&work, PLAIN, 1).await.id;
    let (client, thief) = (agent(&work, "agent-1"), agent(&work, "agent-2"));
    let held = lease(&client).await;
    client.submit_part(part(&held, "a", json!(1))).await.expect("a part");
    let error = thief.finalize(Finalize::strict(&held)).await.expect_err("foreign");
    assert_eq!(error.code(), "lease_foreign");
    let foreign = part(&held, "a", json!(2));
    assert_eq!(thief.submit_part(foreign).await.expect_err("foreign").code(), "lease_foreign");
    assert_eq!(told(&work, order, EventType::ValidationFailed).await.len(), 1, "it is kept");
    quick_lease_is_over().await;
    let error = client.finalize(Finalize::strict(&held)).await.expect_err("over");
    assert_eq!(error.code(), "lease_expired");
    let late = part(&held, "a", json!(3));
    assert_eq!(client.submit_part(late).await.expect_err("over").code(), "lease_expired");
    assert_eq!(work.item(held.item_id).await.expect("an item").result, None);
}

async fn w02_bug_finalize_runs_the_same_acceptance_as_submit(f: Fixture) {
    let check = |_: &Value, result: &Value| match result["a"].as_i64() {
        Some(1) => Err(TypeError::invalid("/a", "wrong", "not this one")),
        _ => Ok(()),
    };
    let schema = json!({"type": "object", "required": ["a", "b"]});
    let strict = DynamicOrderType::new(PLAIN).result_schema(schema).validate_submission(check);
    let work = f.with_types([strict]).await;
    let order = propose(&work, PLAIN, 1).await.id;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    client.submit_part(part(&held, "a", json!(1))).await.expect("a part");
    for why in ["by the schema", "by code"] {
        let error = client.finalize(Finalize::strict(&held)).await.expect_err(why);
        assert_eq!(error.code(), "result_invalid", "{why}");
        assert_eq!(item_state(&work, held.item_id).await, ItemState::InProgress);
        client.submit_part(part(&held, "b", json!(1))).await.expect("a part");
    }
    assert_eq!(told(&work, order, EventType::ValidationFailed).await.len(), 1, "it is kept");
    client.submit_part(part(&held, "a", json!(2))).await.expect("a part");
    let done = client.finalize(Finalize::strict(&held)).await.expect("right");
    assert_eq!((done.result_version, done.state), (1, ItemState::Submitted));
}

async fn w02_bug_required_parts_are_required(f: Fixture) {
    let work = f.with_types([book()]).await;
    let order = propose(&work, PLAIN, 1).await.id;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    for mode in [Finalize::strict(&held), Finalize::best_effort(&held)] {
        let error = client.finalize(mode).await.expect_err("nothing is there");
        assert_eq!(error.code(), "parts_incomplete");
    }
    client.submit_part(part(&held, "page", json!(1))).await.expect("a part");
    let error = client.finalize(Finalize::strict(&held)).await.expect_err("no title");
    assert!(error.to_string().contains("title"), "{error}");
    assert_eq!(told(&work, order, EventType::ValidationFailed).await.len(), 1, "it is kept");
    client.finalize(Finalize::best_effort(&held)).await.expect("what is there");
    assert_eq!(result(&work, &held).await, json!({"page": 1}));
}

async fn w02_bug_parts_have_events_of_their_own(f: Fixture) {
    let work = f.with_types([book()]).await;
    let order = propose(&work, PLAIN, 1).await.id;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let done = client.submit_part(part(&held, "title", json!("A"))).await.expect("a part");
    client.finalize(Finalize::strict(&held)).await.expect("finalized");
    let names: Vec<_> = events(&work, order).await.iter().skip(2).map(|e| e.event).collect();
    let of_item = names.iter().filter(|name| {
        matches!(name, EventType::Leased | EventType::PartSubmitted | EventType::Finalized)
    });
    assert_eq!(of_item.count(), 3, "{names:?}");
    let finalized = told(&work, order, EventType::Finalized).await.remove(0);
    let payload = finalized.payload.expect("what it was made of");
    assert_eq!(payload["mode"], "strict");
    assert_eq!(payload["parts"], json!([{"key": "title", "seq": null, "checksum": done.checksum}]));
    let submitted = told(&work, order, EventType::Submitted).await;
    assert_eq!(submitted.len(), 2, "one of the item and one of the order: a part is none");
    work.seal().await.expect("sealed");
    assert!(work.verify().await.expect("verified").is_intact());
}

async fn w02_a_strict_finalize_refuses_gaps_and_drafts(f: Fixture) {
    let work = f.with_types([DynamicOrderType::new(PLAIN)]).await;
    propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    client.submit_part(part(&held, "a", json!(1)).seq(1)).await.expect("a part");
    client.submit_part(part(&held, "a", json!(3)).seq(3)).await.expect("a part");
    let done = client.submit_part(part(&held, "b", json!("?")).draft()).await.expect("a draft");
    assert_eq!(done.status, PartStatus::Draft);
    let error = client.finalize(Finalize::strict(&held)).await.expect_err("incomplete");
    let ErrorKind::PartsIncomplete { problems, .. } = error.kind() else { panic!("{error}") };
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(error.to_string().contains("gap") && error.to_string().contains("draft"), "{error}");
    client.submit_part(part(&held, "a", json!(2)).seq(2)).await.expect("a part");
    client.submit_part(part(&held, "b", json!("!"))).await.expect("a part");
    client.finalize(Finalize::strict(&held)).await.expect("complete");
    assert_eq!(result(&work, &held).await, json!({"a": [1, 2, 3], "b": "!"}));
}

async fn w02_parts_outlive_the_lease_of_their_agent(f: Fixture) {
    let work = f.with_types([book()]).await;
    propose(&work, PLAIN, 1).await;
    let (one, two) = (agent(&work, "agent-1"), agent(&work, "agent-2"));
    let first = lease(&one).await;
    one.submit_part(part(&first, "title", json!("A"))).await.expect("a part");
    one.release(first.id, None).await.expect("released");
    let second = lease(&two).await;
    let stale = one.submit_part(part(&first, "title", json!("B"))).await.expect_err("stale");
    assert_eq!(stale.code(), "lease_expired");
    let stale = one.finalize(Finalize::strict(&first)).await.expect_err("stale");
    assert_eq!(stale.code(), "lease_expired");
    two.submit_part(part(&second, "page", json!(2))).await.expect("a part");
    two.finalize(Finalize::strict(&second)).await.expect("finalized");
    assert_eq!(result(&work, &second).await, json!({"title": "A", "page": 2}));
}

async fn w02_a_part_is_handed_in_again(f: Fixture) {
    let work = f.with_types([book()]).await;
    let order = propose(&work, PLAIN, 1).await.id;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let one = client.submit_part(part(&held, "title", json!("A"))).await.expect("a part");
    for _ in 0..5 {
        let same = client.submit_part(part(&held, "title", json!("A"))).await.expect("the same");
        assert_eq!((same.checksum.as_str(), same.replaced), (one.checksum.as_str(), true));
    }
    assert_eq!(told(&work, order, EventType::PartSubmitted).await.len(), 1, "no news, no event");
    let other = client.submit_part(part(&held, "title", json!("B"))).await.expect("another");
    assert!(other.replaced && other.checksum != one.checksum);
    assert_eq!(told(&work, order, EventType::PartSubmitted).await.len(), 2);
    client.finalize(Finalize::strict(&held)).await.expect("finalized");
    assert_eq!(result(&work, &held).await, json!({"title": "B"}));
}

async fn w02_parts_and_finalize_are_idempotent(f: Fixture) {
    let work = f.with_types([book()]).await;
    let order = propose(&work, PLAIN, 1).await.id;
    let plain = agent(&work, "agent-1");
    let held = lease(&plain).await;
    let keyed = agent(&work, "agent-1").idempotent("k-1");
    let wrong = part(&held, "title", json!("too long"));
    keyed.submit_part(wrong).await.expect_err("a refusal is not stored");
    let right = part(&held, "title", json!("A"));
    let first = keyed.submit_part_once(right.clone()).await.expect("a part");
    let again = keyed.submit_part_once(right).await.expect("a part");
    assert_eq!((first.replayed, again.replayed, first.value), (false, true, again.value));
    let other = part(&held, "title", json!("B"));
    assert_eq!(keyed.submit_part(other).await.expect_err("other").code(), "idempotency_conflict");
    let first = keyed.finalize_once(Finalize::strict(&held)).await.expect("finalized");
    let again = keyed.finalize_once(Finalize::strict(&held)).await.expect("finalized");
    assert_eq!((first.replayed, again.replayed, first.value), (false, true, again.value));
    assert_eq!(told(&work, order, EventType::Finalized).await.len(), 1);
}

/// In the reference the outer transaction of the idempotency key took the rejected part with it.
async fn w02_bug_a_rejected_part_outlives_an_idempotent_request(f: Fixture) {
    let work = f.with_types([book()]).await;
    let order = propose(&work, PLAIN, 1).await.id;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let wrong = part(&held, "title", json!("too long"));
    let refused = agent(&work, "agent-1").idempotent("k").submit_part(wrong).await;
    assert_eq!(refused.expect_err("rejected").code(), "part_invalid");
    assert_eq!(statuses(&work, &held).await, [("title".to_owned(), None, PartStatus::Rejected)]);
    assert_eq!(told(&work, order, EventType::PartRejected).await.len(), 1);
}

/// In the reference the scope of the key, with the part's key in it, was longer than its column.
async fn w02_bug_a_long_part_key_fits_an_idempotent_request(f: Fixture) {
    let work = f.with_types([DynamicOrderType::new(PLAIN)]).await;
    propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let keyed = agent(&work, "agent-1").idempotent("k".repeat(200));
    let long = part(&held, &"é".repeat(60), json!(1)).seq(u32::MAX);
    let first = keyed.submit_part_once(long.clone()).await.expect("a part");
    let again = keyed.submit_part_once(long).await.expect("a part");
    assert_eq!((first.replayed, again.replayed), (false, true));
}

/// Two agents believe that the item is theirs; parts of both come in any order.
async fn w02_two_agents_hand_in_parts_and_only_the_lease_counts(f: Fixture) {
    let work = f.with_types([DynamicOrderType::new(PLAIN)]).await;
    for _ in 0..5 {
        propose(&work, PLAIN, 1).await;
        let (one, two) = (agent(&work, "agent-1"), agent(&work, "agent-2"));
        let stale = lease(&one).await;
        one.submit_part(part(&stale, "a", json!("one"))).await.expect("a part");
        one.release(stale.id, None).await.expect("released");
        let held = lease(&two).await;
        let late = async {
            let mut codes = Vec::new();
            for _ in 0..4 {
                let handed_in = one.submit_part(part(&stale, "a", json!("late"))).await;
                codes.push(handed_in.expect_err("not its own any more").code());
            }
            codes
        };
        let ours = async {
            for seq in 0..4 {
                two.submit_part(part(&held, "b", json!(seq)).seq(seq)).await.expect("a part");
            }
            two.submit_part(part(&held, "a", json!("two"))).await.expect("a part");
        };
        let (codes, ()) = tokio::join!(late, ours);
        assert_eq!(codes, ["lease_expired"; 4]);
        one.finalize(Finalize::strict(&stale)).await.expect_err("not its own any more");
        two.finalize(Finalize::strict(&held)).await.expect("finalized");
        assert_eq!(result(&work, &held).await, json!({"a": "two", "b": [0, 1, 2, 3]}));
    }
}

/// The result is what the finalized event names, and a part that was accepted is in it, unless it came
/// before and was replaced: never accepted and lost.
async fn w02_a_part_that_comes_with_the_finalize_is_in_the_result_or_refused(f: Fixture) {
    let work = f.with_types([DynamicOrderType::new(PLAIN)]).await;
    let client = agent(&work, "agent-1");
    for _ in 0..15 {
        let order = propose(&work, PLAIN, 1).await.id;
        let held = lease(&client).await;
        client.submit_part(part(&held, "a", json!("old"))).await.expect("a part");
        let (finalized, handed_in) = tokio::join!(
            client.finalize(Finalize::strict(&held)),
            client.submit_part(part(&held, "a", json!("new"))),
        );
        if let Err(error) = &handed_in {
            assert_eq!(error.code(), "lease_expired", "the finalize came first");
        }
        match finalized {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.code(), "conflict", "a part came in between");
                client.finalize(Finalize::strict(&held)).await.expect("finalized");
            }
        }
        let expected = if handed_in.is_ok() { "new" } else { "old" };
        assert_eq!(result(&work, &held).await, json!({"a": expected}));
        assert_eq!(told(&work, order, EventType::Finalized).await.len(), 1);
    }
}

async fn w02_illegal_parts_are_refused(f: Fixture) {
    let work = f.with_types([book()]).await;
    propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    for key in ["", "a\nb", &"x".repeat(121)] {
        let error = client.submit_part(part(&held, key, json!(1))).await.expect_err("illegal");
        assert_eq!(error.code(), "invalid_argument");
    }
    let error = client.submit_part(part(&held, "cover", json!(1))).await.expect_err("unknown");
    assert_eq!(error.code(), "part_invalid");
    assert!(error.to_string().contains("page") && error.to_string().contains("title"), "{error}");
    client.submit_part(part(&held, "page", json!(1))).await.expect("a part");
    let mixed = part(&held, "page", json!(1)).seq(1);
    assert_eq!(client.submit_part(mixed).await.expect_err("mixed").code(), "invalid_argument");
    let notes = part(&held, "page", json!(1)).notes("x".repeat(20_000));
    assert_eq!(client.submit_part(notes).await.expect_err("long").code(), "invalid_argument");
    let missing = latchwork_work::ItemId::new(work.now().await.expect("a time"));
    let error = work.list_parts(missing, &PartQuery::default()).await.expect_err("none");
    assert_eq!(error.code(), "item_not_found");
}

/// Nothing could ever take its place, so a strict finalize would be refused for good.
async fn w02_a_part_of_an_unknown_key_is_refused_and_not_kept(f: Fixture) {
    let work = f.with_types([book()]).await;
    let order = propose(&work, PLAIN, 1).await.id;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    client.submit_part(part(&held, "title", json!("A"))).await.expect("a part");
    for wrong in [part(&held, "titel", json!("A")), part(&held, "titel", json!("A")).draft()] {
        let error = client.submit_part(wrong).await.expect_err("unknown");
        assert_eq!(error.code(), "part_invalid");
    }
    assert_eq!(statuses(&work, &held).await.len(), 1);
    let told = told(&work, order, EventType::PartRejected).await;
    let violations = &told[0].payload.as_ref().expect("why")["violations"];
    assert_eq!((told.len(), &violations[0]["code"]), (1, &json!("unknown_part")), "it is told");
    client.finalize(Finalize::strict(&held)).await.expect("complete");
    assert_eq!(result(&work, &held).await, json!({"title": "A"}));
}

/// The reference took the one with the largest random id.
async fn w02_bug_of_parts_in_one_place_the_last_one_counts(f: Fixture) {
    let work = f.with_types([DynamicOrderType::new(PLAIN)]).await;
    propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    for round in 0..6 {
        client.submit_part(part(&held, "a", json!(round))).await.expect("a part");
        client.submit_part(part(&held, "b", json!(-round)).seq(1)).await.expect("a part");
    }
    assert_eq!(statuses(&work, &held).await.len(), 2, "one for each place");
    client.finalize(Finalize::strict(&held)).await.expect("finalized");
    assert_eq!(result(&work, &held).await, json!({"a": 5, "b": [-5]}));
}

async fn w02_rejected_parts_of_one_agent_hinder_no_other(f: Fixture) {
    let work = f.with_types([book()]).await;
    let order = propose(&work, PLAIN, 1).await.id;
    let (careless, careful) = (agent(&work, "agent-1"), agent(&work, "agent-2"));
    let held = lease(&careless).await;
    for n in 0..5 {
        let wrong = part(&held, "page", json!("n")).seq(n);
        assert_eq!(careless.submit_part(wrong).await.expect_err("wrong").code(), "part_invalid");
    }
    careless.release(held.id, None).await.expect("given back");
    let held = lease(&careful).await;
    careful.submit_part(part(&held, "title", json!("t"))).await.expect("it has room");
    careful.submit_part(part(&held, "page", json!(1)).seq(0)).await.expect("it has room");
    careful.finalize(Finalize::strict(&held)).await.expect("nothing of its own is wrong");
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
}

async fn w02_evidence_is_bounded(f: Fixture) {
    let work = f.with_types([book()]).await;
    let order = propose(&work, PLAIN, 1).await.id;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let evidence = json!("x".repeat(1 << 20));
    let title = part(&held, "title", json!("t"));
    let refused = [
        client.submit_part(title.clone().evidence(evidence.clone())).await.map(drop),
        client.finalize(Finalize::strict(&held).evidence(evidence.clone())).await.map(drop),
        client.submit(Submission::new(&held, json!({})).evidence(evidence)).await.map(drop),
    ];
    for refused in refused {
        assert_eq!(refused.expect_err("too much").code(), "too_large");
    }
    assert!(statuses(&work, &held).await.is_empty(), "nothing is kept");
    client.submit_part(title.evidence(json!({"seen": true}))).await.expect("a part");
    client.finalize(Finalize::strict(&held)).await.expect("all is there");
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
}
