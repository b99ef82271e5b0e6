//! Web pages, tricks with paths and headers, and too much of everything: no 5xx, no leak.

use std::time::Duration;

use axum::body::Body;
use latchwork_server::{NewToken, Role, ServeOptions, serve_with};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Fixture, request};

const BODY: &str = r#"{"type": "red", "payload": {"texts": ["a"]}}"#;

#[tokio::test]
async fn a_web_page_gets_nothing_where_there_are_tokens() {
    let f = Fixture::new().await;
    let token = f.plain("ada", Role::Admin).await;
    // DNS rebinding, a foreign page, a form, a no-cors fetch: none of them knows a token.
    for (name, value) in [
        ("host", "evil.example"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "no-cors"),
        ("cookie", &*format!("token={token}")),
    ] {
        for media in ["application/json", "text/plain", "application/x-www-form-urlencoded"] {
            let request =
                request("POST", "/v1/orders").header("content-type", media).header(name, value);
            let answer = f.send(request.body(Body::from(BODY)).expect("a request")).await;
            answer.refused(401, "unauthorized");
            assert!(!answer.headers.keys().any(|name| name.as_str().starts_with("access-control")));
        }
    }
    // A browser asks first whether it may send the header, and is not told that it may.
    let preflight = request("OPTIONS", "/v1/orders")
        .header("origin", "https://evil.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization");
    let answer = f.send(preflight.body(Body::empty()).expect("a request")).await;
    answer.refused(405, "method_not_allowed");
    assert!(!answer.headers.keys().any(|name| name.as_str().starts_with("access-control")));
    assert_eq!(f.get("/v1/orders", &token).await.ok()["orders"], json!([]));
}

#[tokio::test]
async fn tricks_with_paths_and_methods_open_nothing() {
    let f = Fixture::new().await;
    let token = f.plain("ada", Role::Reader).await;
    for path in [
        "/v1/orders/",
        "//v1/orders",
        "/v1//orders",
        "/V1/orders",
        "/v1/orders/..",
        "/v1/./orders",
        "/v1/orders/%2e%2e/tokens",
        "/v1/orders%2f",
        "/healthz/../v1/orders",
        "/healthz%2f..%2fv1",
        "/v1/orders/%00",
        "/v1/orders/%ff",
        "/v1/orders;x=1",
        "/v1/order-types/%ff",
        "/docs/..",
        "/v1/tokens/%ff",
        "/v1/tokens/%00",
        "/metrics/",
        "/v1",
    ] {
        for (method, token) in [("GET", ""), ("GET", &*token), ("POST", ""), ("HEAD", "")] {
            let answer = f.call(method, path, token, json!({})).await;
            assert!(answer.status.is_client_error(), "{method} {path}: {}", answer.status);
        }
    }
    // A method in a header is no method.
    for name in ["x-http-method-override", "x-method-override", "x-original-url", "x-rewrite-url"] {
        let request = request("GET", "/healthz").header(name, "/v1/orders");
        let answer = f.send(request.body(Body::empty()).expect("a request")).await;
        assert_eq!(answer.body, json!({"status": "ok"}));
    }
    for method in ["TRACE", "CONNECT", "PUT", "DELETE", "PATCH", "PROPFIND"] {
        let answer = f.call(method, "/v1/orders", &token, json!({})).await;
        assert!(answer.status.is_client_error(), "{method}: {}", answer.status);
    }
    let answer = f.call("HEAD", "/v1/orders", "", json!({})).await;
    assert_eq!(answer.status, 401);
}

#[tokio::test]
async fn sql_in_every_string_is_a_string() {
    for f in Fixture::each().await {
        let admin = f.plain("ada", Role::Admin).await;
        for text in
            ["'; DROP TABLE latchwork_server_tokens; --", "\" OR 1=1 --", "%_\\", "\u{202e}x"]
        {
            let body =
                json!({"name": text, "role": "reviewer", "types": [text], "key_prefixes": [text]});
            let made = f.post("/v1/tokens", &admin, body).await;
            // An entry that would be wider than the maker's is none: ada has no limits.
            let secret = made.ok()["secret"].as_str().expect("its text").to_owned();
            let me = f.get("/v1/whoami", &secret).await.ok();
            assert_eq!((&me["actor"]["id"], &me["types"][0]), (&json!(text), &json!(text)));
            assert_eq!(f.get("/v1/orders", &secret).await.ok()["orders"], json!([]));
            assert_eq!(f.get("/v1/agents", &secret).await.ok()["agents"], json!([]));
            f.get("/v1/events", &secret).await.ok();
            let encoded: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
            for path in
                ["/v1/tokens/", "/v1/tokens?after=", "/v1/tokens?limit=", "/v1/events?type="]
            {
                let answer = f.get(&format!("{path}{encoded}"), &admin).await;
                assert!(answer.status.as_u16() < 500, "{path}{text}: {}", answer.text);
            }
        }
        assert_eq!(f.tokens.list(None, 100).await.expect("the table is there").len(), 5);
        let nul = json!({"name": "a\0b", "role": "agent"});
        f.post("/v1/tokens", &admin, nul).await.refused(400, "invalid_argument");
    }
}

#[tokio::test]
async fn nesting_is_bounded() {
    let f = Fixture::new().await;
    let token = f.plain("ada", Role::Admin).await;
    let nested = |depth: usize| {
        let value = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        format!(r#"{{"type": "red", "payload": {{"texts": [{value}]}}}}"#)
    };
    for (depth, status) in [(100, 201), (128, 400), (100_000, 400)] {
        let request = request("POST", "/v1/orders")
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {token}"));
        let answer = f.send(request.body(Body::from(nested(depth))).expect("a request")).await;
        assert_eq!(answer.status.as_u16(), status, "{depth}: {}", answer.text);
    }
}

#[tokio::test]
async fn too_many_waiting_requests_are_told_when_to_come_back() {
    let f = Fixture::new().await;
    let token = f.plain("ada", Role::Agent).await;
    let stream = || {
        let request = request("GET", "/v1/events")
            .header("authorization", format!("Bearer {token}"))
            .header("accept", "text/event-stream")
            .header("accept-encoding", "gzip");
        request.body(Body::empty()).expect("a request")
    };
    let mut open = Vec::new();
    for _ in 0..8 {
        let response =
            tower::ServiceExt::oneshot(f.router.clone(), stream()).await.expect("infallible");
        assert_eq!(response.status(), 200);
        assert!(!response.headers().contains_key("content-encoding"), "a stream is not held back");
        open.push(response);
    }
    let answer = f.send(stream()).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.headers["retry-after"]),
        (429, &"1".parse().unwrap())
    );
    let poll = f.post("/v1/items/checkout", &token, json!({"wait_ms": 100})).await;
    poll.refused(429, "too_many_waiting");
    f.post("/v1/items/checkout", &token, json!({})).await.ok();
    open.pop();
    let poll = f.post("/v1/items/checkout", &token, json!({"wait_ms": 10})).await;
    poll.ok();
}

#[tokio::test]
async fn answers_are_compressed_for_those_who_ask() {
    let f = Fixture::new().await;
    // Without a token the name of another machine would be refused.
    f.plain("ada", Role::Reader).await;
    let request = request("GET", "/openapi.json").header("accept-encoding", "gzip");
    let answer = f.send(request.body(Body::empty()).expect("a request")).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.headers["content-encoding"]),
        (200, &"gzip".parse().unwrap())
    );
    let plain = f.get("/openapi.json", "").await;
    assert!(!plain.headers.contains_key("content-encoding") && plain.body["paths"].is_object());
    // A refusal that is rendered inside is whole, compressed or not.
    let request = crate::support::request("GET", "/v1/nothing").header("accept-encoding", "gzip");
    let answer = f.send(request.body(Body::empty()).expect("a request")).await;
    assert_eq!(answer.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_idle_connections_hold_nobody_up() {
    let f = Fixture::new().await;
    let (_, token) = f.token(NewToken::new("ada", Role::Reader)).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let options = ServeOptions { any_address: true, ..ServeOptions::default() };
    let (router, shutdown) = (f.router.clone(), f.shutdown.clone());
    let server =
        tokio::spawn(async move { serve_with(listener, router, &shutdown, options).await });
    // Both ends are in this process, so twice as many descriptors.
    let count = idle_connections();
    let mut idle = Vec::new();
    for at in 0..count {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connected");
        if at % 2 == 0 {
            // Half of them begin a request and do not go on.
            stream.write_all(b"GET /v1/orders HTTP/1.1\r\nhost: x\r\n").await.expect("sent");
        }
        idle.push(stream);
    }
    let ask = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connected");
        let head = format!(
            "GET /v1/orders HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("readable");
        answer
    };
    let answer = tokio::time::timeout(Duration::from_secs(10), ask).await.expect("not held up");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    f.shutdown.begin();
    // Idle connections do not hold up the end either.
    let ended = tokio::time::timeout(Duration::from_secs(18), server).await.expect("it ends");
    ended.expect("no panic").expect("no error");
    drop(idle);
}

/// 2,000, or what the limit of descriptors allows once it is raised as far as it goes.
fn idle_connections() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let limit = getrlimit(Resource::Nofile);
    limit.current.map_or(2_000, |most| (most.saturating_sub(200) / 2).min(2_000))
}
