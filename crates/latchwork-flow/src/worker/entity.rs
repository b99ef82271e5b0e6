//! The entity of a transition: loaded under the lock, loaded again after a break, saved at the end
//! (F13, F14).

use std::future::{Future, Ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::lock::Continuity;
use super::{Reloaded, StateWorker};
use crate::entity::{Entities, Rebase};
use crate::error::{Chain, panic_text};
use crate::{
    BoxError, Error, ErrorKind, Loaded, Result, SaveRequest, State, Status, TransitionContext,
};

/// The type of a reload that nobody gave.
pub(super) type NoReload<S> = fn(Arc<TransitionContext<S>>) -> Ready<Result<Reloaded<S>, BoxError>>;

impl<S: State> StateWorker<S> {
    /// Whether the transition names its entity.
    pub(super) fn has_entity(&self) -> bool {
        self.context.entity.is_some()
    }

    /// Refuses to go on with an entity that this machine cannot load.
    pub(crate) fn check_loader(&self) -> Result<()> {
        if !self.has_entity() || self.machine.entities.is_some() {
            return Ok(());
        }
        let machine = &self.machine.name;
        let reason = format!(
            "the transition names its entity, and the machine {machine:?} was built without one"
        );
        Err(Error::invalid_argument("loader", reason))
    }

    /// Loads the entity for a transition that begins. The lock is held.
    pub(super) async fn load_entity(&mut self) -> Result<()> {
        let machine = self.machine.clone();
        let (Some(entities), Some(entity)) = (&machine.entities, &self.context.entity) else {
            return Ok(());
        };
        let loaded = self.load_in_time(entities, &entity.id).await?;
        let entity = entity.loaded(&loaded)?;
        let context = self.context_mut();
        context.entity = Some(Box::new(entity));
        context.state = Some(loaded.state);
        // Loading takes time, and what was read after the end of the lock may be changing.
        self.check_lock().await
    }

    async fn load_in_time(&self, entities: &Entities<S>, id: &str) -> Result<Loaded<S>> {
        self.in_time("load", entities.load(id)).await.unwrap_or_else(|reason| {
            let entity = id.to_owned();
            Err(ErrorKind::LoadFailed { entity, reason, panicked: false, source: None }.into())
        })
    }

    /// Makes sure that the state to go on with is not stale; false when that ended the transition.
    ///
    /// Unless the lock was held without a break, others may have moved the entity since. So it is
    /// loaded again: unchanged, the transition goes on with its own state; changed, the gates are
    /// asked again and the machine's `rebase` gives the state to go on with. A lock that was taken
    /// anew loads it in any case, to find a save whose record was lost in a crash.
    pub(super) async fn catch_up<F, Fut>(
        &mut self,
        continuity: Continuity,
        reload: Option<&F>,
    ) -> Result<bool>
    where
        F: Fn(Arc<TransitionContext<S>>) -> Fut,
        Fut: Future<Output = Result<Reloaded<S>, BoxError>>,
    {
        let broken = match continuity {
            Continuity::Held => return Ok(true),
            Continuity::Taken if !self.has_entity() => return Ok(true),
            Continuity::Taken => None,
            Continuity::Broken(reason) => Some(reason),
        };
        if let (Some(reload), Some(_)) = (reload, broken) {
            return match self.reload(reload).await {
                Ok(Reloaded::Done(state)) => self.already_done(state).await.map(|_| false),
                Ok(Reloaded::GoOn(state)) => self.continue_from(state, None).await,
                Err(error) => Err(self.abandon_run(error).await),
            };
        }
        let machine = self.machine.clone();
        let (Some(entities), Some(entity)) = (&machine.entities, self.context.entity.clone())
        else {
            return Err(self.abandon_stale(broken.unwrap_or_default()).await);
        };
        let loaded = match self.load_in_time(entities, &entity.id).await {
            Ok(loaded) => loaded,
            Err(error) if error.is_temporary() => return Err(self.abandon_run(error).await),
            Err(error) => return Err(self.fail(error).await),
        };
        self.check_lock().await?;
        if loaded.last_transition == Some(self.context.id) {
            return self.already_done(loaded.state).await.map(|_| false);
        }
        let now = match entity.loaded(&loaded) {
            Ok(now) => now,
            Err(error) => return Err(self.fail(error).await),
        };
        if now == *entity {
            return Ok(true);
        }
        let Some(rebase) = &entities.rebase else {
            let reason = "the entity has changed since, and the machine has no `rebase`";
            return Err(self.abandon_stale(reason).await);
        };
        self.context_mut().entity = Some(Box::new(now));
        self.continue_from(loaded.state, Some(rebase)).await
    }

    /// Asks the gates about a state that others have made, and goes on from it, or from what `rebase`
    /// makes of it; false when a gate ended the transition.
    async fn continue_from(&mut self, loaded: S, rebase: Option<&Rebase<S>>) -> Result<bool> {
        let ours = self.context_mut().state.replace(loaded);
        let machine = self.machine.clone();
        let script = match self.configured().await {
            Ok(script) => script,
            Err(error) => return Err(self.fail(error).await),
        };
        if self.evaluate_gates(&script.gates).await?.is_some() {
            return Ok(false);
        }
        if let (Some(rebase), Some(ours)) = (rebase, ours) {
            let loaded = self.context.need_state()?;
            let rebased = catch_unwind(AssertUnwindSafe(|| rebase(&ours, loaded)));
            let (reason, panicked, source) = match rebased {
                Ok(Ok(state)) => {
                    self.context_mut().state = Some(state);
                    return Ok(true);
                }
                Ok(Err(error)) => (Chain(&*error).to_string(), false, Some(error)),
                Err(panic) => (panic_text(&*panic), true, None),
            };
            let (machine, what) = (machine.name.to_string(), "rebase");
            let kind = ErrorKind::ProviderFailed { machine, what, reason, panicked, source };
            return Err(self.fail(kind.into()).await);
        }
        Ok(true)
    }

    /// That the state may be stale.
    pub(super) fn stale(&self, reason: &str) -> Error {
        ErrorKind::StaleState { id: self.context.id, reason: reason.to_owned() }.into()
    }

    async fn abandon_stale(&mut self, reason: &str) -> Error {
        let error = self.stale(reason);
        self.abandon_run(error).await
    }

    /// Ends a transition whose actions are all through. The entity is saved first.
    pub(super) async fn complete(&mut self) -> Result<()> {
        if self.has_entity() && self.machine.entities.as_ref().is_some_and(|all| all.save.is_some())
        {
            // So that no action is run again, should the process end during the save.
            self.checkpoint().await?;
            if !self.is_going() {
                return Ok(()); // it was called off
            }
            self.check_lock().await?;
            self.save_entity().await?;
        }
        self.finish(Status::Completed, None).await
    }

    async fn save_entity(&mut self) -> Result<()> {
        let machine = self.machine.clone();
        let (Some(entities), Some(entity)) = (&machine.entities, &self.context.entity) else {
            return Ok(());
        };
        let Some(guard) = &self.guard else {
            return Err(self.abandon_stale("nothing is saved without a lock").await);
        };
        let request = SaveRequest {
            entity: entity.id.to_string(),
            state: self.context.need_state()?.clone(),
            expected_version: entity.version.clone(),
            fence: guard.fence(),
            transition: self.context.id,
        };
        let saved = self.in_time("save", entities.save(request, guard.key())).await;
        let saved = saved.unwrap_or_else(|reason| {
            let entity = entity.id.to_string();
            Err(ErrorKind::SaveFailed { entity, reason, panicked: false, source: None }.into())
        });
        let Err(error) = saved else { return Ok(()) };
        Err(match error.kind() {
            ErrorKind::SaveFailed { .. } if machine.store.is_none() => self.fail(error).await,
            ErrorKind::EntityChanged { .. } => {
                // Nobody else had the lock, but the state is stale all the same.
                self.context_mut().fence = None;
                match self.save(Some(machine.run_ttl)).await {
                    Ok(_) => self.abandon_run(error).await,
                    Err(unsaved) => unsaved,
                }
            }
            _ if error.is_lock_loss() => self.fail_lock_lost(error).await,
            _ => self.abandon_run(error).await,
        })
    }
}
