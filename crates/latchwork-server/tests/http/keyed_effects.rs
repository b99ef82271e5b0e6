//! `Idempotency-Key` where the effect is not in the store of orders: locks and flows.

use std::time::Duration;

use latchwork_lock::Locks;
use latchwork_server::{App, Settings, Shutdown, router};
use serde_json::{Value, json};

use crate::flows::paused;
use crate::support::{ADA, AGENT, Answer, Fixture, on_both};

on_both![
    a_key_stands_for_one_lease,
    a_claim_and_a_resumption_have_a_key_too,
    what_was_refused_may_be_asked_again,
    what_is_done_to_locks_of_others_happens_once,
    what_is_done_to_flows_happens_once,
    a_repeated_listener_or_take_back_is_answered_once,
];

fn token(number: u8) -> String {
    format!("{number:032x}")
}

async fn keyed(f: &Fixture, name: &str, key: &str, body: Value) -> Answer {
    f.post_as(&format!("/v1/locks/{name}"), body, &[AGENT, ("idempotency-key", key)]).await
}

async fn plain(f: &Fixture, name: &str, body: Value) -> Answer {
    f.post_as(&format!("/v1/locks/{name}"), body, &[AGENT]).await
}

#[track_caller]
fn is_replay(answer: &Answer) -> bool {
    assert!(answer.status.is_success(), "{} {}", answer.status, answer.body);
    answer.header("idempotent-replayed") == "true"
}

async fn holders(f: &Fixture, key: &str) -> Vec<Value> {
    let seen = f.get(&format!("/v1/locks/keys/{key}")).await.ok();
    seen["holders"].as_array().expect("holders").clone()
}

async fn a_key_stands_for_one_lease(f: Fixture) {
    let ask = |number: u8| json!({"key": "a", "token": token(number), "ttl_ms": 60_000});
    let first = keyed(&f, "acquire", "k", ask(1)).await;
    assert!(!is_replay(&first));
    let first = first.ok();
    // The lease as it is now: renewed for longer by its holder, and by no repeated request.
    let longer = json!({"key": "a", "token": token(1), "ttl_ms": 600_000});
    plain(&f, "renew", longer).await.ok();
    let again = keyed(&f, "acquire", "k", ask(1)).await;
    assert!(is_replay(&again));
    let again = again.ok();
    assert_eq!((&again["fence"], &again["waited"]), (&first["fence"], &first["waited"]));
    let left = again["remaining_ms"].as_u64().expect("a number");
    assert!((400_000..=600_000).contains(&left), "{again}");
    // Who counts the ttl from before this request trusts the lease for no longer than it lasts.
    assert_eq!(again["ttl_ms"], again["remaining_ms"]);
    // How long a request waits is no part of what it asks for.
    let mut waiting = ask(1);
    waiting["wait_ms"] = json!(100);
    assert!(is_replay(&keyed(&f, "acquire", "k", waiting).await));
    keyed(&f, "acquire", "k", ask(2)).await.refused(422, "idempotency_conflict");
    let mut shared = ask(1);
    shared["mode"] = json!("shared");
    keyed(&f, "acquire", "k", shared).await.refused(422, "idempotency_conflict");
    // A key is its caller's.
    let other = [("latchwork-actor", "agent:a-2"), ("idempotency-key", "k")];
    f.post_as("/v1/locks/acquire", ask(1), &other).await.refused(409, "lock_taken");

    let release = json!({"key": "a", "token": token(1)});
    assert_eq!(keyed(&f, "release", "k", release.clone()).await.ok(), json!({"released": true}));
    let again = keyed(&f, "release", "k", release).await;
    assert!(is_replay(&again));
    assert_eq!(again.ok(), json!({"released": true}));
    // A request that arrives late, or for the second time, takes nothing that nobody knows of.
    keyed(&f, "acquire", "k", ask(1)).await.refused(409, "lease_expired");
    assert!(holders(&f, "a").await.is_empty());
    plain(&f, "acquire", ask(1)).await.ok();
    keyed(&f, "acquire", "k", ask(1)).await.refused(409, "lease_expired");
    keyed(&f, "acquire", "", ask(1)).await.refused(400, "invalid_argument");
}

async fn a_claim_and_a_resumption_have_a_key_too(f: Fixture) {
    plain(&f, "acquire", json!({"key": "a", "token": token(1)})).await.ok();
    plain(&f, "wait", json!({"key": "a", "token": token(2)})).await.ok();
    plain(&f, "release", json!({"key": "a", "token": token(1)})).await.ok();
    let turn = json!({"key": "a", "token": token(2), "wait_ms": 20_000});
    assert_eq!(plain(&f, "wait", turn).await.ok()["ready"], true);
    let claim = json!({"key": "a", "token": token(2), "ttl_ms": 60_000});
    let held = keyed(&f, "claim", "k", claim.clone()).await;
    assert!(!is_replay(&held));
    let held = held.ok();
    let again = keyed(&f, "claim", "k", claim.clone()).await;
    assert!(is_replay(&again));
    let again = again.ok();
    for name in ["fence", "previous_fence", "waited"] {
        assert_eq!(again[name], held[name], "{name}");
    }

    let resume = json!({"key": "a", "token": token(2), "new_token": token(3), "ttl_ms": 60_000});
    let resumed = keyed(&f, "resume", "r", resume.clone()).await;
    assert!(!is_replay(&resumed));
    let again = keyed(&f, "resume", "r", resume).await;
    assert!(is_replay(&again));
    assert_eq!(again.ok()["fence"], resumed.body["fence"]);
    // The lease of the claim is another one by now.
    keyed(&f, "claim", "k", claim).await.refused(409, "lease_expired");
}

async fn what_was_refused_may_be_asked_again(f: Fixture) {
    plain(&f, "acquire", json!({"key": "a", "token": token(1)})).await.ok();
    let ask = json!({"key": "a", "token": token(2), "wait_ms": 50});
    keyed(&f, "acquire", "k", ask.clone()).await.refused(409, "lock_taken");
    keyed(&f, "acquire", "k", ask.clone()).await.refused(409, "lock_taken");
    plain(&f, "release", json!({"key": "a", "token": token(1)})).await.ok();
    let mut patient = ask;
    patient["wait_ms"] = json!(20_000);
    assert!(!is_replay(&keyed(&f, "acquire", "k", patient.clone()).await));
    assert!(is_replay(&keyed(&f, "acquire", "k", patient).await));
}

async fn what_is_done_to_locks_of_others_happens_once(f: Fixture) {
    plain(&f, "acquire", json!({"key": "a", "token": token(1)})).await.ok();
    let ask = [ADA, ("idempotency-key", "k")];
    let broken = f.post_as("/v1/locks/break", json!({"key": "a"}), &ask).await;
    assert!(!is_replay(&broken));
    // The next holder is not meant.
    let next = plain(&f, "acquire", json!({"key": "a", "token": token(2)})).await.ok();
    let again = f.post_as("/v1/locks/break", json!({"key": "a"}), &ask).await;
    assert!(is_replay(&again));
    assert_eq!(again.body, broken.body);
    assert_eq!(holders(&f, "a").await[0]["fence"], next["fence"]);
    let other = f.post_as("/v1/locks/break", json!({"key": "b"}), &ask).await;
    other.refused(422, "idempotency_conflict");
}

async fn what_is_done_to_flows_happens_once(f: Fixture) {
    let flow = paused(&f, "ORD-1").await;
    let path = format!("/v1/flows/{flow}");
    let send = async |what: &str, key: &str, body: Value| {
        f.post_as(&format!("{path}/{what}"), body, &[ADA, ("idempotency-key", key)]).await
    };
    let signal = json!({"name": "later", "payload": 1});
    assert!(!is_replay(&send("signal", "k", signal.clone()).await));
    assert!(is_replay(&send("signal", "k", signal.clone()).await));
    send("signal", "k", json!({"name": "later", "payload": 2}))
        .await
        .refused(422, "idempotency_conflict");
    assert_eq!(f.get(&path).await.ok()["signals"], json!(["later"]));
    assert!(!is_replay(&send("signal", "other", signal).await));
    assert_eq!(f.get(&path).await.ok()["signals"], json!(["later", "later"]));
    // The same key for another operation is another key, and for another flow another request.
    assert!(!is_replay(&send("wake", "k", json!({})).await));
    assert!(is_replay(&send("wake", "k", json!({})).await));
    let other = paused(&f, "ORD-2").await;
    let other = format!("/v1/flows/{other}/wake");
    let woken = f.post_as(&other, json!({}), &[ADA, ("idempotency-key", "k")]).await;
    woken.refused(422, "idempotency_conflict");
    let why = json!({"reason": "x"});
    let done = send("cancel", "k", why.clone()).await;
    let again = send("cancel", "k", why).await;
    assert!(!is_replay(&done) && is_replay(&again));
    assert_eq!(again.body, done.body);
    // Refusals are not stored.
    for _ in 0..2 {
        send("release", "k", json!({})).await.refused(409, "context_conflict");
    }
}

async fn a_repeated_listener_or_take_back_is_answered_once(f: Fixture) {
    let order = f.propose(&["a"]).await;
    let ask = [ADA, ("idempotency-key", "k")];
    let path = format!("/v1/orders/{}/apply/take-back", order["id"].as_str().expect("an id"));
    assert!(!is_replay(&f.post_as(&path, json!({}), &ask).await));
    assert!(is_replay(&f.post_as(&path, json!({}), &ask).await));
    let forget = "/v1/listeners/nobody/forget";
    assert!(!is_replay(&f.post_as(forget, json!({}), &ask).await));
    assert!(is_replay(&f.post_as(forget, json!({}), &ask).await));
}

/// A client whose connection was cut asks again under its key, at another server, while its first request
/// still waits. When it has released the lease, the first request takes no other one for nobody.
#[tokio::test]
async fn a_twin_of_a_waiting_request_gets_the_same_lease_and_no_other() {
    let f = Fixture::new().await;
    let g = Fixture::again(&f).await;
    plain(&f, "acquire", json!({"key": "a", "token": token(1)})).await.ok();
    let ask = json!({"key": "a", "token": token(2), "wait_ms": 10_000});
    let twins = async {
        let one = Box::pin(keyed(&f, "acquire", "k", ask.clone()));
        let twin = Box::pin(keyed(&g, "acquire", "k", ask.clone()));
        let (first, rest) = futures::future::select(one, twin).await.factor_first();
        let held = holders(&f, "a").await;
        assert_eq!((held.len(), &held[0]["fence"]), (1, &first.body["fence"]), "{}", first.body);
        let released = plain(&f, "release", json!({"key": "a", "token": token(2)})).await.ok();
        assert_eq!(released["released"], true);
        (first, rest.await)
    };
    let release = async {
        let queued = async {
            while f.get("/v1/locks/keys/a").await.ok()["waiters"] == json!([]) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), queued).await.expect("queued");
        plain(&f, "release", json!({"key": "a", "token": token(1)})).await.ok();
    };
    let ((first, other), ()) = tokio::join!(twins, release);
    match other.status.as_u16() {
        200 => assert_eq!(other.body["fence"], first.body["fence"]),
        _ => assert_eq!(other.status, 409, "{}", other.body),
    }
    assert!(holders(&f, "a").await.is_empty());
    keyed(&g, "acquire", "k", ask).await.refused(409, "lease_expired");
}

/// What is stored under a key is no secret.
#[tokio::test]
async fn no_secret_is_stored_in_clear() {
    let f = Fixture::new().await;
    let secret = "6f1c0e4f2b7a4d6d9a3c5e8b1d2f4a60";
    keyed(&f, "acquire", "k", json!({"key": "a", "token": secret})).await.ok();
    keyed(&f, "release", "k", json!({"key": "a", "token": secret})).await.ok();
    let file = f.url.strip_prefix("sqlite://").expect("a file").to_owned();
    let mut found = 0;
    for name in [file.clone(), format!("{file}-wal")] {
        let bytes = std::fs::read(&name).unwrap_or_default();
        let has = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
        found += usize::from(has(b"acquire_lock"));
        assert!(!has(secret.as_bytes()), "{name}");
    }
    assert!(found > 0, "the key is stored somewhere");
}

/// A backend without places in queues: the refusal says what to do instead.
#[tokio::test]
async fn who_cannot_wait_is_told_what_to_do() {
    let f = Fixture::new().await;
    let (locks, shutdown) = (Locks::connect("memory:").await.expect("locks"), Shutdown::new());
    let app = App::new(f.work.clone(), Settings::default(), &shutdown).with_locks(locks.clone());
    let f = f.with(router(app), locks, shutdown);
    let ask =
        |number: u8, wait_ms: u64| json!({"key": "a", "token": token(number), "wait_ms": wait_ms});
    plain(&f, "acquire", ask(1, 0)).await.ok();
    for refused in [plain(&f, "wait", ask(2, 100)).await, plain(&f, "acquire", ask(2, 100)).await] {
        refused.refused(501, "not_supported");
        let told = refused.body["detail"].as_str().expect("a text");
        assert!(told.contains("/v1/locks/acquire") && told.contains("wait_ms 0"), "{told}");
    }
    // What it says works.
    let taken = plain(&f, "acquire", ask(2, 0)).await;
    taken.refused(409, "lock_taken");
    assert_eq!(taken.header("retry-after"), "1");
    plain(&f, "release", json!({"key": "a", "token": token(1)})).await.ok();
    plain(&f, "acquire", ask(2, 0)).await.ok();
}
