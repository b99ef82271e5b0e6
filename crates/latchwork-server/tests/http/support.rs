//! A router on a file of its own, and requests to it.

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{HeaderMap, Request, StatusCode};
use latchwork_flow::Contexts;
use latchwork_lock::Locks;
use latchwork_server::{App, Settings, Shutdown, router};
use latchwork_work::{
    Diff, DynamicOrderType, FailurePolicy, OrderContent, OrderTypes, PartSettings, PlannedItem,
    RetryPolicy, ReviewSettings, TypeSettings, WorkManager,
};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tower::ServiceExt as _;

pub(crate) struct Fixture {
    pub(crate) work: WorkManager,
    pub(crate) locks: Locks,
    pub(crate) flows: Contexts,
    pub(crate) router: Router,
    pub(crate) shutdown: Shutdown,
    pub(crate) url: String,
    _dir: Option<std::sync::Arc<tempfile::TempDir>>,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
    pub(crate) text: String,
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
        Self::at(url, Some(dir)).await
    }

    /// On a schema of its own. A missing server is named on a laptop, and a failure in CI.
    pub(crate) async fn postgres() -> Option<Self> {
        let Ok(server) = std::env::var("LATCHWORK_TEST_POSTGRES") else {
            assert!(std::env::var_os("CI").is_none(), "no server: `scripts/services up postgres`");
            println!("skipped: LATCHWORK_TEST_POSTGRES is not set");
            return None;
        };
        let name = format!("http_{}", uuid::Uuid::now_v7().simple());
        let mut admin = PgConnection::connect(&server).await.expect("the server is there");
        let made = sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA {name}")));
        made.execute(&mut admin).await.expect("a schema");
        Some(Self::at(format!("{server}?options[search_path]={name}"), None).await)
    }

    /// Another server on the same database.
    pub(crate) async fn again(first: &Fixture) -> Self {
        Self::at(first.url.clone(), None).await
    }

    async fn at(url: String, dir: Option<tempfile::TempDir>) -> Self {
        let work = WorkManager::builder(types()).connect(&url).await.expect("a store");
        let shutdown = Shutdown::new();
        let locks = Locks::connect(&url).await.expect("locks");
        let flows = Contexts::connect(&url).await.expect("flows");
        let app = App::new(work.clone(), Settings::default(), &shutdown)
            .with_locks(locks.clone())
            .with_flows(flows.clone());
        Fixture {
            work,
            locks,
            flows,
            router: router(app),
            shutdown,
            url,
            _dir: dir.map(std::sync::Arc::new),
        }
    }

    /// The same data behind another router.
    pub(crate) fn with(&self, router: Router, locks: Locks, shutdown: Shutdown) -> Self {
        let (work, flows, url) = (self.work.clone(), self.flows.clone(), self.url.clone());
        Fixture { work, locks, flows, router, shutdown, url, _dir: self._dir.clone() }
    }

    /// Applies what is approved.
    pub(crate) async fn apply(&self) {
        let worker = self.work.apply_worker("worker").expect("legal");
        while worker.apply_next().await.expect("applied").is_some() {}
    }

    /// An order of a type whose results are in, and the ids of its items.
    pub(crate) async fn submitted(&self, order_type: &str, texts: &[&str]) -> (String, Vec<Value>) {
        let body = json!({"type": order_type, "payload": {"texts": texts}});
        let order = self.post_as("/v1/orders", body, &[ADA]).await.ok()["order"]["id"].clone();
        self.hand_in(&order, |input| json!(format!("{}!", input.as_str().expect("a text")))).await;
        let path = format!("/v1/orders/{}", order.as_str().expect("an id"));
        let items = self.get(&format!("{path}/items")).await.ok();
        let ids = items["items"].as_array().expect("items").iter();
        (path, ids.map(|found| found["item"]["id"].clone()).collect())
    }

    /// Leases the items of an order and submits a result for each.
    pub(crate) async fn hand_in(&self, order: &Value, result: impl Fn(&Value) -> Value) {
        let got = json!({"order": order, "limit": 100});
        let got = self.post_as("/v1/items/checkout", got, &[AGENT]).await.ok();
        for lease in got["leases"].as_array().expect("leases") {
            let body = json!({"lease": lease["id"], "result": result(&lease["input"])});
            self.post_as("/v1/items/submit", body, &[AGENT]).await.ok();
        }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.expect("infallible");
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, 16 << 20).await.expect("a body");
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Answer { status: parts.status, headers: parts.headers, body, text }
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

/// The types of all tests.
fn types() -> OrderTypes {
    let split = |payload: &Value| {
        let texts = payload["texts"].as_array().into_iter().flatten();
        Ok(texts.map(|text| PlannedItem::new(text.clone())).collect())
    };
    let schema = json!({"type": "object", "required": ["texts"],
        "properties": {"texts": {"type": "array", "items": {"type": "string"}}}});
    let text = |name: &str| {
        DynamicOrderType::new(name)
            .payload_schema(schema.clone())
            .result_schema(json!({"type": "string", "minLength": 1}))
            .plan(split)
    };
    // Two reviewers, and a preview that says what apply does.
    let published = |order: &OrderContent| {
        let texts: Vec<_> = order.items.iter().map(|item| item.result.clone()).collect();
        Diff::between(json!([]), json!(texts)).summary("texts are published")
    };
    let review = ReviewSettings { approvals: 2, ..ReviewSettings::default() };
    let page = text("page")
        .settings(TypeSettings {
            review,
            failure: FailurePolicy::BestEffort,
            ..TypeSettings::default()
        })
        .preview(move |order| Box::pin(async move { Ok(Some(published(order))) }))
        .apply(move |order, _| Box::pin(async move { Ok(published(order)) }));
    let parts = PartSettings {
        required: vec!["title".to_owned()],
        schemas: [
            ("title".to_owned(), json!({"type": "string", "minLength": 1})),
            ("pages".to_owned(), json!({"type": "string"})),
        ]
        .into(),
        max_parts: 4,
        ..PartSettings::default()
    };
    let retry = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
    let article = DynamicOrderType::new("article")
        .settings(TypeSettings { parts, retry, ..TypeSettings::default() })
        .result_schema(json!({"type": "object", "required": ["title"]}));
    let mut types = OrderTypes::new();
    for one in [text("translation"), page, article] {
        types.add_dynamic(one).expect("legal");
    }
    types
}

/// One test on SQLite and one on PostgreSQL.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::support::Fixture::new().await).await;
            })*
        }
        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                if let Some(f) = crate::support::Fixture::postgres().await {
                    super::$name(f).await;
                }
            })*
        }
    };
}
pub(crate) use on_both;

pub(crate) fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(path).header("host", "localhost:8420")
}

pub(crate) const AGENT: (&str, &str) = ("latchwork-actor", "agent:a-1");
pub(crate) const ADA: (&str, &str) = ("latchwork-actor", "user:ada");
pub(crate) const BOB: (&str, &str) = ("latchwork-actor", "user:bob");
pub(crate) const CY: (&str, &str) = ("latchwork-actor", "user:cy");
