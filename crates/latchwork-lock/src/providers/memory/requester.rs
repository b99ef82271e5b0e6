//! What the in-memory provider remembers of a requester.

use std::task::Waker;

use crate::rules::{Requester, Rules};
use crate::{AcquireRequest, Moment};

/// How to wake a waiter, and until when it waits.
pub(super) struct WakeAt {
    pub(super) waker: Option<Waker>,
    pub(super) deadline: Moment,
}

pub(super) fn requester(request: &AcquireRequest, now: Moment, extra: WakeAt) -> Requester<WakeAt> {
    Requester {
        id: request.token.expose(),
        mode: request.mode,
        owner: request.owner.clone(),
        note: request.note.clone(),
        ttl: request.ttl,
        since: now,
        extra,
    }
}

impl Rules<WakeAt> {
    /// When a lease that has waiters behind it expires. The timer knows the deadlines of the waiters
    /// from when they came.
    pub(super) fn next_check(&self) -> Moment {
        if self.queue.is_empty() { Moment::NEVER } else { self.next_expiry() }
    }
}
