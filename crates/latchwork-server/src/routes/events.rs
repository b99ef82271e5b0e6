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
use latchwork_work::{Event, EventType, OrderId};
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

/// Which events are wanted.
#[derive(Default)]
struct Wanted {
    after: u64,
    limit: Option<u32>,
    order: Option<OrderId>,
    events: Vec<EventType>,
}

impl Wanted {
    fn read(pairs: &[(String, String)]) -> Result<Self, ApiError> {
        let mut wanted = Wanted::default();
        for (name, value) in pairs {
            match name.as_str() {
                "after" => wanted.after = number("after", value)?,
                "limit" => wanted.limit = Some(number("limit", value)?),
                "order" => wanted.order = Some(value.parse()?),
                "event" => {
                    let names = value.split(',').map(str::parse);
                    wanted.events = names.collect::<Result<_, _>>()?;
                }
                _ => return Err(unknown(name, &["after", "limit", "order", "event"])),
            }
        }
        if wanted.after > i64::MAX as u64 {
            return Err(
                ApiError::new(400, "invalid_argument", "no position is that high").field("after")
            );
        }
        Ok(wanted)
    }

    fn has(&self, event: &Event) -> bool {
        self.order.is_none_or(|order| order == event.order_id)
            && (self.events.is_empty() || self.events.contains(&event.event))
    }
}

/// Sealed events of all orders behind a position.
///
/// With `Accept: text/event-stream` it is a stream that goes on as events are sealed; `Last-Event-ID`
/// resumes it without a gap, at any server.
#[utoipa::path(get, path = "/v1/events", operation_id = "list_events", tag = "events",
    params(
        ("after" = Option<u64>, Query, description = "Behind this position; from the beginning unless told"),
        ("limit" = Option<u32>, Query, description = "1 to 1,000 are looked at; 100 unless told"),
        ("order" = Option<uuid::Uuid>, Query, description = "Of this order"),
        ("event" = Option<String>, Query, description = "Event types, separated by commas"),
        ("Last-Event-ID" = Option<String>, Header, description = "Resumes a stream behind this position"),
    ),
    responses((status = 200, content((api::EventPage = "application/json"), (String = "text/event-stream"))),
        Problems))]
async fn list(
    State(app): State<App>,
    _: Caller,
    headers: HeaderMap,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    let mut wanted = Wanted::read(&pairs)?;
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    if accept.is_some_and(|accept| accept.contains("text/event-stream")) {
        if let Some(last) = headers.get("last-event-id").and_then(|last| last.to_str().ok()) {
            wanted.after = number("last-event-id", last)?;
        }
        let place = app.waiting()?;
        let keep = KeepAlive::new().interval(Duration::from_secs(15));
        return Ok(Sse::new(stream(app, wanted, place)).keep_alive(keep).into_response());
    }
    let limit = wanted.limit.unwrap_or(100);
    let found = app.work.events(wanted.after, limit).await?;
    let last = found.last().and_then(|event| event.seal).map(|seal| seal.position.to_string());
    let next = last.filter(|_| found.len() == limit as usize);
    let events = found.into_iter().filter(|event| wanted.has(event)).map(convert::event).collect();
    let body = api::EventPage { events, next: next.clone() };
    Ok(page("/v1/events", &pairs, "after", next.as_deref(), body))
}

/// How often a stream looks for new events: sealing itself happens several times a second.
const TICK: Duration = Duration::from_millis(250);

/// So many events a stream reads at once.
const BATCH: u32 = 200;

struct Streaming {
    app: App,
    wanted: Wanted,
    pending: std::vec::IntoIter<Event>,
    _place: OwnedSemaphorePermit,
}

/// Positions have no gaps and only sealed events have one, so reading behind the last position that was
/// sent misses nothing.
fn stream(
    app: App,
    wanted: Wanted,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Message, Infallible>> {
    let begin = Streaming { app, wanted, pending: Vec::new().into_iter(), _place: place };
    futures::stream::unfold(begin, |mut streaming| async move {
        loop {
            for event in streaming.pending.by_ref() {
                let Some(seal) = event.seal else { continue };
                streaming.wanted.after = seal.position;
                if !streaming.wanted.has(&event) {
                    continue;
                }
                let name = event.event.as_str();
                let message = Message::default().id(seal.position.to_string()).event(name);
                if let Ok(message) = message.json_data(convert::event(event)) {
                    return Some((Ok(message), streaming));
                }
            }
            if streaming.app.is_ending() {
                return None;
            }
            match streaming.app.work.events(streaming.wanted.after, BATCH).await {
                Ok(found) if !found.is_empty() => {
                    streaming.pending = found.into_iter();
                    continue;
                }
                Ok(_) => {}
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
            let _ = tokio::time::timeout(TICK, ending.wait_for(|ending| *ending)).await;
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
