//! The lock layer as callers over HTTP see it.
//!
//! A lease and a place in a queue belong to the caller's token, never to a connection or a server. So
//! every request to the provider says that it [keeps](AcquireRequest::keep) what it gets: a cut
//! connection, a server that ends and one that is killed release nothing, and the next call with the
//! token finds the place or the lease at any server on the database.

use std::fmt;
use std::time::Duration;

use latchwork_api::{HeldLock, LockMode, LockToken};
use latchwork_lock::provider::{AcquireRequest, AnyLockProvider, Grant, Moment, Proof, Token};
use latchwork_lock::{Key, Locks, MAX_OWNER_BYTES, MAX_TTL, MIN_TTL, Mode, Owner};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;

/// How long a place is kept after a poll, for the next one.
pub(crate) const KEPT: Duration = Duration::from_secs(10);

/// The server's own election: a caller that held it would keep all servers from sealing events.
const RESERVED: &str = "work:maintenance";

/// What a caller may ask of one key.
pub(crate) struct LockCalls<'a> {
    pub(crate) locks: &'a Locks,
    pub(crate) provider: AnyLockProvider,
    pub(crate) key: Key,
    pub(crate) caller: &'a Caller,
    name: &'a str,
}

/// Which lease a request got: what is stored under its idempotency key. No secret.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GrantedLease {
    pub(crate) fence: u64,
    pub(crate) previous_fence: Option<u64>,
    pub(crate) waited: bool,
}

/// What a waiter or holder says about itself.
pub(crate) struct RequesterInfo<'a> {
    pub(crate) token: &'a LockToken,
    pub(crate) mode: LockMode,
    pub(crate) owner: Option<&'a str>,
    pub(crate) note: Option<&'a str>,
}

impl<'a> LockCalls<'a> {
    /// Calls for a key that the caller may use.
    pub(crate) fn new(app: &'a App, caller: &'a Caller, name: &'a str) -> Result<Self, ApiError> {
        let locks = app.locks()?;
        caller.require_key(name)?;
        if name == RESERVED {
            return Err(ApiError::new(403, "forbidden", "this key is the server's own"));
        }
        let key = locks.key(name)?;
        Ok(LockCalls { locks, provider: locks.any_provider(), key, caller, name })
    }

    /// The token as the provider knows it: of this caller and no other, so that a secret which was
    /// learned or guessed is worth nothing to anybody else.
    pub(crate) fn token(&self, token: &LockToken) -> Result<Token, ApiError> {
        let digits = &token.0;
        if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let detail = "a token is 32 hexadecimal digits, made by chance";
            return Err(ApiError::new(400, "invalid_argument", detail).field("/token"));
        }
        let identity = self.caller.identity();
        let hash = Sha256::new()
            .chain_update(b"latchwork http lock token\0")
            .chain_update((identity.len() as u64).to_be_bytes())
            .chain_update(identity)
            .chain_update(digits.to_ascii_lowercase())
            .finalize();
        Ok(Token::from_exposed(
            hash.iter().take(16).fold(0, |id, byte| id << 8 | u128::from(*byte)),
        ))
    }

    pub(crate) fn request(
        &self,
        requester: &RequesterInfo<'_>,
        ttl: Duration,
    ) -> Result<AcquireRequest, ApiError> {
        let mode = match requester.mode {
            LockMode::Exclusive => Mode::Exclusive,
            LockMode::Shared => Mode::Shared,
        };
        let request = AcquireRequest::new(self.key.clone(), ttl, self.now());
        Ok(request
            .with_token(self.token(requester.token)?)
            .with_mode(mode)
            .with_owner(self.owner(requester.owner)?)
            .with_note(self.note(requester.note)?)
            .with_keep(KEPT))
    }

    /// An owner's name is within the caller's: nobody takes over what another one holds.
    fn owner(&self, owner: Option<&str>) -> Result<Option<Owner>, ApiError> {
        let Some(owner) = owner else { return Ok(None) };
        if owner.is_empty() {
            let detail = "it is empty; leave it out where every request is its own owner";
            return Err(ApiError::new(400, "invalid_argument", detail).field("/owner"));
        }
        Ok(Some(Owner::new(&format!("{}{owner}", owners_of(self.caller.identity())))?))
    }

    fn note(&self, note: Option<&str>) -> Result<String, ApiError> {
        let identity = self.caller.identity();
        let note = match note {
            Some(note) => format!("{identity}: {note}"),
            None => identity.to_owned(),
        };
        if note.len() > MAX_OWNER_BYTES || note.chars().any(char::is_control) {
            let detail = format!(
                "with the caller's name it has at most {MAX_OWNER_BYTES} bytes, and no control characters"
            );
            return Err(ApiError::new(400, "invalid_argument", detail).field("/note"));
        }
        Ok(note)
    }

    pub(crate) fn proof(&self, token: Token) -> Proof<'_> {
        Proof { key: &self.key, token }
    }

    pub(crate) fn now(&self) -> Moment {
        self.locks.clock().now()
    }

    /// The answer for a lease whose ttl began after this moment.
    pub(crate) fn held(&self, grant: &Grant, ttl: Duration, from: Moment) -> HeldLock {
        HeldLock {
            key: self.name.to_owned(),
            fence: grant.fence.get(),
            previous_fence: grant.previous_fence.map(|fence| fence.get()),
            waited: grant.waited,
            ttl_ms: millis(ttl),
            remaining_ms: millis(ttl.saturating_sub(self.now().since(from))),
        }
    }

    /// A lease that an earlier request got, with the time that is left of it. No more is promised than
    /// that: a client that counts `ttl_ms` from before this request never trusts the lease for too long.
    pub(crate) async fn as_it_is_now(&self, granted: &GrantedLease) -> Result<HeldLock, ApiError> {
        let seen = self.locks.inspect(self.name).await?;
        // No other lease of the key ever has its fence.
        let holder = seen.holders.iter().find(|holder| holder.fence.get() == granted.fence);
        let Some(holder) = holder else {
            let detail = format!(
                "the lease on {:?} that this request got is over; take a fresh idempotency key, and a \
                 fresh token",
                self.name
            );
            return Err(ApiError::new(409, "lease_expired", detail));
        };
        Ok(HeldLock {
            key: self.name.to_owned(),
            fence: granted.fence,
            previous_fence: granted.previous_fence,
            waited: granted.waited,
            ttl_ms: millis(holder.expires_in),
            remaining_ms: millis(holder.expires_in),
        })
    }

    pub(crate) fn lost(&self, detail: impl fmt::Display) -> ApiError {
        ApiError::new(
            409,
            "lock_lost",
            format!("the lease on {:?} is not held: {detail}", self.name),
        )
    }
}

/// What the owners of a caller's locks begin with: its name and a slash. A slash of the name itself is
/// escaped: `agent:a` with the owner `b/c` must not be `agent:a/b` with the owner `c`, who would take its
/// leases over.
pub(crate) fn owners_of(identity: &str) -> String {
    format!("{}/", identity.replace('%', "%25").replace('/', "%2F"))
}

/// A ttl that a lease may have.
pub(crate) fn ttl(millis: u64) -> Result<Duration, ApiError> {
    let ttl = Duration::from_millis(millis);
    if (MIN_TTL..=MAX_TTL).contains(&ttl) {
        return Ok(ttl);
    }
    let detail = format!("{millis} ms is not between {} ms and 366 days", MIN_TTL.as_millis());
    Err(ApiError::new(400, "invalid_argument", detail).field("/ttl_ms"))
}

pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::owners_of;

    proptest! {
        #[test]
        fn two_callers_never_have_the_same_owner(
            one in "agent:[a/%25F]{1,5}", other in "agent:[a/%25F]{1,5}",
            own in "[a/%25F]{1,5}", theirs in "[a/%25F]{1,5}",
        ) {
            let owners = (owners_of(&one) + &own, owners_of(&other) + &theirs);
            prop_assert_eq!(owners.0 == owners.1, (one, own) == (other, theirs));
        }
    }
}
