//! `/v1/events`: the sealed trail, as pages or as a stream.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event as Message, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use http::{HeaderMap, header};
use latchwork_api as api;
use latchwork_api::Problems;
use latchwork_work::{Event, EventFilter, ListenFrom, SealNotices};
use tokio::sync::OwnedSemaphorePermit;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::caller::Caller;
use crate::convert;
use crate::error::ApiError;
use crate::extract::Pairs;
use crate::page::page;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Which events are wanted, from where on.
#[derive(Default)]
struct Wanted {
    /// From the oldest event on unless told.
    after: Option<u64>,
    limit: Option<u32>,
    filter: EventFilter,
}

impl Wanted {
    async fn read(
        app: &App,
        caller: &Caller,
        pairs: &[(String, String)],
    ) -> Result<Self, ApiError> {
        let mut wanted = Wanted::default();
        for (name, value) in pairs {
            match name.as_str() {
                "after" => wanted.after = Some(number("after", value)?),
                "limit" => wanted.limit = Some(number("limit", value)?),
                "order" => wanted.filter.order = Some(value.parse()?),
                "type" => wanted.filter.types = value.split(',').map(str::to_owned).collect(),
                "event" => {
                    let names = value.split(',').map(str::parse);
                    wanted.filter.events = names.collect::<Result<_, _>>()?;
                }
                _ => return Err(unknown(name, &["after", "limit", "order", "type", "event"])),
            }
        }
        match wanted.filter.order {
            // Its type is within the limits, so they need not be asked for.
            Some(order) => caller.require_order(app, order).await?,
            None => wanted.filter.types = caller.narrow_types(&wanted.filter.types)?,
        }
        Ok(wanted)
    }

    async fn begin(&self, app: &App) -> Result<u64, ApiError> {
        match self.after {
            Some(after) if after > i64::MAX as u64 => {
                let detail = "no position is that high";
                Err(ApiError::new(400, "invalid_argument", detail).field("after"))
            }
            Some(after) => Ok(after),
            None => {
                let subscription = app.work.subscribe(ListenFrom::Oldest, EventFilter::all());
                Ok(subscription.await?.position())
            }
        }
    }
}

/// Sealed events of all orders behind a position.
///
/// With `Accept: text/event-stream` it is a stream that goes on as events are sealed; `Last-Event-ID`
/// resumes it without a gap, at any server.
#[utoipa::path(get, path = "/v1/events", operation_id = "list_events", tag = "events",
    params(
        ("after" = Option<u64>, Query, description = "Behind this position; from the beginning unless told"),
        ("limit" = Option<u32>, Query, description = "1 to 1,000; 100 unless told"),
        ("order" = Option<uuid::Uuid>, Query, description = "Of this order"),
        ("type" = Option<String>, Query, description = "Order types, separated by commas"),
        ("event" = Option<String>, Query, description = "Event types, separated by commas"),
        ("Last-Event-ID" = Option<String>, Header, description = "Resumes a stream behind this position"),
    ),
    responses((status = 200, content((api::EventPage = "application/json"), (String = "text/event-stream"))),
        Problems))]
async fn list(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    let mut wanted = Wanted::read(&app, &caller, &pairs).await?;
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    if accept.is_some_and(|accept| accept.contains("text/event-stream")) {
        if let Some(last) = headers.get("last-event-id").and_then(|last| last.to_str().ok()) {
            wanted.after = Some(number("last-event-id", last)?);
        }
        let place = app.waiting()?;
        // Before the first reading: what is sealed after it wakes.
        let notices = app.work.seal_notices();
        let after = wanted.begin(&app).await?;
        // Here a wrong position is still refused; a stream could only end.
        let first = app.work.events_after(after, &wanted.filter, BATCH).await?;
        let begin = Streaming {
            app,
            filter: wanted.filter,
            notices,
            after: first.position,
            pending: first.events.into_iter(),
            _place: place,
        };
        let keep = KeepAlive::new().interval(Duration::from_secs(15));
        return Ok(Sse::new(stream(begin)).keep_alive(keep).into_response());
    }
    let limit = wanted.limit.unwrap_or(100);
    let after = wanted.begin(&app).await?;
    let mut found = app.work.events_after(after, &wanted.filter, limit).await?;
    for _ in 1..WINDOWS {
        if !found.events.is_empty() || !found.more {
            break;
        }
        found = app.work.events_after(found.position, &wanted.filter, limit).await?;
    }
    let next = found.more.then(|| found.position.to_string());
    let events = found.events.into_iter().map(convert::event).collect();
    let body = api::EventPage { events, next: next.clone() };
    Ok(page("/v1/events", &pairs, "after", next.as_deref(), body))
}

/// So many windows of the trail one page looks through for its first event, so that a rare event is found
/// with few requests, and no request takes long.
const WINDOWS: usize = 20;

/// So many events a stream reads at once.
const BATCH: u32 = 200;

struct Streaming {
    app: App,
    filter: EventFilter,
    notices: SealNotices,
    /// Up to here the trail was read.
    after: u64,
    pending: std::vec::IntoIter<Event>,
    _place: OwnedSemaphorePermit,
}

/// Positions have no gaps and only sealed events have one, so reading behind the last position that was
/// looked at misses nothing.
fn stream(begin: Streaming) -> impl Stream<Item = Result<Message, Infallible>> {
    futures::stream::unfold(begin, |mut streaming| async move {
        loop {
            for event in streaming.pending.by_ref() {
                let Some(seal) = event.seal else { continue };
                let name = event.event.as_str();
                let message = Message::default().id(seal.position.to_string()).event(name);
                if let Ok(message) = message.json_data(convert::event(event)) {
                    return Some((Ok(message), streaming));
                }
            }
            if streaming.app.is_ending() {
                return None;
            }
            let work = &streaming.app.work;
            match work.events_after(streaming.after, &streaming.filter, BATCH).await {
                Ok(found) => {
                    streaming.after = found.position;
                    let worth_a_look = !found.events.is_empty() || found.more;
                    streaming.pending = found.events.into_iter();
                    if worth_a_look {
                        continue;
                    }
                }
                Err(error) if error.is_temporary() => {
                    tracing::debug!(%error, "a stream waits for its store");
                }
                // The client comes back with its last id, and learns then what is wrong.
                Err(error) => {
                    tracing::warn!(%error, "an event stream ended");
                    return None;
                }
            }
            let mut ending = streaming.app.shutdown.clone();
            tokio::select! {
                () = streaming.notices.wait() => {}
                _ = ending.wait_for(|ending| *ending) => {}
            }
        }
    })
}

pub(super) fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, ApiError> {
    value.parse().map_err(|_| {
        let detail = format!("{value:?} is not a whole number that is allowed here");
        ApiError::new(400, "invalid_argument", detail).field(name)
    })
}

pub(super) fn unknown(name: &str, known: &[&str]) -> ApiError {
    let detail = format!("there is no parameter {name:?}; there are {}", known.join(", "));
    ApiError::new(400, "unknown_name", detail).field(name)
}
