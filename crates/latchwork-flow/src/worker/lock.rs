//! The lock of a transition: taken, kept over a pause, restored, given back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use latchwork_lock::{
    Capability, Key, LockConfig, LockRequest, LockStrategy, OneKey, Refresh, Scope,
};

use super::{Phase, StateWorker, emit};
use crate::error::panic_text;
use crate::machine::{Locking, Machine};
use crate::{
    Error, ErrorKind, EventKind, Pause, PauseLock, Result, State, Status, TransitionContext,
    TransitionId,
};

/// Whether a lock was held all the time since the state of its transition was last known to be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Continuity {
    /// It was, or there is none.
    Held,
    /// It was taken again, and nobody else had it in between.
    Taken,
    /// Somebody else may have had it, and why that is.
    Broken(&'static str),
}

impl<S: State> StateWorker<S> {
    /// Takes the lock of a transition that begins; false when it was skipped.
    pub(super) async fn take_lock(&mut self) -> Result<bool> {
        let Some(locking) = &self.machine.locking else { return Ok(true) };
        if locking.config.strategy == LockStrategy::None {
            return Ok(true);
        }
        let key = locking.key(&self.machine, &self.context)?;
        let skips = locking.config.strategy == LockStrategy::Skip;
        self.context_mut().lock_key = Some(key);
        match self.acquire().await {
            Ok(()) => Ok(true),
            Err(error) if error.is_lock_taken() && skips => {
                self.context_mut().skipped_by_lock = true;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Asks for the transition's key, as the machine's settings say.
    pub(super) async fn acquire(&mut self) -> Result<()> {
        let Some(locking) = &self.machine.locking else { return Ok(()) };
        let Some(key) = &self.context.lock_key else { return Ok(()) };
        let asking = EventKind::LockAcquiring { key: key.as_str() };
        emit(&self.machine, &self.context, &mut self.events, asking);
        let mut request = locking.request(key);
        if locking.config.strategy == LockStrategy::Skip {
            request = request.strategy(LockStrategy::FailFast); // so that we learn who has it
        }
        if self.machine.store.is_some() {
            // The transition itself owns the lock, so that a process that continues after a crash takes over
            // what the dead process held, and need not wait for its end.
            request = request.owner(format!("flow:{}", self.context.id));
        }
        match request.acquire().await {
            Ok(guard) => {
                let (fence, waited) = (guard.fence(), guard.waited());
                self.guard = Some(guard);
                let kind = EventKind::LockAcquired { key: key.as_str(), fence, waited };
                emit(&self.machine, &self.context, &mut self.events, kind);
                self.context_mut().fence = Some(fence);
                Ok(())
            }
            Err(error) => {
                let kind = EventKind::LockFailed { key: key.as_str(), error: &error };
                emit(&self.machine, &self.context, &mut self.events, kind);
                Err(error.into())
            }
        }
    }

    /// What gates and actions are run in: a request of theirs for the transition's own key fails at
    /// once, since it would wait for itself (L22).
    pub(super) fn scope(&mut self) -> Option<Scope> {
        self.guard.as_mut().map(|guard| guard.share().scope())
    }

    /// Before each step but the first: a lease that ran out must not be worked under.
    pub(super) async fn check_lock(&mut self) -> Result<()> {
        match &self.guard {
            Some(guard) if !guard.is_held() => {
                let error = latchwork_lock::Error::expired(guard.key(), guard.fence());
                Err(self.fail_lock_lost(error.into()).await)
            }
            _ => Ok(()),
        }
    }

    /// Ends this run because the lock is gone.
    pub(super) async fn fail_lock_lost(&mut self, error: Error) -> Error {
        self.emit_released(false);
        // Dropped, not released and waited for: it is not ours to wait for.
        self.guard = None;
        let error = self.abandon_run(error).await;
        self.phase = Phase::LockLost;
        error
    }

    /// Holds the lock again that a pause kept, or that a dead process held. Where a kept lease is
    /// lost, a new lock is taken only if the caller can do with that.
    pub(super) async fn restore_lock(&mut self, reacquires: bool) -> Result<Continuity> {
        let Some(locking) = &self.machine.locking else {
            if self.context.lock_key.is_none() {
                return Ok(Continuity::Held);
            }
            return Err(Error::invalid_argument(
                "locks",
                "the transition was begun under a lock, and this machine was built without locks",
            ));
        };
        if self.guard.is_some() {
            return self.check_lock().await.map(|()| Continuity::Held);
        }
        if let Some(mut lease) = self.context.lease.clone() {
            // The long life of a pause is over.
            lease.ttl = locking.config.ttl;
            let (key, expires_at) = (lease.key.clone(), lease.expires_at);
            let old_fence = lease.fence;
            match locking.locks.resume(*lease).await {
                Ok(guard) => {
                    let fence = guard.fence();
                    self.guard = Some(guard);
                    let context = self.context_mut();
                    context.lease = None;
                    context.fence = Some(fence);
                    let kind = EventKind::LockRestored { key: &key, fence };
                    emit(&self.machine, &self.context, &mut self.events, kind);
                    return Ok(Continuity::Held);
                }
                Err(error) if error.is_loss() => {
                    self.emit_released(false);
                    if !reacquires {
                        // This worker has seen it run out; another only that it is gone.
                        let ran_out = self.machine.clock.wall() >= expires_at;
                        return Err(match self.phase == Phase::Paused && ran_out {
                            true => latchwork_lock::Error::expired(&key, old_fence).into(),
                            false => error.into(),
                        });
                    }
                    self.context_mut().lease = None;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.take_again(reacquires).await
    }

    /// Takes the lock of a transition anew that was under way.
    async fn take_again(&mut self, reacquires: bool) -> Result<Continuity> {
        let Some(locking) = &self.machine.locking else { return Ok(Continuity::Held) };
        if locking.config.strategy == LockStrategy::None {
            return Ok(Continuity::Held); // the user keeps others away
        }
        let capabilities = locking.locks.capabilities();
        let excludes = capabilities.has(Capability::Exclusion);
        let known = self.context.lock_key.clone();
        match &known {
            Some(key) => {
                let kept = capabilities.has(Capability::HandOver);
                if self.context.status == Status::Paused && kept && !reacquires {
                    let lost = latchwork_lock::Error::not_kept(key.as_str());
                    self.emit_released(false);
                    return Err(lost.into());
                }
            }
            None => {
                let key = locking.key(&self.machine, &self.context)?;
                self.context_mut().lock_key = Some(key);
            }
        }
        let ours = self.context.fence;
        self.acquire().await?;
        let before = self.guard.as_ref().and_then(|guard| guard.previous_fence());
        Ok(match (known, ours, before) {
            _ if !excludes => Continuity::Held,
            (None, _, _) => Continuity::Broken("it was begun without a lock"),
            (_, Some(ours), Some(before)) if ours == before => Continuity::Taken,
            (_, Some(_), Some(_)) => Continuity::Broken("somebody else had its lock meanwhile"),
            _ => Continuity::Broken("its lock has ended, and who had it since is not known"),
        })
    }

    /// Ends the run until something wakes the transition. The lock is handed to the context.
    pub(super) async fn pause(&mut self, mut pause: Pause) -> Result<()> {
        if let Some(locking) = &self.machine.locking {
            pause.lock = pause.lock_until(self.context.updated_at, locking.config.ttl);
        }
        if let Err(error) = self.check_pause(pause.lock) {
            return Err(self.fail(error).await);
        }
        let paused = pause.begin(self.context.updated_at);
        let kept = self.keep_lock(paused.lock).await;
        let events = self.events;
        let context = self.context_mut();
        context.status = Status::Paused;
        context.paused = Some(Box::new(paused));
        context.events = events + 1; // with the one that tells of the pause
        if let Some(request) = self.save(None).await? {
            self.restore_lock(false).await?;
            return self.cancel_with(&request.reason).await;
        }
        self.run = None;
        let metadata = self.context.metadata.as_ref();
        let kind = EventKind::TransitionPaused { metadata };
        emit(&self.machine, &self.context, &mut self.events, kind);
        self.phase = Phase::Paused;
        kept
    }

    /// Refuses a pause whose lock could not live as it asks, before anything of it is stored.
    fn check_pause(&self, lock: PauseLock) -> Result<()> {
        match (lock, &self.machine.locking) {
            (PauseLock::Keep { ttl: Some(ttl) }, Some(locking)) => {
                Ok(LockConfig { ttl, ..locking.config.clone() }.check()?)
            }
            (PauseLock::Renew, Some(_)) if self.machine.store.is_none() => {
                Err(Error::invalid_argument(
                    "pause",
                    "its lock is to be renewed, which a runner does, and the machine has no store",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Turns the guard into a lease that outlives this process.
    pub(super) async fn keep_lock(&mut self, how: PauseLock) -> Result<()> {
        let Some(locking) = &self.machine.locking else { return Ok(()) };
        if !locking.locks.capabilities().has(Capability::HandOver) {
            return Ok(()); // it stays with this worker, as long as that lives
        }
        let Some(guard) = self.guard.take() else { return Ok(()) };
        let refresh = match how {
            PauseLock::Keep { ttl: Some(ttl) } => {
                Refresh { ttl: Some(ttl), threshold: Some(Duration::ZERO) }
            }
            _ => Refresh { ttl: Some(locking.config.ttl), threshold: None },
        };
        let kept = match guard.refresh_with(refresh).await {
            Ok(()) => guard.into_lease().await,
            Err(error) => Err(error),
        };
        match kept {
            Ok(lease) => {
                self.context_mut().lease = Some(Box::new(lease));
                Ok(())
            }
            Err(error) => {
                self.emit_released(false);
                Err(error.into())
            }
        }
    }

    /// Renews the lease of a paused transition that is claimed.
    pub(super) async fn renew_kept(&mut self) -> Result<()> {
        let restored = self.restore_lock(false).await;
        let kept = match restored {
            Ok(_) => {
                let how = self.context.paused().map(|paused| paused.lock);
                self.keep_lock(how.unwrap_or_default()).await
            }
            Err(error) if error.is_lock_loss() => {
                // Nothing is left to renew; a process that resumes it will find that it was lost.
                self.context_mut().lease = None;
                Err(error)
            }
            Err(error) => return Err(self.abandon_run(error).await),
        };
        self.save(None).await?;
        self.run = None;
        kept
    }

    /// Holds a kept lock again, if that can be, so that the end gives it back.
    pub(super) async fn forget_lock(&mut self) {
        if let Err(error) = self.restore_lock(false).await {
            tracing::debug!(transition = %self.context.id, %error, "no lock to give back");
        }
        self.context_mut().lease = None;
    }

    /// Gives the lease of a paused transition back.
    pub(super) async fn drop_lease(&mut self) -> Result<()> {
        let Some(lease) = self.context_mut().lease.take() else { return Ok(()) };
        let Some(locking) = &self.machine.locking else { return Ok(()) };
        let released = match locking.locks.resume(*lease).await {
            Ok(guard) => guard.release().await,
            Err(error) => Err(error),
        };
        self.emit_released(released.is_ok());
        Ok(released?)
    }

    /// Gives the lock back at the end.
    pub(super) async fn unlock(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        let released = match guard.release().await {
            Ok(()) => true,
            Err(error) => not_released(&error, self.context.id),
        };
        if !released && self.context.status == Status::Completed {
            self.context_mut().lock_lost = true;
        }
        self.emit_released(released);
    }

    /// That the lock was released, or was lost before it could be.
    pub(super) fn emit_released(&mut self, released: bool) {
        let key = self.context.lock_key.as_ref().map_or("", Key::as_str);
        let kind =
            if released { EventKind::LockReleased { key } } else { EventKind::LockLost { key } };
        emit(&self.machine, &self.context, &mut self.events, kind);
    }
}

impl<S: State> Locking<S> {
    /// What to lock for a transition.
    #[inline]
    fn key(&self, machine: &Machine<S>, context: &TransitionContext<S>) -> Result<Key> {
        let key = || match &context.entity {
            None => self.keys.lock_key(context.need_state()?, &context.delta),
            Some(entity) => match self.keys.entity_key(&entity.id, &context.delta) {
                Some(key) => key,
                None => Err(Error::invalid_argument(
                    "lock keys",
                    "they need the state, and the transition names its entity: use EntityKey",
                )),
            },
        };
        match catch_unwind(AssertUnwindSafe(key)) {
            Ok(key) => key,
            Err(panic) => {
                let (machine, what) = (machine.name.to_string(), "lock key");
                let (reason, panicked) = (panic_text(&*panic), true);
                let kind =
                    ErrorKind::ProviderFailed { machine, what, reason, panicked, source: None };
                Err(kind.into())
            }
        }
    }

    /// A request for the key, as the settings say.
    fn request<'a>(&'a self, key: &'a Key) -> LockRequest<'a, OneKey<&'a Key>> {
        let request = self.locks.lock(key).config(&self.config);
        match self.renew {
            Some(max_hold) => request.auto_renew(max_hold),
            None => request,
        }
    }
}

/// Does work in the scope of a transition's lock, where it has one.
///
/// Cancel safe if the work is.
pub(super) async fn within<T>(scope: Option<&Scope>, work: impl Future<Output = T>) -> T {
    match scope {
        Some(scope) => scope.run(work).await,
        None => work.await,
    }
}

/// Tells that a lock could not be given back at the end; true when it still will be, false when it
/// was lost before.
#[cold]
fn not_released(error: &latchwork_lock::Error, transition: TransitionId) -> bool {
    let lost = error.is_loss();
    let what = match lost {
        true => "the lock did not hold to the end of the transition",
        false => "the lock could not be released yet; it is queued",
    };
    tracing::warn!(%transition, %error, "{what}");
    !lost
}
