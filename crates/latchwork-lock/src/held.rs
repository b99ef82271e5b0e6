//! What is known of a lease while it is held: its fence, and how long it can be trusted.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::select;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::config::{check_ttl, trust_margin};
use crate::provider::Proof;
use crate::renewal::Watchdog;
use crate::reporter::wall_at;
use crate::{AcquireRequest, Error, Fence, Grant, Lease, LockState, Locks, Mode, Moment, Result};

/// A lease in this process: what a [`Guard`](crate::Guard) and the closure of
/// [`run`](crate::LockRequest::run) can ask.
pub struct Held {
    pub(crate) locks: Locks,
    pub(crate) request: AcquireRequest,
    /// Whether not getting it is an answer like any other.
    pub(crate) is_try: bool,
    grant: Grant,
    since: Moment,
    lost: AtomicBool,
    /// Given back or handed over: the guard's drop has nothing left to do.
    ended: AtomicBool,
    /// Given back while it was held.
    released: AtomicBool,
    /// Made on first use, because most leases are neither watched nor renewed.
    extras: OnceLock<Box<Extras>>,
}

struct Extras {
    watchdog: Mutex<Option<Watchdog>>,
    /// Why the last renewal in the background failed.
    renewal_error: Mutex<Option<Arc<Error>>>,
    term: Mutex<Term>,
    changed: Notify,
    /// One renewal at a time: two in flight could be answered in another order than they were
    /// carried out, and we would trust the longer one.
    renewing: tokio::sync::Mutex<()>,
}

/// The current stretch of a lease, by this process's clock.
#[derive(Clone, Copy)]
struct Term {
    ttl: Duration,
    /// Counted from before the request was sent, so never later than in the backend.
    expires: Moment,
}

impl Term {
    fn new(ttl: Duration, from: Moment) -> Self {
        Term { ttl, expires: from.after(ttl) }
    }

    fn trusted_until(self) -> Moment {
        self.expires.before(trust_margin(self.ttl))
    }
}

/// How to renew: see [`Held::refresh_with`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refresh {
    /// The new ttl; none keeps the lease's. Another than the lease's always asks the backend.
    pub ttl: Option<Duration>,
    /// Renew only when less than this is left of the ttl; none is half of the ttl, zero always
    /// renews. It counts only while the ttl stays the same.
    pub threshold: Option<Duration>,
}

impl Held {
    /// A lease that the provider has not granted yet.
    pub(crate) fn new_pending(locks: &Locks, request: AcquireRequest, is_try: bool) -> Self {
        Held {
            locks: locks.share(),
            is_try,
            grant: Grant::PENDING,
            since: request.sent_at,
            request,
            lost: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            released: AtomicBool::new(false),
            extras: OnceLock::new(),
        }
    }

    /// The provider has granted it.
    pub(crate) fn granted(&mut self, grant: Grant) {
        self.grant = grant;
        self.since = grant.trusted_from.unwrap_or(self.request.sent_at);
    }

    /// The key, as it was asked for.
    pub fn key(&self) -> &str {
        self.locks.strip(self.request.key.as_str())
    }

    /// Alone or shared.
    pub fn mode(&self) -> Mode {
        self.request.mode
    }

    /// The number to send with each write; higher than that of any grant of this key before (L4).
    pub fn fence(&self) -> Fence {
        self.grant.fence
    }

    /// Whether somebody else had the key when it was asked for (L19).
    pub fn waited(&self) -> bool {
        self.grant.waited
    }

    /// The fence of the grant before this one, where the backend still knows it (L19).
    ///
    /// When it is the fence of your own last grant, nobody was in between, and what you had read
    /// is still true. None says nothing: read again.
    pub fn previous_fence(&self) -> Option<Fence> {
        self.grant.previous_fence
    }

    /// Whether the lease can still be trusted (L9): computed by this process's clock, without a
    /// round trip, and false from a tenth of the ttl (at most a second) before its end.
    ///
    /// An administrator's break is seen at the next renewal only. What must not happen twice is
    /// guarded by the [`fence`](Self::fence).
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long the lease can be trusted from now on.
    pub fn remaining(&self) -> Duration {
        let until = self.trusted_until();
        if self.lost.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        until.since(self.locks.clock().now())
    }

    /// The current ttl.
    pub fn ttl(&self) -> Duration {
        self.term().ttl
    }

    /// Ends when the lease can no longer be trusted, at the first poll after.
    ///
    /// Cancel safe: it only looks.
    pub async fn lost(&self) {
        loop {
            let changed = self.extras().changed.notified();
            fence(Ordering::SeqCst); // pairs with the one in `notify_changed`
            if !self.is_held() {
                return;
            }
            let until = self.locks.clock().sleep_until(self.trusted_until());
            select(pin!(changed), until).await;
        }
    }

    /// Renews the lease when less than half of its ttl is left.
    ///
    /// Cancel safe: the renewal has happened or it has not; a lost answer never makes the lease
    /// trusted for longer than it is.
    ///
    /// # Errors
    /// [`LockExpired`](crate::ErrorKind::LockExpired) when it ran out, [`LockLost`](crate::ErrorKind::LockLost) when
    /// somebody ended it, [`Unavailable`](crate::ErrorKind::Unavailable) when the backend did not answer.
    pub async fn refresh(&self) -> Result<()> {
        self.refresh_with(Refresh::default()).await
    }

    /// Renews the lease with another ttl or threshold (L8).
    ///
    /// Cancel safe, and with the same errors as [`refresh`](Self::refresh).
    pub async fn refresh_with(&self, refresh: Refresh) -> Result<()> {
        self.locks.require(crate::Capability::Renew)?;
        let _one_at_a_time = self.extras().renewing.lock().await;
        let clock = self.locks.clock();
        let term = self.term();
        let ttl = refresh.ttl.unwrap_or(term.ttl);
        check_ttl(ttl)?;
        let threshold = match refresh.threshold {
            _ if ttl != term.ttl => Duration::ZERO, // the backend must be told
            Some(threshold) => threshold,
            None => ttl / 2,
        };
        let sent_at = clock.now();
        if self.lost.load(Ordering::Acquire) {
            return Err(self.gone(sent_at));
        }
        if !threshold.is_zero() && term.expires.since(sent_at) >= threshold {
            return Ok(());
        }
        // A shorter ttl counts from the question, a longer one from the answer: between the two
        // the backend may have either.
        self.extras().term.lock().expires = term.expires.min(sent_at.after(ttl));
        let proof = self.proof();
        if !self.locks.provider().renew(proof, ttl).await? {
            self.mark_lost();
            return Err(self.gone(clock.now()));
        }
        *self.extras().term.lock() = Term::new(ttl, sent_at);
        self.notify_changed();
        Ok(())
    }

    /// Stops the [renewal in the background](crate::LockRequest::auto_renew): the lease then ends with
    /// its present ttl, unless it is [refreshed](Self::refresh). For a supervisor that gives up on a
    /// holder which it cannot stop.
    pub fn stop_renewing(&self) {
        self.stop_watchdog();
    }

    /// Why the last [renewal in the background](crate::LockRequest::auto_renew) failed; none while they
    /// succeed. It is tried again, whatever the error, until the lease ends.
    pub fn renewal_error(&self) -> Option<Arc<Error>> {
        self.extras.get()?.renewal_error.lock().clone()
    }

    /// What came of a renewal in the background.
    pub(crate) fn note_renewal(&self, error: Option<Arc<Error>>) {
        *self.extras().renewal_error.lock() = error;
    }

    /// What can be shown of the lease to anybody.
    pub fn state(&self) -> LockState {
        LockState::from(&self.lease())
    }

    pub(crate) fn lease(&self) -> Lease {
        let clock = self.locks.clock();
        let (now, wall) = (clock.now(), clock.wall());
        let term = self.term();
        Lease {
            prefix: self.locks.prefix().to_owned(),
            key: self.key().to_owned(),
            mode: self.request.mode,
            owner: self.request.owner.clone(),
            token: self.request.token,
            fence: self.fence(),
            ttl: term.ttl,
            acquired_at: wall_at(wall, now, self.since),
            expires_at: wall_at(wall, now, term.expires),
        }
    }

    #[inline]
    pub(crate) fn proof(&self) -> Proof<'_> {
        Proof { key: &self.request.key, token: self.request.token }
    }

    pub(crate) fn since(&self) -> Moment {
        self.since
    }

    pub(crate) fn expires(&self) -> Moment {
        self.term().expires
    }

    #[inline]
    pub(crate) fn mark_ended(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// The caller gave it back, and not because it was lost.
    #[inline]
    pub(crate) fn mark_released(&self) {
        self.released.store(true, Ordering::Relaxed);
    }

    /// Keeps the watchdog for as long as the guard lives.
    pub(crate) fn keep_watchdog(&self, watchdog: Watchdog) {
        *self.extras().watchdog.lock() = Some(watchdog);
    }

    pub(crate) fn stop_watchdog(&self) {
        if let Some(extras) = self.extras.get() {
            extras.watchdog.lock().take();
        }
    }

    /// The backend said that the lease is not ours, or we gave it back.
    pub(crate) fn mark_lost(&self) {
        self.lost.store(true, Ordering::Release);
        self.notify_changed();
    }

    /// Why the lease is gone: given back; by time, if its time is over by our clock; else by somebody,
    /// as only the backend can say: until it does, it is the trust that is over.
    pub(crate) fn gone(&self, now: Moment) -> Error {
        let over = match self.lost.load(Ordering::Acquire) {
            true => self.expires(),
            false => self.trusted_until(),
        };
        if self.released.load(Ordering::Relaxed) {
            Error::released(self.key(), self.fence())
        } else if now >= over {
            let renewal = self.renewal_error().map(|error| error.to_string());
            Error::not_renewed(self.key(), self.fence(), renewal)
        } else {
            Error::lost(self.key(), self.fence())
        }
    }

    fn term(&self) -> Term {
        match self.extras.get() {
            Some(extras) => *extras.term.lock(),
            None => self.first_term(),
        }
    }

    fn first_term(&self) -> Term {
        Term::new(self.request.ttl, self.since)
    }

    fn extras(&self) -> &Extras {
        self.extras.get_or_init(|| {
            Box::new(Extras {
                watchdog: Mutex::new(None),
                renewal_error: Mutex::new(None),
                term: Mutex::new(self.first_term()),
                changed: Notify::new(),
                renewing: tokio::sync::Mutex::new(()),
            })
        })
    }

    fn notify_changed(&self) {
        // Either this sees the waiting task, or that task sees the change.
        fence(Ordering::SeqCst);
        if let Some(extras) = self.extras.get() {
            extras.changed.notify_waiters();
        }
    }

    fn trusted_until(&self) -> Moment {
        self.term().trusted_until()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("key", &self.key())
            .field("mode", &self.mode())
            .field("fence", &self.fence())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
