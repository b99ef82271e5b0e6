//! Taking, keeping and giving back leases.

use std::future::Future;
use std::time::Duration;

use axum::Json as Answer;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use latchwork_api as api;
use latchwork_api::Problems;
use latchwork_lock::Holder;
use latchwork_lock::provider::{AcquireRequest, Acquired, Grant, LockProvider as _, Proof, Wait};
use serde::Serialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::extract::Json;
use crate::lock_calls::{GrantedLease, KEPT, LockCalls, RequesterInfo, millis, ttl};
use crate::once::{LASTS, once};
use crate::routes::replayed;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(acquire))
        .routes(routes!(wait))
        .routes(routes!(claim))
        .routes(routes!(renew))
        .routes(routes!(release))
        .routes(routes!(resume))
}

/// Takes a lease in one call, and waits for it where told: the form for scripts.
///
/// Its `remaining_ms` is the server's: the ttl began when the server got the lease. A client that counts
/// on its lease to the last second waits and claims instead. Repeated with the same token, the request
/// gets the same lease with its whole ttl again, or a new one where that is over; with an
/// `Idempotency-Key` it never gets a second lease. One that waited in
/// vain keeps its place for ten seconds, as a poll does; release the token to leave the queue at once.
#[utoipa::path(post, path = "/v1/locks/acquire", operation_id = "acquire_lock", tag = "locks",
    params(("Idempotency-Key" = Option<String>, Header,
        description = "A repeated request gets the same lease, as it is now, or `lease_expired`")),
    request_body = api::AcquireLock,
    responses((status = 200, body = api::HeldLock), Problems))]
async fn acquire(
    State(app): State<App>,
    caller: Caller,
    Json(asked): Json<api::AcquireLock>,
) -> Result<Response, ApiError> {
    let calls = LockCalls::new(&app, &caller, &asked.key)?;
    let patience = app.wait_span(asked.wait_ms)?;
    // How long it waits is no part of what it asks for, as for a checkout.
    let request = api::AcquireLock { wait_ms: 0, ..asked.clone() };
    let attempt = take(&app, &calls, &asked, patience);
    keyed_lease(&app, &calls, ("acquire_lock", &request), &asked.token, patience, attempt).await
}

/// Takes a lease, and waits for it this long.
async fn take(
    app: &App,
    calls: &LockCalls<'_>,
    asked: &api::AcquireLock,
    patience: Duration,
) -> Result<api::HeldLock, ApiError> {
    let ttl = ttl(asked.ttl_ms)?;
    let requester = RequesterInfo {
        token: &asked.token,
        mode: asked.mode,
        owner: asked.owner.as_deref(),
        note: asked.note.as_deref(),
    };
    let request = calls.request(&requester, ttl)?;
    if patience.is_zero() {
        let sent = calls.now();
        return match calls.provider.acquire(&request).await? {
            // A reservation that had been made for the token is shorter than what is asked for.
            Acquired::Granted(grant) if grant.waited => confirm(calls, &request, ttl).await,
            Acquired::Granted(grant) => Ok(calls.held(&grant, ttl, sent)),
            Acquired::Taken(holder) => Err(taken(&asked.key, holder.as_deref())),
        };
    }
    match turn(app, calls, &requester, patience).await? {
        Turn::Ready => confirm(calls, &request, ttl).await,
        // Its place is not given up here: this may be a connection that its client has left long ago, and
        // the client may hold the key by now, through another server.
        Turn::Over => Err(taken(&asked.key, None)),
        Turn::Ending => {
            let detail = "the server ends, and the place in the queue is kept: ask another server";
            let refusal = ApiError::new(503, "lock_unavailable", detail);
            Err(refusal.retry_after(Duration::from_secs(1)))
        }
    }
}

/// Waits for a turn, in the queue of the key.
///
/// Where `ready` is true the key is reserved for the token: claim it within `claim_within_ms`, and count
/// the lease from before the claim was sent. Where it is false the token keeps its place for
/// `kept_for_ms`: wait again, at any server. A cut connection or a dead server takes nothing away.
#[utoipa::path(post, path = "/v1/locks/wait", operation_id = "wait_for_lock", tag = "locks",
    request_body = api::WaitForLock,
    responses((status = 200, body = api::LockTurn), Problems))]
async fn wait(
    State(app): State<App>,
    caller: Caller,
    Json(asked): Json<api::WaitForLock>,
) -> Result<Answer<api::LockTurn>, ApiError> {
    let calls = LockCalls::new(&app, &caller, &asked.key)?;
    let patience = app.wait_span(asked.wait_ms)?;
    let requester = RequesterInfo {
        token: &asked.token,
        mode: asked.mode,
        owner: asked.owner.as_deref(),
        note: asked.note.as_deref(),
    };
    let turn = turn(&app, &calls, &requester, patience).await?;
    let ready = matches!(turn, Turn::Ready);
    Ok(Answer(api::LockTurn {
        ready,
        claim_within_ms: ready.then(|| millis(reservation(&calls))),
        kept_for_ms: (!ready).then(|| millis(KEPT)),
    }))
}

/// Confirms that the turn was taken: the whole ttl begins.
///
/// Refused with `lock_lost` where the reservation has passed on; then wait again, at the end of the queue.
#[utoipa::path(post, path = "/v1/locks/claim", operation_id = "claim_lock", tag = "locks",
    params(("Idempotency-Key" = Option<String>, Header,
        description = "A repeated request gets the same lease, as it is now, or `lease_expired`")),
    request_body = api::ClaimLock,
    responses((status = 200, body = api::HeldLock), Problems))]
async fn claim(
    State(app): State<App>,
    caller: Caller,
    Json(asked): Json<api::ClaimLock>,
) -> Result<Response, ApiError> {
    let calls = LockCalls::new(&app, &caller, &asked.key)?;
    let ttl = ttl(asked.ttl_ms)?;
    let requester = RequesterInfo {
        token: &asked.token,
        mode: api::LockMode::Exclusive,
        owner: None,
        note: None,
    };
    let request = calls.request(&requester, ttl)?;
    let attempt = confirm(&calls, &request, ttl);
    let none = Duration::ZERO;
    keyed_lease(&app, &calls, ("claim_lock", &asked), &asked.token, none, attempt).await
}

/// Lets a lease last its whole ttl again.
#[utoipa::path(post, path = "/v1/locks/renew", operation_id = "renew_lock", tag = "locks",
    request_body = api::ClaimLock,
    responses((status = 200, body = api::RenewedLock), Problems))]
async fn renew(
    State(app): State<App>,
    caller: Caller,
    Json(asked): Json<api::ClaimLock>,
) -> Result<Answer<api::RenewedLock>, ApiError> {
    let calls = LockCalls::new(&app, &caller, &asked.key)?;
    let (ttl, token) = (ttl(asked.ttl_ms)?, calls.token(&asked.token)?);
    if !calls.provider.renew(calls.proof(token), ttl).await? {
        return Err(calls.lost("it ran out, was broken or was released; check what was done"));
    }
    Ok(Answer(api::RenewedLock { key: asked.key.clone(), ttl_ms: millis(ttl) }))
}

/// Ends a lease, or leaves the queue.
#[utoipa::path(post, path = "/v1/locks/release", operation_id = "release_lock", tag = "locks",
    params(("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once")),
    request_body = api::ReleaseLock,
    responses((status = 200, body = api::ReleasedLock), Problems))]
async fn release(
    State(app): State<App>,
    caller: Caller,
    Json(asked): Json<api::ReleaseLock>,
) -> Result<Response, ApiError> {
    let calls = LockCalls::new(&app, &caller, &asked.key)?;
    let (token, key) = (calls.token(&asked.token)?, calls.key.clone());
    let provider = calls.provider.clone();
    let effect = async move {
        let released = provider.release(Proof { key: &key, token }).await?;
        Ok(api::ReleasedLock { released })
    };
    Ok(once(&app, &caller, "release_lock", &asked, effect).await?.into_response())
}

/// Goes on with a lease under a new secret and a higher fence; the old secret is worth nothing then.
#[utoipa::path(post, path = "/v1/locks/resume", operation_id = "resume_lock", tag = "locks",
    params(("Idempotency-Key" = Option<String>, Header,
        description = "A repeated request gets the same lease, as it is now, or `lease_expired`")),
    request_body = api::ResumeLock,
    responses((status = 200, body = api::HeldLock), Problems))]
async fn resume(
    State(app): State<App>,
    caller: Caller,
    Json(asked): Json<api::ResumeLock>,
) -> Result<Response, ApiError> {
    let calls = LockCalls::new(&app, &caller, &asked.key)?;
    let attempt = rotate(&calls, &asked);
    let none = Duration::ZERO;
    keyed_lease(&app, &calls, ("resume_lock", &asked), &asked.new_token, none, attempt).await
}

/// Puts a lease under its new secret.
async fn rotate(calls: &LockCalls<'_>, asked: &api::ResumeLock) -> Result<api::HeldLock, ApiError> {
    let ttl = ttl(asked.ttl_ms)?;
    let (old, new) = (calls.token(&asked.token)?, calls.token(&asked.new_token)?);
    let sent = calls.now();
    let grant = calls.provider.rotate(calls.proof(old), new, ttl).await?;
    let grant = grant.ok_or_else(|| calls.lost("it ran out, or somebody resumed it before"))?;
    // A repeated request finds the lease that the first one got, which began earlier.
    if !calls.provider.renew(calls.proof(new), ttl).await? {
        return Err(calls.lost("it has ended meanwhile"));
    }
    Ok(calls.held(&grant, ttl, sent))
}

/// Answers with a lease, which a key stands for: what is stored is which lease it is, and a repeated
/// request is told how that one stands.
///
/// A twin is let in: it has the same secret, so it finds the same place and the same lease. It must be,
/// since a client whose connection was cut waits on with the same request. Where the first one is let in so
/// late that the lease of its twin is over, it gives its own back.
async fn keyed_lease(
    app: &App,
    calls: &LockCalls<'_>,
    (scope, request): (&'static str, &impl Serialize),
    token: &api::LockToken,
    patience: Duration,
    attempt: impl Future<Output = Result<api::HeldLock, ApiError>>,
) -> Result<Response, ApiError> {
    let Some(key) = calls.caller.client(app).keyed_effect(scope, request)? else {
        return Ok(Answer(attempt.await?).into_response());
    };
    if let Some(granted) = key.join(patience + LASTS).await? {
        return Ok(replayed(true, Answer(calls.as_it_is_now(&granted).await?)));
    }
    match attempt.await {
        Ok(held) => {
            let granted = GrantedLease {
                fence: held.fence,
                previous_fence: held.previous_fence,
                waited: held.waited,
            };
            match key.finish(&granted).await? {
                Some(before) if before.fence != granted.fence => {
                    calls.provider.release(calls.proof(calls.token(token)?)).await?;
                    Ok(replayed(true, Answer(calls.as_it_is_now(&before).await?)))
                }
                _ => Ok(Answer(held).into_response()),
            }
        }
        // Nothing was taken, or nobody knows: the same request finds out.
        Err(refused) => {
            if let Err(error) = key.abandon().await {
                tracing::debug!(scope, %error, "an idempotency key was not given back");
            }
            Err(refused)
        }
    }
}

/// What came of waiting for a turn.
enum Turn {
    /// The key is reserved for the token.
    Ready,
    /// The time to wait is over; the place is kept.
    Over,
    /// The server ends; the place is kept.
    Ending,
}

/// Waits for the turn of a token, no longer than this.
async fn turn(
    app: &App,
    calls: &LockCalls<'_>,
    requester: &RequesterInfo<'_>,
    patience: Duration,
) -> Result<Turn, ApiError> {
    if !calls.locks.capabilities().keeps_places() {
        let detail = "the lock backend of this server keeps no places in queues, so nobody can wait \
                      here: ask /v1/locks/acquire with wait_ms 0, and again after a second or so, as \
                      Retry-After says; a server with its locks in SQLite or PostgreSQL lets callers \
                      wait";
        return Err(ApiError::new(501, "not_supported", detail));
    }
    let _place = if patience.is_zero() { None } else { Some(app.waiting()?) };
    let request = calls.request(requester, reservation(calls))?.with_wait(Wait::For(patience));
    let (mut ending, begun) = (app.shutdown.clone(), calls.now());
    let turn = tokio::select! {
        // The place is kept when this is dropped, so the client goes on waiting at another server.
        turn = calls.provider.acquire(&request) => match turn? {
            Acquired::Granted(_) => Turn::Ready,
            Acquired::Taken(_) => Turn::Over,
        },
        _ = ending.wait_for(|ending| *ending) => Turn::Ending,
    };
    crate::metrics::lock_wait(matches!(turn, Turn::Ready), calls.now().since(begun));
    Ok(turn)
}

/// How long a turn is reserved for a client that must claim it.
fn reservation(calls: &LockCalls<'_>) -> Duration {
    calls.locks.capabilities().claim_window()
}

/// Starts the whole ttl of a lease or reservation that the token has.
async fn confirm(
    calls: &LockCalls<'_>,
    request: &AcquireRequest,
    ttl: Duration,
) -> Result<api::HeldLock, ApiError> {
    let sent = calls.now();
    if !calls.provider.renew(calls.proof(request.token), ttl).await? {
        return Err(calls.lost("its turn has passed on; wait for it again"));
    }
    let grant = grant_of(calls, request).await?;
    let grant = grant.ok_or_else(|| calls.lost("it was broken in this moment"))?;
    // Who waits for a turn must expect that others had the key meanwhile.
    Ok(api::HeldLock { waited: true, ..calls.held(&grant, ttl, sent) })
}

/// The grant that a token has: asked for again, it is answered as it is.
async fn grant_of(
    calls: &LockCalls<'_>,
    request: &AcquireRequest,
) -> Result<Option<Grant>, ApiError> {
    match calls.provider.acquire(request).await? {
        Acquired::Granted(grant) => Ok(Some(grant)),
        Acquired::Taken(_) => Ok(None),
    }
}

fn taken(key: &str, holder: Option<&Holder>) -> ApiError {
    let detail = match holder {
        Some(holder) => format!(
            "{key:?} is held by {}, for {} ms more unless renewed",
            holder.note.as_deref().unwrap_or_else(|| holder.who()),
            millis(holder.expires_in)
        ),
        None => format!("{key:?} is held by others, and the time to wait is over"),
    };
    ApiError::new(409, "lock_taken", detail).retry_after(Duration::from_secs(1))
}
