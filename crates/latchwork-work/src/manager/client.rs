//! What one actor does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::WorkManager;
use super::heartbeat::expired;
use crate::store::{IdempotencyKey, Note};
use crate::{Actor, ActorType, Error, ErrorKind, LeaseId, Order, OrderId, Provenance, Result};

/// What one actor can do: propose, check out, submit and the rest.
///
/// Every operation is one transaction: it has happened with all of its events, or nothing of it has.
/// Operations are cancel safe in that sense: a future that is dropped before its end leaves the
/// operation done or not done, never half done.
#[derive(Clone, Debug)]
pub struct WorkClient {
    pub(super) manager: WorkManager,
    pub(super) actor: Actor,
    pub(super) provenance: Provenance,
    pub(super) roles: Vec<String>,
    key: Option<String>,
    replayed: Arc<AtomicBool>,
    version: Option<i64>,
    types: Option<Vec<String>>,
}

/// An answer, and whether it was stored by an earlier request with the same idempotency key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer<T> {
    /// The answer.
    pub value: T,
    /// Whether it is that of an earlier request.
    pub replayed: bool,
}

/// The largest meta, in bytes of JSON.
const MAX_META: usize = 64 << 10;

/// The longest idempotency key, in bytes.
const MAX_KEY: usize = 255;

impl WorkClient {
    pub(super) fn new(manager: WorkManager, actor: Actor) -> Self {
        WorkClient {
            manager,
            actor,
            provenance: Provenance::default(),
            roles: Vec::new(),
            key: None,
            replayed: Arc::default(),
            version: None,
            types: None,
        }
    }

    /// Who it is.
    pub fn actor(&self) -> &Actor {
        &self.actor
    }

    /// Where the requests come from; kept with their events.
    #[must_use]
    pub fn provenance(mut self, provenance: Provenance) -> Self {
        self.provenance = provenance;
        self
    }

    /// The roles in which it reviews. Who hands out a client vouches for them.
    #[must_use]
    pub fn roles(mut self, roles: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.roles = roles.into_iter().map(Into::into).collect();
        self
    }

    /// The next operation has its effect once, however often it is sent with this key (W9).
    ///
    /// The same request gets the stored answer, for a day; another request with the key is
    /// [`IdempotencyConflict`](crate::ErrorKind::IdempotencyConflict). A key belongs to the actor and
    /// the operation. Refusals are not stored: they may be sent again.
    #[must_use]
    pub fn idempotent(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self.replayed = Arc::default();
        self
    }

    /// Whether the answer of the operation under the [key](Self::idempotent) was that of an earlier
    /// request.
    pub fn was_replayed(&self) -> bool {
        self.replayed.load(Ordering::Relaxed)
    }

    /// An operation on an order (approve, reject, requeue, retry, cancel, dead_letter, transition_order) is refused with
    /// [`VersionMismatch`](crate::ErrorKind::VersionMismatch) unless the order has this version: what
    /// the caller has seen is what it changes.
    #[must_use]
    pub fn if_version(mut self, version: i64) -> Self {
        self.version = Some(version);
        self
    }

    /// Leases on items of other order types than these are over for this client, and so are the stored
    /// answers about them: for an actor who had them before its limits were narrowed.
    #[must_use]
    pub fn limited_to(mut self, types: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.types = Some(types.into_iter().map(Into::into).collect());
        self
    }

    /// Whether a lease on an item of this order type may be used.
    pub(super) fn may_use(&self, order_type: &str) -> bool {
        self.types.as_ref().is_none_or(|types| types.iter().any(|one| one == order_type))
    }

    /// Refuses a stored answer about an order of another type than those it may use.
    pub(super) async fn check_replay(&self, lease: LeaseId, order: OrderId) -> Result<()> {
        let Some(types) = &self.types else { return Ok(()) };
        match self.manager.check_order_type(order, types).await {
            Err(error) if matches!(error.kind(), ErrorKind::OrderNotFound { .. }) => {
                Err(expired(lease))
            }
            checked => checked,
        }
    }

    /// Refuses a locked order that is not the one that the caller has seen.
    pub(super) fn check_version(&self, order: &Order) -> Result<()> {
        match self.version {
            Some(expected) if expected != order.version => {
                Err(ErrorKind::VersionMismatch { expected, current: order.version }.into())
            }
            _ => Ok(()),
        }
    }

    /// The key of a request, if there is one.
    pub(super) fn key(
        &self,
        scope: &'static str,
        request: &impl Serialize,
    ) -> Result<Option<IdempotencyKey>> {
        let Some(key) = &self.key else { return Ok(None) };
        if key.is_empty() || key.len() > MAX_KEY || key.chars().any(char::is_control) {
            let reason = format!("it has 1 to {MAX_KEY} bytes and no control characters");
            return Err(Error::invalid("idempotency key", reason));
        }
        let replayed = self.replayed.clone();
        IdempotencyKey::new(self.actor.to_string(), scope, key.clone(), request, replayed).map(Some)
    }

    /// The answer of an earlier request with the same key: asked before a request is checked, since
    /// what it was about may have changed by its own effect.
    pub(super) async fn replay<T: DeserializeOwned>(
        &self,
        key: &Option<IdempotencyKey>,
    ) -> Result<Option<Answer<T>>> {
        let Some(key) = key else { return Ok(None) };
        let found = super::read!(self.manager, session => { session.stored_answer(key).await })?;
        Ok(found.map(|value| Answer { value, replayed: true }))
    }

    pub(super) fn note(&self) -> Note {
        Note::by(&self.actor).provenance(&self.provenance)
    }

    /// Where the requests come from, as it is stored.
    #[cfg(feature = "postgres")]
    pub(super) fn stored_provenance(&self) -> Result<Option<String>> {
        let told = (!self.provenance.is_empty()).then_some(&self.provenance);
        told.map(crate::store::json).transpose()
    }

    /// The name under which it leases items.
    pub(super) fn agent(&self) -> Result<&str> {
        match (&self.actor.actor_type, &self.actor.id) {
            (ActorType::Agent, Some(id)) => Ok(id),
            _ => Err(Error::invalid("actor", "only an agent leases items: take Actor::agent(…)")),
        }
    }
}

/// Refuses text that a database cannot keep.
pub(super) fn check_text(name: &'static str, text: &str, max: usize) -> Result<()> {
    if text.len() > max {
        return Err(Error::invalid(name, format!("it has more than {max} bytes")));
    }
    if text.contains('\0') {
        return Err(Error::invalid(name, "it holds a NUL character, which no database keeps"));
    }
    Ok(())
}

/// Refuses a meta that a database cannot keep, or compare with.
pub(super) fn check_meta(meta: &Map<String, Value>) -> Result<()> {
    fn has_nul(value: &Value) -> bool {
        match value {
            Value::String(text) => text.contains('\0'),
            Value::Array(list) => list.iter().any(has_nul),
            Value::Object(map) => {
                map.iter().any(|(key, value)| key.contains('\0') || has_nul(value))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }
    if meta.iter().any(|(key, value)| key.contains('\0') || has_nul(value)) {
        return Err(Error::invalid("meta", "it holds a NUL character, which no database keeps"));
    }
    check_text("meta", &serde_json::to_string(meta).unwrap_or_default(), MAX_META)
}

/// An idempotent operation inside a transaction: takes the key, does it, stores the answer.
macro_rules! once {
    ($session:ident, $key:expr, $body:block) => {{
        match $key {
            None => {
                let value = $body;
                Ok(Answer { value, replayed: false })
            }
            Some(key) => match $session.take_key(key).await? {
                $crate::store::Taken::Replay(value) => Ok(Answer { value, replayed: true }),
                $crate::store::Taken::Fresh => {
                    let value = $body;
                    $session.put_answer(key, &value).await?;
                    Ok(Answer { value, replayed: false })
                }
            },
        }
    }};
}

pub(super) use once;
