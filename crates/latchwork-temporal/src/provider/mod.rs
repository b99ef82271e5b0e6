//! The mutex as a provider of locks, for plain programs.
//!
//! A call is a signal and a query behind it: the query sees all signals that were sent before. Updates would
//! do it in one call, but an untuned server lets ten of them wait at a mutex, refuses more, and ends a run
//! after two thousand.
//!
//! A server also limits how many calls a single workflow gets at once. So a process has one [link](link) to
//! each mutex that it uses: what its callers want together goes in one signal, one query tells how all of
//! them stand, and a process's signals come one after the other, so that who asked first is first in the
//! queue.
//!
//! A waiter whose turn has come finds out by the queries of its link, which come the oftener the nearer it
//! is to its turn, and claims the lease by another signal. One that does not loses its turn after two
//! seconds (L5).

mod acquire;
mod config;
mod link;
mod listing;
#[allow(clippy::module_inception, reason = "every provider has a file of this name")]
mod provider;
mod report;

pub use config::TemporalConfig;
pub use provider::TemporalLockProvider;
