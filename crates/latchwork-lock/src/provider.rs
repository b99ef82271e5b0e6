//! What the author of a lock provider needs; users of locks do not.
//!
//! # Writing a provider
//!
//! Implement [`LockProvider`] and prove it with the crate `latchwork-contract`,
//! which runs every promise that your [`Capabilities`] declare. The rules:
//!
//! - **The client makes the token.** [`acquire`](LockProvider::acquire) called
//!   again with a token that was already granted answers the same grant; called
//!   again with a token that already waits, it keeps its place. So after an
//!   error nothing is undone: `Locks` asks again with the token, or releases it.
//! - **Every comparison of a token is in the same atomic step as the change.**
//! - **A token that waits holds nothing** (L3): renewing and handing over answer false,
//!   and so does a release, which leaves the queue nevertheless.
//! - **An upgrade beside other readers** answers [`Acquired::Taken`] at once (L7).
//! - **No call blocks its thread**: other requests and renewals run there.
//! - **Your clock decides** about expiry, never the caller's.
//! - **Keys arrive whole**, with their prefix, and checked.
//! - **A dropped future leaves nothing behind** beyond the claim window: what
//!   cannot be undone at once is undone by the
//!   [`release_later`](LockProvider::release_later) that `Locks` calls when a
//!   request is dropped.
//! - **A waiter whose turn has come confirms it** (L5): a hand-off is a reservation until then.
//!   What [`acquire`](LockProvider::acquire) returns is a confirmed lease with its whole ttl, counted
//!   from [`Grant::trusted_from`], a moment before the confirmation was sent.
//! - **Outage is not contention**: answer [`Unavailable`](crate::ErrorKind::Unavailable) and let
//!   `Locks` retry; [`Acquired::Taken`] means that another holder has the key.
//!
//! Dates are of [`chrono`], in the version that this crate re-exports.
//!
//! # The promises
//!
//! The cases of the suite are named after them, and a failure repeats the sentence. Those of what is
//! declared are a provider's to keep; the rest [`Locks`](crate::Locks) adds.
//!
#![doc = include_str!("promises.md")]

use std::future::Future;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;

use crate::{
    Capabilities, Clock, Error, Fence, Holder, Inspection, Key, Mode, Owner, Page, PageRequest,
    Result, StaleFence, SystemClock,
};

pub use crate::any_provider::AnyLockProvider;
pub use crate::clock::{BootClock, JumpHook, Moment, Sleep};
pub use crate::config::{Wait, trust_margin};
pub use crate::lease::{Token, process_label};

const PROMISES: &str = include_str!("promises.md");

/// The promise with this number, 1 to 22, as the [list](self#the-promises) has it: its name and its
/// sentence.
pub fn promise(number: u8) -> Option<(&'static str, &'static str)> {
    let index = usize::from(number).checked_sub(1)?;
    let (name, sentence) = PROMISES.lines().nth(index)?.strip_prefix("- **")?.split_once("** ")?;
    Some((name.trim_end_matches(['.', '?']), sentence))
}

/// One request for a lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// What to lock, with its prefix.
    pub key: Key,
    /// Alone or shared.
    pub mode: Mode,
    /// The secret that the lease will have.
    pub token: Token,
    /// The owner, where the caller chose a name; such a request takes over what the owner holds (L7).
    pub owner: Option<Owner>,
    /// What the caller says about itself.
    pub note: Option<Arc<str>>,
    /// How long the grant lasts.
    pub ttl: Duration,
    /// How long to wait, counted from the call.
    pub wait: Wait,
    /// How long its place in the queue outlives the call, for a caller that asks again with the same
    /// token, here or in another process; zero, the default: the place ends with the call.
    ///
    /// With it nothing is released when the call is dropped or its wait is over, neither a place nor a
    /// grant: the next call with the token, in whichever process, finds both. So a request that
    /// waits asks for a ttl that is no longer than others may be held up by a caller which does not
    /// come back, and renews it later. A request that does not wait queues for nothing; asked again
    /// while its token holds the key, it lets the lease last its whole ttl from then on, if that
    /// is longer, since nobody knows when the first one was answered.
    /// Only for providers that [keep places](crate::Capabilities::keeps_places).
    pub keep: Duration,
    /// The tick for backends without notification.
    pub retry_interval: Duration,
    /// When the request was made, by [`LockProvider::clock`]. A grant's trust counts from here
    /// unless [`Grant::trusted_from`] says later.
    pub sent_at: Moment,
}

impl AcquireRequest {
    /// An exclusive request with a new token, which does not wait.
    pub fn new(key: Key, ttl: Duration, sent_at: Moment) -> Self {
        AcquireRequest {
            key,
            mode: Mode::Exclusive,
            token: Token::random(),
            owner: None,
            note: None,
            ttl,
            wait: Wait::No,
            keep: Duration::ZERO,
            retry_interval: Duration::from_millis(100),
            sent_at,
        }
    }

    /// Sets the mode.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets how long it waits.
    #[must_use]
    pub fn with_wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Sets how long its place in the queue outlives the call.
    #[must_use]
    pub fn with_keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// Sets the secret, of a request that was made before.
    #[must_use]
    pub fn with_token(mut self, token: Token) -> Self {
        self.token = token;
        self
    }

    /// Sets the owner.
    #[must_use]
    pub fn with_owner(mut self, owner: Option<Owner>) -> Self {
        self.owner = owner;
        self
    }

    /// Sets what the caller says about itself.
    #[must_use]
    pub fn with_note(mut self, note: impl Into<Arc<str>>) -> Self {
        self.note = Some(note.into());
        self
    }
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub enum Acquired {
    /// It is ours.
    Granted(Grant),
    /// Somebody has it, and the wait is over. A holder, where that cost nothing to know.
    Taken(Option<Box<Holder>>),
}

/// A grant, as the provider knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Higher than any fence of this key before.
    pub fence: Fence,
    /// The fence of the grant before, where the backend still knows it (L19).
    pub previous_fence: Option<Fence>,
    /// Whether the request had to wait (L19).
    pub waited: bool,
    /// A moment not after the start of the ttl in the backend, where it is later than the request.
    pub trusted_from: Option<Moment>,
}

impl Grant {
    /// Stands where the answer will be written.
    pub(crate) const PENDING: Grant = Grant::first(Fence::new(0));

    /// A grant at once, of a key of which nothing else is known.
    pub const fn first(fence: Fence) -> Self {
        Grant { fence, previous_fence: None, waited: false, trusted_from: None }
    }
}

/// What a holder shows to renew or release: the key and the secret.
#[derive(Clone, Copy, Debug)]
pub struct Proof<'a> {
    /// What is held, with its prefix.
    pub key: &'a Key,
    /// The lease's secret.
    pub token: Token,
}

/// A backend of locks.
///
/// Write it with `async fn`; the boxing that [`Locks`](crate::Locks) needs is done once, for all
/// providers. See the [module documentation](self) for the rules.
pub trait LockProvider: Send + Sync + 'static {
    /// Its name in messages and tables: `memory`, `postgres`, …
    fn name(&self) -> &'static str;

    /// What it can do and promises.
    fn capabilities(&self) -> Capabilities;

    /// Asks for a lease and waits as the request says.
    ///
    /// Cancel safe: a dropped future leaves the queue, or gives back what it was granted,
    /// by itself or with the `release_later` that follows.
    fn acquire(&self, request: &AcquireRequest) -> impl Future<Output = Result<Acquired>> + Send;

    /// Lets the lease last `ttl` from now; false when the token holds nothing (any more), or only
    /// waits.
    ///
    /// Cancel safe: the renewal has happened or it has not.
    fn renew(&self, proof: Proof<'_>, ttl: Duration) -> impl Future<Output = Result<bool>> + Send;

    /// Ends the lease, or leaves the queue; false when the token held nothing (any more).
    ///
    /// Cancel safe: the release has happened or it has not, and may be asked for again.
    fn release(&self, proof: Proof<'_>) -> impl Future<Output = Result<bool>> + Send;

    /// Ends the lease soon, without waiting for it: what a drop can do (L21).
    ///
    /// Also called for requests that were given up, so a token that waits must leave the queue,
    /// and one that is unknown must be ignored.
    fn release_later(&self, proof: Proof<'_>);

    /// Marks the lease as about to live on without this process (L13), for backends that end
    /// the leases of dead processes early; false when the token holds nothing (any more), which must
    /// be looked up also where a lease never depends on its process. The default refuses the operation,
    /// for a provider that does not declare [`HandOver`](crate::Capability::HandOver).
    ///
    /// Cancel safe: asking again is harmless.
    fn hand_over(&self, proof: Proof<'_>) -> impl Future<Output = Result<bool>> + Send {
        let _ = proof;
        std::future::ready(Err(Error::not_supported(self.name(), "hand-over")))
    }

    /// Replaces the lease's secret by `fresh`, raises its fence and starts a new `ttl` (L13);
    /// nothing when the old secret holds nothing. Asked again with the same `fresh`, it answers
    /// the same grant.
    ///
    /// Cancel safe: the rotation has happened or it has not.
    fn rotate(
        &self,
        proof: Proof<'_>,
        fresh: Token,
        ttl: Duration,
    ) -> impl Future<Output = Result<Option<Grant>>> + Send;

    /// Who holds and who waits; empty for a free key.
    fn inspect(&self, key: &Key) -> impl Future<Output = Result<Inspection>> + Send;

    /// The keys with this beginning that are held or waited for, sorted.
    fn list(&self, prefix: &str, page: &PageRequest) -> impl Future<Output = Result<Page>> + Send;

    /// Ends the lease with this fence, or all leases of the key, and tells which (L12).
    ///
    /// Cancel safe: the break has happened or it has not.
    fn break_lock(
        &self,
        key: &Key,
        fence: Option<Fence>,
    ) -> impl Future<Output = Result<Vec<Holder>>> + Send;

    /// Lets a fence pass that is not older than the newest that the backend's
    /// [gate](crate::FenceGate) has seen for this name, and remembers it (L20). The default refuses
    /// the operation.
    ///
    /// Cancel safe: the check has happened or it has not, and may be asked for again.
    fn check_fence(
        &self,
        name: &str,
        fence: Fence,
    ) -> impl Future<Output = Result<Result<(), StaleFence>>> + Send {
        let _ = (name, fence);
        std::future::ready(Err(Error::not_supported(self.name(), "a fence gate")))
    }

    /// Waits until every release that was queued has been tried. The default does nothing, for a
    /// provider whose [`release_later`](Self::release_later) releases before it returns.
    ///
    /// Cancel safe: what is queued stays queued.
    fn close(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// The clock by which this process trusts leases of this provider.
    fn clock(&self) -> Arc<dyn Clock> {
        SystemClock::shared()
    }

    /// The same as [`acquire`](Self::acquire), for the in-memory provider: it spares the boxed future.
    /// None, the default, means that `acquire` must be awaited.
    ///
    /// `again` is false at the first call for a request, whose token is new. Pending means that the
    /// request is queued and `waker` will be woken; a caller that gives up then calls
    /// [`release_later`](Self::release_later).
    #[doc(hidden)]
    fn poll_acquire(
        &self,
        request: &AcquireRequest,
        again: bool,
        waker: &Waker,
    ) -> Option<Poll<Result<Acquired>>> {
        let _ = (request, again, waker);
        None
    }

    /// The same as [`release`](Self::release), where that needs no waiting at all.
    #[doc(hidden)]
    fn release_now(&self, proof: Proof<'_>) -> Option<Result<bool>> {
        let _ = proof;
        None
    }
}

/// [`LockProvider`] in the form that can stand behind a pointer; made by the blanket impl below.
pub(crate) trait DynLockProvider: Send + Sync {
    fn name(&self) -> &'static str;
    fn capabilities(&self) -> Capabilities;
    fn clock(&self) -> Arc<dyn Clock>;
    fn poll_acquire(
        &self,
        request: &AcquireRequest,
        again: bool,
        waker: &Waker,
    ) -> Option<Poll<Result<Acquired>>>;
    fn release_now(&self, proof: Proof<'_>) -> Option<Result<bool>>;
    fn release_later(&self, proof: Proof<'_>);
    fn acquire<'a>(&'a self, request: &'a AcquireRequest) -> BoxFuture<'a, Result<Acquired>>;
    fn renew<'a>(&'a self, proof: Proof<'a>, ttl: Duration) -> BoxFuture<'a, Result<bool>>;
    fn release<'a>(&'a self, proof: Proof<'a>) -> BoxFuture<'a, Result<bool>>;
    fn hand_over<'a>(&'a self, proof: Proof<'a>) -> BoxFuture<'a, Result<bool>>;
    fn rotate<'a>(
        &'a self,
        proof: Proof<'a>,
        fresh: Token,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Option<Grant>>>;
    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Inspection>>;
    fn list<'a>(&'a self, prefix: &'a str, page: &'a PageRequest) -> BoxFuture<'a, Result<Page>>;
    fn break_lock<'a>(
        &'a self,
        key: &'a Key,
        fence: Option<Fence>,
    ) -> BoxFuture<'a, Result<Vec<Holder>>>;
    fn check_fence<'a>(
        &'a self,
        name: &'a str,
        fence: Fence,
    ) -> BoxFuture<'a, Result<Result<(), StaleFence>>>;
    fn close(&self) -> BoxFuture<'_, ()>;
}

impl<P: LockProvider> DynLockProvider for P {
    fn name(&self) -> &'static str {
        LockProvider::name(self)
    }
    fn capabilities(&self) -> Capabilities {
        LockProvider::capabilities(self)
    }
    fn clock(&self) -> Arc<dyn Clock> {
        LockProvider::clock(self)
    }
    fn poll_acquire(
        &self,
        request: &AcquireRequest,
        again: bool,
        waker: &Waker,
    ) -> Option<Poll<Result<Acquired>>> {
        LockProvider::poll_acquire(self, request, again, waker)
    }
    fn release_now(&self, proof: Proof<'_>) -> Option<Result<bool>> {
        LockProvider::release_now(self, proof)
    }
    fn release_later(&self, proof: Proof<'_>) {
        LockProvider::release_later(self, proof);
    }
    fn acquire<'a>(&'a self, request: &'a AcquireRequest) -> BoxFuture<'a, Result<Acquired>> {
        Box::pin(LockProvider::acquire(self, request))
    }
    fn renew<'a>(&'a self, proof: Proof<'a>, ttl: Duration) -> BoxFuture<'a, Result<bool>> {
        Box::pin(LockProvider::renew(self, proof, ttl))
    }
    fn release<'a>(&'a self, proof: Proof<'a>) -> BoxFuture<'a, Result<bool>> {
        Box::pin(LockProvider::release(self, proof))
    }
    fn hand_over<'a>(&'a self, proof: Proof<'a>) -> BoxFuture<'a, Result<bool>> {
        Box::pin(LockProvider::hand_over(self, proof))
    }
    fn rotate<'a>(
        &'a self,
        proof: Proof<'a>,
        fresh: Token,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(LockProvider::rotate(self, proof, fresh, ttl))
    }
    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Inspection>> {
        Box::pin(LockProvider::inspect(self, key))
    }
    fn list<'a>(&'a self, prefix: &'a str, page: &'a PageRequest) -> BoxFuture<'a, Result<Page>> {
        Box::pin(LockProvider::list(self, prefix, page))
    }
    fn break_lock<'a>(
        &'a self,
        key: &'a Key,
        fence: Option<Fence>,
    ) -> BoxFuture<'a, Result<Vec<Holder>>> {
        Box::pin(LockProvider::break_lock(self, key, fence))
    }
    fn check_fence<'a>(
        &'a self,
        name: &'a str,
        fence: Fence,
    ) -> BoxFuture<'a, Result<Result<(), StaleFence>>> {
        Box::pin(LockProvider::check_fence(self, name, fence))
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(LockProvider::close(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_promise_has_a_name_and_a_sentence() {
        for number in 1..=22 {
            let (name, sentence) = promise(number).expect("a line of the list");
            assert!(name.starts_with(&format!("L{number} ")), "{name}");
            assert!(sentence.ends_with('.'), "{sentence}");
        }
        assert_eq!(promise(0), None);
        assert_eq!(promise(23), None);
    }
}
