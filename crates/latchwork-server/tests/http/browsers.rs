//! A web page cannot reach a server without tokens.

use axum::body::Body;
use http::Request;

use crate::support::{Fixture, request};

const BODY: &str = r#"{"type": "translation", "payload": {"texts": ["a"]}}"#;

#[tokio::test]
async fn a_name_that_was_pointed_at_loopback_is_refused() {
    let f = Fixture::new().await;
    for host in ["evil.example", "evil.example:8420", "127.0.0.1.evil.example", "192.168.0.1"] {
        let request = Request::builder().uri("/v1/orders").header("host", host);
        f.send(request.body(Body::empty()).expect("a request")).await.refused(403, "host_refused");
    }
    let two = request("GET", "/v1/orders").header("host", "evil.example");
    f.send(two.body(Body::empty()).expect("a request")).await.refused(403, "host_refused");
    let none = Request::builder().uri("/v1/orders").body(Body::empty()).expect("a request");
    f.send(none).await.refused(403, "host_refused");
}

#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let f = Fixture::new().await;
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("origin", "http://localhost:3000"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        let request = request("POST", "/v1/orders")
            .header("content-type", "application/json")
            .header(name, value);
        f.send(request.body(Body::from(BODY)).expect("a request"))
            .await
            .refused(403, "origin_refused");
    }
    // Nor does it help to send the header twice.
    for (name, own, foreign) in [
        ("origin", "http://localhost:8420", "https://evil.example"),
        ("sec-fetch-site", "same-origin", "cross-site"),
    ] {
        let two = request("GET", "/v1/orders").header(name, own).header(name, foreign);
        let answer = f.send(two.body(Body::empty()).expect("a request")).await;
        answer.refused(403, "origin_refused");
    }
    // Its own page is no other site.
    let own = request("GET", "/v1/orders").header("origin", "http://localhost:8420");
    f.send(own.body(Body::empty()).expect("a request")).await.ok();
}

#[tokio::test]
async fn a_form_cannot_send_json() {
    let f = Fixture::new().await;
    for media in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let request = request("POST", "/v1/orders").header("content-type", media);
        let answer = f.send(request.body(Body::from(BODY)).expect("a request")).await;
        answer.refused(415, "unsupported_media_type");
    }
    let bare = request("POST", "/v1/orders").body(Body::from(BODY)).expect("a request");
    f.send(bare).await.refused(415, "unsupported_media_type");
    assert_eq!(f.get("/v1/orders").await.ok()["orders"].as_array().map(Vec::len), Some(0));
}
