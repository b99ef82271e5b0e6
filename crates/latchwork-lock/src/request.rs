//! A request under construction, and the ways to end it.

use std::borrow::Borrow;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};

use crate::config::check_ttl;
use crate::lease::check_text;
use crate::renewal::Renewal;
use crate::{
    AcquireRequest, Capability, Error, Guard, Held, Key, LockConfig, LockStrategy, Locks, Mode,
    OnLoss, Owner, Result, Token, Wait,
};

/// A request for a lock, made by [`Locks::lock`] and [`Locks::lock_all`].
///
/// The methods that take `self` and give it back are settings; the others ask.
#[must_use = "a request does nothing until it is asked: acquire, try_acquire, attempt or run"]
pub struct LockRequest<'a, K, F = Async> {
    pub(crate) locks: &'a Locks,
    pub(crate) keys: K,
    pub(crate) config: LockConfig,
    told: bool,
    is_try: bool,
    mode: Mode,
    pub(crate) on_loss: OnLoss,
    pub(crate) renewal: Option<Renewal>,
    labels: Option<Box<Labels>>,
    flavour: PhantomData<F>,
}

/// The names in a request. Apart, since most requests have none and all are moved about.
#[derive(Default)]
struct Labels {
    owner: Option<Owner>,
    note: Option<Arc<str>>,
    /// The first thing that was wrong with a setting, told when the request is asked.
    wrong: Option<Error>,
}

/// What suits the strategy `None`, where one key is asked for.
pub(crate) const ONE_KEY: &str = "use `attempt`";

/// One key is asked for.
pub struct OneKey<S>(pub(crate) S);

/// Several keys are asked for.
pub struct ManyKeys(pub(crate) Result<Vec<Key>>);

impl ManyKeys {
    #[inline]
    pub(crate) fn new<S: AsRef<str>>(locks: &Locks, keys: impl IntoIterator<Item = S>) -> Self {
        let keys = keys.into_iter().map(|key| locks.key(key.as_ref()));
        ManyKeys(keys.collect::<Result<Vec<Key>>>().map(|mut keys| {
            keys.sort_unstable();
            keys.dedup();
            keys
        }))
    }
}

/// The request is asked in a task.
pub struct Async(());

/// What came of an [`attempt`](LockRequest::attempt) under its strategy (L15).
#[derive(Debug)]
#[must_use = "a guard that is not kept is released at once"]
pub enum Attempt<G = Guard> {
    /// The lock is held.
    Held(G),
    /// Somebody else has it, and the strategy was to skip then.
    Skipped,
    /// The strategy was to take no lock.
    Unlocked,
}

impl<'a, K, F> LockRequest<'a, K, F> {
    pub(crate) fn new(locks: &'a Locks, keys: K) -> Self {
        LockRequest {
            locks,
            keys,
            config: locks.defaults().clone(),
            told: false,
            is_try: false,
            mode: Mode::Exclusive,
            on_loss: OnLoss::Cancel,
            renewal: None,
            labels: None,
            flavour: PhantomData,
        }
    }

    /// Alone or shared.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Together with other shared leases.
    pub fn shared(self) -> Self {
        self.mode(Mode::Shared)
    }

    /// Alone; the default.
    pub fn exclusive(self) -> Self {
        self.mode(Mode::Exclusive)
    }

    /// How long the grant lasts unless renewed; 30 s by default.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.config.ttl = ttl;
        self
    }

    /// Waits this long for a taken key. Sets the strategy to [`LockStrategy::Wait`].
    pub fn wait(mut self, timeout: Duration) -> Self {
        self.config.wait_timeout = Some(timeout);
        self.strategy(LockStrategy::Wait)
    }

    /// Waits until the key is free. Sets the strategy to [`LockStrategy::Wait`].
    pub fn wait_forever(mut self) -> Self {
        self.config.wait_timeout = None;
        self.strategy(LockStrategy::Wait)
    }

    /// What to do when the key is taken; by default it fails fast.
    pub fn strategy(mut self, strategy: LockStrategy) -> Self {
        self.config.strategy = strategy;
        self.told = true;
        self
    }

    /// All settings at once, from data.
    pub fn config(mut self, config: impl Borrow<LockConfig>) -> Self {
        self.config = config.borrow().clone();
        self.told = true;
        self
    }

    /// Names the owner: a request of the same owner takes over what it holds (L7).
    pub fn owner(mut self, owner: impl AsRef<str>) -> Self {
        match Owner::new(owner.as_ref()) {
            Ok(owner) => self.labels().owner = Some(owner),
            Err(error) => self.wrong(error),
        }
        self
    }

    /// What [`Locks::inspect`] shows to others: a host, a job, a reason.
    pub fn note(mut self, note: impl AsRef<str>) -> Self {
        let note = note.as_ref();
        match check_text("note", note) {
            Ok(()) => self.labels().note = Some(note.into()),
            Err(error) => self.wrong(error),
        }
        self
    }

    /// Renews the lease in the background, at a third of its ttl, until the guard ends or
    /// `max_hold` has passed since the grant (L10). Off by default.
    pub fn auto_renew(mut self, max_hold: Duration) -> Self {
        self.renewal = Some(Renewal { max_hold });
        self
    }

    /// What the closure form does when the lease is lost meanwhile.
    pub fn on_loss(mut self, on_loss: OnLoss) -> Self {
        self.on_loss = on_loss;
        self
    }

    /// Waits without limit, unless the caller said anything about waiting.
    pub(crate) fn wait_forever_unless_told(self) -> Self {
        if self.told { self } else { self.wait_forever() }
    }

    /// Not getting it is an answer like any other.
    pub(crate) fn contention_is_an_answer(mut self) -> Self {
        self.is_try = true;
        self
    }

    fn labels(&mut self) -> &mut Labels {
        self.labels.get_or_insert_default()
    }

    fn wrong(&mut self, error: Error) {
        self.labels().wrong.get_or_insert(error);
    }

    #[inline]
    pub(crate) fn wait_mode(&self) -> Wait {
        match (self.config.strategy, self.config.wait_timeout) {
            (LockStrategy::Wait, None) => Wait::Forever,
            (LockStrategy::Wait, Some(timeout)) if !timeout.is_zero() => Wait::For(timeout),
            _ => Wait::No,
        }
    }

    /// Checks what can be checked without the key.
    #[inline]
    fn check(&mut self) -> Result<()> {
        check_ttl(self.config.ttl)?;
        let locks = self.locks;
        if self.mode == Mode::Shared {
            locks.require(Capability::Shared)?;
        }
        if self.wait_mode() != Wait::No {
            locks.require(Capability::Wait)?;
        }
        if self.renewal.is_some() {
            locks.require(Capability::Renew)?;
        }
        match self.labels.as_mut().and_then(|labels| labels.wrong.take()) {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }

    /// Checks the settings and makes a pending lease of them.
    pub(crate) fn build(&mut self, key: Key) -> Result<Held> {
        self.check()?;
        let (owner, note) = match &self.labels {
            Some(labels) => (labels.owner.clone(), labels.note.clone()),
            None => (None, None),
        };
        let request = AcquireRequest {
            key,
            mode: self.mode,
            token: Token::random(),
            owner: owner.or_else(|| self.locks.owner().cloned()),
            note,
            ttl: self.config.ttl,
            wait: self.wait_mode(),
            keep: Duration::ZERO,
            retry_interval: self.config.retry_interval,
            sent_at: self.locks.clock().recent(),
        };
        Ok(Held::new_pending(self.locks, request, self.is_try))
    }

    /// The strategy `None` has no guard to give; what to do instead.
    #[inline]
    pub(crate) fn needs_guard(&self, instead: &str) -> Result<()> {
        if self.config.strategy != LockStrategy::None {
            return Ok(());
        }
        let reason = format!("`None` takes no lock, so there is no guard to give: {instead}");
        Err(Error::invalid_argument("strategy", reason))
    }
}

impl<S: AsRef<str>> LockRequest<'_, OneKey<S>> {
    /// Asks for the lock, as the strategy says; not getting it is an error.
    ///
    /// Cancel safe: dropped midway, the request leaves the queue, and a grant that was already
    /// under way is given back.
    ///
    /// # Errors
    /// [`LockAcquisition`](crate::ErrorKind::LockAcquisition) when somebody else has it and the
    /// wait is over, [`LockDeadlock`](crate::ErrorKind::LockDeadlock) inside of a closure form that
    /// would wait for itself (L22), [`Unavailable`](crate::ErrorKind::Unavailable) when the backend did not
    /// answer in that time, and errors about the arguments.
    pub async fn acquire(mut self) -> Result<Guard> {
        self.needs_guard(ONE_KEY)?;
        let mut held = self.build_one()?;
        held.acquire().await??;
        Guard::renewing(held, self.renewal)
    }

    /// The same, but that somebody else has it is no error: the answer is none.
    ///
    /// Cancel safe, and with the same errors as [`acquire`](Self::acquire) but for that one.
    pub async fn try_acquire(self) -> Result<Option<Guard>> {
        self.contention_is_an_answer()
            .acquire()
            .await
            .map_or_else(Error::unless_taken, |guard| Ok(Some(guard)))
    }

    /// Asks for the lock under any of the four strategies (L15).
    ///
    /// Cancel safe, and with the same errors as [`acquire`](Self::acquire).
    pub async fn attempt(self) -> Result<Attempt> {
        match self.config.strategy {
            LockStrategy::None => self.locks.key(self.keys.0.as_ref()).map(|_| Attempt::Unlocked),
            LockStrategy::Skip => {
                Ok(self.try_acquire().await?.map_or(Attempt::Skipped, Attempt::Held))
            }
            LockStrategy::FailFast | LockStrategy::Wait => self.acquire().await.map(Attempt::Held),
        }
    }

    /// Runs a closure under the lock, and releases on return, panic and cancellation (L14).
    ///
    /// What the closure returns comes back as it is, so its errors and the lock's never mix. If
    /// the lease is lost meanwhile, the closure's future is dropped at its next await and the
    /// answer is [`LockLost`](crate::ErrorKind::LockLost) (or
    /// [`LockExpired`](crate::ErrorKind::LockExpired)), unless
    /// [`on_loss(OnLoss::Finish)`](Self::on_loss) was asked for. A request inside that would wait
    /// for this very lock, or for work that waits for this one, fails with
    /// [`LockDeadlock`](crate::ErrorKind::LockDeadlock) where that is certain (L22): see
    /// [`Scope`](crate::Scope).
    ///
    /// Cancel safe: dropped midway, the closure's future is dropped and the lease released.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), and those of a loss.
    pub async fn run<T, Fut>(mut self, work: impl FnOnce(Arc<Held>) -> Fut) -> Result<T>
    where
        Fut: Future<Output = T>,
    {
        self.needs_guard(ONE_KEY)?;
        let mut held = self.build_one()?;
        held.acquire().await??;
        let guard = Guard::renewing(held, self.renewal)?;
        let held = guard.share();
        let out = match self.on_loss {
            OnLoss::Finish => work(held.clone()).await,
            OnLoss::Cancel => {
                let scope = held.scope();
                let work = scope.call(|| work(held.clone()));
                let work = std::pin::pin!(scope.run(work));
                match select(work, std::pin::pin!(held.lost())).await {
                    Either::Left((out, _)) => out,
                    Either::Right(_) => return Err(held.gone(held.locks.clock().now())),
                }
            }
        };
        match guard.release().await {
            Err(error) if error.is_loss() && self.on_loss == OnLoss::Cancel => Err(error),
            // Whatever else a release may say, the work was done under the lock.
            _ => Ok(out),
        }
    }
}

impl<S: AsRef<str>, F> LockRequest<'_, OneKey<S>, F> {
    pub(crate) fn build_one(&mut self) -> Result<Held> {
        let key = self.locks.key(self.keys.0.as_ref())?;
        self.build(key)
    }
}
