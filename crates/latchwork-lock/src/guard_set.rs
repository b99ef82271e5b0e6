//! Several keys at once, all or none.

use std::fmt;
use std::time::Duration;

use futures::future::{Either, select};

use crate::request::{LockRequest, ManyKeys};
use crate::{Error, Guard, Held, Refresh, Result, Scope, Wait};

/// Guards of several keys, in the order of the keys; released together.
#[must_use = "guards that are not kept are released at once"]
pub struct GuardSet {
    guards: Vec<Guard>,
}

impl GuardSet {
    /// The lease of one key.
    pub fn get(&self, key: &str) -> Option<&Held> {
        self.iter().find(|held| held.key() == key)
    }

    /// The leases, in the order of their keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Held> {
        self.guards.iter().map(|guard| &**guard)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.guards.len()
    }

    /// Whether no key was asked for.
    pub fn is_empty(&self) -> bool {
        self.guards.is_empty()
    }

    /// Whether every lease can still be trusted.
    pub fn is_held(&self) -> bool {
        self.iter().all(Held::is_held)
    }

    /// Ends when one of the leases can no longer be trusted.
    ///
    /// Cancel safe: it only looks.
    pub async fn lost(&self) {
        if self.is_empty() {
            return std::future::pending().await;
        }
        futures::future::select_all(self.iter().map(|held| Box::pin(held.lost()))).await;
    }

    /// Renews each lease of which less than half of the ttl is left.
    ///
    /// Cancel safe: each renewal has happened or it has not.
    ///
    /// # Errors
    /// As for [`Held::refresh`], of the first that fails.
    pub async fn refresh(&self) -> Result<()> {
        for held in self.iter() {
            held.refresh().await?;
        }
        Ok(())
    }

    /// Releases all of them, last key first, and waits for the answers.
    ///
    /// Cancel safe: dropped midway, the rest is queued as by a drop.
    ///
    /// # Errors
    /// As for [`Guard::release`], of the first that fails; the others are released all the same.
    pub async fn release(mut self) -> Result<()> {
        let mut out = Ok(());
        while let Some(guard) = self.guards.pop() {
            let released = guard.release().await;
            out = out.and(released);
        }
        out
    }

    /// A scope of work under all of them; none where there are none.
    pub(crate) fn scope(&mut self) -> Option<Scope> {
        self.guards.iter_mut().fold(None, |outer: Option<Scope>, guard| {
            let held = guard.share();
            Some(outer.map_or_else(|| held.scope(), |outer| outer.inner(held.clone())))
        })
    }

    pub(crate) fn into_guards(self) -> Vec<Guard> {
        self.guards
    }
}

impl fmt::Debug for GuardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl LockRequest<'_, ManyKeys> {
    /// Asks for all keys under one deadline; not getting one of them is an error, and then none
    /// is held.
    ///
    /// Cancel safe, and with the same errors as for one key.
    pub async fn acquire(self) -> Result<GuardSet> {
        self.acquire_all().await
    }

    /// The same, but that somebody else has one of them is no error: the answer is none.
    ///
    /// Cancel safe, and with the same errors as for one key but for that one.
    pub async fn try_acquire(self) -> Result<Option<GuardSet>> {
        self.contention_is_an_answer()
            .acquire()
            .await
            .map_or_else(Error::unless_taken, |guards| Ok(Some(guards)))
    }
}

impl<F> LockRequest<'_, ManyKeys, F> {
    pub(crate) async fn acquire_all(mut self) -> Result<GuardSet> {
        self.needs_guard("ask for several keys only where they are to be locked")?;
        let keys = std::mem::replace(&mut self.keys.0, Ok(Vec::new()))?;
        let clock = self.locks.clock();
        let started = clock.now();
        let mut set = GuardSet { guards: Vec::with_capacity(keys.len()) };
        // What is held already stays so until the last is granted or given up (L22).
        let mut scope = Scope::current();
        for key in keys {
            let mut held = self.build(key)?;
            if let Wait::For(timeout) = held.request.wait {
                held.request.wait = match timeout.saturating_sub(clock.now().since(started)) {
                    Duration::ZERO => Wait::No,
                    left => Wait::For(left),
                };
            }
            {
                let asking = std::pin::pin!(async {
                    match &scope {
                        Some(scope) => scope.run(held.acquire()).await,
                        None => held.acquire().await,
                    }
                });
                // The first leases must not run out while the last is waited for.
                match select(asking, std::pin::pin!(keep_alive(&set))).await {
                    Either::Left((answer, _)) => answer??,
                    Either::Right((lost, _)) => return Err(lost),
                }
            }
            let guard = Guard::renewing(held, self.renewal)?;
            scope = scope.map(|outer| outer.inner(guard.share()));
            set.guards.push(guard);
        }
        set.refresh().await?;
        Ok(set)
    }
}

/// Renews what is held until one of them is lost.
async fn keep_alive(set: &GuardSet) -> Error {
    let Some(first) = set.iter().next() else {
        return std::future::pending().await;
    };
    let clock = first.locks.clock();
    loop {
        clock.sleep_until(clock.now().after(first.ttl() / 3)).await;
        for held in set.iter() {
            let force = Refresh { ttl: None, threshold: Some(Duration::ZERO) };
            if let Err(error) = held.refresh_with(force).await
                && (!error.is_temporary() || !held.is_held())
            {
                return error;
            }
        }
    }
}
