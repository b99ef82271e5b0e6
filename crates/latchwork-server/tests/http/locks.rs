//! Locks over HTTP, at two servers on one file.

use std::time::Duration;

use latchwork_server::{App, Settings, Shutdown, router};
use serde_json::{Value, json};

use crate::support::{AGENT, Answer, Fixture};

const OTHER: (&str, &str) = ("latchwork-actor", "agent:a-2");

/// A token that a client has made.
fn token(number: u8) -> String {
    format!("{number:032x}")
}

async fn call(f: &Fixture, name: &str, body: Value) -> Answer {
    f.post_as(&format!("/v1/locks/{name}"), body, &[AGENT]).await
}

/// Another server on the same locks: the router of another process, as far as a client can tell.
async fn beside(f: &Fixture) -> Fixture {
    let locks = latchwork_lock::Locks::connect(&f.url).await.expect("locks");
    let shutdown = Shutdown::new();
    let app = App::new(f.work.clone(), Settings::default(), &shutdown)
        .with_locks(locks.clone())
        .with_flows(f.flows.clone());
    f.with(router(app), locks, shutdown)
}

#[tokio::test]
async fn a_lease_is_taken_renewed_and_given_back() {
    let f = Fixture::new().await;
    let ask = json!({"key": "a/b c", "token": token(1), "ttl_ms": 20_000, "note": "deploy"});
    let held = call(&f, "acquire", ask.clone()).await.ok();
    assert_eq!((&held["ttl_ms"], &held["waited"]), (&json!(20_000), &json!(false)));
    assert!(held["remaining_ms"].as_u64().is_some_and(|left| (15_000..=20_000).contains(&left)));
    let again = call(&f, "acquire", ask).await.ok();
    assert_eq!(again["fence"], held["fence"], "a repeated request gets the same lease");

    let other = json!({"key": "a/b c", "token": token(2)});
    let refused = call(&f, "acquire", other.clone()).await;
    refused.refused(409, "lock_taken");
    assert!(refused.body["detail"].as_str().is_some_and(|text| text.contains("agent:a-1: deploy")));
    assert_eq!(refused.header("retry-after"), "1");

    let seen = f.get("/v1/locks/keys/a%2Fb%20c").await.ok();
    let holder = &seen["holders"][0];
    assert_eq!((&holder["note"], &holder["fence"]), (&json!("agent:a-1: deploy"), &held["fence"]));
    let listed = f.get("/v1/locks?prefix=a/").await.ok();
    assert_eq!(listed["locks"][0]["holders"][0]["fence"], held["fence"]);
    assert_eq!(f.get("/v1/locks?prefix=b").await.ok()["locks"], json!([]));

    let proof = json!({"key": "a/b c", "token": token(1)});
    let renewed =
        call(&f, "renew", json!({"key": "a/b c", "token": token(1), "ttl_ms": 60_000})).await;
    assert_eq!(renewed.ok()["ttl_ms"], 60_000);
    assert_eq!(call(&f, "release", proof.clone()).await.ok(), json!({"released": true}));
    assert_eq!(call(&f, "release", proof.clone()).await.ok(), json!({"released": false}));
    call(&f, "renew", proof).await.refused(409, "lock_lost");
    let next = call(&f, "acquire", other).await.ok();
    assert!(next["fence"].as_u64() > held["fence"].as_u64());
}

#[tokio::test]
async fn a_token_is_worth_nothing_to_another_caller() {
    let f = Fixture::new().await;
    let proof = json!({"key": "a", "token": token(1)});
    call(&f, "acquire", proof.clone()).await.ok();
    let other =
        async |name: &str, body| f.post_as(&format!("/v1/locks/{name}"), body, &[OTHER]).await;
    assert_eq!(other("release", proof.clone()).await.ok(), json!({"released": false}));
    other("renew", proof.clone()).await.refused(409, "lock_lost");
    other("claim", proof.clone()).await.refused(409, "lock_lost");
    other("acquire", proof.clone()).await.refused(409, "lock_taken");
    let steal = json!({"key": "a", "token": token(1), "new_token": token(2)});
    other("resume", steal.clone()).await.refused(409, "lock_lost");
    // Nor is an owner's name.
    let owned = |number| json!({"key": "b", "token": token(number), "owner": "me"});
    let first = call(&f, "acquire", owned(3)).await.ok();
    other("acquire", owned(4)).await.refused(409, "lock_taken");
    let taken_over = call(&f, "acquire", owned(5)).await.ok();
    assert!(taken_over["fence"].as_u64() > first["fence"].as_u64());
    let seen = f.get("/v1/locks/keys/b").await.ok();
    assert_eq!(seen["holders"][0]["owner"], "agent:a-1/me");
    // Its own caller goes on with it under another secret.
    let resumed = call(&f, "resume", steal.clone()).await.ok();
    assert_eq!(call(&f, "resume", steal).await.ok()["fence"], resumed["fence"]);
    call(&f, "renew", proof).await.refused(409, "lock_lost");
    call(&f, "renew", json!({"key": "a", "token": token(2)})).await.ok();
}

#[tokio::test]
async fn a_name_with_a_slash_is_no_way_into_the_owners_of_another() {
    let f = Fixture::new().await;
    let take = async |actor: &str, number, owner: &str| {
        let body = json!({"key": "a", "token": token(number), "owner": owner});
        f.post_as("/v1/locks/acquire", body, &[("latchwork-actor", actor)]).await
    };
    let held = take("agent:a/b", 1, "c").await.ok();
    take("agent:a", 2, "b/c").await.refused(409, "lock_taken");
    take("agent:a%2Fb", 3, "c").await.refused(409, "lock_taken");
    // Its own caller takes it over, as ever.
    let again = take("agent:a/b", 4, "c").await.ok();
    assert!(again["fence"].as_u64() > held["fence"].as_u64());
}

#[tokio::test]
async fn a_turn_is_waited_for_at_one_server_and_claimed_at_another() {
    let f = Fixture::new().await;
    let g = beside(&f).await;
    let holder = json!({"key": "a", "token": token(1)});
    let first = call(&f, "acquire", holder.clone()).await.ok();
    let wait =
        |number: u8, wait_ms: u64| json!({"key": "a", "token": token(number), "wait_ms": wait_ms});
    let not_yet = call(&f, "wait", wait(2, 100)).await.ok();
    assert_eq!(not_yet, json!({"ready": false, "kept_for_ms": 10_000}));
    assert_eq!(call(&g, "wait", wait(3, 0)).await.ok()["ready"], false);
    // The first goes on waiting at the other server, and is still the first.
    let (turn, ()) = tokio::join!(call(&g, "wait", wait(2, 20_000)), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        call(&f, "release", holder).await.ok();
    });
    let turn = turn.ok();
    assert_eq!((&turn["ready"], &turn["claim_within_ms"]), (&json!(true), &json!(2_000)));
    call(&f, "claim", json!({"key": "a", "token": token(3)})).await.refused(409, "lock_lost");
    let claim = json!({"key": "a", "token": token(2), "ttl_ms": 30_000});
    let held = call(&f, "claim", claim.clone()).await.ok();
    assert!(held["fence"].as_u64() > first["fence"].as_u64());
    assert_eq!((&held["waited"], &held["ttl_ms"]), (&json!(true), &json!(30_000)));
    assert_eq!(held["previous_fence"], first["fence"]);
    assert_eq!(
        call(&g, "claim", claim).await.ok()["fence"],
        held["fence"],
        "a lost answer is repeated"
    );
    let seen = g.get("/v1/locks/keys/a").await.ok();
    assert!(seen["holders"][0]["expires_in_ms"].as_u64() > Some(20_000), "{seen}");
    // The refused claim has not cost the other one its place.
    assert_eq!(seen["waiters"].as_array().map(Vec::len), Some(1));
    call(&g, "release", json!({"key": "a", "token": token(2)})).await.ok();
    let in_vain = json!({"key": "b", "token": token(4), "wait_ms": 50});
    call(&f, "acquire", json!({"key": "b", "token": token(5)})).await.ok();
    call(&f, "acquire", in_vain).await.refused(409, "lock_taken");
    assert_eq!(f.get("/v1/locks/keys/b").await.ok()["waiters"].as_array().map(Vec::len), Some(1));
    let one_call = json!({"key": "a", "token": token(3), "wait_ms": 10_000, "ttl_ms": 5_000});
    let next = call(&g, "acquire", one_call).await.ok();
    assert!(next["fence"].as_u64() > held["fence"].as_u64());
    assert!(next["remaining_ms"].as_u64() <= Some(5_000));
}

#[tokio::test]
async fn a_reservation_that_nobody_claims_passes_on() {
    let f = Fixture::new().await;
    call(&f, "acquire", json!({"key": "a", "token": token(1)})).await.ok();
    for number in [2, 3] {
        call(&f, "wait", json!({"key": "a", "token": token(number)})).await.ok();
    }
    call(&f, "release", json!({"key": "a", "token": token(1)})).await.ok();
    // The second does not come back; the third is let in after the claim window.
    let turn =
        call(&f, "wait", json!({"key": "a", "token": token(3), "wait_ms": 15_000})).await.ok();
    assert_eq!(turn["ready"], true);
    call(&f, "claim", json!({"key": "a", "token": token(3)})).await.ok();
    call(&f, "claim", json!({"key": "a", "token": token(2)})).await.refused(409, "lock_lost");
}

#[tokio::test]
async fn a_waiter_leaves_the_queue_and_a_lock_can_be_broken() {
    let f = Fixture::new().await;
    let held = call(&f, "acquire", json!({"key": "a", "token": token(1)})).await.ok();
    call(&f, "wait", json!({"key": "a", "token": token(2)})).await.ok();
    let waiters = async || f.get("/v1/locks/keys/a").await.ok()["waiters"].as_array().map(Vec::len);
    assert_eq!(waiters().await, Some(1));
    call(&f, "release", json!({"key": "a", "token": token(2)})).await.ok();
    assert_eq!(waiters().await, Some(0));
    let none = call(&f, "break", json!({"key": "a", "fence": 1})).await.ok();
    assert_eq!(none, json!({"broken": []}));
    let broken = call(&f, "break", json!({"key": "a", "fence": held["fence"]})).await.ok();
    assert_eq!(broken["broken"][0]["note"], "agent:a-1");
    call(&f, "renew", json!({"key": "a", "token": token(1)})).await.refused(409, "lock_lost");
    // The gate refuses what the broken lease would still write.
    let next = call(&f, "acquire", json!({"key": "a", "token": token(3)})).await.ok();
    let check = |fence: &Value| json!({"key": "a", "fence": fence});
    call(&f, "check-fence", check(&next["fence"])).await.ok();
    call(&f, "check-fence", check(&held["fence"])).await.refused(409, "stale_fence");
}

#[tokio::test]
async fn bad_requests_are_refused_without_showing_the_token() {
    let f = Fixture::new().await;
    let secret = "not-a-token-but-a-secret";
    let shown = call(&f, "acquire", json!({"key": "a", "token": secret})).await;
    shown.refused(400, "invalid_argument");
    assert!(!shown.body.to_string().contains(secret));
    for (body, code) in [
        (json!({"key": "", "token": token(1)}), "invalid_key"),
        (json!({"key": "x".repeat(513), "token": token(1)}), "invalid_key"),
        (json!({"key": "a\n", "token": token(1)}), "invalid_key"),
        (json!({"key": "a", "token": token(1), "ttl_ms": 0}), "invalid_argument"),
        (json!({"key": "a", "token": token(1), "ttl_ms": u64::MAX}), "invalid_argument"),
        (json!({"key": "a", "token": token(1), "wait_ms": 60_001}), "invalid_argument"),
        (json!({"key": "a", "token": token(1), "owner": ""}), "invalid_argument"),
        (json!({"key": "a", "token": token(1), "note": "x".repeat(255)}), "invalid_argument"),
        (json!({"key": "a", "token": token(1), "other": 1}), "malformed_request"),
    ] {
        call(&f, "acquire", body).await.refused(400, code);
    }
    let own = json!({"key": "work:maintenance", "token": token(1)});
    call(&f, "acquire", own).await.refused(403, "forbidden");
    assert_eq!(f.get("/v1/locks").await.ok()["locks"], json!([]));
    f.get("/v1/locks?limit=0").await.refused(400, "invalid_argument");
    f.get("/v1/locks?x=1").await.refused(400, "unknown_name");
}
