//! A server with tokens, on a database of its own.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{HeaderMap, Request, StatusCode};
use latchwork_flow::Contexts;
use latchwork_lock::{Locks, ManualClock};
use latchwork_server::{App, Metrics, NewToken, Role, Settings, Shutdown, Token, Tokens, router};
use latchwork_work::{DynamicOrderType, OrderTypes, PlannedItem, TypeSettings, WorkManager};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tower::ServiceExt as _;

/// One in a process.
static METRICS: LazyLock<Metrics> = LazyLock::new(|| Metrics::install().expect("the first"));

pub(crate) struct Fixture {
    pub(crate) work: WorkManager,
    pub(crate) tokens: Tokens,
    pub(crate) router: Router,
    pub(crate) shutdown: Shutdown,
    pub(crate) url: String,
    /// Judges tokens.
    pub(crate) clock: Arc<ManualClock>,
    _dir: Option<tempfile::TempDir>,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
    pub(crate) text: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) {
        let found = (self.status.as_u16(), &self.body["code"]);
        assert_eq!(found, (status, &json!(code)), "{}", self.text);
        assert_eq!(self.headers["content-type"], "application/problem+json");
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!(self.status.is_success(), "{} {}", self.status, self.text);
        self.body
    }
}

fn order_type(name: &str) -> DynamicOrderType {
    let split = |payload: &Value| {
        let texts = payload["texts"].as_array().into_iter().flatten();
        Ok(texts.map(|text| PlannedItem::new(text.clone())).collect())
    };
    DynamicOrderType::new(name).plan(split)
}

/// One whose plan limits each item by a key that it takes from the payload.
fn keyed(name: &str) -> DynamicOrderType {
    let split = |payload: &Value| {
        let keys = payload["texts"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Ok(keys.map(|key| PlannedItem::new(json!(key)).concurrency(key, 1)).collect())
    };
    // Its leases are over soon, for the test of what is counted.
    let (lease_ttl, heartbeat_every) = (Duration::from_secs(1), Duration::from_millis(500));
    let settings = TypeSettings { lease_ttl, heartbeat_every, ..TypeSettings::default() };
    DynamicOrderType::new(name).settings(settings).plan(split)
}

/// One whose items are leased one after another, by a key that it shares with other types.
fn in_line(name: &str) -> DynamicOrderType {
    let plan = |payload: &Value| Ok(vec![PlannedItem::new(payload.clone()).ordered("line")]);
    DynamicOrderType::new(name).plan(plan)
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite://{}", dir.path().join("work.db").display());
        Self::at(url, Some(dir)).await
    }

    /// On SQLite and on PostgreSQL. A missing server is named on a laptop, and a failure in CI.
    pub(crate) async fn each() -> Vec<Self> {
        let mut all = vec![Self::new().await];
        let Ok(server) = std::env::var("LATCHWORK_TEST_POSTGRES") else {
            assert!(std::env::var_os("CI").is_none(), "no server: `scripts/services up postgres`");
            println!("skipped: LATCHWORK_TEST_POSTGRES is not set");
            return all;
        };
        let name = format!("access_{}", uuid::Uuid::now_v7().simple());
        let mut admin = PgConnection::connect(&server).await.expect("the server is there");
        let made = sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA {name}")));
        made.execute(&mut admin).await.expect("a schema");
        all.push(Self::at(format!("{server}?options[search_path]={name}"), None).await);
        all
    }

    /// Another server on the same database.
    pub(crate) async fn again(&self) -> Self {
        Self::at(self.url.clone(), None).await
    }

    async fn at(url: String, dir: Option<tempfile::TempDir>) -> Self {
        let mut types = OrderTypes::new();
        for name in ["red", "blue"] {
            types.add_dynamic(order_type(name)).expect("legal");
        }
        types.add_dynamic(keyed("keyed")).expect("legal");
        for name in ["first", "second"] {
            types.add_dynamic(in_line(name)).expect("legal");
        }
        let work = WorkManager::builder(types).connect(&url).await.expect("a store");
        let clock = Arc::new(ManualClock::new());
        let tokens = Tokens::with_clock(&url, clock.clone()).await.expect("a store");
        let shutdown = Shutdown::new();
        let settings = Settings { max_waiting: 8, ..Settings::default() };
        let app = App::new(work.clone(), settings, &shutdown)
            .with_tokens(tokens.clone())
            .with_metrics(METRICS.clone())
            .with_locks(Locks::connect(&url).await.expect("locks"))
            .with_flows(Contexts::connect(&url).await.expect("flows"));
        Fixture { work, tokens, router: router(app), shutdown, url, clock, _dir: dir }
    }

    pub(crate) async fn token(&self, wanted: NewToken) -> (Token, String) {
        let (token, secret) = self.tokens.create(wanted, None).await.expect("a token");
        (token, secret.expose().to_owned())
    }

    /// A token without limits.
    pub(crate) async fn plain(&self, name: &str, role: Role) -> String {
        self.token(NewToken::new(name, role)).await.1
    }

    /// A token for orders of one type, and keys that begin with its name.
    pub(crate) async fn limited(&self, name: &str, role: Role, order_type: &str) -> String {
        let types = Some(vec![order_type.to_owned()]);
        let key_prefixes = Some(vec![format!("{order_type}/")]);
        self.token(NewToken { types, key_prefixes, ..NewToken::new(name, role) }).await.1
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.expect("infallible");
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, 16 << 20).await.expect("a body");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Answer { status: parts.status, headers: parts.headers, body, text }
    }

    pub(crate) async fn call(&self, method: &str, path: &str, token: &str, body: Value) -> Answer {
        let mut request = request(method, path);
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let body = match method {
            "POST" => {
                request = request.header("content-type", "application/json");
                Body::from(body.to_string())
            }
            _ => Body::empty(),
        };
        self.send(request.body(body).expect("a request")).await
    }

    pub(crate) async fn get(&self, path: &str, token: &str) -> Answer {
        self.call("GET", path, token, Value::Null).await
    }

    pub(crate) async fn post(&self, path: &str, token: &str, body: Value) -> Answer {
        self.call("POST", path, token, body).await
    }

    /// An order of this type with one item; its id.
    pub(crate) async fn propose(&self, token: &str, order_type: &str) -> String {
        let body = json!({"type": order_type, "payload": {"texts": [order_type]}});
        let made = self.post("/v1/orders", token, body).await.ok();
        made["order"]["id"].as_str().expect("an id").to_owned()
    }
}

/// A request as a client of another machine sends it.
pub(crate) fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(path).header("host", "latchwork.example:8420")
}
