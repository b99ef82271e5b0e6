//! A router on a file of its own, and requests to it.

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{HeaderMap, Request, StatusCode};
use latchwork_flow::Contexts;
use latchwork_lock::Locks;
use latchwork_server::{App, Settings, Shutdown, router};
use latchwork_work::{DynamicOrderType, OrderTypes, PlannedItem, WorkManager};
use serde_json::{Value, json};
use tower::ServiceExt as _;

pub(crate) struct Fixture {
    pub(crate) work: WorkManager,
    pub(crate) locks: Locks,
    pub(crate) flows: Contexts,
    pub(crate) router: Router,
    pub(crate) shutdown: Shutdown,
    pub(crate) url: String,
    _dir: std::sync::Arc<tempfile::TempDir>,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("ASCII"))
    }

    /// A refusal with this status and code, in the form that every refusal has.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) {
        assert_eq!(
            (self.status.as_u16(), &self.body["code"]),
            (status, &json!(code)),
            "{}",
            self.body
        );
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(self.body["status"], status);
        assert_eq!(self.body["request_id"], self.header("x-request-id"));
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!(self.status.is_success(), "{} {}", self.status, self.body);
        self.body
    }
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite://{}", dir.path().join("work.db").display());
        let split = |payload: &Value| {
            let texts = payload["texts"].as_array().into_iter().flatten();
            Ok(texts.map(|text| PlannedItem::new(text.clone())).collect())
        };
        let text = DynamicOrderType::new("translation")
            .payload_schema(json!({"type": "object", "required": ["texts"],
                "properties": {"texts": {"type": "array", "items": {"type": "string"}}}}))
            .result_schema(json!({"type": "string", "minLength": 1}))
            .plan(split);
        let mut types = OrderTypes::new();
        types.add_dynamic(text).expect("legal");
        let work = WorkManager::builder(types).connect(&url).await.expect("a store");
        let shutdown = Shutdown::new();
        let locks = Locks::connect(&url).await.expect("locks");
        let flows = Contexts::connect(&url).await.expect("flows");
        let app = App::new(work.clone(), Settings::default(), &shutdown)
            .with_locks(locks.clone())
            .with_flows(flows.clone());
        Fixture { work, locks, flows, router: router(app), shutdown, url, _dir: dir.into() }
    }

    /// The same data behind another router.
    pub(crate) fn with(&self, router: Router, locks: Locks, shutdown: Shutdown) -> Self {
        let (work, flows, url) = (self.work.clone(), self.flows.clone(), self.url.clone());
        Fixture { work, locks, flows, router, shutdown, url, _dir: self._dir.clone() }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.expect("infallible");
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, 16 << 20).await.expect("a body");
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(request("GET", path).body(Body::empty()).expect("a request")).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.post_as(path, body, &[]).await
    }

    pub(crate) async fn post_as(
        &self,
        path: &str,
        body: Value,
        headers: &[(&str, &str)],
    ) -> Answer {
        let mut request = request("POST", path).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Body::from(body.to_string())).expect("a request")).await
    }

    pub(crate) async fn propose(&self, texts: &[&str]) -> Value {
        let body = json!({"type": "translation", "payload": {"texts": texts}});
        self.post("/v1/orders", body).await.ok()["order"].clone()
    }
}

pub(crate) fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(path).header("host", "localhost:8420")
}

pub(crate) const AGENT: (&str, &str) = ("latchwork-actor", "agent:a-1");
