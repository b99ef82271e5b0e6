//! W17: what is decided without a reviewer: by a deadline, or by a rule.

use std::time::Duration;

use latchwork_work::{
    Approval, AutoApprove, DeadlinePolicy, DynamicOrderType, EventType, OrderState, Rejection,
    ReviewDeadline, ReviewError, ReviewSettings, TypeError, TypeSettings,
};
use serde_json::{Value, json};

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, apply_all, approve, events, hand_in, order_state, plain, submitted, user,
};
use super::w10_audit::maintenance;

cases![
    w17_a_late_review_is_rejected_or_escalated_or_waits,
    w17_an_approval_of_the_role_counts_when_the_review_is_escalated,
    w17_a_rule_approves_and_its_version_is_recorded,
];

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

/// The role's only reviewer has approved before the deadline: nobody else could decide.
async fn w17_an_approval_of_the_role_counts_when_the_review_is_escalated(f: Fixture) {
    let work = f.with_types([late(PLAIN, DeadlinePolicy::Escalate("boss".to_owned()))]).await;
    let boss = user(&work, "cleo").roles(["boss"]);
    let seen = async |order| Approval::of(&work.preview(order).await.expect("a preview"));
    let (order, changed) = (submitted(&work, PLAIN, 1).await, submitted(&work, PLAIN, 1).await);
    for order in [order, changed] {
        let approved = boss.approve(seen(order).await).await.expect("approved");
        assert!(approved.counted && approved.order.state == OrderState::Submitted);
    }
    // What the boss saw of this one is not what it is any more.
    let again = Rejection::new(changed, [ReviewError::new("wrong", "again")]).rework();
    user(&work, "bob").reject(again).await.expect("rejected");
    hand_in(&work, changed).await;
    assert_eq!(maintenance(&work, Default::default()).round().await.expect("a round").late, 2);
    assert_eq!(order_state(&work, order).await, OrderState::Approved);
    assert_eq!(order_state(&work, changed).await, OrderState::Submitted);
    assert_eq!(apply_all(&work).await, 1);
    work.seal().await.expect("sealed");
    let receipt = work.receipt(order).await.expect("a receipt");
    assert_eq!(receipt.approvals[0]["by"]["id"], "cleo");
    assert_eq!(receipt.findings(&work.export(0, 1_000).await.expect("an export")), [""; 0]);
    let approved = boss.approve(seen(changed).await).await.expect("approved");
    assert_eq!(approved.order.state, OrderState::Approved, "the role decides alone");
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
