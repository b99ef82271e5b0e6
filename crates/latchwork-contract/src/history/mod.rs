//! What happened in a long run, written down by everybody who took part, and checked afterwards.
//!
//! Each process writes its own file of JSON lines with a [`Recorder`]; [`History`] merges them,
//! and [`check`] finds what the promises forbid. All times are on the boot clock, which the
//! processes of one machine share.
//!
//! The rules for a recorder, which make the checker free of false alarms:
//! - [`What::Asked`] is written *before* the request is sent, [`What::Granted`] after its answer
//!   came, [`What::Releasing`] before the release is sent;
//! - a lease counts as held from its `Granted` to the soonest of `Releasing`, `Breaking` and the
//!   end of its trust. In the backend it is held for longer on both sides, so that two which
//!   overlap here have overlapped there;
//! - [`What::Queued`] is written after the request was *seen* in the queue, so that a request
//!   made later is behind it;
//! - [`What::ProcessEnds`] and [`What::ProcessStops`] are written before the signal is sent, and
//!   [`What::HandedOver`] after the answer came: some backends free what the dead have held, but
//!   not what they have handed over;
//! - a client that resumes a lease and gets it proves that it was held all the time in between.

mod check;
#[cfg(test)]
mod check_faults;
mod event;
mod forgotten;
mod lifetimes;
mod merge;
mod processes;
mod recorder;
mod revived;

pub use check::{Rule, Violation, check};
pub use event::{Event, What};
pub use forgotten::forgotten;
pub use merge::History;
pub use recorder::Recorder;
