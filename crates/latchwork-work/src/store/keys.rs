//! Idempotency keys: each stands in the transaction of the operation that it guards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::param::json;
use super::{Session, params};
use crate::{ErrorKind, Result};

/// A request that has the same effect and the same answer however often it is sent (W9).
#[derive(Clone, Debug)]
pub(crate) struct IdempotencyKey {
    /// Who asks: another caller's key is another key.
    pub(crate) caller: String,
    /// The operation.
    pub(crate) scope: &'static str,
    /// The caller's key.
    pub(crate) key: String,
    /// A hash of the request.
    pub(crate) request: String,
    /// Set when a stored answer is given.
    pub(crate) replayed: Arc<AtomicBool>,
}

/// What is known of a key.
pub(crate) enum Taken<T> {
    /// It is new: do it, and store the answer.
    Fresh,
    /// It was done; this is the answer.
    Replay(T),
}

/// What is known of the key of an effect outside of the store.
pub(crate) enum Begun<T> {
    /// It is new.
    Fresh,
    /// It was taken by the same request, which has no answer yet.
    UnderWay,
    /// It was done; this is the answer.
    Replay(T),
}

/// How long an answer is kept.
const KEPT: Duration = Duration::from_secs(24 * 3_600);

/// How long a twin is waited for.
const TWIN_WAIT_MS: u32 = 2_000;

impl IdempotencyKey {
    pub(crate) fn new(
        caller: String,
        scope: &'static str,
        key: String,
        request: &impl Serialize,
        replayed: Arc<AtomicBool>,
    ) -> Result<Self> {
        let request = hex::encode(Sha256::digest(json(request)?));
        Ok(IdempotencyKey { caller, scope, key, request, replayed })
    }
}

impl Session<'_> {
    /// Takes a key, or finds the answer that was stored for it.
    ///
    /// A twin that is under way holds the key's row until it ends; it is waited for, for a while.
    pub(crate) async fn take_key<T: DeserializeOwned>(
        &mut self,
        key: &IdempotencyKey,
    ) -> Result<Taken<T>> {
        if self.insert_key(key, KEPT).await? {
            return Ok(Taken::Fresh);
        }
        Ok(self.stored_answer(key).await?.map_or(Taken::Fresh, Taken::Replay))
    }

    /// Takes a key for an effect outside of this transaction, which has so much time: after it another
    /// request may have the key.
    pub(crate) async fn begin_key<T: DeserializeOwned>(
        &mut self,
        key: &IdempotencyKey,
        lasts: Duration,
    ) -> Result<Begun<T>> {
        if self.insert_key(key, lasts).await? {
            return Ok(Begun::Fresh);
        }
        Ok(self.stored_answer(key).await?.map_or(Begun::UnderWay, Begun::Replay))
    }

    /// Stores the answer of such an effect, or finds the one that a twin has stored before; refused where
    /// another request has the key by now.
    pub(crate) async fn finish_key<T: Serialize + DeserializeOwned>(
        &mut self,
        key: &IdempotencyKey,
        answer: &T,
    ) -> Result<Option<T>> {
        let now = self.now();
        let (caller, scope, name) = (key.caller.as_str(), key.scope, key.key.as_str());
        let (request, until) = (key.request.as_str(), now + KEPT);
        let values = params![caller, scope, name, request, json(answer)?, now, until];
        if self.fetch_one(self.sql().finish_key, values).await?.is_some() {
            return Ok(None);
        }
        match self.stored_answer(key).await? {
            Some(before) => Ok(Some(before)),
            None => Err(ErrorKind::IdempotencyConflict { scope: key.scope }.into()),
        }
    }

    /// Gives a key back under which such an effect did not come about, unless it is another's by now.
    pub(crate) async fn abandon_key(&mut self, key: &IdempotencyKey) -> Result<()> {
        let (caller, scope, name) = (key.caller.as_str(), key.scope, key.key.as_str());
        let values = params![caller, scope, name, key.request.as_str()];
        self.execute(self.sql().abandon_key, values).await?;
        Ok(())
    }

    /// Takes a key for a while; false where a request has it.
    async fn insert_key(&mut self, key: &IdempotencyKey, lasts: Duration) -> Result<bool> {
        let now = self.now();
        let (caller, scope, name) = (key.caller.as_str(), key.scope, key.key.as_str());
        self.limit_lock_waits(TWIN_WAIT_MS).await?;
        let values = params![caller, scope, name, key.request.as_str(), now, now + lasts];
        let taken = self.fetch_one(self.sql().take_key, values).await;
        let taken = match taken {
            Err(error) if matches!(error.kind(), ErrorKind::Conflict { .. }) => {
                let retry_after = Duration::from_secs(1);
                return Err(ErrorKind::IdempotencyInFlight { retry_after }.into());
            }
            other => other?,
        };
        self.limit_lock_waits(0).await?;
        Ok(taken.is_some())
    }

    /// The answer that was stored for a request, unless its time is over.
    pub(crate) async fn stored_answer<T: DeserializeOwned>(
        &mut self,
        key: &IdempotencyKey,
    ) -> Result<Option<T>> {
        let now = self.now();
        let values = params![key.caller.as_str(), key.scope, key.key.as_str(), now];
        let row = self.fetch_one(self.sql().stored_answer, values).await?;
        let Some(mut row) = row else { return Ok(None) };
        if row.text()? != key.request {
            return Err(ErrorKind::IdempotencyConflict { scope: key.scope }.into());
        }
        let answer = row.opt_json()?;
        if answer.is_some() {
            key.replayed.store(true, Ordering::Relaxed);
        }
        Ok(answer)
    }

    /// Stores the answer of an operation with its effects.
    pub(crate) async fn put_answer(
        &mut self,
        key: &IdempotencyKey,
        answer: &impl Serialize,
    ) -> Result<()> {
        let (caller, scope, name) = (key.caller.as_str(), key.scope, key.key.as_str());
        self.execute(self.sql().put_answer, params![caller, scope, name, json(answer)?]).await?;
        Ok(())
    }

    /// Gives a key back: nothing was done under it.
    pub(crate) async fn forget_key(&mut self, key: &IdempotencyKey) -> Result<()> {
        let values = params![key.caller.as_str(), key.scope, key.key.as_str()];
        self.execute(self.sql().forget_key, values).await?;
        Ok(())
    }

    /// Removes keys that have expired.
    pub(crate) async fn prune_keys(&mut self, limit: i64) -> Result<u64> {
        let now = self.now();
        self.execute(self.sql().prune_keys, params![now, limit]).await
    }
}
