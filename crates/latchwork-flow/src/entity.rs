//! The entity of a transition: loaded under the lock, saved with its fence (F13, F14).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use latchwork_lock::{Fence, StaleFence};
use serde::{Deserialize, Serialize};

use crate::error::{Chain, panic_text};
use crate::lock_key::digest;
use crate::{BoxError, Error, ErrorKind, Result, State, TransitionId};

/// An entity as it was loaded: its state, and what tells whether it has changed since.
///
/// ```
/// use latchwork_flow::Loaded;
///
/// # let (row_status, row_version) = ("draft".to_owned(), 7_i64);
/// let loaded = Loaded::new(row_status).version(row_version);
/// assert_eq!(loaded.version.as_deref(), Some("7"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded<S> {
    /// The state.
    pub state: S,
    /// Changes whenever the state does: a row's version, an ETag. Where there is none, states are
    /// compared as canonical JSON, and a change that was changed back goes unnoticed.
    pub version: Option<String>,
    /// The transition that saved the entity last, where that is kept with it. A transition that
    /// finds its own id here was saved before its process crashed, and is complete.
    pub last_transition: Option<TransitionId>,
}

impl<S> Loaded<S> {
    /// A state without a version.
    pub fn new(state: S) -> Self {
        Loaded { state, version: None, last_transition: None }
    }

    /// With the version that it has.
    #[must_use]
    pub fn version(self, version: impl ToString) -> Self {
        Loaded { version: Some(version.to_string()), ..self }
    }

    /// With the transition that saved it last, if one did.
    #[must_use]
    pub fn last_transition(self, id: impl Into<Option<TransitionId>>) -> Self {
        Loaded { last_transition: id.into(), ..self }
    }
}

/// What is to be saved when all actions of a transition are through.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SaveRequest<S> {
    /// The entity.
    pub entity: String,
    /// Its new state.
    pub state: S,
    /// The version that was loaded: refuse with [`EntityChanged`] if it is another by now.
    pub expected_version: Option<String>,
    /// The fence of the lock: refuse an older one than was seen before, with a
    /// [`FenceGate`](latchwork_lock::FenceGate) in the same transaction.
    pub fence: Fence,
    /// The transition. Stored with the entity and [given back](Loaded::last_transition) by the
    /// loader, it lets a crash right after the save be recognised.
    pub transition: TransitionId,
}

/// What a `save` answers when the entity is not at the expected version any more.
///
/// Somebody has changed it without the lock. The transition then loads it again when it is run
/// again, asks its gates again, and goes on from what `rebase` makes of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("the entity is not at the expected version any more")]
pub struct EntityChanged;

/// How a machine loads and saves entities.
pub(crate) struct Entities<S: State> {
    pub(crate) load: Load<S>,
    pub(crate) save: Option<Save<S>>,
    pub(crate) rebase: Option<Rebase<S>>,
}

pub(crate) type Load<S> =
    Box<dyn Fn(String) -> BoxFuture<'static, Result<Option<Loaded<S>>, BoxError>> + Send + Sync>;
pub(crate) type Save<S> =
    Box<dyn Fn(SaveRequest<S>) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync>;
pub(crate) type Rebase<S> = Box<dyn Fn(&S, &S) -> Result<S, BoxError> + Send + Sync>;

/// The entity that a context is about, as it was when it was last loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entity {
    pub(crate) id: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    /// Of the state, where the loader gives no version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<String>,
}

impl Entity {
    /// One that was not loaded yet.
    pub(crate) fn new(id: &str) -> Self {
        Entity { id: id.into(), version: None, digest: None }
    }

    /// The same as it was loaded now.
    pub(crate) fn loaded<S: State>(&self, loaded: &Loaded<S>) -> Result<Self> {
        let (id, version) = (self.id.clone(), loaded.version.clone());
        let digest = match version {
            Some(_) => None,
            None => Some(digest(&loaded.state).map_err(Error::invalid_state)?),
        };
        Ok(Entity { id, version, digest })
    }
}

impl<S: State> Entities<S> {
    pub(crate) async fn load(&self, entity: &str) -> Result<Loaded<S>> {
        let load = AssertUnwindSafe(async { (self.load)(entity.to_owned()).await });
        let (reason, panicked, source) = match load.catch_unwind().await {
            Ok(Ok(Some(loaded))) => return Ok(loaded),
            Ok(Ok(None)) => {
                return Err(ErrorKind::EntityNotFound { entity: entity.to_owned() }.into());
            }
            Ok(Err(error)) => (Chain(&*error).to_string(), false, Some(error)),
            Err(panic) => (panic_text(&*panic), true, None),
        };
        let entity = entity.to_owned();
        Err(ErrorKind::LoadFailed { entity, reason, panicked, source }.into())
    }

    /// Saves an entity, where the machine does that at all. `key` is that of the lock.
    pub(crate) async fn save(&self, request: SaveRequest<S>, key: &str) -> Result<()> {
        let Some(save) = &self.save else { return Ok(()) };
        let (entity, fence) = (request.entity.clone(), request.fence);
        let saved = AssertUnwindSafe(async { save(request).await }).catch_unwind().await;
        let (reason, panicked, source) = match saved {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) if error.is::<StaleFence>() => {
                return Err(latchwork_lock::Error::expired(key, fence).into());
            }
            Ok(Err(error)) if error.is::<EntityChanged>() => {
                return Err(ErrorKind::EntityChanged { entity }.into());
            }
            Ok(Err(error)) => (Chain(&*error).to_string(), false, Some(error)),
            Err(panic) => (panic_text(&*panic), true, None),
        };
        Err(ErrorKind::SaveFailed { entity, reason, panicked, source }.into())
    }
}
