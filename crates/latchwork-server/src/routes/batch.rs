//! Several requests in one: each entry has its own outcome.

use axum::Json as Answer;
use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use latchwork_api as api;
use latchwork_api::{IDEMPOTENCY_KEY, Problems};
use latchwork_work::{LeaseId, WorkClient};
use sha2::{Digest as _, Sha256};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{marked, replayed};
use crate::app::App;
use crate::caller::Caller;
use crate::convert;
use crate::error::ApiError;
use crate::extract::Json;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(propose_many))
        .routes(routes!(submit_many))
        .routes(routes!(heartbeat_many))
}

/// So many entries in one request, at most.
const MAX_ENTRIES: usize = 1_000;

/// Proposes several orders, one by one or all or none.
#[utoipa::path(post, path = "/v1/orders/propose-many", operation_id = "propose_many", tag = "orders",
    params(("Idempotency-Key" = Option<String>, Header, description = "Each entry has its effect once")),
    request_body = api::ProposeManyRequest,
    responses((status = 200, body = api::ProposedMany), Problems))]
async fn propose_many(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Json(request): Json<api::ProposeManyRequest>,
) -> Result<Response, ApiError> {
    check(request.orders.len(), "/orders")?;
    let client = caller.client(&app);
    if request.all_or_none {
        let proposals = request.orders.into_iter().map(|order| allowed(&caller, order));
        let done = client.propose_many(proposals.collect::<Result<_, _>>()?).await?;
        let outcomes = done.into_iter().map(|one| outcome_of_proposal(Ok(one))).collect();
        return Ok(marked(&client, Answer(api::ProposedMany { outcomes })));
    }
    let mut entries = Entries::new(client, &headers);
    let mut outcomes = Vec::new();
    for proposal in request.orders {
        let client = entries.next();
        let done = match allowed(&caller, proposal) {
            Ok(proposal) => client.propose(proposal).await.map_err(|error| {
                let mut error = ApiError::from(error);
                if let Some(types) = caller.scope().types() {
                    error.hide_types(types);
                }
                error
            }),
            Err(error) => Err(error),
        };
        outcomes.push(outcome_of_proposal(entries.outcome(&client, done)?));
    }
    Ok(entries.marked(Answer(api::ProposedMany { outcomes })))
}

/// Submits several results, one by one or all or none.
#[utoipa::path(post, path = "/v1/items/submit-many", operation_id = "submit_many", tag = "items",
    params(("Idempotency-Key" = Option<String>, Header, description = "Each entry has its effect once")),
    request_body = api::SubmitManyRequest,
    responses((status = 200, body = api::SubmittedMany), Problems))]
async fn submit_many(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Json(request): Json<api::SubmitManyRequest>,
) -> Result<Response, ApiError> {
    check(request.submissions.len(), "/submissions")?;
    let client = caller.client(&app);
    let submissions: Vec<_> = request.submissions.into_iter().map(convert::submission).collect();
    let all = |done: Vec<latchwork_work::Submitted>| {
        let outcomes = done.into_iter().map(|one| outcome_of_submission(Ok(one))).collect();
        Answer(api::SubmittedMany { outcomes })
    };
    if request.all_or_none {
        let done = client.submit_many(submissions).await?;
        return Ok(marked(&client, all(done)));
    }
    // One transaction for all is much faster than one for each. A key stands for each entry, so there
    // the way is the same on every try; a lease takes one result anyhow.
    if !headers.contains_key(IDEMPOTENCY_KEY)
        && let Ok(done) = client.submit_many(submissions.clone()).await
    {
        return Ok(marked(&client, all(done)));
    }
    let mut entries = Entries::new(client, &headers);
    let mut outcomes = Vec::new();
    for submission in submissions {
        let client = entries.next();
        let done = client.submit(submission).await.map_err(ApiError::from);
        outcomes.push(outcome_of_submission(entries.outcome(&client, done)?));
    }
    Ok(entries.marked(Answer(api::SubmittedMany { outcomes })))
}

/// Extends several leases. A second call does no harm, so it needs no idempotency key.
#[utoipa::path(post, path = "/v1/items/heartbeat-many", operation_id = "heartbeat_many", tag = "items",
    request_body = api::HeartbeatManyRequest,
    responses((status = 200, body = api::HeartbeatMany), Problems))]
async fn heartbeat_many(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<api::HeartbeatManyRequest>,
) -> Result<Answer<api::HeartbeatMany>, ApiError> {
    check(request.leases.len(), "/leases")?;
    let leases: Vec<_> = request.leases.into_iter().map(LeaseId::from_uuid).collect();
    let found = caller.client(&app).heartbeat_many(&leases).await?;
    let outcome = |(lease, beat): (LeaseId, latchwork_work::Result<_>)| {
        let (heartbeat, problem) = match beat {
            Ok(beat) => (Some(convert::heartbeat(beat)), None),
            Err(error) => (None, Some(ApiError::from(error).into_problem())),
        };
        api::HeartbeatOutcome { lease: lease.as_uuid(), heartbeat, problem }
    };
    Ok(Answer(api::HeartbeatMany { outcomes: found.into_iter().map(outcome).collect() }))
}

fn allowed(caller: &Caller, order: api::Proposal) -> Result<latchwork_work::Proposal, ApiError> {
    caller.require_type(&order.order_type)?;
    convert::proposal(order)
}

fn check(entries: usize, field: &str) -> Result<(), ApiError> {
    if (1..=MAX_ENTRIES).contains(&entries) {
        return Ok(());
    }
    let detail = format!("a request has 1 to {MAX_ENTRIES} entries");
    Err(ApiError::new(400, "invalid_argument", detail).field(field))
}

/// The longest idempotency key, and how long one is that has no room for the number of an entry.
const MAX_KEY: usize = 255;
const LONG_KEY: usize = MAX_KEY - 3;

/// The entries of a request, each under a key of its own: that of the request and its number. So a
/// request that is sent again finds what each entry did, also where some were refused.
struct Entries {
    client: WorkClient,
    key: Option<String>,
    number: usize,
    done: usize,
    replayed: usize,
}

impl Entries {
    fn new(client: WorkClient, headers: &HeaderMap) -> Self {
        let key = headers.get(IDEMPOTENCY_KEY).and_then(|key| key.to_str().ok());
        // A legal key to which nothing could be added any more.
        let key = key.map(|key| match key.len() {
            LONG_KEY..=MAX_KEY => hex::encode(Sha256::digest(key)),
            _ => key.to_owned(),
        });
        Entries { client, key, number: 0, done: 0, replayed: 0 }
    }

    fn next(&mut self) -> WorkClient {
        let number = self.number;
        self.number += 1;
        match &self.key {
            Some(key) => self.client.clone().idempotent(format!("{key}#{number}")),
            None => self.client.clone(),
        }
    }

    /// The outcome of an entry. What refuses every entry, or may pass, refuses the whole request, which
    /// can then be sent again under its key.
    fn outcome<T>(
        &mut self,
        client: &WorkClient,
        done: Result<T, ApiError>,
    ) -> Result<Result<T, ApiError>, ApiError> {
        match done {
            Err(error) if error.is_of_server() => Err(error),
            Err(error) => Ok(Err(error)),
            Ok(done) => {
                self.done += 1;
                self.replayed += usize::from(client.was_replayed());
                Ok(Ok(done))
            }
        }
    }

    fn marked(self, answer: impl axum::response::IntoResponse) -> Response {
        replayed(self.done > 0 && self.replayed == self.done, answer)
    }
}

fn outcome_of_proposal(done: Result<latchwork_work::Proposed, ApiError>) -> api::ProposeOutcome {
    match done {
        Ok(done) => api::ProposeOutcome { proposed: Some(convert::proposed(done)), problem: None },
        Err(error) => api::ProposeOutcome { proposed: None, problem: Some(error.into_problem()) },
    }
}

fn outcome_of_submission(done: Result<latchwork_work::Submitted, ApiError>) -> api::SubmitOutcome {
    match done {
        Ok(done) => api::SubmitOutcome { submitted: Some(convert::submitted(done)), problem: None },
        Err(error) => api::SubmitOutcome { submitted: None, problem: Some(error.into_problem()) },
    }
}
