//! The changes that the [writer](super::writer) makes.

use std::time::Duration;

use latchwork_sql::Fault;
use tokio::sync::oneshot;

use super::boot::LocalProcess;
use super::error::{self, Failure};
use super::record::RequesterInfo;
use super::store::Edit;
use crate::rules::{Id, Rules};
use crate::{Key, Result};

/// A change. It may be made twice, when its first transaction failed because of another job.
pub(super) trait Job: Send {
    fn key(&self) -> &Key;
    /// False when its caller has gone and the change is not needed without it.
    fn is_wanted(&self) -> bool;
    /// The waiter that may be queued by it.
    fn waiter(&self) -> Option<Id>;
    /// How long that one keeps its place, where the place outlives the call.
    fn keep_for(&self) -> Option<Duration> {
        None
    }
    fn change(&mut self, rules: &mut Rules<RequesterInfo>, edit: &mut Edit<'_>);
    /// Called after the change, with the state of the key.
    fn settled(&mut self, rules: &Rules<RequesterInfo>, here: &LocalProcess);
    /// Whether to retry after this failure.
    fn tries_again(&mut self, error: &Failure) -> bool;
    /// Answers its caller.
    fn finish(self: Box<Self>, failed: Option<&Failure>);
}

/// The usual job: a closure, and where its answer goes.
pub(super) struct Task<T, F> {
    pub(super) during: &'static str,
    pub(super) key: Key,
    pub(super) change: F,
    /// Sees the key after the next waiters were granted it.
    pub(super) look: fn(&mut T, &Rules<RequesterInfo>, &LocalProcess),
    pub(super) out: Option<T>,
    pub(super) reply: oneshot::Sender<Result<T>>,
    pub(super) options: JobOptions,
}

/// How a job is to be done.
#[derive(Default)]
pub(super) struct JobOptions {
    /// Also when its caller has gone.
    pub(super) needed: bool,
    /// The waiter that may be queued by it.
    pub(super) waiter: Option<Id>,
    /// How long that one keeps its place, where the place outlives the call.
    pub(super) keep_for: Option<Duration>,
}

impl<T, F> Job for Task<T, F>
where
    T: Send,
    F: FnMut(&mut Rules<RequesterInfo>, &mut Edit<'_>) -> T + Send,
{
    fn key(&self) -> &Key {
        &self.key
    }

    fn is_wanted(&self) -> bool {
        self.options.needed || !self.reply.is_closed()
    }

    fn waiter(&self) -> Option<Id> {
        self.options.waiter
    }

    fn keep_for(&self) -> Option<Duration> {
        self.options.keep_for
    }

    fn change(&mut self, rules: &mut Rules<RequesterInfo>, edit: &mut Edit<'_>) {
        self.out = Some((self.change)(rules, edit));
    }

    fn settled(&mut self, rules: &Rules<RequesterInfo>, here: &LocalProcess) {
        if let Some(out) = &mut self.out {
            (self.look)(out, rules, here);
        }
    }

    fn tries_again(&mut self, _: &Failure) -> bool {
        false
    }

    fn finish(self: Box<Self>, failed: Option<&Failure>) {
        let answer = match (failed, self.out) {
            (None, Some(out)) => Ok(out),
            (Some(failed), _) => Err(error::of(self.during, failed)),
            (None, None) => Err(error::gone(self.during)),
        };
        let _ = self.reply.send(answer);
    }
}

/// Ends a lease, or leaves the queue. True when it was held and had not run out.
pub(super) fn release(rules: &mut Rules<RequesterInfo>, id: Id) -> bool {
    let held = rules.release(id).is_some();
    if !held {
        rules.leave(id);
    }
    held
}

/// A release that was queued (L21).
pub(super) struct DeferredRelease {
    key: Key,
    id: Id,
    /// How often it is tried while the database is unavailable; then the ttl ends the lease.
    tries: u32,
}

impl DeferredRelease {
    pub(super) fn new(key: Key, id: Id) -> Self {
        DeferredRelease { key, id, tries: 4 }
    }
}

impl Job for DeferredRelease {
    fn key(&self) -> &Key {
        &self.key
    }

    fn is_wanted(&self) -> bool {
        true
    }

    fn waiter(&self) -> Option<Id> {
        None
    }

    fn change(&mut self, rules: &mut Rules<RequesterInfo>, _: &mut Edit<'_>) {
        release(rules, self.id);
    }

    fn settled(&mut self, _: &Rules<RequesterInfo>, _: &LocalProcess) {}

    fn tries_again(&mut self, error: &Failure) -> bool {
        self.tries -= 1;
        error.fault == Fault::Temporary && self.tries > 0
    }

    fn finish(self: Box<Self>, failed: Option<&Failure>) {
        if let Some(error) = failed {
            tracing::warn!(key = %self.key, %error, "a queued release failed; the lease ends with its ttl");
        }
    }
}

/// Takes a kept place out of the queue, unless it belongs to another process by now. A failure is left
/// to the end of the belief that this process lives.
pub(super) struct LeaveQueue {
    pub(super) key: Key,
    pub(super) id: Id,
    pub(super) client: i64,
}

impl Job for LeaveQueue {
    fn key(&self) -> &Key {
        &self.key
    }

    fn is_wanted(&self) -> bool {
        true
    }

    fn waiter(&self) -> Option<Id> {
        None
    }

    fn change(&mut self, rules: &mut Rules<RequesterInfo>, _: &mut Edit<'_>) {
        if rules.queue.iter().any(|w| w.id == self.id && w.extra.client == self.client) {
            rules.leave(self.id);
        }
    }

    fn settled(&mut self, _: &Rules<RequesterInfo>, _: &LocalProcess) {}

    fn tries_again(&mut self, _: &Failure) -> bool {
        false
    }

    fn finish(self: Box<Self>, failed: Option<&Failure>) {
        if let Some(error) = failed {
            tracing::debug!(key = %self.key, %error, "a kept place was not removed");
        }
    }
}

/// Ends what has expired, and grants the key to the next waiter. A failure is left to the next job.
pub(super) struct Tidy(pub(super) Key);

impl Job for Tidy {
    fn key(&self) -> &Key {
        &self.0
    }

    fn is_wanted(&self) -> bool {
        true
    }

    fn waiter(&self) -> Option<Id> {
        None
    }

    fn change(&mut self, _: &mut Rules<RequesterInfo>, _: &mut Edit<'_>) {}

    fn settled(&mut self, _: &Rules<RequesterInfo>, _: &LocalProcess) {}

    fn tries_again(&mut self, _: &Failure) -> bool {
        false
    }

    fn finish(self: Box<Self>, failed: Option<&Failure>) {
        if let Some(error) = failed {
            tracing::debug!(key = %self.0, %error, "an old row was not removed");
        }
    }
}
