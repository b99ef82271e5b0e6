//! W17: what was seen is what is applied, and who may decide.

use std::time::Duration;

use latchwork_work::{
    Approval, AutoApprove, DeadlinePolicy, Diff, DynamicOrderType, ErrorKind, EventType, ItemState,
    OrderState, Rejection, ReviewDeadline, ReviewError, ReviewSettings, TypeError, TypeSettings,
    WorkManager,
};
use serde_json::{Value, json};

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, agent, apply_all, approve, events, hand_in, lease, order_state, plain, propose,
    submitted, user,
};
use super::w10_audit::maintenance;

cases![
    w17_an_approval_names_what_was_seen,
    w17_an_old_preview_is_a_conflict_that_shows_the_difference,
    w17_comments_and_approvals_do_not_change_the_content,
    w17_the_digest_covers_the_results_where_there_is_no_preview,
    w17_two_approvals_of_two_reviewers,
    w17_a_second_approval_of_one_reviewer_does_not_count,
    w17_two_reviewers_at_once,
    w17_roles_are_asked_for,
    w17_neither_proposer_nor_submitter_approves,
    w17_both_can_be_allowed,
    w17_a_contrary_decision_is_a_clear_conflict,
    w17_an_edit_voids_earlier_approvals_and_counts_as_one,
    w17_an_edit_against_the_schema_changes_nothing,
    w17_an_order_that_is_not_ready_is_not_approved,
    w17_a_late_review_is_rejected_or_escalated_or_waits,
    w17_a_rule_approves_and_its_version_is_recorded,
    w17_approval_in_another_state_is_refused,
    w17_explain_says_what_is_missing,
    w17_a_large_preview_is_refused,
    w17_bug_two_approvals_at_once_apply_once,
];

fn reviewed(review: ReviewSettings) -> DynamicOrderType {
    plain(PLAIN).settings(TypeSettings { review, ..TypeSettings::default() })
}

/// A type whose preview shows the results.
fn previewed() -> DynamicOrderType {
    plain(PLAIN).preview(|order| {
        let after: Value = order.items.iter().map(|item| item.result.clone()).collect();
        Box::pin(async move { Ok(Some(Diff::between(json!([]), after).summary("a preview"))) })
    })
}

async fn w17_an_approval_names_what_was_seen(f: Fixture) {
    let work = f.with_types([previewed()]).await;
    let order = submitted(&work, PLAIN, 2).await;
    let preview = work.preview(order).await.expect("a preview");
    assert_eq!((preview.content_version, preview.digest.len()), (1, 64));
    let diff = preview.diff.clone().expect("the type has a preview");
    assert_eq!(diff.after, json!([{"of": {"n": 0}}, {"of": {"n": 1}}]));
    assert_eq!(work.preview(order).await.expect("the same"), preview, "made once, and stored");
    let bob = user(&work, "bob");
    let wrong = Approval { digest: "0".repeat(64), ..Approval::of(&preview) };
    let error = bob.approve(wrong).await.expect_err("another digest");
    assert_eq!(error.code(), "content_changed");
    let wrong = Approval { content_version: 7, ..Approval::of(&preview) };
    assert_eq!(bob.approve(wrong).await.expect_err("no such").code(), "content_changed");
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
    let approved = bob.approve(Approval::of(&preview).comment("fine")).await.expect("approved");
    assert!(approved.counted);
    assert_eq!(approved.order.state, OrderState::Approved);
    let told = events(&work, order).await;
    let told = told.iter().find(|event| event.event == EventType::Approved).expect("an event");
    let payload = told.payload.as_ref().expect("a payload");
    assert_eq!(payload["digest"], preview.digest);
    assert_eq!(payload["content_version"], 1);
    assert_eq!(told.message.as_deref(), Some("fine"));
    assert_eq!(told.actor.id.as_deref(), Some("bob"));
}

async fn w17_an_old_preview_is_a_conflict_that_shows_the_difference(f: Fixture) {
    let work = f.with_types([previewed()]).await;
    let order = submitted(&work, PLAIN, 1).await;
    let seen = work.preview(order).await.expect("a preview");
    let bob = user(&work, "bob");
    let again = Rejection::new(order, [ReviewError::new("wrong", "do it again")]).rework();
    bob.reject(again).await.expect("rejected");
    let client = agent(&work, "agent-2");
    let held = lease(&client).await;
    let new = latchwork_work::Submission::new(&held, json!({"other": 1}));
    client.submit(new).await.expect("submitted");
    let error = bob.approve(Approval::of(&seen)).await.expect_err("nobody has seen this");
    assert_eq!(error.code(), "content_changed");
    let now = work.preview(order).await.expect("a preview");
    assert_eq!(now.content_version, 2);
    let error = bob.approve(Approval::of(&seen)).await.expect_err("the old one");
    let ErrorKind::ContentChanged { seen, version, digest, changes, .. } = error.kind() else {
        panic!("{error}")
    };
    assert_eq!((*seen, *version, digest), (1, 2, &now.digest));
    assert!(changes.iter().any(|line| line.contains("other")), "{changes:?}");
    bob.approve(Approval::of(&now)).await.expect("approved");
}

async fn w17_comments_and_approvals_do_not_change_the_content(f: Fixture) {
    let rule = ReviewSettings { approvals: 3, ..Default::default() };
    let work = f.with_types([reviewed(rule)]).await;
    let order = submitted(&work, PLAIN, 1).await;
    let seen = work.preview(order).await.expect("a preview");
    user(&work, "eve").comment(order, "hm").await.expect("commented");
    user(&work, "bob").approve(Approval::of(&seen)).await.expect("approved");
    work.seal().await.expect("sealed");
    let now = work.preview(order).await.expect("a preview");
    assert_eq!((now.content_version, &now.digest), (1, &seen.digest));
    user(&work, "cleo").approve(Approval::of(&seen)).await.expect("approved");
    let last = user(&work, "dan").approve(Approval::of(&seen)).await.expect("approved");
    assert_eq!(last.order.state, OrderState::Approved);
}

async fn w17_the_digest_covers_the_results_where_there_is_no_preview(f: Fixture) {
    let work = f.manager().await;
    let (one, two) = (submitted(&work, PLAIN, 1).await, submitted(&work, PLAIN, 2).await);
    let (one, two) =
        (work.preview(one).await.expect("seen"), work.preview(two).await.expect("seen"));
    assert_eq!((&one.diff, &two.diff), (&None, &None));
    assert_ne!(one.digest, two.digest);
    let bob = user(&work, "bob");
    let crossed = Approval { digest: one.digest, ..Approval::of(&two) };
    assert_eq!(bob.approve(crossed).await.expect_err("another").code(), "content_changed");
    bob.approve(Approval::of(&two)).await.expect("approved");
}

async fn w17_two_approvals_of_two_reviewers(f: Fixture) {
    let rule = ReviewSettings { approvals: 2, ..Default::default() };
    let work = f.with_types([reviewed(rule)]).await;
    let order = submitted(&work, PLAIN, 1).await;
    let first = approve(&work, order, "bob").await;
    assert_eq!(first.state, OrderState::Submitted);
    assert_eq!(apply_all(&work).await, 0, "nothing is applied yet");
    let second = approve(&work, order, "cleo").await;
    assert_eq!(second.state, OrderState::Approved);
    let told = events(&work, order).await;
    let approvals: Vec<_> = told.iter().filter(|e| e.event == EventType::Approved).collect();
    let outcomes: Vec<_> = approvals
        .iter()
        .map(|e| e.payload.as_ref().expect("a payload")["outcome"].clone())
        .collect();
    assert_eq!(outcomes, ["counted", "approved"]);
    let by = &approvals[1].payload.as_ref().expect("a payload")["approvals"];
    assert_eq!(by.as_array().expect("a list").len(), 2);
}

async fn w17_a_second_approval_of_one_reviewer_does_not_count(f: Fixture) {
    let rule = ReviewSettings { approvals: 2, ..Default::default() };
    let work = f.with_types([reviewed(rule)]).await;
    let order = submitted(&work, PLAIN, 1).await;
    let preview = work.preview(order).await.expect("a preview");
    let bob = user(&work, "bob");
    assert!(bob.approve(Approval::of(&preview)).await.expect("approved").counted);
    let again = bob.approve(Approval::of(&preview)).await.expect("heard");
    assert!(!again.counted);
    assert_eq!(again.review.missing, ["1 of 2 approvals"]);
    // Nor under another kind of name.
    let again = agent(&work, "bob").approve(Approval::of(&preview)).await.expect("heard");
    assert!(!again.counted);
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
}

async fn race(work: &WorkManager, needed: u32) {
    let order = submitted(work, PLAIN, 1).await;
    let preview = work.preview(order).await.expect("a preview");
    let one = |name: &str| {
        let (client, approval) = (user(work, name), Approval::of(&preview));
        tokio::spawn(async move { client.approve(approval).await.expect("heard") })
    };
    let (a, b) = (one("bob"), one("cleo"));
    let (a, b) = (a.await.expect("no panic"), b.await.expect("no panic"));
    assert_eq!(u32::from(a.counted) + u32::from(b.counted), needed);
    assert_eq!(order_state(work, order).await, OrderState::Approved);
    let told = events(work, order).await;
    let outcome = |e: &&latchwork_work::Event| {
        e.payload.as_ref().is_some_and(|payload| payload["outcome"] == "approved")
    };
    assert_eq!(told.iter().filter(outcome).count(), 1);
}

async fn w17_two_reviewers_at_once(f: Fixture) {
    for needed in [1, 2] {
        let rule = ReviewSettings { approvals: needed, ..Default::default() };
        let work = f.with_types([reviewed(rule)]).await;
        for _ in 0..10 {
            race(&work, needed).await;
        }
    }
}

/// The reference checked the state outside of the transaction: both passed, and apply ran twice.
async fn w17_bug_two_approvals_at_once_apply_once(f: Fixture) {
    let work = f.manager().await;
    for _ in 0..5 {
        race(&work, 1).await;
    }
    let workers = ["a", "b", "c"].map(|name| {
        let worker = work.apply_worker(name).expect("legal");
        tokio::spawn(async move {
            let mut count = 0;
            while worker.apply_next().await.expect("the store answers").is_some() {
                count += 1;
            }
            count
        })
    });
    let mut applied = 0;
    for worker in workers {
        applied += worker.await.expect("no panic");
    }
    assert_eq!(applied, 5);
}

async fn w17_roles_are_asked_for(f: Fixture) {
    let mut rule = ReviewSettings { approvals: 2, ..Default::default() };
    rule.roles.insert("legal".to_owned(), 1);
    let work = f.with_types([reviewed(rule)]).await;
    let order = submitted(&work, PLAIN, 1).await;
    for name in ["bob", "cleo"] {
        assert_eq!(approve(&work, order, name).await.state, OrderState::Submitted);
    }
    let preview = work.preview(order).await.expect("a preview");
    assert_eq!(preview.review.missing, ["1 of 1 approvals by the role \"legal\""]);
    let dan = user(&work, "dan").roles(["legal", "other"]);
    let approved = dan.approve(Approval::of(&preview)).await.expect("approved");
    assert_eq!(approved.order.state, OrderState::Approved);
}

async fn w17_neither_proposer_nor_submitter_approves(f: Fixture) {
    let work = f.manager().await;
    let order = submitted(&work, PLAIN, 1).await;
    let preview = work.preview(order).await.expect("a preview");
    // Ada proposed it, agent-1 submitted it; one token may act as either kind.
    for client in
        [user(&work, "ada"), agent(&work, "ada"), agent(&work, "agent-1"), user(&work, "agent-1")]
    {
        let error = client.approve(Approval::of(&preview)).await.expect_err("refused");
        assert_eq!(error.code(), "reviewer_refused", "{error}");
    }
    let system = work.client(latchwork_work::Actor::system());
    let error = system.approve(Approval::of(&preview)).await.expect_err("it has no name");
    assert_eq!(error.code(), "invalid_argument");
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
    approve(&work, order, "bob").await;
}

async fn w17_both_can_be_allowed(f: Fixture) {
    let rule = ReviewSettings {
        approvals: 2,
        proposer_may_approve: true,
        submitter_may_approve: true,
        ..Default::default()
    };
    let work = f.with_types([reviewed(rule)]).await;
    let order = submitted(&work, PLAIN, 1).await;
    approve(&work, order, "ada").await;
    let preview = work.preview(order).await.expect("a preview");
    let last = agent(&work, "agent-1").approve(Approval::of(&preview)).await.expect("approved");
    assert_eq!(last.order.state, OrderState::Approved);
}

async fn w17_a_contrary_decision_is_a_clear_conflict(f: Fixture) {
    let work = f.manager().await;
    let wrong = |order| Rejection::new(order, [ReviewError::new("wrong", "no")]);
    let order = submitted(&work, PLAIN, 1).await;
    let preview = work.preview(order).await.expect("a preview");
    approve(&work, order, "bob").await;
    let cleo = user(&work, "cleo");
    let error = cleo.reject(wrong(order)).await.expect_err("it is approved");
    assert_eq!(error.code(), "decided");
    let late = cleo.approve(Approval::of(&preview)).await.expect("it agrees");
    assert!(!late.counted);
    assert_eq!(late.order.state, OrderState::Approved);
    let item = work.items(order, None, 1).await.expect("items")[0].item.id;
    let edited = Approval::of(&preview).edit(item, json!(1));
    assert_eq!(cleo.approve(edited).await.expect_err("too late").code(), "decided");
    let order = submitted(&work, PLAIN, 1).await;
    let preview = work.preview(order).await.expect("a preview");
    cleo.reject(wrong(order)).await.expect("rejected");
    let error = user(&work, "bob").approve(Approval::of(&preview)).await.expect_err("rejected");
    assert_eq!(error.code(), "decided");
    let error = user(&work, "bob").reject(wrong(order)).await.expect_err("rejected before");
    assert_eq!(error.code(), "decided");
}

async fn w17_an_edit_voids_earlier_approvals_and_counts_as_one(f: Fixture) {
    let rule = ReviewSettings { approvals: 2, ..Default::default() };
    let settings = TypeSettings { review: rule, ..TypeSettings::default() };
    let work = f.with_types([previewed().settings(settings)]).await;
    let order = submitted(&work, PLAIN, 2).await;
    approve(&work, order, "bob").await;
    let seen = work.preview(order).await.expect("a preview");
    let items = work.items(order, None, 10).await.expect("items");
    let edit = Approval::of(&seen).edit(items[1].item.id, json!({"better": true}));
    let cleo = user(&work, "cleo");
    let edited = cleo.approve(edit).await.expect("approved");
    assert!(edited.counted);
    assert_eq!((edited.content_version, edited.order.state), (2, OrderState::Submitted));
    assert_eq!(edited.review.approvals.len(), 1, "bob has not seen this");
    let item = work.item(items[1].item.id).await.expect("an item");
    let result = item.result.expect("a result");
    assert_eq!((result.version, result.edited_from), (2, Some(1)));
    assert_eq!(
        (result.actor.id.as_deref(), result.result),
        (Some("cleo"), json!({"better": true}))
    );
    assert_eq!(item.item.state, ItemState::Submitted);
    let told = events(&work, order).await;
    let told = told.iter().find(|event| event.event == EventType::Edited).expect("an event");
    let diff = told.diff.as_ref().expect("a diff");
    assert_eq!(diff["before"], json!({"of": {"n": 1}}), "the agent's is kept");
    let bob = user(&work, "bob");
    let error = bob.approve(Approval::of(&seen)).await.expect_err("it was edited");
    assert!(error.to_string().contains("better"), "{error}");
    let now = work.preview(order).await.expect("a preview");
    assert_eq!(now.digest, edited.digest);
    assert_eq!(now.diff.as_ref().expect("a preview").after[1], json!({"better": true}));
    let done = bob.approve(Approval::of(&now)).await.expect("approved");
    assert_eq!(done.order.state, OrderState::Approved);
    assert_eq!(apply_all(&work).await, 1);
    assert_eq!(order_state(&work, order).await, OrderState::Completed);
}

async fn w17_an_edit_against_the_schema_changes_nothing(f: Fixture) {
    let strict = plain(PLAIN).result_schema(json!({"type": "object"}));
    let work = f.with_types([strict]).await;
    let order = submitted(&work, PLAIN, 1).await;
    let seen = work.preview(order).await.expect("a preview");
    let before = events(&work, order).await;
    let item = work.items(order, None, 1).await.expect("items")[0].item.id;
    let bob = user(&work, "bob");
    let error = bob.approve(Approval::of(&seen).edit(item, json!(5))).await.expect_err("refused");
    assert_eq!(error.code(), "result_invalid");
    let twice = Approval::of(&seen).edit(item, json!({})).edit(item, json!({}));
    assert_eq!(bob.approve(twice).await.expect_err("twice").code(), "invalid_argument");
    let other = submitted(&work, PLAIN, 1).await;
    let other = work.items(other, None, 1).await.expect("items")[0].item.id;
    let error = bob.approve(Approval::of(&seen).edit(other, json!({}))).await.expect_err("not its");
    assert_eq!(error.code(), "invalid_argument");
    assert_eq!(events(&work, order).await, before);
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
}

async fn w17_an_order_that_is_not_ready_is_not_approved(f: Fixture) {
    let strict = plain(PLAIN).can_approve(|order| match order.items.len() {
        0 | 1 => Err(TypeError::invalid("/items", "too_few", "two results are needed")),
        _ => Ok(()),
    });
    let work = f.with_types([strict]).await;
    let order = submitted(&work, PLAIN, 1).await;
    let preview = work.preview(order).await.expect("a preview");
    assert_eq!(preview.not_ready[0].code, "too_few");
    let error = user(&work, "bob").approve(Approval::of(&preview)).await.expect_err("not ready");
    assert_eq!(error.code(), "not_ready");
    let order = submitted(&work, PLAIN, 2).await;
    assert_eq!(approve(&work, order, "bob").await.state, OrderState::Approved);
}

fn late(name: &str, then: DeadlinePolicy) -> DynamicOrderType {
    let deadline = Some(ReviewDeadline { after: Duration::ZERO, then });
    let review = ReviewSettings { deadline, approvals: 2, ..Default::default() };
    plain(name).settings(TypeSettings { review, ..TypeSettings::default() })
}

async fn w17_a_late_review_is_rejected_or_escalated_or_waits(f: Fixture) {
    let escalate = DeadlinePolicy::Escalate("boss".to_owned());
    let types = [
        late("waits", DeadlinePolicy::KeepWaiting),
        late("rejects", DeadlinePolicy::Reject),
        late("escalates", escalate),
    ];
    let work = f.with_types(types).await;
    let mut orders = Vec::new();
    for name in ["waits", "rejects", "escalates"] {
        orders.push(submitted(&work, name, 1).await);
    }
    let mut rounds = maintenance(&work, Default::default());
    assert_eq!(rounds.round().await.expect("a round").late, 3);
    assert_eq!(rounds.round().await.expect("a round").late, 0, "once");
    assert_eq!(order_state(&work, orders[0]).await, OrderState::Submitted);
    assert_eq!(order_state(&work, orders[1]).await, OrderState::Rejected);
    assert_eq!(order_state(&work, orders[2]).await, OrderState::Submitted);
    let told = events(&work, orders[2]).await;
    assert!(told.iter().any(|event| event.event == EventType::Escalated));
    assert_eq!(approve(&work, orders[2], "bob").await.state, OrderState::Submitted);
    let preview = work.preview(orders[2]).await.expect("a preview");
    assert_eq!(preview.review.escalated_to.as_deref(), Some("boss"));
    let boss = user(&work, "cleo").roles(["boss"]);
    let approved = boss.approve(Approval::of(&preview)).await.expect("approved");
    assert_eq!(approved.order.state, OrderState::Approved, "the role decides alone");
    // Begun anew, the review has its time again.
    user(&work, "bob").requeue(orders[1], "once more").await.expect("requeued");
    hand_in(&work, orders[1]).await;
    assert_eq!(rounds.round().await.expect("a round").late, 1);
}

async fn w17_a_rule_approves_and_its_version_is_recorded(f: Fixture) {
    let schema = json!({"properties": {"payload": {"properties": {"items": {"maximum": 1}}}}});
    let with = |version: &str, schema: Option<Value>| {
        let auto_approve = Some(AutoApprove { version: version.to_owned(), schema });
        let review = ReviewSettings { auto_approve, ..Default::default() };
        TypeSettings { review, ..TypeSettings::default() }
    };
    let coded = plain("coded").settings(with("code-1", None));
    let coded = coded.auto_approve(|order| match order.items.len() {
        3 => Err(TypeError::Failed("no answer".into())),
        count => Ok(count == 1),
    });
    let data = plain(PLAIN).settings(with("small-7", Some(schema)));
    let work = f.with_types([data, coded]).await;
    for (name, version) in [(PLAIN, "small-7"), ("coded", "code-1")] {
        let order = submitted(&work, name, 1).await;
        assert_eq!(order_state(&work, order).await, OrderState::Approved, "{name}");
        let told = events(&work, order).await;
        let told = told.iter().find(|event| event.event == EventType::Approved).expect("told");
        assert_eq!(told.payload.as_ref().expect("a payload")["auto_approve"], version);
        assert_eq!(told.actor, latchwork_work::Actor::system());
        let order = submitted(&work, name, 2).await;
        assert_eq!(order_state(&work, order).await, OrderState::Submitted, "{name}");
        approve(&work, order, "bob").await;
    }
    let order = submitted(&work, "coded", 3).await;
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
    let told = events(&work, order).await;
    let said = told.iter().filter_map(|event| event.message.as_deref());
    assert!(said.clone().any(|said| said.contains("no answer")), "{:?}", said.collect::<Vec<_>>());
    assert_eq!(apply_all(&work).await, 4);
}

async fn w17_approval_in_another_state_is_refused(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 1).await.id;
    let error = work.preview(order).await.expect_err("its items are not in");
    assert_eq!(error.code(), "order_state");
    let approval = Approval {
        order,
        content_version: 1,
        digest: String::new(),
        edits: Vec::new(),
        comment: None,
    };
    let error = user(&work, "bob").approve(approval).await.expect_err("its items are not in");
    assert_eq!(error.code(), "order_state");
    let wrong = Rejection::new(order, [ReviewError::new("wrong", "no")]);
    assert_eq!(
        user(&work, "bob").reject(wrong).await.expect_err("too early").code(),
        "order_state"
    );
    let none = Rejection::new(order, []);
    assert_eq!(user(&work, "bob").reject(none).await.expect_err("why?").code(), "invalid_argument");
}

async fn w17_explain_says_what_is_missing(f: Fixture) {
    let mut rule = ReviewSettings { approvals: 2, ..Default::default() };
    rule.roles.insert("legal".to_owned(), 1);
    let picky = reviewed(rule).can_approve(|order| match order.payload["items"] == 3 {
        true => Err(TypeError::invalid("/payload", "odd", "three is too many")),
        false => Ok(()),
    });
    let work = f.with_types([picky]).await;
    let order = submitted(&work, PLAIN, 1).await;
    let said = async |order| {
        let told = work.explain_order(order).await.expect("explained");
        told.blockers[0].first[0].message.clone()
    };
    let first = said(order).await;
    assert!(first.contains("waits for approval: 2 of 2 approvals"), "{first}");
    approve(&work, order, "bob").await;
    let second = said(order).await;
    assert!(second.contains("1 of 2 approvals") && second.contains("legal"), "{second}");
    let order = submitted(&work, PLAIN, 3).await;
    let third = said(order).await;
    assert!(third.contains("three is too many"), "{third}");
}

async fn w17_a_large_preview_is_refused(f: Fixture) {
    let review = ReviewSettings { max_diff_bytes: 1_000, ..Default::default() };
    let huge = reviewed(review).preview(|_| {
        Box::pin(async { Ok(Some(Diff::between(json!(null), json!("x".repeat(2_000))))) })
    });
    let work = f.with_types([huge]).await;
    let order = submitted(&work, PLAIN, 1).await;
    let error = work.preview(order).await.expect_err("too large");
    assert_eq!(error.code(), "too_large");
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
}
