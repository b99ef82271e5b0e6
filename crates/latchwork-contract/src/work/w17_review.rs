//! W17: what was seen is what is approved.

use latchwork_work::{
    Approval, Diff, DynamicOrderType, ErrorKind, EventType, ItemState, OrderState, Rejection,
    ReviewError, ReviewSettings, TypeError, TypeSettings,
};
use serde_json::{Value, json};

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, agent, apply_all, approve, events, lease, order_state, plain, propose, submitted, user,
};

cases![
    w17_an_approval_names_what_was_seen,
    w17_an_old_preview_is_a_conflict_that_shows_the_difference,
    w17_comments_and_approvals_do_not_change_the_content,
    w17_the_digest_covers_the_results_where_there_is_no_preview,
    w17_an_edit_voids_earlier_approvals_and_counts_as_one,
    w17_an_edit_against_the_schema_changes_nothing,
    w17_an_order_that_is_not_ready_is_not_approved,
    w17_approval_in_another_state_is_refused,
    w17_a_large_preview_is_refused,
];

pub(super) fn reviewed(review: ReviewSettings) -> DynamicOrderType {
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
