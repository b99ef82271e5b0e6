//! The in-memory provider with one flaw.
#![allow(dead_code, reason = "each test file that has this module uses a part of it")]

use std::collections::HashSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use latchwork_lock::provider::{AcquireRequest, Acquired, Grant, LockProvider, Proof, Token, Wait};
use latchwork_lock::{
    Capabilities, Clock, Fence, Holder, InMemoryLockProvider, Inspection, Key, Mode, Page,
    PageRequest, Result,
};

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    ExcludesNobody,
    ReleasesForAnybody,
    RenewsForAnybody,
    FenceStands,
    ForgetsDrops,
    ForgetsReleases,
    NeverExpires,
    ExpiresEarly,
    ResumesTwice,
    BreaksNothing,
    BreaksAll,
    ShowsTokens,
    WakesLate,
    WaitsForEver,
    ForgetsWhoWaited,
    TrustsFromTheRequest,
    DeclaresNothing,
    /// A lease that was broken is handed on as good.
    HandsOverAnything,
    /// A turn that is not claimed passes on after five seconds, and 500 ms are declared.
    ClaimsLate,
    /// Each wait lasts 1.5 s longer than was asked.
    WaitsLonger,
    /// What was released is listed no more, and kept for ever.
    FreesNothing,
    /// The task that polls a request first is the one that is woken.
    WakesTheFirstTask,
    /// A token that waits renews, too.
    RenewsWhileWaiting,
    /// A listing finds a beginning anywhere in a key.
    ListsInside,
    /// Readers pass a writer that waits.
    ReadersPass,
    /// A name of an owner is nothing to it.
    IgnoresOwners,
    /// Anybody takes over what has no name.
    TakesOverFromAnybody,
    /// A renewal keeps the old ttl.
    KeepsTheFirstTtl,
    /// It says that a lease began later than it did.
    TrustsTooLong,
    /// It says yes to a renewal, and does nothing.
    RenewsNothing,
    /// A request that is repeated with its token is a new one.
    ForgetsItsAnswer,
    /// Keys are told apart by their first 40 bytes only.
    CutsKeys,
    /// Granted at once, whatever the strategy; only a wait is refused.
    RefusesToWait,
}

#[derive(Clone)]
pub(crate) struct Mutant {
    inner: InMemoryLockProvider,
    flaw: Option<Flaw>,
    memory: Arc<Memory>,
}

/// What the clones of a mutant share besides its locks.
#[derive(Default)]
struct Memory {
    used: AtomicU64,
    asked: Mutex<HashSet<u128>>,
}

impl Memory {
    fn asked(&self) -> std::sync::MutexGuard<'_, HashSet<u128>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mutant {
    pub(crate) fn new(inner: InMemoryLockProvider, flaw: Option<Flaw>) -> Self {
        Mutant { inner, flaw, memory: Arc::default() }
    }

    /// How much it stores.
    pub(crate) fn stored(&self) -> u64 {
        match self.flaw {
            Some(Flaw::FreesNothing) => self.memory.used.load(Ordering::Relaxed),
            _ => self.inner.entries() as u64,
        }
    }

    /// The key as it sees it.
    fn key(&self, key: &Key) -> Key {
        let cut = || Key::new(&key.as_str().chars().take(40).collect::<String>());
        match self.flaw {
            Some(Flaw::CutsKeys) => cut().unwrap_or_else(|_| key.clone()),
            _ => key.clone(),
        }
    }

    async fn granted(&self, request: &AcquireRequest) -> Result<Acquired> {
        match self.flaw {
            Some(Flaw::ClaimsLate) if request.wait != Wait::No => self.claimed_late(request).await,
            Some(Flaw::WakesTheFirstTask) => {
                let mut inner = pin!(self.inner.acquire(request));
                let mut first: Option<Waker> = None;
                poll_fn(move |cx| {
                    let waker = first.get_or_insert_with(|| cx.waker().clone());
                    inner.as_mut().poll(&mut Context::from_waker(waker))
                })
                .await
            }
            _ => self.inner.acquire(request).await,
        }
    }

    /// A task takes the turn, and keeps it for five seconds for the request that it is for.
    async fn claimed_late(&self, request: &AcquireRequest) -> Result<Acquired> {
        let (inner, asked) = (self.inner.clone(), request.clone());
        let (answer, answered) = tokio::sync::oneshot::channel();
        let claimed = Arc::new(AtomicBool::new(false));
        let is_claimed = claimed.clone();
        let waiting = tokio::spawn(async move {
            let acquired = inner.acquire(&asked).await;
            let _ = answer.send(acquired);
            tokio::time::sleep(Duration::from_secs(5)).await;
            if !is_claimed.load(Ordering::SeqCst) {
                inner.release_later(Proof { key: &asked.key, token: asked.token });
            }
        });
        struct AbortOnDrop(tokio::task::JoinHandle<()>, bool);
        impl Drop for AbortOnDrop {
            fn drop(&mut self) {
                if self.1 {
                    self.0.abort();
                }
            }
        }
        let mut waiting = AbortOnDrop(waiting, true);
        let acquired = answered.await.unwrap_or(Ok(Acquired::Taken(None)));
        waiting.1 = false;
        claimed.store(true, Ordering::SeqCst);
        acquired
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn ttl(&self, ttl: Duration) -> Duration {
        match self.flaw {
            Some(Flaw::NeverExpires) => Duration::from_secs(3_600),
            Some(Flaw::ExpiresEarly) => ttl / 3,
            _ => ttl,
        }
    }

    fn grant(&self, mut grant: Grant) -> Grant {
        match self.flaw {
            Some(Flaw::FenceStands) => grant.fence = Fence::new(7),
            Some(Flaw::ForgetsWhoWaited) => grant.waited = false,
            _ => {}
        }
        grant
    }
}

impl LockProvider for Mutant {
    fn name(&self) -> &'static str {
        "mutant"
    }
    fn capabilities(&self) -> Capabilities {
        match self.flaw {
            Some(Flaw::DeclaresNothing) => Capabilities::NONE,
            Some(Flaw::ClaimsLate) => {
                self.inner.capabilities().with_claim_window(Duration::from_millis(500))
            }
            _ => self.inner.capabilities(),
        }
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }
    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired> {
        let mut request = request.clone();
        request.ttl = self.ttl(request.ttl);
        request.key = self.key(&request.key);
        self.memory.used.fetch_add(1, Ordering::Relaxed);
        if self.has(Flaw::ForgetsItsAnswer) && !self.memory.asked().insert(request.token.expose()) {
            request.token = Token::random();
        }
        if self.has(Flaw::IgnoresOwners) {
            request.owner = None;
        }
        if self.has(Flaw::TakesOverFromAnybody) && request.owner.is_none() {
            request.owner = Some(latchwork_lock::Owner::new("anybody")?);
        }
        if self.has(Flaw::RefusesToWait) {
            request.wait = Wait::No;
        }
        if let (Flaw::WaitsLonger, Wait::For(span)) =
            (self.flaw.unwrap_or(Flaw::DeclaresNothing), request.wait)
        {
            request.wait = Wait::For(span + Duration::from_millis(1_500));
        }
        let is_reader = request.mode == Mode::Shared;
        if self.has(Flaw::ReadersPass) && is_reader {
            let seen = self.inner.inspect(&request.key).await?;
            let readers = seen.holders.iter().filter(|holder| holder.mode == Mode::Shared);
            // A writer waits: past it, beside the readers that are in.
            if let (Some(last), true) = (readers.map(|r| r.fence).max(), !seen.waiters.is_empty()) {
                return Ok(Acquired::Granted(Grant::first(Fence::new(last.get() + 1))));
            }
        }
        if self.has(Flaw::ShowsTokens) {
            request.note = Some(format!("{:032x}", request.token.expose()).into());
        }
        if self.has(Flaw::ExcludesNobody) {
            request.wait = Wait::No;
        }
        if self.has(Flaw::WaitsForEver) && request.wait != Wait::No {
            request.wait = Wait::Forever;
        }
        match self.granted(&request).await? {
            Acquired::Granted(mut grant) => {
                if self.has(Flaw::TrustsTooLong) {
                    grant.trusted_from = Some(request.sent_at.after(request.ttl));
                }
                if self.has(Flaw::TrustsFromTheRequest) {
                    grant.trusted_from = Some(request.sent_at);
                }
                if self.has(Flaw::WakesLate) && grant.waited {
                    tokio::time::sleep(Duration::from_millis(900)).await;
                }
                Ok(Acquired::Granted(self.grant(grant)))
            }
            Acquired::Taken(_) if self.has(Flaw::ExcludesNobody) => {
                Ok(Acquired::Granted(Grant::first(Fence::new(u64::MAX >> 2))))
            }
            taken => Ok(taken),
        }
    }
    async fn renew(&self, proof: Proof<'_>, ttl: Duration) -> Result<bool> {
        let (key, ttl) = (self.key(proof.key), self.ttl(ttl));
        let proof = Proof { key: &key, token: proof.token };
        let seen = self.inner.inspect(&key).await?;
        if self.has(Flaw::RenewsNothing) && seen.is_held() {
            return Ok(true);
        }
        let first = seen.holders.first().map(|holder| (holder.expires_at - holder.since).to_std());
        let ttl = match first {
            Some(Ok(first)) if self.has(Flaw::KeepsTheFirstTtl) => first.min(ttl),
            _ => ttl,
        };
        let renewed = self.inner.renew(proof, ttl).await?;
        let by_waiter = self.has(Flaw::RenewsWhileWaiting) && !seen.waiters.is_empty();
        Ok(renewed || by_waiter || self.has(Flaw::RenewsForAnybody))
    }
    async fn release(&self, proof: Proof<'_>) -> Result<bool> {
        if self.has(Flaw::ForgetsReleases) {
            return Ok(true);
        }
        if self.has(Flaw::ReleasesForAnybody) {
            return Ok(!self.inner.break_lock(proof.key, None).await?.is_empty());
        }
        let key = self.key(proof.key);
        let proof = Proof { key: &key, token: proof.token };
        let released = self.inner.release(proof).await?;
        Ok(released || self.has(Flaw::ExcludesNobody))
    }
    fn release_later(&self, proof: Proof<'_>) {
        if !self.has(Flaw::ForgetsDrops) {
            let key = self.key(proof.key);
            self.inner.release_later(Proof { key: &key, token: proof.token });
        }
    }
    async fn hand_over(&self, proof: Proof<'_>) -> Result<bool> {
        Ok(self.inner.hand_over(proof).await? || self.has(Flaw::HandsOverAnything))
    }
    async fn rotate(&self, proof: Proof<'_>, fresh: Token, ttl: Duration) -> Result<Option<Grant>> {
        if self.has(Flaw::ResumesTwice) {
            // Believes every caller: somebody holds the key, so it goes on.
            let found = self.inner.inspect(proof.key).await?;
            return Ok(found.holders.first().map(|holder| Grant::first(holder.fence)));
        }
        Ok(self.inner.rotate(proof, fresh, ttl).await?.map(|grant| self.grant(grant)))
    }
    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        self.inner.inspect(key).await
    }
    async fn list(&self, prefix: &str, page: &PageRequest) -> Result<Page> {
        if self.has(Flaw::ListsInside) {
            let all = self.inner.list("", &PageRequest { limit: 1_000, after: None }).await?;
            let keys = all.keys.into_iter().filter(|found| found.key.contains(prefix)).collect();
            return Ok(Page::cut(keys, page));
        }
        self.inner.list(prefix, page).await
    }
    async fn break_lock(&self, key: &Key, fence: Option<Fence>) -> Result<Vec<Holder>> {
        match self.flaw {
            Some(Flaw::BreaksNothing) => Ok(self.inner.inspect(key).await?.holders),
            Some(Flaw::BreaksAll) => self.inner.break_lock(key, None).await,
            _ => self.inner.break_lock(key, fence).await,
        }
    }
    async fn close(&self) {
        self.inner.close().await;
    }
}
