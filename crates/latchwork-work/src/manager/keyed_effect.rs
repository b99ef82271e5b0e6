//! Idempotency keys for effects outside of this database: what a server does to locks, flows and tokens
//! for a caller.
//!
//! Such an effect cannot be in one transaction with its key. So the key is taken before it and the answer
//! is stored after it. Where the program dies in between, the key is free again after a while, and a
//! repeated request has the effect again: at least once there, and once everywhere else.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{WorkClient, WorkManager, transact};
use crate::store::{Begun, IdempotencyKey};
use crate::{ErrorKind, Result};

/// An effect outside of the orders' database, under the idempotency key of a client.
///
/// [`begin`](Self::begin) it, or [`join`](Self::join) it where doing it twice at once does no harm; then
/// have the effect, and [`finish`](Self::finish) it with its answer or [`abandon`](Self::abandon) it.
pub struct KeyedEffect {
    manager: WorkManager,
    key: IdempotencyKey,
}

impl fmt::Debug for KeyedEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedEffect").field("scope", &self.key.scope).finish_non_exhaustive()
    }
}

impl WorkClient {
    /// The effect that a request asks for under the client's [key](Self::idempotent); none where it has
    /// no key. Of the request only a hash is kept, so it may hold a random secret.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a key that is none.
    pub fn keyed_effect(
        &self,
        scope: &'static str,
        request: &impl Serialize,
    ) -> Result<Option<KeyedEffect>> {
        let key = self.key(scope, request)?;
        Ok(key.map(|key| KeyedEffect { manager: self.manager.clone(), key }))
    }
}

impl KeyedEffect {
    /// Takes the key for an effect that takes no longer than this, or finds the answer of an earlier
    /// request.
    ///
    /// Cancel safety: dropped, the key may be taken for that long.
    ///
    /// # Errors
    /// [`IdempotencyConflict`](ErrorKind::IdempotencyConflict) where another request has the key,
    /// [`IdempotencyInFlight`](ErrorKind::IdempotencyInFlight) where a twin is at it, and the store's.
    pub async fn begin<T: DeserializeOwned>(&self, lasts: Duration) -> Result<Option<T>> {
        match self.take(lasts).await? {
            Begun::Fresh => Ok(None),
            Begun::Replay(answer) => Ok(Some(answer)),
            Begun::UnderWay => {
                let retry_after = Duration::from_secs(1);
                Err(ErrorKind::IdempotencyInFlight { retry_after }.into())
            }
        }
    }

    /// The same for an effect that twins may have together, such as waiting for one lease: a twin is no
    /// reason to refuse it.
    ///
    /// Cancel safety: dropped, the key may be taken for that long.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin), without the twin.
    pub async fn join<T: DeserializeOwned>(&self, lasts: Duration) -> Result<Option<T>> {
        match self.take(lasts).await? {
            Begun::Fresh | Begun::UnderWay => Ok(None),
            Begun::Replay(answer) => Ok(Some(answer)),
        }
    }

    /// Stores the answer of the effect, for every later request with the key. Where a twin that
    /// [joined](Self::join) has stored one before, that one stays and is given back.
    ///
    /// Cancel safety: dropped, the answer was stored or it was not.
    ///
    /// # Errors
    /// [`IdempotencyConflict`](ErrorKind::IdempotencyConflict) where it took too long and another request
    /// has the key by now, and the store's.
    pub async fn finish<T: Serialize + DeserializeOwned>(&self, answer: &T) -> Result<Option<T>> {
        transact!(self.manager, session => { session.finish_key(&self.key, answer).await })
    }

    /// Gives the key back: the effect did not come about, and may be asked for again.
    ///
    /// Cancel safety: dropped, the key may stay taken for as long as it was taken for.
    ///
    /// # Errors
    /// The store's.
    pub async fn abandon(&self) -> Result<()> {
        transact!(self.manager, session => { session.abandon_key(&self.key).await })
    }

    async fn take<T: DeserializeOwned>(&self, lasts: Duration) -> Result<Begun<T>> {
        transact!(self.manager, session => { session.begin_key(&self.key, lasts).await })
    }
}
