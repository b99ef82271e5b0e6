//! The one link of this process to a mutex: batches of operations, one query for all who wait.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use latchwork_lock::provider::Moment;
use latchwork_lock::{Clock, Key, SystemClock};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

use crate::client::{CallError, MutexClient, Pauses};
use crate::messages::{Id, Operation, OperationKind, Outcome, QueuePlace, StatusRequest};
use crate::{Error, Result};

/// How many operations share a signal: its payload and the outcomes that a mutex keeps are bounded.
const BATCH: usize = 100;

/// How long one call may take, however patient its callers are.
const LONGEST_CALL: Duration = Duration::from_secs(5);

/// The pause between two looks for a waiter that is next. For others it is longer.
const FIRST_POLL: Duration = Duration::from_millis(30);

/// The pause of one that is next and has looked often.
const SLOW_POLL: Duration = Duration::from_millis(250);

/// The longest pause: with the claim behind it, it is well within the claim window.
const LONGEST_POLL: Duration = Duration::from_millis(800);

/// How long a key counts as used of late, and how many of them are remembered.
const RECENT: Duration = Duration::from_secs(10);
const MOST_RECENT: usize = 10_000;

/// The links of one provider.
pub(super) struct Links {
    client: MutexClient,
    handle: Handle,
    links: Mutex<HashMap<Key, Arc<Link>>>,
    /// What was used when: the server's listing may not have it yet.
    recent: Mutex<HashMap<Key, Moment>>,
    /// How many releases are on their way that nobody waits for.
    releases: watch::Sender<usize>,
}

struct Link {
    key: Key,
    state: Mutex<LinkState>,
    wake: Notify,
}

#[derive(Default)]
struct LinkState {
    queue: VecDeque<Pending>,
    waiters: HashMap<Id, watch::Sender<QueuePlace>>,
}

/// An operation whose outcome somebody wants.
struct Pending {
    operation: Operation,
    /// Whether it starts the mutex where there is none.
    start: bool,
    deadline: Moment,
    /// None: nobody waits for it, and it is counted.
    answer: Option<oneshot::Sender<Result<Option<Outcome>>>>,
    /// Whether a call with it may have arrived.
    attempted: bool,
    /// How often its outcome was not there.
    missed: u32,
}

impl Pending {
    /// Whoever wanted it has gone. A release goes on; a request is followed by its release.
    fn is_abandoned(&self) -> bool {
        self.answer.as_ref().is_some_and(oneshot::Sender::is_closed)
            && !matches!(self.operation.kind, OperationKind::Release { .. })
    }

    fn request(&self) -> Option<Id> {
        match &self.operation.kind {
            OperationKind::Acquire(request) => Some(request.lease),
            _ => None,
        }
    }
}

impl Links {
    pub(super) fn new(client: MutexClient, handle: Handle) -> Arc<Self> {
        Arc::new(Links {
            client,
            handle,
            links: Mutex::default(),
            recent: Mutex::default(),
            releases: watch::Sender::new(0),
        })
    }

    pub(super) fn client(&self) -> &MutexClient {
        &self.client
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The keys that this process has used of late.
    pub(super) fn recent(&self) -> Vec<Key> {
        let oldest = SystemClock.now();
        let mut recent = self.recent.lock();
        recent.retain(|_, used| used.after(RECENT) > oldest);
        recent.keys().cloned().collect()
    }

    /// Sends an operation and waits for its outcome; none where there is no mutex and none is started.
    ///
    /// Dropped, the operation may still be done.
    pub(super) async fn perform(
        self: &Arc<Self>,
        key: &Key,
        kind: OperationKind,
        start: bool,
        deadline: Moment,
    ) -> Result<Option<Outcome>> {
        let (answer, answered) = oneshot::channel();
        self.enqueue(key, kind, start, deadline, Some(answer));
        let late = SystemClock.sleep_until(deadline.after(Duration::from_millis(300)));
        match futures::future::select(answered, late).await {
            futures::future::Either::Left((Ok(outcome), _)) => outcome,
            futures::future::Either::Left((Err(_), _)) => {
                Err(Error::unreachable("calling the mutex", "the runtime is shutting down"))
            }
            futures::future::Either::Right(_) => {
                Err(Error::unreachable("calling the mutex", "it did not answer in time"))
            }
        }
    }

    /// Sends a release that nobody waits for.
    pub(super) fn release_later(self: &Arc<Self>, key: &Key, lease: Id, start: bool) {
        self.releases.send_modify(|count| *count += 1);
        let deadline = SystemClock.now().after(Duration::from_secs(30));
        self.enqueue(key, OperationKind::Release { lease }, start, deadline, None);
    }

    /// Ends when every release that nobody waits for was tried.
    pub(super) async fn flush(&self) {
        let _ = self.releases.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Registers a waiter, before its first request is answered. It gets its place from every look.
    pub(super) fn register(self: &Arc<Self>, key: &Key, lease: Id) -> Waiter {
        let (places, seen) = watch::channel(QueuePlace::Waiting(usize::MAX));
        Waiter { links: self.clone(), key: key.clone(), lease, places: Some(places), seen }
    }

    fn enqueue(
        self: &Arc<Self>,
        key: &Key,
        kind: OperationKind,
        start: bool,
        deadline: Moment,
        answer: Option<oneshot::Sender<Result<Option<Outcome>>>>,
    ) {
        let operation = Operation { id: Id::random(), kind };
        let pending = Pending { operation, start, deadline, answer, attempted: false, missed: 0 };
        self.with_link(key, |state| state.queue.push_back(pending));
    }

    /// Changes a link, which is started where there is none.
    fn with_link(self: &Arc<Self>, key: &Key, change: impl FnOnce(&mut LinkState)) {
        let mut links = self.links.lock();
        let link = links.entry(key.clone()).or_insert_with(|| {
            let link =
                Arc::new(Link { key: key.clone(), state: Mutex::default(), wake: Notify::new() });
            self.handle.spawn(run(self.clone(), link.clone()));
            link
        });
        change(&mut link.state.lock());
        link.wake.notify_one();
    }

    /// Bounded, for programs that use many keys.
    fn remember(&self, key: &Key) {
        let now = SystemClock.now();
        let mut recent = self.recent.lock();
        if recent.len() >= MOST_RECENT {
            recent.retain(|_, used| used.after(RECENT) > now);
        }
        if recent.len() < MOST_RECENT {
            recent.insert(key.clone(), now);
        }
    }

    fn settle(&self, pending: Pending, outcome: Result<Option<Outcome>>) {
        match pending.answer {
            Some(answer) => {
                let _ = answer.send(outcome);
            }
            None => {
                if let Err(error) = outcome {
                    tracing::warn!(%error, "a queued release failed; the lease ends with its ttl");
                }
                self.releases.send_modify(|count| *count -= 1);
            }
        }
    }
}

/// A waiter's registration. Dropped, it ends.
pub(super) struct Waiter {
    links: Arc<Links>,
    key: Key,
    lease: Id,
    places: Option<watch::Sender<QueuePlace>>,
    seen: watch::Receiver<QueuePlace>,
}

impl Waiter {
    /// It is in the queue of the mutex: its link looks after it from now on.
    pub(super) fn mark_queued(&mut self) {
        self.seen.mark_unchanged();
        let places = match self.places.take() {
            Some(places) => places,
            None => {
                let (places, seen) = watch::channel(QueuePlace::Waiting(usize::MAX));
                self.seen = seen;
                places
            }
        };
        let lease = self.lease;
        self.links.with_link(&self.key, |state| {
            state.waiters.insert(lease, places);
        });
    }

    /// Ends when it is not waiting in the queue any more: reserved, or out of it.
    pub(super) async fn turn(&mut self) {
        let waits = |place: &QueuePlace| matches!(place, QueuePlace::Waiting(_));
        // Its sender is kept by the link as long as the waiter is registered.
        let _ = self.seen.wait_for(|place| !waits(place)).await;
        self.unregister();
    }

    fn unregister(&mut self) {
        let links = self.links.links.lock();
        if let Some(link) = links.get(&self.key) {
            link.state.lock().waiters.remove(&self.lease);
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.unregister();
    }
}

/// Serves one mutex until nobody of this process needs it.
async fn run(links: Arc<Links>, link: Arc<Link>) {
    let mut link_run = LinkRun {
        links,
        link,
        unsent: VecDeque::new(),
        sent: Vec::new(),
        pauses: Pauses::default(),
        poll: FIRST_POLL,
        nearest: usize::MAX,
        trouble: None,
        draining: false,
    };
    while link_run.collect() {
        let pause = link_run.round().await;
        let _ = tokio::time::timeout(pause, link_run.link.wake.notified()).await;
    }
}

struct LinkRun {
    links: Arc<Links>,
    link: Arc<Link>,
    /// Not accepted by the server yet, in their order.
    unsent: VecDeque<Pending>,
    /// Accepted, and without an outcome.
    sent: Vec<Pending>,
    pauses: Pauses,
    /// The pause until the next look.
    poll: Duration,
    /// The place of the waiter who is nearest to its turn.
    nearest: usize,
    /// Why the last call failed.
    trouble: Option<String>,
    draining: bool,
}

impl LinkRun {
    /// Takes what has come; false when there is nothing to do any more, and the link has ended.
    fn collect(&mut self) -> bool {
        {
            let mut links = self.links.links.lock();
            let mut state = self.link.state.lock();
            self.unsent.extend(state.queue.drain(..));
            state.waiters.retain(|_, places| places.receiver_count() > 0);
            if self.unsent.is_empty() && self.sent.is_empty() && state.waiters.is_empty() {
                links.remove(&self.link.key);
                self.links.remember(&self.link.key);
                return false;
            }
        }
        self.drop_overdue();
        true
    }

    /// Ends what nobody wants any more, or what has waited too long.
    fn drop_overdue(&mut self) {
        let now = SystemClock.now();
        let all = self.unsent.drain(..).map(|pending| (pending, false));
        let all: Vec<_> = all.chain(self.sent.drain(..).map(|pending| (pending, true))).collect();
        for (pending, is_sent) in all {
            // What has not been tried yet is tried once.
            if pending.is_abandoned() {
                self.links.settle(pending, Ok(None));
            } else if pending.deadline <= now && pending.attempted {
                let reason = self.trouble.clone();
                let reason = reason.unwrap_or_else(|| "it did not answer in time".to_owned());
                self.links.settle(pending, Err(Error::unreachable("calling the mutex", reason)));
            } else if is_sent {
                self.sent.push(pending);
            } else {
                self.unsent.push_back(pending);
            }
        }
    }

    /// One signal, if there is something to send, and one query, if there is something to know. Returns how
    /// long to pause.
    async fn round(&mut self) -> Duration {
        if !self.unsent.is_empty() {
            if std::mem::take(&mut self.draining) {
                // The mutex has asked for a pause, to begin a new history.
                tokio::time::sleep(self.pauses.next()).await;
            }
            if let Err(pause) = self.send().await {
                return pause;
            }
        }
        let waiters: Vec<Id> = self.link.state.lock().waiters.keys().copied().collect();
        if self.sent.is_empty() && waiters.is_empty() {
            return Duration::ZERO;
        }
        let (had_sent, nearest) = (!self.sent.is_empty(), self.nearest);
        if let Err(pause) = self.query(waiters).await {
            return pause;
        }
        if !self.unsent.is_empty() {
            return self.pauses.next();
        }
        if !self.sent.is_empty() {
            return Duration::from_millis(10);
        }
        if self.link.state.lock().waiters.is_empty() {
            return Duration::ZERO;
        }
        self.next_poll(had_sent || nearest != self.nearest)
    }

    /// It begins short whenever something has changed.
    fn next_poll(&mut self, changed: bool) -> Duration {
        let place = u32::try_from(self.nearest.min(100)).unwrap_or(100);
        let first = (FIRST_POLL * place).min(LONGEST_POLL);
        let last = (SLOW_POLL * place).min(LONGEST_POLL);
        self.poll = if changed { first } else { self.poll.mul_f64(1.2).clamp(first, last) };
        self.poll.mul_f64(rand::random_range(0.7..=1.0))
    }

    /// How long a call may take: a part of what those have left who want it.
    fn limit<'a>(pending: impl Iterator<Item = &'a Pending>) -> Duration {
        let now = SystemClock.now();
        let left = pending.map(|pending| pending.deadline.since(now)).min();
        let left = left.map_or(LONGEST_CALL, |left| left.mul_f64(0.6));
        left.clamp(Duration::from_millis(300), LONGEST_CALL)
    }

    async fn send(&mut self) -> std::result::Result<(), Duration> {
        let count = self.unsent.len().min(BATCH);
        let mut batch: Vec<Pending> = self.unsent.drain(..count).collect();
        for pending in &mut batch {
            pending.attempted = true;
        }
        let operations = batch.iter().map(|pending| pending.operation.clone()).collect();
        let start = batch.iter().any(|pending| pending.start);
        let limit = Self::limit(batch.iter());
        let resource = self.link.key.as_str();
        match self.links.client.send(resource, operations, start, limit).await {
            Ok(()) => {
                self.sent.extend(batch);
                Ok(())
            }
            Err(CallError::NotFound) => {
                for pending in batch {
                    self.links.settle(pending, Ok(None));
                }
                Ok(())
            }
            Err(CallError::Final(error)) => {
                for pending in batch {
                    self.links.settle(pending, Err(error.clone()));
                }
                Ok(())
            }
            Err(CallError::Busy(reason)) => {
                self.trouble = Some(reason);
                self.put_back(batch);
                Err(self.pauses.next_busy())
            }
            Err(CallError::NoAnswer(reason)) => {
                self.trouble = Some(reason);
                self.put_back(batch);
                Err(self.pauses.next())
            }
        }
    }

    /// In front, so that the order stays what it was.
    fn put_back(&mut self, batch: Vec<Pending>) {
        for pending in batch.into_iter().rev() {
            self.unsent.push_front(pending);
        }
    }

    async fn query(&mut self, waiters: Vec<Id>) -> std::result::Result<(), Duration> {
        let mut requests = waiters;
        requests.extend(self.sent.iter().filter_map(Pending::request));
        let request = StatusRequest {
            operations: self.sent.iter().map(|pending| pending.operation.id).collect(),
            requests: requests.clone(),
        };
        let limit = Self::limit(self.sent.iter());
        let resource = self.link.key.as_str().to_owned();
        let answer = self.links.client.ask_status(&resource, request, limit).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(CallError::NotFound) => {
                self.mutex_ended();
                return Ok(());
            }
            Err(CallError::Busy(reason)) => {
                self.trouble = Some(reason);
                return Err(self.pauses.next_busy());
            }
            Err(CallError::NoAnswer(reason)) => {
                self.explain(Error::unreachable("asking the mutex", reason)).await;
                return Err(self.pauses.next());
            }
            Err(CallError::Final(error)) => {
                self.explain(error).await;
                return Err(self.pauses.next());
            }
        };
        self.pauses.reset();
        self.trouble = None;
        self.draining = answer.draining;
        for (mut pending, outcome) in
            std::mem::take(&mut self.sent).into_iter().zip(answer.outcomes)
        {
            pending.missed += 1;
            match outcome {
                Some(outcome) => self.links.settle(pending, Ok(Some(outcome))),
                // Not done yet, since the mutex has only begun.
                None if pending.missed < 5 => self.sent.push(pending),
                // Forgotten by a mutex that was ended and started anew.
                None => {
                    pending.missed = 0;
                    self.unsent.push_back(pending);
                }
            }
        }
        self.nearest = usize::MAX;
        let state = self.link.state.lock();
        for (lease, place) in requests.iter().zip(answer.places) {
            if let QueuePlace::Waiting(place) = place {
                self.nearest = self.nearest.min(place);
            }
            if let Some(places) = state.waiters.get(lease) {
                places.send_if_modified(|seen| std::mem::replace(seen, place) != place);
            }
        }
        Ok(())
    }

    /// The mutex has ended between a signal and the query. What it was asked is sent once more: it is done
    /// once, and where nothing is to be started the server says that there is no mutex any more.
    fn mutex_ended(&mut self) {
        self.unsent.extend(self.sent.drain(..));
        for places in self.link.state.lock().waiters.values() {
            places.send_replace(QueuePlace::Unknown);
        }
    }

    /// Finds out why there is no answer. What is certain ends the operations at once.
    async fn explain(&mut self, error: Error) {
        let resource = self.link.key.as_str();
        let found = self.links.client.explained(resource, error, Duration::from_secs(1)).await;
        self.trouble = Some(found.to_string());
        if found.code() != "temporal_unreachable" {
            for pending in std::mem::take(&mut self.sent) {
                self.links.settle(pending, Err(found.clone()));
            }
        }
    }
}
