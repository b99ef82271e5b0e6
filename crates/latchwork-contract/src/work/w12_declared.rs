//! W12: order types that are declared in a file, with an applier by name.

use std::sync::{Arc, Mutex};

use latchwork_work::{
    Applier, Appliers, ApplyStep, Checkout, DeclaredOrderType, Diff, EventType, Failure, ItemState,
    OrderContent, OrderState, OrderTypes, Proposal, TypeError, WorkManager,
};
use serde_json::{Value, json};

use super::Fixture;
use super::case::cases;
use super::fixture::{
    agent, apply_all, approve, events, hand_in, lease, order_state, submit, user,
};

cases![
    w12_a_declared_order_goes_all_its_way,
    w12_a_declared_priority_is_that_of_proposals_without_one,
    w12_a_declared_limit_and_failure_policy_hold,
    w12_a_declared_rule_approves,
    w12_parts_of_a_declared_type_are_checked,
];

/// Remembers what it was asked to apply: key, fence and results.
#[derive(Clone, Default)]
struct Remembers(Arc<Mutex<Vec<(String, u64, Value)>>>);

impl Applier for Remembers {
    async fn preview(&self, order: &OrderContent) -> Result<Option<Diff>, TypeError> {
        Ok(Some(Diff::between(json!(null), order.payload.clone())))
    }

    async fn apply(&self, order: &OrderContent, step: &mut ApplyStep) -> Result<Diff, TypeError> {
        let results: Value = order.items.iter().map(|item| item.result.clone()).collect();
        let told = (step.idempotency_key(), step.fence(), results.clone());
        self.0.lock().expect("no panic").push(told);
        Ok(Diff::between(json!([]), results).summary("remembered"))
    }
}

async fn open(f: &Fixture, text: &str) -> (WorkManager, Remembers) {
    let (mut appliers, remembers) = (Appliers::new(), Remembers::default());
    appliers.add("remember", remembers.clone()).expect("legal");
    let mut types = OrderTypes::new();
    let declared = DeclaredOrderType::parse("case.toml", text).expect("a declaration");
    types.add_declared(declared, &appliers).expect("a type");
    (f.open(WorkManager::builder(types)).await, remembers)
}

async fn propose(work: &WorkManager, payload: Value) -> latchwork_work::OrderId {
    let proposal = Proposal::new("declared", payload);
    user(work, "ada").propose(proposal).await.expect("proposed").order.id
}

async fn w12_a_declared_order_goes_all_its_way(f: Fixture) {
    let text = "name = 'declared'\n[split]\nlist = '/texts'\nbatch = 2\n[review]\napprovals = 2\n\
        exact_preview = true\n[apply]\napplier = 'remember'";
    let (work, remembers) = open(&f, text).await;
    let order = propose(&work, json!({"texts": ["a", "b", "c"]})).await;
    hand_in(&work, order).await;
    let preview = work.preview(order).await.expect("a preview");
    assert_eq!(preview.diff.expect("of the applier").after, json!({"texts": ["a", "b", "c"]}));
    assert_eq!(approve(&work, order, "bob").await.state, OrderState::Submitted);
    assert_eq!(approve(&work, order, "cleo").await.state, OrderState::Approved);
    assert_eq!(apply_all(&work).await, 1);
    assert_eq!(order_state(&work, order).await, OrderState::Completed);
    let results = json!([{"of": ["a", "b"]}, {"of": ["c"]}]);
    let done = remembers.0.lock().expect("no panic").clone();
    assert_eq!(done, [(order.to_string(), 1, results)]);
    let told = events(&work, order).await;
    let told = told.iter().find(|event| event.event == EventType::Applied).expect("applied");
    assert_eq!(told.diff.as_ref().expect("a diff")["summary"], "remembered");
}

async fn w12_a_declared_priority_is_that_of_proposals_without_one(f: Fixture) {
    let (work, _) = open(&f, "name = 'declared'\npriority = 7").await;
    let ada = user(&work, "ada");
    let of = async |proposal: Proposal| ada.propose(proposal).await.expect("proposed").order;
    let plain = of(Proposal::new("declared", json!({}))).await;
    let lower = of(Proposal::new("declared", json!({})).priority(0)).await;
    let higher = of(Proposal::new("declared", json!({})).priority(9)).await;
    assert_eq!((plain.priority, lower.priority, higher.priority), (7, 0, 9));
    let client = agent(&work, "agent-1");
    for expected in [higher.id, plain.id, lower.id] {
        assert_eq!(lease(&client).await.order_id, expected);
    }
}

async fn w12_a_declared_limit_and_failure_policy_hold(f: Fixture) {
    let text = "name = 'declared'\nfailure = { quorum = 1 }\n[split]\nlist = '/repos'\nas = 'repo'\n\
        [concurrency]\nfield = '/repo'\nprefix = 'repo:'\n[retry]\nmax_attempts = 1";
    let (work, _) = open(&f, text).await;
    let order = propose(&work, json!({"repos": ["x", "x"]})).await;
    let client = agent(&work, "agent-1");
    let got = client.checkout(Checkout::of_order(order).limit(5)).await.expect("asked");
    assert_eq!(got.leases.len(), 1, "one of a repo at a time");
    client.fail(got.leases[0].id, Failure::new("broken", "no")).await.expect("failed");
    submit(&client, &lease(&client).await).await;
    assert_eq!(order_state(&work, order).await, OrderState::Submitted, "one of two is enough");
    approve(&work, order, "bob").await;
    assert_eq!(apply_all(&work).await, 1);
    let states = work.items(order, None, 10).await.expect("items");
    let states: Vec<_> = states.iter().map(|item| item.item.state).collect();
    assert_eq!(states, [ItemState::DeadLettered, ItemState::Completed]);
}

async fn w12_a_declared_rule_approves(f: Fixture) {
    let text = "name = 'declared'\n[review.auto_approve]\nversion = 'v2'\n\
        schema = { properties = { payload = { required = ['safe'] } } }";
    let (work, _) = open(&f, text).await;
    let (safe, other) =
        (propose(&work, json!({"safe": true})).await, propose(&work, json!({})).await);
    hand_in(&work, safe).await;
    hand_in(&work, other).await;
    assert_eq!(order_state(&work, safe).await, OrderState::Approved);
    assert_eq!(order_state(&work, other).await, OrderState::Submitted, "a person decides");
    let told = events(&work, safe).await;
    let told = told.iter().find(|event| event.event == EventType::Approved).expect("approved");
    assert_eq!(told.payload.as_ref().expect("a payload")["auto_approve"], "v2");
}

async fn w12_parts_of_a_declared_type_are_checked(f: Fixture) {
    use latchwork_work::{Finalize, PartSubmission};
    let text =
        "name = 'declared'\n[parts]\nrequired = ['title']\nschemas.title = { type = 'string' }";
    let (work, _) = open(&f, text).await;
    propose(&work, json!({})).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let part = |value: Value| PartSubmission::new(&held, "title", value);
    assert_eq!(
        client.submit_part(part(json!(1))).await.expect_err("no text").code(),
        "part_invalid"
    );
    let early = client.finalize(Finalize::strict(&held)).await.expect_err("it is missing");
    assert_eq!(early.code(), "parts_incomplete");
    client.submit_part(part(json!("A"))).await.expect("a part");
    client.finalize(Finalize::strict(&held)).await.expect("finalized");
}
