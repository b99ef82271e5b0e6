//! Review: what a reviewer sees, and what follows from a decision (W17).
//!
//! A reviewer approves a *content version*: which results count, of which version, by which version of
//! the type. Each has one preview, made once and stored, whose digest the approval names. The decision
//! is made under the lock of the order, where the content is named anew: so what was seen is what is
//! approved, and of two decisions at once one comes first.

mod approve;
mod auto;
mod edit;
mod preview;
mod reject;
mod rule;

pub use approve::{Approval, Approved};
pub use edit::ResultEdit;
pub use preview::Preview;
pub(super) use preview::{check_version, results_digest};
pub use reject::{Rejection, ReviewError};
pub(super) use rule::status_of;
pub use rule::{ApprovalInfo, ReviewStatus};
