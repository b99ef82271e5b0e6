//! Locks: leases on keys, and places in their queues.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The secret of a lease and of a place in a queue: 32 hexadecimal digits that the client makes by
/// chance before it asks. A caller that has it, and is the same caller, may renew and release.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String, pattern = "^[0-9a-fA-F]{32}$",
    example = "6f1c0e4f2b7a4d6d9a3c5e8b1d2f4a60")]
pub struct LockToken(pub String);

impl std::fmt::Debug for LockToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LockToken(…)")
    }
}

/// Who may be in at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LockMode {
    /// Alone.
    #[default]
    Exclusive,
    /// Together with other shared leases.
    Shared,
}

/// The ttl of a lease unless another is asked for, in milliseconds.
pub const DEFAULT_TTL_MS: u64 = 30_000;

fn default_ttl() -> u64 {
    DEFAULT_TTL_MS
}

/// Asks for a lease in one call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcquireLock {
    /// What to lock.
    pub key: String,
    /// The secret of the lease. A repeated request with it gets the same lease.
    pub token: LockToken,
    /// Alone unless told.
    #[serde(default)]
    pub mode: LockMode,
    /// A name within the caller's own. A request that names the owner which holds the key takes its
    /// lease over; without a name every request is its own owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What others see of the holder, besides who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// How long the lease lasts without renewal.
    #[serde(default = "default_ttl")]
    pub ttl_ms: u64,
    /// How long to wait where somebody else has the key; not at all unless told.
    #[serde(default)]
    pub wait_ms: u64,
}

/// Waits for a turn: takes a place in the queue, or goes on with the place of its token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WaitForLock {
    /// What to lock.
    pub key: String,
    /// The secret of the place, and of the lease after it.
    pub token: LockToken,
    /// Alone unless told.
    #[serde(default)]
    pub mode: LockMode,
    /// A name within the caller's own; see the request for a lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What others see of the waiter, besides who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// How long this call waits.
    #[serde(default)]
    pub wait_ms: u64,
}

/// Whether the turn has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LockTurn {
    /// Whether the key is reserved for the token.
    pub ready: bool,
    /// Where it is: how long the reservation lasts. Claim the lease within it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_within_ms: Option<u64>,
    /// Where it is not: how long the place is kept. Wait again within it, at any server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_for_ms: Option<u64>,
}

/// Confirms a turn, or renews a lease: the whole ttl begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimLock {
    /// What is locked.
    pub key: String,
    /// The secret.
    pub token: LockToken,
    /// How long the lease lasts from now on.
    #[serde(default = "default_ttl")]
    pub ttl_ms: u64,
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldLock {
    /// What is locked.
    pub key: String,
    /// Grows with each lease of the key: send it with each write.
    pub fence: u64,
    /// The fence of the lease before, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_fence: Option<u64>,
    /// Whether others may have held the key while this one waited, so that what was read before must
    /// be read again.
    pub waited: bool,
    /// How long the lease lasts. After a claim the client counts it from before it sent the claim.
    pub ttl_ms: u64,
    /// How long that still is, by the server's clock, when it sent this answer. What the answer took to
    /// arrive is to be taken off.
    pub remaining_ms: u64,
}

/// The whole ttl has begun anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RenewedLock {
    /// What is locked.
    pub key: String,
    /// How long the lease lasts. The client counts it from before it sent the request.
    pub ttl_ms: u64,
}

/// Ends a lease, or leaves the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseLock {
    /// What is locked.
    pub key: String,
    /// The secret.
    pub token: LockToken,
}

/// What a release has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReleasedLock {
    /// Whether the token held the key until now. If not, it holds and waits for nothing any more.
    pub released: bool,
}

/// Goes on with a lease under a new secret, which makes the old one useless.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeLock {
    /// What is locked.
    pub key: String,
    /// The secret of the lease that was handed over.
    pub token: LockToken,
    /// The new secret. A repeated request with it gets the same lease.
    pub new_token: LockToken,
    /// How long the lease lasts from now on.
    #[serde(default = "default_ttl")]
    pub ttl_ms: u64,
}

/// Ends leases of others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BreakLock {
    /// What is locked.
    pub key: String,
    /// The lease with this fence only; all leases of the key unless told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
}

/// Whose leases were ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BrokenLock {
    /// Those that held the key.
    pub broken: Vec<LockHolder>,
}

/// A write that carries a fence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckFence {
    /// What is written: by custom, the key of the lock.
    pub key: String,
    /// The fence of the lease under which it is written.
    pub fence: u64,
}

/// The fence is not older than any seen before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckedFence {
    /// The newest one seen: that of the request.
    pub fence: u64,
}

/// Who holds a key and who waits for it. Never a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LockInspection {
    /// The key.
    pub key: String,
    /// Who holds it, oldest lease first; none when it is free.
    pub holders: Vec<LockHolder>,
    /// Who waits for it, next one first.
    pub waiters: Vec<LockWaiter>,
}

/// One who holds a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LockHolder {
    /// The owner, where a name was chosen; callers of the server are `CALLER/NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The process that asked, as `host:pid`; for callers of a server, that server.
    pub process: String,
    /// What the holder said about itself; callers of the server are named first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Alone or shared.
    pub mode: LockMode,
    /// The fence of the lease.
    pub fence: u64,
    /// When it was granted.
    pub since: DateTime<Utc>,
    /// When it ends unless renewed.
    pub expires_at: DateTime<Utc>,
    /// How long that is from now, by the backend's clock.
    pub expires_in_ms: u64,
}

/// One who waits for a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LockWaiter {
    /// The owner, where a name was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The process that asked, as `host:pid`.
    pub process: String,
    /// What the waiter said about itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Alone or shared.
    pub mode: LockMode,
    /// Its place in the queue: 1 is next.
    pub position: usize,
    /// Since when it waits.
    pub since: DateTime<Utc>,
    /// How long it may have to wait yet: an estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_wait_ms: Option<u64>,
}

/// A page of keys that are held or waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LockPage {
    /// The keys, sorted.
    pub locks: Vec<LockInspection>,
    /// The `after` of the next page; none at the end.
    pub next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_sent_and_never_shown() {
        let text = "6f1c0e4f2b7a4d6d9a3c5e8b1d2f4a60";
        let release = ReleaseLock { key: "a".to_owned(), token: LockToken(text.to_owned()) };
        assert!(serde_json::to_string(&release).is_ok_and(|sent| sent.contains(text)));
        assert!(!format!("{release:?}").contains(text));
    }
}
