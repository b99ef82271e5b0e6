//! Listening to the sealed trail (W14).
//!
//! A listener reads the trail by positions, which have no gaps and never change: so it misses nothing,
//! and resumes by the last position that it has handled. Nothing waits for a listener. The sealer only
//! sends a notice after its commit, and each listener reads at its own pace.

use std::collections::VecDeque;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::Stream;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::lookup::{check_page, event};
use super::wake::FALLBACK;
use super::{WorkManager, read, transact};
use crate::store::Range;
use crate::{Error, ErrorKind, Event, EventType, OrderId, Result};

/// Which events a listener wants; all of them unless told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EventFilter {
    /// Events of this order only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<OrderId>,
    /// Events of orders of these types only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
    /// Events of these kinds only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventType>,
}

impl EventFilter {
    /// Every event.
    pub fn all() -> Self {
        Self::default()
    }

    /// Events of this order only.
    #[must_use]
    pub fn order(mut self, order: OrderId) -> Self {
        self.order = Some(order);
        self
    }

    /// Events of orders of this type. May be told several times.
    #[must_use]
    pub fn order_type(mut self, order_type: impl Into<String>) -> Self {
        self.types.push(order_type.into());
        self
    }

    /// Events of this kind. May be told several times.
    #[must_use]
    pub fn event(mut self, event: EventType) -> Self {
        self.events.push(event);
        self
    }

    fn check(&self) -> Result<()> {
        if self.types.len() > MAX_NAMES || self.events.len() > MAX_NAMES {
            let reason = format!("it names more than {MAX_NAMES} types or events");
            return Err(Error::invalid("filter", reason));
        }
        if self.order.is_some() && !self.types.is_empty() {
            let reason =
                "it names an order and order types; an order has one type, so leave those out";
            return Err(Error::invalid("filter", reason));
        }
        Ok(())
    }
}

/// So many types or kinds of events a filter names at most.
const MAX_NAMES: usize = 100;

/// Where a listener begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListenFrom {
    /// With the oldest event that is kept.
    Oldest,
    /// With what is sealed from now on.
    Now,
    /// Behind the event at this position; 0 is before the first event that ever was.
    After(u64),
}

/// A part of the trail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EventPage {
    /// The events that the filter lets through, in the order of their positions.
    pub events: Vec<Event>,
    /// Where to read on: all events up to here were looked at.
    pub position: u64,
    /// Whether more events are sealed behind `position`.
    pub more: bool,
}

/// How far a named listener has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ListenerPosition {
    /// Its name.
    pub name: String,
    /// The last position that it has handled.
    pub position: u64,
    /// When it last moved on.
    pub updated_at: DateTime<Utc>,
}

/// So many positions one reading looks at, so that a rare event does not make a long query.
const WINDOW: u64 = 10_000;

/// So many events a subscription reads at a time.
const PAGE: u32 = 200;

/// A named listener that has nothing to do stores how far it has come after so many positions, so that
/// pruning does not overtake it.
const KEEP_UP: u64 = 1_000;

/// The longest name of a listener, in bytes.
const MAX_NAME: usize = 120;

/// Wakes when events were sealed, in this process or another one.
///
/// A notice can be lost, so [`wait`](Self::wait) also returns after a second or two: read then, too.
#[derive(Clone, Debug)]
pub struct SealNotices(watch::Receiver<u64>);

impl SealNotices {
    /// Waits until events were sealed since the last call, or for a second or two.
    ///
    /// Cancel safe: a notice that comes while nobody waits is there at the next call.
    pub async fn wait(&mut self) {
        self.wait_at_most(FALLBACK).await;
    }

    async fn wait_at_most(&mut self, span: Duration) {
        match tokio::time::timeout(span, self.0.changed()).await {
            Ok(Ok(())) | Err(_) => {}
            // The manager is closed: the next read gets the store's error.
            Ok(Err(_)) => tokio::time::sleep(span).await,
        }
    }
}

impl WorkManager {
    /// Sealed events behind a position, in the order of their positions; of one window of the trail, so
    /// the page may be empty although there is [`more`](EventPage::more). Read on from its `position`.
    ///
    /// # Errors
    /// [`EventsPruned`](ErrorKind::EventsPruned) where events behind the position were pruned,
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a position behind the end of the trail, a
    /// page of more than 1,000 or an illegal filter.
    pub async fn events_after(
        &self,
        position: u64,
        filter: &EventFilter,
        limit: u32,
    ) -> Result<EventPage> {
        check_page(limit)?;
        filter.check()?;
        let (rows, until, sealed) = read!(self, session => {
            let (sealed, first) = session.trail(position).await?;
            if position > sealed {
                let reason = format!(
                    "the trail ends at {sealed}; {position} is of another database, or this one was \
                     restored from a backup"
                );
                return Err(Error::invalid("position", reason));
            }
            if position < sealed && first != Some(position + 1) {
                let checkpoint = session.pruned_position().await?;
                return Err(ErrorKind::EventsPruned { position, checkpoint }.into());
            }
            // The events of one order are found by an index of their own.
            let until = match filter.order {
                Some(_) => sealed,
                None => sealed.min(position.saturating_add(WINDOW)),
            };
            let range = Range {
                after: position,
                until,
                order: filter.order,
                types: &filter.types,
                events: &filter.events,
                limit,
            };
            Ok((session.events_between(&range).await?, until, sealed))
        })?;
        let full = rows.len() == limit as usize;
        let last = rows.last().and_then(|row| row.seal).filter(|_| full);
        let position = last.map_or(until, |seal| seal.position);
        let events = rows.into_iter().map(event).collect::<Result<_>>()?;
        Ok(EventPage { events, position, more: position < sealed })
    }

    /// Wakes a reader of [`events_after`](Self::events_after). Take it before you read, so that what is
    /// sealed in between wakes you.
    pub fn seal_notices(&self) -> SealNotices {
        SealNotices(self.inner.wake.sealed())
    }

    /// Subscribes to sealed events: each at least once, in the order of their positions.
    ///
    /// # Errors
    /// As for [`events_after`](Self::events_after).
    pub async fn subscribe(&self, from: ListenFrom, filter: EventFilter) -> Result<Subscription> {
        filter.check()?;
        // Before the position is read: what is sealed afterwards wakes.
        let notices = self.seal_notices();
        let position = self.position_of(from).await?;
        let (manager, buffer) = (self.clone(), VecDeque::new());
        Ok(Subscription { manager, filter, read_to: position, position, buffer, notices })
    }

    async fn position_of(&self, from: ListenFrom) -> Result<u64> {
        let (sealed, first) = read!(self, session => { session.trail(0).await })?;
        match from {
            ListenFrom::Oldest => Ok(first.map_or(sealed, |first| first.saturating_sub(1))),
            ListenFrom::Now => Ok(sealed),
            ListenFrom::After(position) => {
                // A position that cannot be resumed from is refused now, and not at the first event.
                self.events_after(position, &EventFilter::default(), 1).await?;
                Ok(position)
            }
        }
    }

    /// Subscribes under a name: the position is kept in the store, and the next start resumes there.
    /// `from` is where a listener begins whose name is new.
    ///
    /// Two processes that listen under one name both get every event; run one of them under a lock.
    ///
    /// # Errors
    /// As for [`events_after`](Self::events_after). After
    /// [`EventsPruned`](ErrorKind::EventsPruned) the listener has missed events: decide what that
    /// means, [`forget`](Self::forget_listener) it, and begin anew.
    pub async fn listen(
        &self,
        name: impl Into<String>,
        from: ListenFrom,
        filter: EventFilter,
    ) -> Result<Listener> {
        let name = name.into();
        if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
            let reason = format!("it has 1 to {MAX_NAME} bytes and no control characters");
            return Err(Error::invalid("listener", reason));
        }
        let stored = read!(self, session => { session.listener(&name).await })?;
        let from = stored.map_or(from, ListenFrom::After);
        let subscription = self.subscribe(from, filter).await?;
        let stored = subscription.position;
        transact!(self, session => { session.put_listener(&name, stored).await })?;
        Ok(Listener { subscription, name, handed_out: stored, stored })
    }

    /// How far each named listener has come.
    ///
    /// # Errors
    /// The store's.
    pub async fn listeners(&self) -> Result<Vec<ListenerPosition>> {
        let rows = read!(self, session => { session.listeners().await })?;
        let one = |(name, position, updated_at)| ListenerPosition { name, position, updated_at };
        Ok(rows.into_iter().map(one).collect())
    }

    /// Forgets how far a named listener has come, and says whether it was known.
    ///
    /// # Errors
    /// The store's.
    pub async fn forget_listener(&self, name: &str) -> Result<bool> {
        transact!(self, session => { session.remove_listener(name).await })
    }
}

/// Sealed events, each at least once and in the order of their positions.
///
/// It reads at its own pace and holds nobody up; what it is too slow for stays in the trail.
#[derive(Debug)]
pub struct Subscription {
    manager: WorkManager,
    filter: EventFilter,
    /// Up to here it was read.
    read_to: u64,
    /// Up to here it was handed out.
    position: u64,
    buffer: VecDeque<Event>,
    notices: SealNotices,
}

impl Subscription {
    /// The next event, as soon as it is sealed.
    ///
    /// Cancel safe: an event that was not returned is returned by the next call. After an error the next
    /// call tries again from the same position.
    ///
    /// # Errors
    /// [`EventsPruned`](ErrorKind::EventsPruned) where pruning has overtaken it, and the store's.
    pub async fn next(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.take() {
                return Ok(event);
            }
            if !self.read_page().await? {
                self.notices.wait().await;
            }
        }
    }

    /// Up to here all events were handed out: resume with [`ListenFrom::After`] this one.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The events as a stream. It yields temporary errors and goes on, and ends with a permanent one.
    pub fn into_stream(self) -> impl Stream<Item = Result<Event>> + Send {
        futures::stream::unfold(Some(self), async |subscription| {
            let mut subscription = subscription?;
            match subscription.next().await {
                Ok(event) => Some((Ok(event), Some(subscription))),
                Err(error) if error.is_temporary() => {
                    // An outage: no faster than somebody who waits for events.
                    subscription.notices.wait().await;
                    Some((Err(error), Some(subscription)))
                }
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    fn take(&mut self) -> Option<Event> {
        let event = self.buffer.pop_front()?;
        let sealed = event.seal.map_or(self.position, |seal| seal.position);
        // With the last event of a page everything that was looked at is handed out.
        self.position = if self.buffer.is_empty() { self.read_to } else { sealed };
        Some(event)
    }

    /// Reads on; whether that is worth a look: there are events, or more of the trail to read.
    async fn read_page(&mut self) -> Result<bool> {
        let page = self.manager.events_after(self.read_to, &self.filter, PAGE).await?;
        self.read_to = page.position;
        self.buffer.extend(page.events);
        if self.buffer.is_empty() {
            self.position = self.read_to;
        }
        Ok(!self.buffer.is_empty() || page.more)
    }
}

/// A [`Subscription`] whose position is kept in the store under a name.
///
/// Hand an event back with [`ack`](Self::ack) once it is handled. What was not acknowledged when the
/// process dies comes again at the next start.
#[derive(Debug)]
pub struct Listener {
    subscription: Subscription,
    name: String,
    /// The position of the latest event that was handed out.
    handed_out: u64,
    /// The position that the store has.
    stored: u64,
}

impl Listener {
    /// The next event, as soon as it is sealed. Cancel safe, as for [`Subscription::next`].
    ///
    /// # Errors
    /// As for [`Subscription::next`].
    pub async fn next(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.subscription.take() {
                self.handed_out = event.seal.map_or(self.handed_out, |seal| seal.position);
                return Ok(event);
            }
            let worth_a_look = self.subscription.read_page().await?;
            // What was looked at since the last acknowledged event concerns others.
            let (acked, position) = (self.stored >= self.handed_out, self.subscription.position);
            if acked && position >= self.stored.saturating_add(KEEP_UP) {
                self.store(position).await?;
            }
            if !worth_a_look {
                self.subscription.notices.wait().await;
            }
        }
    }

    /// This event and all before it are handled. Events may be acknowledged one by one or now and then.
    ///
    /// Cancel safe: the position was stored or it was not.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an event that this listener has not handed out,
    /// and the store's; the event is acknowledged by the next call, too.
    pub async fn ack(&mut self, event: &Event) -> Result<()> {
        let position = event.seal.map(|seal| seal.position);
        let Some(position) = position.filter(|at| *at <= self.handed_out) else {
            return Err(Error::invalid("event", "this listener has not handed it out"));
        };
        match position {
            before if before <= self.stored => Ok(()),
            // With the latest event also what was looked at behind it, and concerns others.
            latest if latest == self.handed_out => self.store(self.subscription.position).await,
            earlier => self.store(earlier).await,
        }
    }

    async fn store(&mut self, position: u64) -> Result<()> {
        let (manager, name) = (&self.subscription.manager, &self.name);
        transact!(manager, session => { session.put_listener(name, position).await })?;
        self.stored = position;
        Ok(())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The last position that was acknowledged.
    pub fn position(&self) -> u64 {
        self.stored
    }
}
