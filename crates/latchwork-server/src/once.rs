//! `Idempotency-Key` for what is not in the store of orders: locks, flows, tokens.
//!
//! The work layer stores a key with its effect, in one transaction. An effect elsewhere cannot be in it;
//! see [`KeyedEffect`](latchwork_work::KeyedEffect) for what holds then.

use std::future::Future;
use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::Instrument as _;

use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::routes::replayed;

/// How long a key is taken for an effect without an answer: far longer than any of them takes. Only where
/// the server died meanwhile is it waited for.
pub(crate) const LASTS: Duration = Duration::from_secs(60);

/// An answer, and whether it is that of an earlier request with the same key.
pub(crate) struct Once<T> {
    pub(crate) answer: T,
    pub(crate) replayed: bool,
}

impl<T: Serialize> Once<T> {
    /// As it is sent.
    pub(crate) fn into_response(self) -> Response {
        replayed(self.replayed, Json(self.answer).into_response())
    }
}

/// Has an effect once for all requests with the caller's key; without a key, for this one.
///
/// Under a key it goes on to its end where the client goes away, so that a key says what became of it.
/// A refusal is not kept: the request may be sent again.
pub(crate) async fn once<T, F>(
    app: &App,
    caller: &Caller,
    scope: &'static str,
    request: &impl Serialize,
    effect: F,
) -> Result<Once<T>, ApiError>
where
    T: Serialize + DeserializeOwned + Send + Sync + 'static,
    F: Future<Output = Result<T, ApiError>> + Send + 'static,
{
    let Some(key) = caller.client(app).keyed_effect(scope, request)? else {
        return Ok(Once { answer: effect.await?, replayed: false });
    };
    if let Some(answer) = key.begin(LASTS).await? {
        return Ok(Once { answer, replayed: true });
    }
    let kept = async move {
        let done = effect.await;
        let kept = match &done {
            Ok(answer) => key.finish(answer).await.map(drop),
            Err(_) => key.abandon().await,
        };
        if let Err(error) = kept {
            tracing::warn!(scope, %error, "an idempotency key could not be stored with its answer");
        }
        done
    };
    let done = tokio::spawn(kept.in_current_span());
    match done.await {
        Ok(done) => Ok(Once { answer: done?, replayed: false }),
        Err(ended) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
        Err(_) => {
            let detail = "the server ends; send the request again, with its key";
            let refusal = ApiError::new(503, "work_store_unavailable", detail);
            Err(refusal.retry_after(Duration::from_secs(1)))
        }
    }
}
