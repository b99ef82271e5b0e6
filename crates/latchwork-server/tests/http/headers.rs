//! Headers and parameters with anything in them.

use axum::body::Body;
use http::HeaderValue;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::json;

use crate::support::{Fixture, on_both, request};

on_both![no_parameter_with_a_nul_is_a_failure_of_the_server];

/// Values that a client may send, legal ones among them.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        "-?[0-9]{0,24}".prop_map(String::into_bytes),
        "\"-?[0-9]{0,24}\"".prop_map(String::into_bytes),
        "(agent|user|system):[ -~]{0,300}".prop_map(String::into_bytes),
        "00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]".prop_map(String::into_bytes),
        "[ -~]{200,300}".prop_map(String::into_bytes),
    ]
}

const HEADERS: [&str; 8] = [
    "idempotency-key",
    "last-event-id",
    "if-match",
    "latchwork-actor",
    "traceparent",
    "x-request-id",
    "authorization",
    "accept",
];

#[tokio::test]
async fn no_value_of_a_header_is_a_failure_of_the_server() {
    let f = Fixture::new().await;
    let order = f.propose(&["a"]).await["id"].as_str().expect("an id").to_owned();
    // Streams end by themselves then, so that all of one can be read.
    f.shutdown.begin();
    let mut runner = TestRunner::deterministic();
    for round in 0..20 {
        for header in HEADERS {
            let bytes = value().new_tree(&mut runner).expect("a value").current();
            let Ok(sent) = HeaderValue::from_bytes(&bytes) else { continue };
            let lock = json!({"key": "a", "token": format!("{round:032x}")});
            for (method, path, body) in [
                ("GET", "/v1/events?limit=1".to_owned(), json!(null)),
                ("GET", format!("/v1/orders/{order}"), json!(null)),
                ("POST", "/v1/locks/acquire".to_owned(), lock),
                ("POST", format!("/v1/orders/{order}/comments"), json!({"text": "x"})),
            ] {
                let mut request = request(method, &path).header("content-type", "application/json");
                if header == "last-event-id" {
                    request = request.header("accept", "text/event-stream");
                }
                let request = request.header(header, sent.clone());
                let request = request.body(Body::from(body.to_string())).expect("a request");
                let answer = f.send(request).await;
                let status = answer.status.as_u16();
                assert!(status < 500, "{method} {path} {header}: {sent:?}: {}", answer.text);
                if status >= 400 {
                    assert_eq!(answer.body["status"], status, "{}", answer.text);
                }
            }
        }
    }
}

#[tokio::test]
async fn no_parameter_is_a_failure_of_the_server() {
    let f = Fixture::new().await;
    let mut runner = TestRunner::deterministic();
    let names = ["after", "limit", "page[size]", "page[cursor]", "filter[meta]", "sort", "order"];
    let paths = ["/v1/orders", "/v1/items", "/v1/events", "/v1/locks", "/v1/flows", "/v1/leases"];
    for _ in 0..12 {
        for name in names {
            let bytes = value().new_tree(&mut runner).expect("a value").current();
            let value: String = url::form_urlencoded::byte_serialize(&bytes).collect();
            for path in paths {
                let called =
                    format!("{path}?{}={value}", name.replace('[', "%5B").replace(']', "%5D"));
                let answer = f.get(&called).await;
                assert!(answer.status.as_u16() < 500, "{called}: {}", answer.text);
            }
        }
    }
}

async fn no_parameter_with_a_nul_is_a_failure_of_the_server(f: Fixture) {
    let id = f.propose(&["a"]).await["id"].as_str().expect("an id").to_owned();
    let api = f.get("/openapi.json").await.ok();
    let mut tried = 0;
    for (path, methods) in api["paths"].as_object().expect("paths") {
        let path = path.replace("{id}", &id).replace("{name}", "page").replace("{key}", "k");
        let parameters = methods["get"]["parameters"].as_array().into_iter().flatten();
        for parameter in parameters.filter(|parameter| parameter["in"] == "query") {
            let name = parameter["name"].as_str().expect("a name");
            let name = name.replace('[', "%5B").replace(']', "%5D");
            for value in ["%00", "a%00b"] {
                let called = format!("{path}?{name}={value}");
                let answer = f.get(&called).await;
                assert_eq!(answer.status, 400, "{called}: {}", answer.text);
                tried += 1;
            }
        }
    }
    assert!(tried >= 60, "{tried}");
}
