//! Making, using and revoking tokens.

use std::time::Duration;

use axum::body::Body;
use latchwork_server::{NewToken, Role};
use serde_json::{Value, json};

use crate::support::{Fixture, request};

#[tokio::test]
async fn with_the_first_token_every_request_needs_one_for_ever() {
    for f in Fixture::each().await {
        let local = async |path: &str| {
            let request = http::Request::builder().uri(path).header("host", "localhost");
            f.send(request.body(Body::empty()).expect("a request")).await
        };
        local("/v1/orders").await.ok();
        // Without tokens another machine's name is refused, and no token can be made over HTTP.
        f.get("/v1/orders", "").await.refused(403, "host_refused");
        local("/v1/tokens").await.refused(403, "forbidden");

        let (token, admin) = f.token(NewToken::new("ada", Role::Admin)).await;
        local("/v1/orders").await.refused(401, "unauthorized");
        f.get("/v1/orders", "").await.refused(401, "unauthorized");
        f.get("/v1/orders", &admin).await.ok();
        // Another server has looked for tokens just now, and looks again within a second.
        let other = f.again().await;
        other.get("/v1/orders", "").await.refused(401, "unauthorized");
        f.tokens.revoke(token.id).await.expect("revoked");
        f.get("/v1/orders", &admin).await.refused(401, "unauthorized");
        local("/v1/orders").await.refused(401, "unauthorized");
        // Health tells nothing, and needs nothing.
        f.get("/healthz", "").await.ok();
        f.get("/readyz", "").await.ok();
        f.get("/openapi.json", "").await.ok();
    }
}

#[tokio::test]
async fn a_caller_is_whom_its_token_names() {
    for f in Fixture::each().await {
        let agent = f.plain("builder", Role::Agent).await;
        let ada = f.plain("ada", Role::Reviewer).await;
        let named = request("GET", "/v1/orders")
            .header("authorization", format!("Bearer {agent}"))
            .header("latchwork-actor", "agent:other");
        let answer = f.send(named.body(Body::empty()).expect("a request")).await;
        answer.refused(400, "invalid_argument");
        let me = f.get("/v1/whoami", &agent).await.ok();
        assert_eq!(me["actor"], json!({"type": "agent", "id": "builder"}));
        assert_eq!((&me["role"], &me["verified"]), (&json!("agent"), &json!(true)));
        assert_eq!(f.get("/v1/whoami", &ada).await.ok()["actor"]["type"], "user");

        let order = f.propose(&ada, "red").await;
        let got = f.post("/v1/items/checkout", &agent, json!({})).await.ok();
        assert_eq!(got["leases"][0]["agent"], "builder");
        let events = f.get(&format!("/v1/orders/{order}/events"), &ada).await.ok();
        let events = events["events"].as_array().expect("events").clone();
        assert_eq!(events[0]["actor"], json!({"type": "user", "id": "ada"}));
        let unverified = |event: &Value| event["provenance"]["unverified"] == true;
        assert!(!events.iter().any(unverified), "{events:?}");
    }
}

#[tokio::test]
async fn tokens_are_made_listed_and_revoked_over_http() {
    for f in Fixture::each().await {
        let admin = f.plain("ada", Role::Admin).await;
        let body = json!({"name": "bob", "role": "agent", "types": ["red"], "expires_in_s": 3_600});
        let made = f.post("/v1/tokens", &admin, body.clone()).await;
        assert_eq!(made.status, 201, "{}", made.text);
        let secret = made.body["secret"].as_str().expect("its text").to_owned();
        assert!(secret.starts_with("lw_agent_"), "{secret}");
        let id = made.body["token"]["id"].as_str().expect("an id").to_owned();
        assert_eq!(made.body["token"]["created_by"], "ada");
        f.post("/v1/tokens", &admin, body).await.refused(409, "token_exists");
        f.get("/v1/orders", &secret).await.ok();

        // Nothing tells the text again.
        let listed = f.get("/v1/tokens?limit=1", &admin).await;
        let next = listed.body["next"].as_str().expect("a second page").to_owned();
        let second = f.get(&format!("/v1/tokens?limit=1&after={next}"), &admin).await;
        assert_eq!(second.body["tokens"][0]["name"], "bob");
        assert_eq!(second.body["next"], Value::Null);
        let shown = f.get(&format!("/v1/tokens/{id}"), &admin).await;
        for text in [listed.text, second.text, shown.text] {
            assert!(!text.contains(&secret[9..]) && !text.contains("hash"), "{text}");
        }

        let revoked = f.post(&format!("/v1/tokens/{id}/revoke"), &admin, json!({})).await.ok();
        assert_eq!(revoked["state"], "revoked");
        f.get("/v1/orders", &secret).await.refused(401, "unauthorized");
        let again = f.post(&format!("/v1/tokens/{id}/revoke"), &admin, json!({})).await.ok();
        assert_eq!(again["revoked_at"], revoked["revoked_at"]);
        // The name is free again.
        let body = json!({"name": "bob", "role": "reader"});
        f.post("/v1/tokens", &admin, body).await.ok();
        let nobody = "/v1/tokens/00000000-0000-0000-0000-000000000000";
        f.get(nobody, &admin).await.refused(404, "token_not_found");
        f.get("/v1/tokens/x", &admin).await.refused(400, "invalid_argument");
        for (wrong, code) in [
            (json!({"name": "", "role": "agent"}), "invalid_argument"),
            (json!({"name": "x", "role": "root"}), "unknown_name"),
            (json!({"name": "x", "role": "agent", "types": []}), "invalid_argument"),
            (json!({"name": "x", "role": "agent", "expires_in_s": u64::MAX}), "invalid_argument"),
            (
                json!({"name": "x", "role": "agent", "expires_at": "2001-01-01T00:00:00Z"}),
                "invalid_argument",
            ),
            (json!({"name": "x"}), "malformed_request"),
        ] {
            f.post("/v1/tokens", &admin, wrong).await.refused(400, code);
        }
    }
}

#[tokio::test]
async fn a_key_makes_one_token_and_tells_its_text_once() {
    for f in Fixture::each().await {
        let admin = f.plain("ada", Role::Admin).await;
        let send = async |path: &str, body: Value| {
            let request = request("POST", path)
                .header("authorization", format!("Bearer {admin}"))
                .header("content-type", "application/json")
                .header("idempotency-key", "k-1");
            f.send(request.body(Body::from(body.to_string())).expect("a request")).await
        };
        let wanted = json!({"name": "bob", "role": "agent"});
        let made = send("/v1/tokens", wanted.clone()).await.ok();
        let secret = made["secret"].as_str().expect("its text");
        let id = made["token"]["id"].as_str().expect("an id");
        let revoke = format!("/v1/tokens/{id}/revoke");
        // Also where the name is free again.
        for again in 0..2 {
            let answer = send("/v1/tokens", wanted.clone()).await;
            answer.refused(409, "token_exists");
            assert_eq!(answer.body["existing"], id);
            assert!(!answer.text.contains(&secret[9..]), "{}", answer.text);
            let revoked = send(&revoke, json!({})).await;
            let replayed = revoked.headers.contains_key("idempotent-replayed");
            assert_eq!(replayed, again == 1, "{}", revoked.text);
            revoked.ok();
        }
        let other = send("/v1/tokens", json!({"name": "bob", "role": "reader"})).await;
        other.refused(422, "idempotency_conflict");
        assert_eq!(f.tokens.list(None, 10).await.expect("tokens").len(), 2);
    }
}

#[tokio::test]
async fn a_token_makes_and_sees_none_that_may_do_more() {
    for f in Fixture::each().await {
        let root = f.plain("root", Role::Admin).await;
        let red = f.limited("red-boss", Role::Admin, "red").await;
        let blue = f.limited("blue-boss", Role::Admin, "blue").await;
        for wider in [
            json!({"name": "x", "role": "agent", "types": ["blue"]}),
            json!({"name": "x", "role": "agent", "types": ["red", "blue"]}),
            json!({"name": "x", "role": "agent", "key_prefixes": ["r"]}),
            json!({"name": "x", "role": "reviewer", "review_roles": ["legal"]}),
        ] {
            f.post("/v1/tokens", &red, wider).await.refused(403, "forbidden");
        }
        let made = f.post("/v1/tokens", &red, json!({"name": "r", "role": "agent"})).await.ok();
        assert_eq!(made["token"]["types"], json!(["red"]));
        assert_eq!(made["token"]["key_prefixes"], json!(["red/"]));

        let names = async |token: &str| {
            let page = f.get("/v1/tokens", token).await.ok();
            let tokens = page["tokens"].as_array().expect("tokens").clone();
            tokens.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&root).await, ["root", "red-boss", "blue-boss", "r"]);
        assert_eq!(names(&red).await, ["red-boss", "r"]);
        assert_eq!(names(&blue).await, ["blue-boss"]);
        let id = made["token"]["id"].as_str().expect("an id");
        f.get(&format!("/v1/tokens/{id}"), &blue).await.refused(404, "token_not_found");
        let revoke = format!("/v1/tokens/{id}/revoke");
        f.post(&revoke, &blue, json!({})).await.refused(404, "token_not_found");
        f.post(&revoke, &red, json!({})).await.ok();
    }
}

#[tokio::test]
async fn mistyped_unknown_expired_and_revoked_tokens_are_told_apart() {
    for f in Fixture::each().await {
        let good = f.plain("ada", Role::Reader).await;
        let end = latchwork_lock::Clock::wall(&*f.clock) + chrono::TimeDelta::minutes(5);
        let short = NewToken { expires_at: Some(end), ..NewToken::new("short", Role::Reader) };
        let short = f.token(short).await.1;
        let elsewhere = Fixture::new().await.plain("x", Role::Admin).await;
        let mut typo = good.clone();
        let last = if typo.pop() == Some('0') { '1' } else { '0' };
        typo.push(last);
        for (token, detail) in [
            (&*typo, "checksum"),
            (&elsewhere, "no such token"),
            ("lw_admin_x", "no token"),
            ("hunter2", "no token"),
            ("lw_reader_';DROP TABLE latchwork_server_tokens;--", "no token"),
        ] {
            let answer = f.get("/v1/orders", token).await;
            answer.refused(401, "unauthorized");
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
            assert!(answer.text.contains(detail), "{}", answer.text);
            assert!(!answer.text.contains(token), "{}", answer.text);
        }
        f.get("/v1/orders", &short).await.ok();
        f.clock.advance(Duration::from_secs(301));
        let answer = f.get("/v1/orders", &short).await;
        answer.refused(401, "unauthorized");
        assert!(answer.text.contains("ended at"), "{}", answer.text);
        for odd in ["", "Basic YTpi", "Bearer", "bearer  ", "Bearer a b", &format!("Token {good}")]
        {
            let request = request("GET", "/v1/orders").header("authorization", odd);
            let answer = f.send(request.body(Body::empty()).expect("a request")).await;
            answer.refused(401, "unauthorized");
        }
        let twice = request("GET", "/v1/orders")
            .header("authorization", format!("Bearer {good}"))
            .header("authorization", format!("Bearer {good}"));
        let answer = f.send(twice.body(Body::empty()).expect("a request")).await;
        answer.refused(400, "malformed_request");
        // Nothing but the header counts.
        let cookie = request("GET", &format!("/v1/orders?access_token={good}"))
            .header("cookie", format!("token={good}; Authorization=Bearer {good}"));
        let answer = f.send(cookie.body(Body::empty()).expect("a request")).await;
        answer.refused(401, "unauthorized");
    }
}

#[tokio::test]
async fn other_servers_notice_the_first_token_and_a_revocation_within_a_tenth_of_a_second() {
    for f in Fixture::each().await {
        let other = f.again().await;
        let local = async || {
            let request = http::Request::builder().uri("/v1/orders").header("host", "localhost");
            other.send(request.body(Body::empty()).expect("a request")).await
        };
        local().await.ok();
        let (token, secret) = f.token(NewToken::new("ada", Role::Agent)).await;
        // The other server goes by what it knows for a tenth of a second of its clock, and no longer.
        other.clock.advance(Duration::from_millis(100));
        local().await.refused(401, "unauthorized");
        other.get("/v1/orders", &secret).await.ok();
        f.tokens.revoke(token.id).await.expect("revoked");
        f.get("/v1/orders", &secret).await.refused(401, "unauthorized");
        other.clock.advance(Duration::from_millis(100));
        other.get("/v1/orders", &secret).await.refused(401, "unauthorized");
    }
}

#[tokio::test]
async fn the_last_use_is_noted_to_the_minute() {
    for f in Fixture::each().await {
        let (token, secret) = f.token(NewToken::new("ada", Role::Reader)).await;
        let used = async || f.tokens.get(token.id).await.expect("there").last_used_at;
        assert_eq!(used().await, None);
        f.get("/v1/orders", &secret).await.ok();
        let wait = async {
            while used().await.is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), wait).await.expect("noted");
        let first = used().await;
        f.clock.advance(Duration::from_secs(30));
        f.get("/v1/orders", &secret).await.ok();
        f.clock.advance(Duration::from_secs(31));
        f.get("/v1/orders", &secret).await.ok();
        let wait = async {
            while used().await == first {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), wait).await.expect("noted again");
        let span = used().await.expect("used") - first.expect("used");
        assert_eq!(span, chrono::TimeDelta::seconds(61), "not in between");
    }
}

#[tokio::test]
async fn a_stream_and_a_long_poll_end_when_their_token_is_revoked() {
    let f = Fixture::new().await;
    let (token, agent) = f.token(NewToken::new("ada", Role::Agent)).await;
    let stream = request("GET", "/v1/events")
        .header("authorization", format!("Bearer {agent}"))
        .header("accept", "text/event-stream");
    let stream = f.send(stream.body(Body::empty()).expect("a request"));
    let poll = f.post("/v1/items/checkout", &agent, json!({"wait_ms": 50_000}));
    let revoke = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        f.tokens.revoke(token.id).await.expect("revoked");
    };
    let all = async { tokio::join!(stream, poll, revoke) };
    let ended = tokio::time::timeout(Duration::from_secs(15), all).await.expect("both end");
    assert_eq!(ended.0.status, 200);
    ended.1.refused(401, "unauthorized");
}

#[tokio::test]
async fn metrics_are_told_to_readers_without_limits() {
    let f = Fixture::new().await;
    let (reader, agent) = (f.plain("ada", Role::Reader).await, f.plain("bot", Role::Agent).await);
    f.get("/metrics", "").await.refused(401, "unauthorized");
    f.propose(&agent, "red").await;
    f.post("/v1/items/checkout", &agent, json!({})).await.ok();
    let answer = f.get("/metrics", &reader).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    for line in [
        "latchwork_orders{type=\"red\",state=\"checked_out\"} 1",
        "latchwork_items{type=\"red\",state=\"leased\"} 1",
        "latchwork_leases 1",
        "# TYPE latchwork_sealing_lag_seconds gauge",
        "# TYPE latchwork_http_waiting gauge",
    ] {
        assert!(answer.text.lines().any(|found| found == line), "{line} in\n{}", answer.text);
    }
    let counted = |parts: &[&str]| {
        answer.text.lines().any(|line| parts.iter().all(|part| line.contains(part)))
    };
    assert!(counted(&["latchwork_http_requests_total{", "route=\"/v1/orders\"", "status=\"201\""]));
    assert!(counted(&["latchwork_http_request_seconds_bucket{", "route=\"/v1/items/checkout\""]));
    assert!(!answer.text.contains("lw_"), "no token is in it");
}
