//! The port: what a store of contexts must do (F8).
//!
//! # Writing a store
//!
//! Implement [`ContextStore`] and prove it with the crate `latchwork-contract` (feature `flow`): a
//! factory and one call run every case. The rules:
//!
//! - **A store keeps rows; it does not decide.** Every change is: find the row of the id and lock it
//!   against other writers, let [`StoredContext`] decide (`claim`, `claim_due`, `save`, `heartbeat`,
//!   `release`, `signal`, `cancel`, `wake`, `retry`, `release_quarantined`), write what it has become,
//!   all in one transaction. Where one statement can say the same (`UPDATE … WHERE id = ? AND revision
//!   = ? AND run_token = ?`), it may, and ask the row why only when nothing was changed.
//! - **Your clock decides** about run-leases and what is due, never the caller's: `now` is read
//!   inside the transaction.
//! - **The body is a secret**: it holds the token of a lease. It is in no message, no log, no `Debug`.
//! - **An error changes nothing.**
//! - **Outage is not refusal**: an error that may pass is
//!   [`StoreUnavailable`](crate::ErrorKind::StoreUnavailable), and the caller may ask again with the
//!   same arguments: [`create`](ContextStore::create), [`save`](ContextStore::save) and
//!   [`claim`](ContextStore::claim) recognise their own repetition.
//! - **What is due is found by an index**, on (machine, [`due_at`](ContextHead::due_at)): with 100,000
//!   paused contexts that are not due it takes no longer than with 1,000. `due_at` is computed by the
//!   rules at each change and only has to be stored.
//!
//! # Attempts
//!
//! A claim counts as an attempt, since a process that dies can tell nothing afterwards. The count
//! starts anew when an action completes, pauses or asks to be repeated; what comes to nothing without
//! the context's fault (a graceful stop, a lock that somebody else has, a backend that is away) gives
//! its attempt back. Whatever is claimed too often is quarantined: it stays as it is and is claimed
//! by nobody until it is [released](Contexts::release_quarantined) or cancelled.
//!
//! A process that dies takes all with it that it was at. So of contexts that were [tried
//! before](SUSPECT) each process is at one at a time; see [`DueClaim::beside_suspect`].
//!
//! # A row
//!
//! The columns are the fields of [`ContextHead`] and the [body](StoredContext::body): `id` (primary
//! key), `machine`, `entity`, `status`, `revision`, `details` (JSON text), `waiting` (four columns:
//! `wake_at`, `signal`, `timeout_at`, `renew_at`), `holds_lock`, the run-lease (`run_token`,
//! `run_runner`, `run_expires_at`), the cancel request (`cancel_reason`, `cancel_at`), `attempts`,
//! `last_error`, `retry_at`, `quarantined_at`, `woken_at`, `due_at`, `created_at`, `updated_at`; and the
//! signals, in a table of their own or as JSON.

mod contexts;
mod head;
mod messages;
mod port;
mod rules;

pub use contexts::Contexts;
pub use head::{
    CancelRequest, ContextDraft, ContextHead, Due, ReceivedSignal, RunClaim, RunLease,
    StoredContext, Waiting,
};
pub use messages::{
    Beat, Cancelled, ContextFilter, ContextPage, ContextPageRequest, DueClaim, GiveBack,
    MAX_ATTEMPTS, Proof, SUSPECT, Save, Saved, Unreadable, View,
};
pub use port::ContextStore;
pub(crate) use port::DynContextStore;
pub use rules::Claim;
