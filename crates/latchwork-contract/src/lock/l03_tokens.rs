//! L3 Only the holder: release and renew need the lease's token.

use latchwork_lock::Capability;
use latchwork_lock::provider::{Acquired, LockProvider, Proof, Token, Wait};

use super::case::case;
use super::fixture::{FORCE, SLACK, code};
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(l03_a_foreign_token_changes_nothing, [Tokens]),
    case!(l03_a_token_is_good_for_its_own_key_only, [Tokens]),
    case!(l03_a_second_release_finds_nothing, [Tokens]),
    case!(l03_an_expired_guard_cannot_touch_the_next_holder, [Tokens, Exclusion, Expiry, Renew]),
    case!(l03_a_taken_over_guard_cannot_touch_the_new_one, [Tokens, TakeOver, Renew, Exclusion]),
    case!(l03_a_late_release_says_so, [Tokens, Expiry]),
    case!(l03_a_token_that_waits_holds_nothing, [Tokens, Wait, Inspect, Exclusion, Renew]),
];

async fn l03_a_foreign_token_changes_nothing(f: Fixture) {
    let (ours, theirs) = (f.client().await, f.client().await);
    let request = f.request("a", f.ttl() * 20);
    let granted = ours.acquire(&request).await.expect("it answers");
    assert!(matches!(granted, Acquired::Granted(_)), "a free key");
    let key = &request.key;
    for thief in [&theirs, &ours] {
        let foreign = Proof { key, token: Token::random() };
        assert!(!thief.renew(foreign, f.ttl()).await.expect("it answers"), "renewed by another");
        assert!(!thief.release(foreign).await.expect("it answers"), "released by another");
        thief.release_later(foreign);
        thief.close().await;
    }
    let own = Proof { key, token: request.token };
    assert!(ours.renew(own, f.ttl() * 20).await.expect("it answers"), "the holder still holds");
    // The token is the proof, not the connection that it came by.
    assert!(theirs.release(own).await.expect("it answers"), "the token's bearer may release");
}

async fn l03_a_token_is_good_for_its_own_key_only(f: Fixture) {
    let client = f.client().await;
    let (one, two) = (f.request("1", f.ttl() * 20), f.request("2", f.ttl() * 20));
    for request in [&one, &two] {
        client.acquire(request).await.expect("it answers");
    }
    let crossed = Proof { key: &two.key, token: one.token };
    assert!(!client.release(crossed).await.expect("it answers"), "released by another key's token");
    for request in [&one, &two] {
        let proof = Proof { key: &request.key, token: request.token };
        assert!(client.release(proof).await.expect("it answers"), "it was held to the end");
    }
}

async fn l03_a_second_release_finds_nothing(f: Fixture) {
    let client = f.client().await;
    let request = f.request("a", f.ttl() * 20);
    client.acquire(&request).await.expect("it answers");
    let proof = Proof { key: &request.key, token: request.token };
    assert!(client.release(proof).await.expect("it answers"));
    assert!(!client.release(proof).await.expect("it answers"), "there was nothing to release");
    assert!(!client.renew(proof, f.ttl()).await.expect("it answers"), "there was nothing to renew");
}

async fn l03_an_expired_guard_cannot_touch_the_next_holder(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let late = ours.lock(&key).ttl(f.ttl()).acquire().await.expect("a free key");
    f.pass(f.ttl() + f.capabilities().granularity()).await;
    let next = f.free(&theirs, &key).await;
    assert!(code(late.refresh_with(FORCE).await).starts_with("lock_"), "renewed after its end");
    assert_eq!(code(late.release().await), "lock_expired");
    assert!(ours.lock(&key).try_acquire().await.expect("it answers").is_none(), "it was let in");
    next.refresh_with(FORCE).await.expect("the next holder is not disturbed");
    next.release().await.expect("it held to the end");
}

async fn l03_a_taken_over_guard_cannot_touch_the_new_one(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let old = locks.lock(&key).owner("me").acquire().await.expect("a free key");
    let new = locks.lock(&key).owner("me").acquire().await.expect("the same owner");
    assert_eq!(code(old.release().await), "lock_lost");
    new.refresh_with(FORCE).await.expect("the new guard is not disturbed");
    assert!(locks.lock(&key).try_acquire().await.expect("it answers").is_none());
    new.release().await.expect("it held to the end");
}

async fn l03_a_late_release_says_so(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).ttl(f.ttl()).acquire().await.expect("a free key");
    f.pass(f.ttl() + f.capabilities().granularity()).await;
    assert_eq!(code(guard.release().await), "lock_expired");
}

async fn l03_a_token_that_waits_holds_nothing(f: Fixture) {
    let (ours, theirs) = (f.client().await, f.client().await);
    let bare = f.open().await.with_prefix("").expect("a prefix may be empty");
    let held = f.request("a", f.ttl() * 40);
    let granted = ours.acquire(&held).await.expect("it answers");
    assert!(matches!(granted, Acquired::Granted(_)), "a free key");
    let waits = f.request("a", f.ttl() * 40).with_wait(Wait::For(SLACK * 10));
    let waiting = {
        let (client, request) = (theirs.clone(), waits.clone());
        tokio::spawn(async move { client.acquire(&request).await.expect("it answers") })
    };
    f.queued(&bare, held.key.as_str(), 1).await;
    let proof = Proof { key: &held.key, token: waits.token };
    assert!(!theirs.renew(proof, f.ttl() * 40).await.expect("it answers"), "renewed by a waiter");
    if f.capabilities().has(Capability::HandOver) {
        assert!(!theirs.hand_over(proof).await.expect("it answers"), "handed over by a waiter");
        let fresh = Token::random();
        let rotated = theirs.rotate(proof, fresh, f.ttl() * 40).await.expect("it answers");
        assert_eq!(rotated, None, "resumed by a waiter");
    }
    let own = Proof { key: &held.key, token: held.token };
    assert!(ours.renew(own, f.ttl() * 40).await.expect("it answers"), "the holder still holds");
    assert!(ours.release(own).await.expect("it answers"), "it was held to the end");
    let next = f.soon("the waiter keeps its place", waiting).await;
    assert!(matches!(next, Acquired::Granted(_)), "{next:?}");
    assert!(theirs.release(proof).await.expect("it answers"), "the waiter has become the holder");
}
