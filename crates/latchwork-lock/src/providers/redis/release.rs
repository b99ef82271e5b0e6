//! The releases that drops have queued (L21).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use redis::Value;
use tokio::sync::watch;

use super::batch::{Answer, Job, Lane, Question, Reply};
use super::scripts::Operation;
use super::store::{Store, member};
use super::tell::Tell;
use super::watcher::runtime;
use crate::retry::Backoff;
use crate::rules::Id;
use crate::{Key, Moment, Result};

/// How often a release is tried while the server is away; then the ttl ends the lease.
const TRIES: u32 = 8;

pub(super) struct Releases {
    left: watch::Sender<usize>,
}

/// One release on its way.
pub(super) struct Release {
    store: Arc<Store>,
    key: Key,
    id: Id,
    asked_at: Moment,
    tries: u32,
    left: watch::Sender<usize>,
    /// Nothing is left to do.
    done: bool,
}

/// A release of a key that others of this process wait for. They are given theirs where the answer
/// arrives, and whoever released is told afterwards: they have waited longer.
pub(super) struct Handing {
    pub(super) store: Arc<Store>,
    pub(super) during: &'static str,
    pub(super) key: Key,
    pub(super) asked_at: Moment,
    pub(super) tell: Tell,
}

impl Handing {
    /// Hands out what the answer holds; and who is to be woken, the one who released.
    pub(super) fn answered(self, answer: Result<Answer>) -> Option<Waker> {
        let Handing { store, during, key, asked_at, .. } = &self;
        let held = answer.and_then(|answer| store.released(during, key, *asked_at, &answer));
        let told =
            |(held, _): (bool, bool)| Answer { value: Value::Int(held.into()), again: false };
        self.tell.answer(held.map(told))
    }
}

/// A release that is waited for: whether the lease was held, and whether others were given the key.
///
/// Once begun it goes on, also when it is dropped: the answer may hold the grants of others.
pub(super) struct Releasing {
    store: Arc<Store>,
    during: &'static str,
    key: Key,
    asked_at: Moment,
    /// None when it is answered.
    question: Option<Question>,
}

impl Releasing {
    pub(super) fn new(
        store: &Arc<Store>,
        during: &'static str,
        key: &Key,
        asked_at: Moment,
        question: Question,
    ) -> Self {
        let (store, key) = (store.clone(), key.clone());
        Releasing { store, during, key, asked_at, question: Some(question) }
    }
}

impl Future for Releasing {
    type Output = Result<(bool, bool)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(question) = &mut self.question else { return Poll::Pending };
        let answer = ready!(Pin::new(question).poll(cx));
        self.question = None;
        let Releasing { store, during, key, asked_at, .. } = &*self;
        Poll::Ready(answer.and_then(|answer| store.released(during, key, *asked_at, &answer)))
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        let Some(question) = self.question.take() else { return };
        if let Ok(runtime) = runtime() {
            let Releasing { store, during, key, asked_at, .. } = &*self;
            runtime.spawn(Releasing::new(store, during, key, *asked_at, question));
        }
    }
}

/// A question for a lease, not answered yet, and the lane that it goes by.
///
/// Whoever drops it lets a release follow, by the lane of wherever that is. By another lane it might
/// come before the question, which would then have a lease for nobody: so one more follows by the lane
/// of the question.
pub(super) struct Unanswered<'a> {
    store: &'a Arc<Store>,
    releases: &'a Releases,
    key: &'a Key,
    id: Id,
    pub(super) lane: Arc<Lane>,
    answered: bool,
}

impl<'a> Unanswered<'a> {
    pub(super) fn new(store: &'a Arc<Store>, releases: &'a Releases, key: &'a Key, id: Id) -> Self {
        Unanswered { store, releases, key, id, lane: store.lanes.here(), answered: false }
    }

    pub(super) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.answered && !Arc::ptr_eq(&self.lane, &self.store.lanes.here()) {
            self.releases.queue_on(&self.lane, self.store, self.key, self.id);
        }
    }
}

impl Releases {
    pub(super) fn new() -> Self {
        Releases { left: watch::Sender::new(0) }
    }

    /// Queues a release.
    pub(super) fn queue(&self, store: &Arc<Store>, key: &Key, id: Id) {
        self.queue_on(&store.lanes.here(), store, key, id);
    }

    /// Queues a release behind all that a lane has in hand.
    fn queue_on(&self, lane: &Lane, store: &Arc<Store>, key: &Key, id: Id) {
        self.left.send_modify(|left| *left += 1);
        let release = Release {
            store: store.clone(),
            key: key.clone(),
            id,
            asked_at: store.clock.now(),
            tries: 0,
            left: self.left.clone(),
            done: false,
        };
        let job = Job {
            member: member(Operation::Release, key, id),
            reply: Reply::Release(Box::new(release)),
        };
        store.lanes.put_on(lane, job);
    }

    /// Ends when everything that was queued was tried.
    pub(super) async fn flush(&self) {
        let mut left = self.left.subscribe();
        let _ = left.wait_for(|left| *left == 0).await;
    }
}

impl Release {
    /// Goes on after a try: done, or once more after a pause.
    pub(super) fn tried(mut self, answer: Result<Answer>) {
        self.tries += 1;
        let error = match answer {
            Ok(answer) => {
                // Whether it was held nobody asks any more.
                let _ = self.store.released("releasing", &self.key, self.asked_at, &answer);
                self.done = true;
                return;
            }
            Err(error) => error,
        };
        if error.is_temporary()
            && self.tries < TRIES
            && let Ok(runtime) = runtime()
        {
            runtime.spawn(async move {
                let mut backoff = Backoff::new(Duration::from_millis(100 << self.tries.min(4)));
                tokio::time::sleep(backoff.pause()).await;
                let (store, key, id) = (self.store.clone(), self.key.clone(), self.id);
                store.put(Operation::Release, &key, id, Reply::Release(Box::new(self)));
            });
        } else {
            self.done = true;
            tracing::warn!(key = %self.key, %error, "a queued release failed: the ttl ends the lease");
        }
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if self.done || self.tries >= TRIES {
            self.left.send_modify(|left| *left -= 1);
            return;
        }
        // Its lane has ended with the runtime that drove it; the provider's own goes on.
        let (store, key, id) = (self.store.clone(), self.key.clone(), self.id);
        let again = Release {
            store: store.clone(),
            key: key.clone(),
            id,
            asked_at: self.asked_at,
            tries: self.tries + 1,
            left: self.left.clone(),
            done: false,
        };
        store.put_apart(Operation::Release, &key, id, Reply::Release(Box::new(again)));
    }
}
