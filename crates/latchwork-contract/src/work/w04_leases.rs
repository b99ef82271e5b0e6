//! W4: leases.

use latchwork_work::{EventType, ItemState, OrderState, Submission};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, agent, event_names, item_state, lease, nothing, order_state, propose,
    quick_lease_is_over, submit,
};

cases![
    w04_the_first_heartbeat_moves_item_and_order,
    w04_a_submission_straight_from_leased_makes_both_moves,
    w04_a_stale_or_foreign_lease_is_refused,
    w04_of_two_results_that_come_together_one_is_taken,
    w05_an_expired_lease_is_tried_again_and_fails_at_the_last_attempt,
];

async fn w04_the_first_heartbeat_moves_item_and_order(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1");
    let lease = lease(&client).await;
    assert_eq!(order_state(&work, order.id).await, OrderState::CheckedOut);
    let beat = client.heartbeat(lease.id).await.expect("held");
    assert!(beat.expires_at >= lease.expires_at);
    assert_eq!(item_state(&work, lease.item_id).await, ItemState::InProgress);
    assert_eq!(order_state(&work, order.id).await, OrderState::InProgress);
    client.heartbeat(lease.id).await.expect("held");
    let names = event_names(&work, order.id).await;
    use EventType::{CheckedOut, InProgress, Leased};
    assert_eq!(names, [Leased, CheckedOut, InProgress, InProgress], "heartbeats do not flood");
}

async fn w04_a_submission_straight_from_leased_makes_both_moves(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 1).await;
    let client = agent(&work, "agent-1");
    let lease = lease(&client).await;
    submit(&client, &lease).await;
    assert_eq!(item_state(&work, lease.item_id).await, ItemState::Submitted);
    assert_eq!(order_state(&work, order.id).await, OrderState::Submitted);
    use EventType::{CheckedOut, InProgress, Leased, Submitted};
    let names = event_names(&work, order.id).await;
    assert_eq!(names, [Leased, CheckedOut, InProgress, Submitted, InProgress, Submitted]);
    let details = work.item(lease.item_id).await.expect("an item");
    assert_eq!(details.lease, None, "submit ends the lease");
    assert_eq!(details.result.expect("a result").result, json!({"of": {"n": 0}}));
}

async fn w04_a_stale_or_foreign_lease_is_refused(f: Fixture) {
    let work = f.manager().await;
    propose(&work, PLAIN, 2).await;
    let (one, two) = (agent(&work, "agent-1"), agent(&work, "agent-2"));
    let held = lease(&one).await;
    for error in [
        two.heartbeat(held.id).await.expect_err("foreign"),
        two.submit(Submission::new(&held, json!(1))).await.expect_err("foreign"),
        two.release(held.id, None).await.expect_err("foreign"),
    ] {
        assert_eq!(error.code(), "lease_foreign", "{error}");
    }
    submit(&one, &held).await;
    for error in [
        one.heartbeat(held.id).await.expect_err("over"),
        one.submit(Submission::new(&held, json!(1))).await.expect_err("over"),
        one.release(held.id, None).await.expect_err("over"),
    ] {
        assert_eq!(error.code(), "lease_expired", "{error}");
    }
    assert_eq!(item_state(&work, held.item_id).await, ItemState::Submitted);
}

/// Both behind another one that is under way, so that they may come in one message.
async fn w04_of_two_results_that_come_together_one_is_taken(f: Fixture) {
    let work = f.manager().await;
    propose(&work, PLAIN, 16).await;
    let client = agent(&work, "agent-1");
    for _ in 0..8 {
        let (ahead, held) = (lease(&client).await, lease(&client).await);
        let results = [json!("a"), json!("b")];
        let [a, b] = results.clone().map(|result| client.submit(Submission::new(&held, result)));
        let (_, a, b) = futures::join!(submit(&client, &ahead), a, b);
        let stored = work.item(held.item_id).await.expect("an item").result.expect("a result");
        for (told, result) in [a, b].into_iter().zip(results) {
            match told {
                Ok(done) => assert_eq!((done.result_version, &stored.result), (1, &result)),
                Err(error) => {
                    assert_eq!(error.code(), "lease_expired");
                    assert_ne!(stored.result, result, "what was refused is not stored");
                }
            }
        }
    }
}

async fn w05_an_expired_lease_is_tried_again_and_fails_at_the_last_attempt(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, "quick", 1).await;
    let client = agent(&work, "agent-1");
    for attempt in 1..=3 {
        let held = lease(&client).await;
        assert_eq!((held.attempt, held.fence), (attempt, u64::from(attempt)));
        nothing(&client).await;
        quick_lease_is_over().await;
        let error = client.heartbeat(held.id).await.expect_err("it ran out");
        assert_eq!(error.code(), "lease_expired");
        let error = client.submit(Submission::new(&held, json!(1))).await.expect_err("over");
        assert_eq!(error.code(), "lease_expired");
        assert_eq!(work.reclaim_expired().await.expect("reclaimed"), 1);
        let expected = if attempt < 3 { ItemState::Queued } else { ItemState::Failed };
        assert_eq!(item_state(&work, held.item_id).await, expected);
    }
    assert_eq!(order_state(&work, order.id).await, OrderState::Failed);
    nothing(&client).await;
}
