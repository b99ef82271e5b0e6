//! W17: how many reviewers decide, which ones, and what comes of decisions at once.

use latchwork_work::{
    Approval, EventType, Finalize, OrderState, PartSubmission, Rejection, ReviewError,
    ReviewSettings, TypeError, WorkManager,
};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, agent, apply_all, approve, events, lease, order_state, propose, submitted, user,
};
use super::w17_review::reviewed;

cases![
    w17_two_approvals_of_two_reviewers,
    w17_a_second_approval_of_one_reviewer_does_not_count,
    w17_two_reviewers_at_once,
    w17_bug_two_approvals_at_once_apply_once,
    w17_contrary_decisions_at_once_leave_one,
    w17_a_contrary_decision_is_a_clear_conflict,
    w17_roles_are_asked_for,
    w17_neither_proposer_nor_submitter_approves,
    w17_who_handed_in_a_part_does_not_approve,
    w17_both_can_be_allowed,
    w17_explain_says_what_is_missing,
];

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

async fn w17_contrary_decisions_at_once_leave_one(f: Fixture) {
    let work = f.manager().await;
    for round in 0..10 {
        let order = submitted(&work, PLAIN, 1).await;
        let approval = Approval::of(&work.preview(order).await.expect("a preview"));
        let rejection = Rejection::new(order, [ReviewError::new("wrong", "no")]);
        let (bob, cleo) = (user(&work, "bob"), user(&work, "cleo"));
        let approve = tokio::spawn(async move { bob.approve(approval).await.map(drop) });
        let reject = tokio::spawn(async move { cleo.reject(rejection).await.map(drop) });
        let done = [approve.await.expect("no panic"), reject.await.expect("no panic")];
        let lost: Vec<_> = done.iter().filter_map(|one| one.as_ref().err()).collect();
        assert_eq!(lost.len(), 1, "{round}: one of them is heard: {done:?}");
        assert_eq!(lost[0].code(), "decided", "{}", lost[0]);
        let expected = if done[0].is_ok() { OrderState::Approved } else { OrderState::Rejected };
        assert_eq!(order_state(&work, order).await, expected);
    }
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

async fn w17_who_handed_in_a_part_does_not_approve(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 1).await.id;
    let (first, second) = (agent(&work, "agent-1"), agent(&work, "agent-2"));
    let held = lease(&first).await;
    first.submit_part(PartSubmission::new(&held, "a", json!(1))).await.expect("a part");
    first.release(held.id, None).await.expect("given back");
    let held = lease(&second).await;
    second.finalize(Finalize::strict(&held)).await.expect("it is in");
    let preview = work.preview(order).await.expect("a preview");
    for client in [first, second] {
        let error = client.approve(Approval::of(&preview)).await.expect_err("refused");
        assert_eq!(error.code(), "reviewer_refused", "{error}");
    }
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
