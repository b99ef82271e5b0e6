//! The port: what a store of contexts must do (F8).
//!
//! # Writing a store
//!
//! Implement [`ContextStore`] and prove it with the crate `latchwork-contract` (feature `flow`): a
//! factory and one call run every case. The rules:
//!
//! - **A store keeps rows; it does not decide.** Every change is: find the row of the id and lock it
//!   against other writers, let [`StoredContext`] decide (`claim`, `save`, `heartbeat`, `release`,
//!   `signal`, `cancel`, `wake`), write what it has become, all in one transaction. Where one
//!   statement can say the same (`UPDATE … WHERE id = ? AND revision = ? AND run_token = ?`), it may,
//!   and ask the row why only when nothing was changed.
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
//! # A row
//!
//! The columns are the fields of [`ContextHead`] and the [body](StoredContext::body): `id` (primary
//! key), `machine`, `entity`, `status`, `revision`, `details` (JSON text), `waiting` (four columns:
//! `wake_at`, `signal`, `timeout_at`, `renew_at`), `holds_lock`, the run-lease (`run_token`,
//! `run_runner`, `run_expires_at`), the cancel request (`cancel_reason`, `cancel_at`), `due_at`,
//! `created_at`, `updated_at`; and the signals, in a table of their own or as JSON.

mod contexts;
mod head;
mod port;
mod rules;

pub use contexts::Contexts;
pub use head::{
    CancelRequest, ContextDraft, ContextHead, Due, ReceivedSignal, RunClaim, RunLease,
    StoredContext, Waiting,
};
pub(crate) use port::DynContextStore;
pub use port::{
    Cancelled, ContextFilter, ContextPage, ContextPageRequest, ContextStore, Proof, Save, Saved,
    View,
};
