//! Following the audit trail.

use std::collections::VecDeque;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use url::form_urlencoded;
use uuid::Uuid;

use super::Client;
use super::error::{Error, ErrorKind, Result};
use super::sse::Reader;
use super::transport::reasons;
use crate::Event;

/// Which events a stream is to give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventsWanted {
    /// Behind this position; from the beginning unless told.
    pub after: u64,
    /// Of this order only.
    pub order: Option<Uuid>,
    /// Of these types only; all unless told.
    pub events: Vec<String>,
}

/// Sealed events as they come, in the order of their positions and without a gap.
///
/// A connection that is cut, or a server that ends, is no end: the stream connects again and goes on behind
/// the last event that it gave.
#[derive(Debug)]
pub struct EventStream {
    client: Client,
    wanted: EventsWanted,
    open: Option<Incoming>,
    reader: Reader,
    ready: VecDeque<Event>,
    failures: u32,
}

/// A server sends a sign of life every 15 seconds; a connection that is silent for longer is dead.
const SILENCE: Duration = Duration::from_secs(45);

/// The longest pause between two attempts to connect.
const MAX_PAUSE: Duration = Duration::from_secs(10);

impl Client {
    /// Follows the audit trail. Nothing is sent before the first [`EventStream::next`].
    pub fn stream(&self, wanted: EventsWanted) -> EventStream {
        EventStream {
            client: self.clone(),
            wanted,
            open: None,
            reader: Reader::default(),
            ready: VecDeque::new(),
            failures: 0,
        }
    }
}

impl EventStream {
    /// The next event, as soon as it is sealed. It waits through outages of the server.
    ///
    /// Cancel safe: an event that was not returned is returned by the next call.
    ///
    /// # Errors
    /// What another attempt would not change: [`ErrorKind::Refused`], such as `events_pruned` or
    /// `unauthorized`, and [`ErrorKind::Unreadable`].
    pub async fn next(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                if let Some(seal) = &event.seal {
                    self.wanted.after = seal.position;
                }
                return Ok(event);
            }
            if let Err(error) = self.read_on().await {
                self.open = None;
                if !error.is_temporary() {
                    return Err(error);
                }
                self.failures = self.failures.saturating_add(1);
                let pause = Duration::from_millis(100 << self.failures.min(7)).min(MAX_PAUSE);
                tokio::time::sleep(error.retry_after().unwrap_or(pause)).await;
            }
        }
    }

    /// The position of the last event that was given.
    pub fn position(&self) -> u64 {
        self.wanted.after
    }

    async fn read_on(&mut self) -> Result<()> {
        if self.open.is_none() {
            let open = self.client.open(&self.path(), self.headers()).await?;
            self.reader = Reader::default();
            self.open = Some(open.into_body());
        }
        let Some(body) = &mut self.open else { return Ok(()) };
        let base = &self.client.base;
        let frame = tokio::time::timeout(SILENCE, body.frame()).await;
        let frame = frame.map_err(|_| base.unreachable("the stream is silent"))?;
        let Some(frame) = frame else {
            return Err(base.unreachable("the stream ended"));
        };
        let frame = frame.map_err(|error| base.unreachable(reasons(&error)))?;
        let Some(chunk) = frame.data_ref() else { return Ok(()) };
        self.failures = 0;
        let unreadable = |reason: String| -> Error {
            let address = base.address().to_owned();
            ErrorKind::Unreadable { address, status: 200, reason }.into()
        };
        let messages = self.reader.read(chunk);
        let messages = messages.map_err(|_| unreadable("a message is too large".to_owned()))?;
        for message in messages {
            let event = serde_json::from_str(&message.data);
            let event = event.map_err(|error| unreadable(format!("an event is not: {error}")))?;
            self.ready.push_back(event);
        }
        Ok(())
    }

    fn path(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("after", &self.wanted.after.to_string());
        if let Some(order) = self.wanted.order {
            query.append_pair("order", &order.to_string());
        }
        if !self.wanted.events.is_empty() {
            query.append_pair("event", &self.wanted.events.join(","));
        }
        format!("/v1/events?{}", query.finish())
    }

    fn headers(&self) -> HeaderMap {
        let stream = HeaderValue::from_static("text/event-stream");
        HeaderMap::from_iter([(header::ACCEPT, stream)])
    }
}
