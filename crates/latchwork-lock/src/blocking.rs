//! The same for threads.
//!
//! ```
//! # fn main() -> latchwork_lock::Result<()> {
//! use latchwork_lock::blocking::Locks;
//!
//! let locks = Locks::connect("memory:")?;
//! let answer = locks.scoped("payment:1", |held| {
//!     // Nobody else is in here with the same key; `held.fence()` goes with each write.
//!     held.fence()
//! })?;
//! # let _ = answer; Ok(()) }
//! ```
//!
//! Do not call it inside an async task: it blocks the thread that other tasks need.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::LazyLock;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::acquire::Answer;
use crate::request::{Attempt, LockRequest, ManyKeys, ONE_KEY, OneKey};
use crate::{
    Capabilities, Capability, ConnectOptions, Error, Fence, Held, Holder, Inspection, Lease,
    LockConfig, LockProvider, LockStrategy, OnLoss, Page, PageRequest, Refresh, Result,
};

/// How long [`Locks::scoped`] renews its lease at most: an hour.
///
/// There is a bound because unbounded renewal hides a holder that is stuck.
pub const LONGEST: Duration = Duration::from_secs(3_600);

/// The request is asked on a thread.
pub struct Blocking(());

/// [`crate::Locks`] for threads. Cloning is cheap, and clones are the same locks.
#[derive(Clone, Debug)]
pub struct Locks(crate::Locks);

impl Locks {
    /// Locks on a provider of your own making or configuration.
    pub fn new(provider: impl LockProvider) -> Self {
        Locks(crate::Locks::new(provider))
    }

    /// Locks at an address; see [`crate::Locks::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(url: &str) -> Result<Self> {
        block_on(crate::Locks::connect(url)).map(Locks)
    }

    /// Locks at an address, with options; see [`crate::Locks::connect_with`].
    ///
    /// # Errors
    /// As there.
    pub fn connect_with(url: &str, options: &ConnectOptions) -> Result<Self> {
        block_on(crate::Locks::connect_with(url, options)).map(Locks)
    }

    /// The same backend with another prefix before each key.
    ///
    /// # Errors
    /// As for [`crate::Locks::with_prefix`].
    pub fn with_prefix(&self, prefix: impl AsRef<str>) -> Result<Self> {
        self.0.with_prefix(prefix).map(Locks)
    }

    /// The same backend with one owner for every request that names no other.
    ///
    /// # Errors
    /// As for [`crate::Locks::with_owner`].
    pub fn with_owner(&self, owner: impl AsRef<str>) -> Result<Self> {
        self.0.with_owner(owner).map(Locks)
    }

    /// The same backend with other settings for requests that set none.
    #[must_use]
    pub fn with_defaults(&self, defaults: LockConfig) -> Self {
        Locks(self.0.with_defaults(defaults))
    }

    /// A request for one key.
    pub fn lock<S: AsRef<str>>(&self, key: S) -> LockRequest<'_, OneKey<S>, Blocking> {
        LockRequest::new(&self.0, OneKey(key))
    }

    /// A request for several keys, all or none; see [`crate::Locks::lock_all`].
    pub fn lock_all<K: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> LockRequest<'_, ManyKeys, Blocking> {
        LockRequest::new(&self.0, ManyKeys::new(&self.0, keys))
    }

    /// Runs a closure alone with the key: waits without limit, and releases however it ends.
    ///
    /// The lease is renewed while the closure runs, where the provider can, for [`LONGEST`] at most.
    /// A closure that takes longer, or whose process is stopped or cut off for longer than the ttl
    /// (30 s unless [`with_defaults`](Self::with_defaults) says otherwise), is alone no more: it
    /// sees so by [`Held::is_held`], and its result is given up for the error of the loss. For
    /// another bound: `lock(key).auto_renew(bound).run(…)`.
    ///
    /// # Errors
    /// As for [`LockRequest::run`].
    pub fn scoped<T>(&self, key: impl AsRef<str>, work: impl FnOnce(&Held) -> T) -> Result<T> {
        let request = self.lock(key);
        match self.0.capabilities().has(Capability::Renew) {
            true => request.auto_renew(LONGEST).run(work),
            false => request.run(work),
        }
    }

    /// Goes on holding a lease that was handed over; see [`crate::Locks::resume`].
    ///
    /// # Errors
    /// As there.
    pub fn resume(&self, lease: Lease) -> Result<Guard> {
        block_on(self.0.resume(lease)).map(Guard)
    }

    /// Who holds a key and who waits for it.
    ///
    /// # Errors
    /// As for [`crate::Locks::inspect`].
    pub fn inspect(&self, key: &str) -> Result<Inspection> {
        block_on(self.0.inspect(key))
    }

    /// Whether somebody holds the key.
    ///
    /// # Errors
    /// As for [`crate::Locks::inspect`].
    pub fn exists(&self, key: &str) -> Result<bool> {
        block_on(self.0.exists(key))
    }

    /// The keys that are held or waited for, a page at a time.
    ///
    /// # Errors
    /// As for [`crate::Locks::list`].
    pub fn list(&self, prefix: &str, page: PageRequest) -> Result<Page> {
        block_on(self.0.list(prefix, page))
    }

    /// Ends every lease of a key, as an administrator.
    ///
    /// # Errors
    /// As for [`crate::Locks::break_lock`].
    pub fn break_lock(&self, key: &str) -> Result<Vec<Holder>> {
        block_on(self.0.break_lock(key))
    }

    /// Ends the one lease with this fence.
    ///
    /// # Errors
    /// As for [`crate::Locks::break_lock`].
    pub fn break_lease(&self, key: &str, fence: Fence) -> Result<Option<Holder>> {
        block_on(self.0.break_lease(key, fence))
    }

    /// Waits until every queued release was tried.
    pub fn close(&self) {
        block_on(self.0.close());
    }

    /// What the provider can do and promises.
    pub fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    /// The same locks for tasks.
    pub fn as_async(&self) -> &crate::Locks {
        &self.0
    }
}

impl From<crate::Locks> for Locks {
    fn from(locks: crate::Locks) -> Self {
        Locks(locks)
    }
}

impl<S: AsRef<str>> LockRequest<'_, OneKey<S>, Blocking> {
    /// Asks for the lock, as the strategy says; not getting it is an error.
    ///
    /// # Errors
    /// As for the async form.
    pub fn acquire(mut self) -> Result<Guard> {
        self.needs_guard(ONE_KEY)?;
        let mut held = self.build_one()?;
        // Most often the answer is there at once, and no runtime is needed to wait for it.
        match held.poll_provider(false, Waker::noop()) {
            Poll::Ready(Answer::Granted) => {}
            first => block_on(held.finish(first, false))??,
        }
        match self.renewal {
            None => Ok(crate::Guard::new(held)),
            renewal => crate::Guard::renewing(held, renewal),
        }
        .map(Guard)
    }

    /// The same, but that somebody else has it is no error: the answer is none.
    ///
    /// # Errors
    /// As for the async form.
    pub fn try_acquire(self) -> Result<Option<Guard>> {
        self.contention_is_an_answer()
            .acquire()
            .map_or_else(Error::unless_taken, |guard| Ok(Some(guard)))
    }

    /// Asks for the lock under any of the four strategies (L15).
    ///
    /// # Errors
    /// As for the async form.
    pub fn attempt(self) -> Result<Attempt<Guard>> {
        match self.config.strategy {
            LockStrategy::None => self.locks.key(self.keys.0.as_ref()).map(|_| Attempt::Unlocked),
            LockStrategy::Skip => Ok(self.try_acquire()?.map_or(Attempt::Skipped, Attempt::Held)),
            LockStrategy::FailFast | LockStrategy::Wait => self.acquire().map(Attempt::Held),
        }
    }

    /// Runs a closure under the lock, and releases on return and panic. It waits without limit
    /// unless the request says otherwise.
    ///
    /// A closure on a thread cannot be stopped from outside: it sees a loss by
    /// [`Held::is_held`], and its result is given up for the error of the loss unless
    /// [`on_loss(OnLoss::Finish)`](Self::on_loss) was asked for. Inside, a request that would wait
    /// for this one fails, as in the async form (L22).
    ///
    /// # Errors
    /// As for the async form.
    pub fn run<T>(self, work: impl FnOnce(&Held) -> T) -> Result<T> {
        let on_loss = self.on_loss;
        let guard = self.wait_forever_unless_told().acquire()?;
        let out = match on_loss {
            OnLoss::Finish => work(&guard),
            OnLoss::Cancel => guard.0.share().scope().call(|| work(&guard)),
        };
        match guard.release() {
            Err(error) if error.is_loss() && on_loss == OnLoss::Cancel => Err(error),
            _ => Ok(out),
        }
    }
}

impl LockRequest<'_, ManyKeys, Blocking> {
    /// Asks for all keys under one deadline; not getting one of them is an error, and then none
    /// is held.
    ///
    /// # Errors
    /// As for the async form.
    pub fn acquire(self) -> Result<Vec<Guard>> {
        let set = block_on(self.acquire_all())?;
        Ok(set.into_guards().into_iter().map(Guard).collect())
    }

    /// Runs a closure under all of the locks, and releases them on return and panic. It waits
    /// without limit unless the request says otherwise. What holds for the closure form of one
    /// key holds for each of them.
    ///
    /// # Errors
    /// As for one key.
    pub fn run<T>(self, work: impl FnOnce(&crate::GuardSet) -> T) -> Result<T> {
        let on_loss = self.on_loss;
        let mut set = block_on(self.wait_forever_unless_told().acquire_all())?;
        let scope = if on_loss == OnLoss::Cancel { set.scope() } else { None };
        let out = match scope {
            Some(scope) => scope.call(|| work(&set)),
            None => work(&set),
        };
        match block_on(set.release()) {
            Err(error) if error.is_loss() && on_loss == OnLoss::Cancel => Err(error),
            _ => Ok(out),
        }
    }
}

/// [`crate::Guard`] for threads.
#[must_use = "a guard that is not kept is released at once"]
pub struct Guard(crate::Guard);

impl Guard {
    /// Renews the lease when less than half of its ttl is left.
    ///
    /// # Errors
    /// As for [`Held::refresh`].
    pub fn refresh(&self) -> Result<()> {
        block_on(self.0.refresh())
    }

    /// Renews the lease with another ttl or threshold.
    ///
    /// # Errors
    /// As for [`Held::refresh`].
    pub fn refresh_with(&self, refresh: Refresh) -> Result<()> {
        block_on(self.0.refresh_with(refresh))
    }

    /// Waits until the lease can no longer be trusted, or the time is over; true for the first.
    pub fn wait_lost(&self, timeout: Duration) -> bool {
        block_on(async { tokio::time::timeout(timeout, self.0.lost()).await.is_ok() })
    }

    /// Releases the lease and waits for the backend's answer.
    ///
    /// # Errors
    /// As for [`crate::Guard::release`].
    pub fn release(self) -> Result<()> {
        match self.0.release_now() {
            Some(answer) => answer,
            None => block_on(self.0.release()),
        }
    }

    /// Ends the guard but not the lease; see [`crate::Guard::into_lease`].
    ///
    /// # Errors
    /// As there.
    pub fn into_lease(self) -> Result<Lease> {
        block_on(self.0.into_lease())
    }
}

impl Deref for Guard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.0
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Runs a future on this thread, with timers and tasks on a runtime of our own: the caller may be
/// in no runtime, or in one that this very thread should be driving.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    match background_runtime() {
        Ok(runtime) => {
            let _entered = runtime.enter();
            pollster::block_on(future)
        }
        #[expect(clippy::panic, reason = "the process can start neither a thread nor a runtime")]
        Err(error) => panic!("no runtime for blocking locks: {error}"),
    }
}

/// The runtime of our own, on a thread that nobody's work can block.
pub(crate) fn background_runtime() -> Result<&'static tokio::runtime::Handle, &'static str> {
    static RUNTIME: LazyLock<Result<tokio::runtime::Handle, String>> = LazyLock::new(start_runtime);
    RUNTIME.as_ref().map_err(String::as_str)
}

fn start_runtime() -> Result<tokio::runtime::Handle, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("latchwork-blocking".into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .map_err(|e| e.to_string())?;
    Ok(handle)
}
