//! L17 Outage is not contention, and no grant is left without an owner.

use std::time::Duration;

use latchwork_lock::provider::{Acquired, LockProvider, Proof, Token};

use super::case::case;
use super::fixture::{SLACK, code};
use super::{Case, Fixture, Operation, eventually};

pub(super) const CASES: &[Case] = &[
    case!(l17_the_same_token_gets_the_same_grant, [Tokens, Inspect, Exclusion]),
    case!(l17_the_same_fresh_token_resumes_once, [Tokens, HandOver, Inspect]),
    case!(l17_an_outage_is_retried_within_the_wait, [Wait]),
    case!(l17_a_lost_answer_is_found_again, [Wait, Inspect, Exclusion]),
    case!(l17_a_lost_answer_found_again_lasts_its_ttl, [Wait, Exclusion, Expiry]),
    case!(l17_a_late_answer_is_no_dead_guard, [Wait, Renew, Exclusion, Expiry]),
    case!(l17_fail_fast_says_unavailable, []),
    case!(l17_an_outage_of_a_taken_key_is_not_contention, [Exclusion]),
    case!(l17_an_outage_is_bounded_by_the_wait, [Wait]),
    case!(l17_a_refusal_for_good_is_not_retried, [Wait]),
    case!(l17_giving_up_queues_a_release, [Exclusion]),
    case!(l17_giving_up_while_waiting_queues_a_release, [Wait, Exclusion]),
    case!(l17_a_dropped_future_leaves_no_grant, [Exclusion]),
    case!(l17_an_unanswered_release_is_queued, [Exclusion]),
    case!(l17_a_lost_answer_to_resume_leaves_no_holder, [HandOver, Exclusion]),
];

const LONG: Duration = Duration::from_secs(20);

async fn l17_the_same_token_gets_the_same_grant(f: Fixture) {
    let (ours, theirs) = (f.client().await, f.client().await);
    let request = f.request("a", LONG);
    let mut fences = Vec::new();
    for client in [&ours, &ours, &theirs] {
        match client.acquire(&request).await.expect("it answers") {
            Acquired::Granted(grant) => fences.push(grant.fence),
            other => panic!("it is held by this very token: {other:?}"),
        }
    }
    assert!(fences.iter().all(|fence| *fence == fences[0]), "{fences:?}");
    let found = ours.inspect(&request.key).await.expect("it answers");
    assert_eq!(found.holders.len(), 1, "one holder only");
    let mut other = request.clone();
    other.token = Token::random();
    assert!(matches!(ours.acquire(&other).await.expect("it answers"), Acquired::Taken(_)));
}

async fn l17_the_same_fresh_token_resumes_once(f: Fixture) {
    let client = f.client().await;
    let request = f.request("a", LONG);
    client.acquire(&request).await.expect("it answers");
    let old = Proof { key: &request.key, token: request.token };
    assert!(client.hand_over(old).await.expect("it answers"));
    let fresh = Token::random();
    let first = client.rotate(old, fresh, LONG).await.expect("it answers").expect("held");
    let again = client.rotate(old, fresh, LONG).await.expect("it answers").expect("held");
    assert_eq!(first.fence, again.fence, "the answer got lost, and was asked for again");
    assert_eq!(client.inspect(&request.key).await.expect("it answers").holders.len(), 1);
    let other = client.rotate(old, Token::random(), LONG).await.expect("it answers");
    assert!(other.is_none(), "the old token is dead");
}

async fn l17_an_outage_is_retried_within_the_wait(f: Fixture) {
    let (locks, faults) = f.open_flaky().await;
    faults.lose_calls(Operation::Acquire, 3);
    let key = f.key("a");
    let asking = locks.lock(&key).wait(LONG).acquire();
    let guard = f.within(LONG, "it is asked again", asking).await.expect("the outage is over");
    assert!(faults.calls(Operation::Acquire) >= 4);
    guard.release().await.expect("held");
}

async fn l17_a_lost_answer_is_found_again(f: Fixture) {
    let (ours, faults) = f.open_flaky().await;
    let theirs = f.open().await;
    let key = f.key("a");
    faults.lose_answers(Operation::Acquire, 2);
    let asking = ours.lock(&key).wait(LONG).acquire();
    let guard = f.within(LONG, "it is asked again", asking).await.expect("it was granted");
    let found = theirs.inspect(&key).await.expect("it answers");
    assert_eq!((found.holders.len(), found.waiters.len()), (1, 0), "{found:?}");
    assert_eq!(found.holders[0].fence, guard.fence());
    assert!(theirs.lock(&key).try_acquire().await.expect("it answers").is_none());
    guard.release().await.expect("held");
    assert!(theirs.lock(&key).try_acquire().await.expect("it answers").is_some());
}

async fn l17_a_lost_answer_found_again_lasts_its_ttl(f: Fixture) {
    // Its ttl began with the first question; what is found late must not be trusted for longer
    // than the backend keeps it. Four answers: the pauses between the questions add up to more
    // than the margin of trust would forgive.
    let (ours, faults) = f.open_flaky().await;
    let theirs = f.open().await;
    let key = f.key("a");
    let ttl = f.ttl() * 4;
    faults.lose_answers(Operation::Acquire, 4);
    let asking = ours.lock(&key).ttl(ttl).wait(LONG).acquire();
    let guard = f.within(LONG, "it is asked again", asking).await.expect("it was granted");
    // For as long as the guard trusts it, nobody else gets in.
    f.within(ttl + SLACK, "trust ends", async {
        while guard.is_held() {
            let asked = f.now();
            let other = theirs.lock(&key).try_acquire().await.expect("it answers");
            let trusted = guard.is_held();
            assert!(other.is_none() || !trusted, "another got in {:?}", f.now().since(asked));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

async fn l17_fail_fast_says_unavailable(f: Fixture) {
    let (locks, faults) = f.open_flaky().await;
    let key = f.key("a");
    faults.lose_calls(Operation::Acquire, 2);
    let asked = f.now();
    let refused = f.within(SLACK, "it fails at once", locks.lock(&key).acquire()).await;
    let refused = refused.expect_err("the backend is away");
    assert_eq!(refused.code(), "lock_unavailable");
    assert!(refused.is_temporary());
    // Contention is a value; an outage is not.
    assert_eq!(code(locks.lock(&key).try_acquire().await), "lock_unavailable");
    assert!(f.now().since(asked) < SLACK * f.slowness());
    assert_eq!(faults.calls(Operation::Acquire), 2);
}

async fn l17_an_outage_of_a_taken_key_is_not_contention(f: Fixture) {
    let (locks, faults) = f.open_flaky().await;
    let holder = f.open().await;
    let key = f.key("a");
    let guard = holder.lock(&key).acquire().await.expect("a free key");
    faults.lose_answers(Operation::Acquire, 1);
    assert_eq!(code(locks.lock(&key).acquire().await), "lock_unavailable");
    assert_eq!(code(locks.lock(&key).acquire().await), "lock_taken");
    guard.release().await.expect("not disturbed");
}

async fn l17_an_outage_is_bounded_by_the_wait(f: Fixture) {
    let (locks, faults) = f.open_flaky().await;
    faults.away(Operation::Acquire, true);
    let wait = f.ttl() * 2;
    let key = f.key("a");
    let asked = f.now();
    let asking = locks.lock(&key).wait(wait).acquire();
    assert_eq!(code(f.within(wait + SLACK, "it gives up", asking).await), "lock_unavailable");
    assert!(f.now().since(asked) >= wait, "it gave up after {:?}", f.now().since(asked));
    assert!(faults.calls(Operation::Acquire) > 1, "it was not tried again");
    let asking = locks.lock(&key).wait(wait).try_acquire();
    assert_eq!(code(f.within(wait + SLACK, "it gives up", asking).await), "lock_unavailable");
}

async fn l17_a_refusal_for_good_is_not_retried(f: Fixture) {
    let (locks, faults) = f.open_flaky().await;
    faults.refuse(Operation::Acquire);
    let key = f.key("a");
    let asking = locks.lock(&key).wait(LONG).acquire();
    assert_eq!(code(f.within(SLACK, "it fails at once", asking).await), "lock_backend");
    assert_eq!(faults.calls(Operation::Acquire), 1);
}

async fn l17_giving_up_queues_a_release(f: Fixture) {
    let (ours, faults) = f.open_flaky().await;
    let theirs = f.open().await;
    let key = f.key("a");
    faults.lose_answers(Operation::Acquire, 1);
    assert_eq!(code(ours.lock(&key).acquire().await), "lock_unavailable");
    // Granted in the backend, to nobody; with a ttl of thirty seconds.
    ours.close().await;
    f.free(&theirs, &key).await.release().await.expect("held");
}

async fn l17_giving_up_while_waiting_queues_a_release(f: Fixture) {
    let (ours, faults) = f.open_flaky().await;
    let theirs = f.open().await;
    let key = f.key("a");
    faults.lose_answers(Operation::Acquire, 1_000);
    let wait = f.ttl();
    let asking = ours.lock(&key).wait(wait).acquire();
    assert_eq!(code(f.within(wait + SLACK, "it gives up", asking).await), "lock_unavailable");
    ours.close().await;
    f.free(&theirs, &key).await.release().await.expect("held");
}

async fn l17_a_late_answer_is_no_dead_guard(f: Fixture) {
    let (ours, faults) = f.open_flaky().await;
    let key = f.key("a");
    let ttl = f.ttl() * 4;
    let (reached, go) = faults.hold_answer(Operation::Acquire);
    let (locks, name) = (ours.clone(), key.clone());
    let asking = tokio::spawn(async move { locks.lock(&name).ttl(ttl).wait(LONG).acquire().await });
    reached.await.expect("the call arrives");
    // The lease is there, but its trust is over when its holder hears of it.
    f.pass(ttl * 95 / 100).await;
    drop(go);
    let guard = f.within(LONG, "it is let in", asking).await.expect("no panic");
    let guard = guard.expect("nobody else wants it");
    assert!(guard.is_held(), "a guard that was over before it was given: {guard:?}");
    guard.release().await.expect("held");
}

async fn l17_a_dropped_future_leaves_no_grant(f: Fixture) {
    let (ours, faults) = f.open_flaky().await;
    let theirs = f.open().await;
    let key = f.key("a");
    let (reached, _go) = faults.hold_answer(Operation::Acquire);
    let (locks, name) = (ours.clone(), key.clone());
    let asking = tokio::spawn(async move { locks.lock(&name).acquire().await });
    reached.await.expect("the call arrives");
    assert!(theirs.lock(&key).try_acquire().await.expect("it answers").is_none(), "granted");
    asking.abort();
    assert!(asking.await.expect_err("it was aborted").is_cancelled());
    ours.close().await;
    f.free(&theirs, &key).await.release().await.expect("held");
}

async fn l17_an_unanswered_release_is_queued(f: Fixture) {
    let (ours, faults) = f.open_flaky().await;
    let theirs = f.open().await;
    for lose in [super::Faults::lose_calls, super::Faults::lose_answers] {
        let key = f.key("a");
        let guard = ours.lock(&key).acquire().await.expect("a free key");
        lose(&faults, Operation::Release, 1);
        assert_eq!(code(guard.release().await), "lock_unavailable");
        ours.close().await;
        f.free(&theirs, &key).await.release().await.expect("held");
    }
}

async fn l17_a_lost_answer_to_resume_leaves_no_holder(f: Fixture) {
    let (ours, faults) = f.open_flaky().await;
    let theirs = f.open().await;
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let lease = guard.into_lease().await.expect("held");
    faults.lose_answers(Operation::Rotate, 1);
    match ours.resume(lease).await {
        // Either the answer was found again by asking with the same token …
        Ok(guard) => guard.release().await.expect("held"),
        // … or the rotated lease, which nobody knows the token of, is given back.
        Err(error) => assert_eq!(error.code(), "lock_unavailable"),
    }
    ours.close().await;
    eventually("no holder is left", async || {
        theirs.lock(&key).try_acquire().await.expect("it answers").is_some()
    })
    .await;
}
