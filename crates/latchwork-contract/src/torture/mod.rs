//! A long run with faults, over any backend that several processes can share.
//!
//! A supervisor starts worker processes, each with some tasks that ask for the same few keys in
//! every way there is, drop guards and futures, and bring crowds of waiters; and then does to them
//! what happens to processes: it kills, stops and breaks, as one printed seed says. Each process writes a
//! [`history`](crate::history); at the end they are merged, and the checker must find nothing.
//!
//! A worker is the test's own program once more, so that program has a `main` of its own
//! (`harness = false`):
//!
//! ```no_run
//! use latchwork_contract::torture::{self, Torture};
//!
//! fn main() {
//!     torture::worker(); // returns unless a supervisor has started this process
//!     let torture = Torture::at("file:///tmp/some-directory");
//!     println!("{torture}"); // with its seed, before anything can go wrong
//!     println!("{:?}", torture::run(torture));
//! }
//! ```
//!
//! A provider that `Locks::connect` does not know is opened by a function of its own, in each of the
//! processes: [`worker_with`] and [`run_with`].
//!
//! By hand, for as long as you like:
//!
//! ```text
//! LATCHWORK_TORTURE_SECONDS=600 LATCHWORK_SEED=7 cargo test -p latchwork-lock --all-features --test torture file
//! ```

mod drops;
mod faults;
mod gate;
mod hold;
mod judge;
mod mailbox;
mod pauses;
mod process_context;
mod queues;
mod run;
mod settings;
mod task;
mod worker;
mod workers;

pub use gate::{FileGate, Refused, Write};
pub use judge::Report;
pub use run::{run, run_here, run_with};
pub use settings::Torture;
pub use worker::{worker, worker_with};
