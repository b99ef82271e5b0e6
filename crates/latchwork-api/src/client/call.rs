//! One call: what is sent, and what comes back.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use url::form_urlencoded;

use super::error::{Error, ErrorKind, Result};
use super::{Client, transport};
use crate::{ACTOR, IDEMPOTENCY_KEY, IDEMPOTENT_REPLAYED, PROBLEM_JSON, Problem};

/// One call of a server. Await it for its answer, or [`reply`](Self::reply) for what came with it.
///
/// Cancel safety: a call that is dropped may have had its effect; with a [`key`](Self::key) it can be
/// sent again.
#[must_use = "a call does nothing unless it is awaited"]
#[derive(Debug)]
pub struct ApiCall<T> {
    client: Client,
    method: Method,
    path: String,
    body: Result<Option<Vec<u8>>>,
    headers: Result<HeaderMap>,
    timeout: Duration,
    answer: PhantomData<fn() -> T>,
}

/// An answer, and what came with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<T> {
    /// The answer.
    pub value: T,
    /// Whether it is that of an earlier request with the same key.
    pub replayed: bool,
    /// The version of the order, for [`ApiCall::if_version`].
    pub version: Option<i64>,
    /// The request's id, as in the server's log.
    pub request_id: Option<String>,
}

impl<T> ApiCall<T> {
    /// The server does it once, however often it is sent with this key by the same caller.
    pub fn key(self, key: &str) -> Self {
        self.with(IDEMPOTENCY_KEY, "key", key)
    }

    /// The server refuses it with `version_mismatch` unless the order has this version.
    pub fn if_version(self, version: i64) -> Self {
        self.with("if-match", "version", &format!("\"{version}\""))
    }

    /// How long the answer may take, instead of the client's own setting.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    fn with(mut self, name: &'static str, what: &'static str, value: &str) -> Self {
        self.headers = self.headers.and_then(|mut headers| {
            let value = HeaderValue::from_str(value).map_err(|_| {
                Error::invalid(what, "it holds characters that no header can carry")
            })?;
            headers.insert(name, value);
            Ok(headers)
        });
        self
    }

    /// Longer by the wait of a long poll.
    pub(super) fn waits(mut self, wait_ms: u64) -> Self {
        self.timeout = self.timeout.saturating_add(Duration::from_millis(wait_ms));
        self
    }
}

impl<T: DeserializeOwned> ApiCall<T> {
    /// Sends it, and gives the answer with what came with it.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] with the server's problem, [`ErrorKind::Unreachable`],
    /// [`ErrorKind::TimedOut`], [`ErrorKind::Unreadable`].
    pub async fn reply(self) -> Result<Reply<T>> {
        let (client, timeout) = (self.client, self.timeout);
        let base = client.base.clone();
        let answered = async {
            let request = client.request(self.method, &self.path, self.headers?, self.body?)?;
            let response = client.http.send(&base, request).await?;
            let (head, body) = response.into_parts();
            let body = transport::body_of(&base, body).await?;
            let headers = head.headers;
            if !head.status.is_success() {
                return Err(refusal(base.address(), head.status, &headers, &body));
            }
            let value = serde_json::from_slice(&body).map_err(|error| {
                unreadable(base.address(), head.status, format!("its body is not: {error}"))
            })?;
            let text = |name: &str| Some(headers.get(name)?.to_str().ok()?.to_owned());
            let version = text("etag").and_then(|tag| tag.trim_matches('"').parse().ok());
            let replayed = headers.contains_key(IDEMPOTENT_REPLAYED);
            Ok(Reply { value, replayed, version, request_id: text(crate::REQUEST_ID) })
        };
        let timed = tokio::time::timeout(timeout, answered).await;
        timed.unwrap_or_else(|_| Err(timed_out(base.address(), timeout)))
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for ApiCall<T> {
    type Output = Result<T>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { Ok(self.reply().await?.value) })
    }
}

impl Client {
    pub(super) fn get<T>(&self, path: impl Into<String>) -> ApiCall<T> {
        self.call(Method::GET, path.into(), Ok(None))
    }

    /// A listing by pairs of names and values.
    pub(super) fn find<T, N: AsRef<str>, V: AsRef<str>>(
        &self,
        path: &str,
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> ApiCall<T> {
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
        let mark = if query.is_empty() { "" } else { "?" };
        self.get(format!("{path}{mark}{query}"))
    }

    pub(super) fn post<T>(&self, path: impl Into<String>, body: &impl Serialize) -> ApiCall<T> {
        let body = serde_json::to_vec(body)
            .map_err(|error| Error::invalid("request", format!("it cannot be written: {error}")));
        self.call(Method::POST, path.into(), body.map(Some))
    }

    fn call<T>(&self, method: Method, path: String, body: Result<Option<Vec<u8>>>) -> ApiCall<T> {
        ApiCall {
            client: self.clone(),
            method,
            path,
            body,
            headers: Ok(HeaderMap::new()),
            timeout: self.timeout,
            answer: PhantomData,
        }
    }

    pub(super) fn request(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Option<Vec<u8>>,
    ) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::new(Full::new(Bytes::from(body.clone().unwrap_or_default())));
        *request.method_mut() = method;
        *request.uri_mut() = self.base.uri(path)?;
        *request.headers_mut() = headers;
        let headers = request.headers_mut();
        if body.is_some() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(token) = &self.token {
            headers.insert(header::AUTHORIZATION, token.clone());
        }
        if let Some(actor) = &self.actor {
            headers.insert(ACTOR, actor.clone());
        }
        Ok(request)
    }

    /// Opens a stream; the answer's body goes on for as long as it is read.
    pub(super) async fn open(&self, path: &str, headers: HeaderMap) -> Result<Response<Incoming>> {
        let request = self.request(Method::GET, path, headers, None)?;
        let opened = self.http.send(&self.base, request);
        let address = self.base.address();
        let response = tokio::time::timeout(self.timeout, opened).await;
        let response = response.unwrap_or_else(|_| Err(timed_out(address, self.timeout)))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let body = transport::body_of(&self.base, body).await?;
        Err(refusal(address, head.status, &head.headers, &body))
    }
}

fn timed_out(address: &str, timeout: Duration) -> Error {
    ErrorKind::TimedOut { address: address.to_owned(), timeout }.into()
}

fn unreadable(address: &str, status: StatusCode, reason: String) -> Error {
    ErrorKind::Unreadable { address: address.to_owned(), status: status.as_u16(), reason }.into()
}

/// What an answer says that is no success.
fn refusal(address: &str, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Error {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let media = text(header::CONTENT_TYPE).unwrap_or_default();
    if !media.starts_with(PROBLEM_JSON) {
        let reason = format!("its media type is {media:?}, not {PROBLEM_JSON}");
        return unreadable(address, status, reason);
    }
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => {
            let retry_after = text(header::RETRY_AFTER).and_then(|span| span.parse().ok());
            let retry_after = retry_after.map(Duration::from_secs);
            ErrorKind::Refused { problem: Box::new(problem), retry_after }.into()
        }
        Err(error) => unreadable(address, status, format!("its problem cannot be read: {error}")),
    }
}
