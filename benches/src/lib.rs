//! What the benches share: a race between contenders in one run, and the table of its ratios.
//!
//! A figure of one machine says little on another, and a machine that does something else
//! meanwhile spoils it. So every figure is a ratio between neighbours in time: the contenders take
//! turns, each round gives one ratio, and the median of these is told with its spread.

mod around;
mod hand_over;
mod idle;
mod killed;
mod missing;
mod peers;
mod race;
mod stats;
mod table;
mod tasks;

pub use around::{Round, around};
pub use hand_over::{HandOver, timed, wait_for};
pub use idle::idle_waiters;
pub use killed::{holder_killed, play_the_holder};
pub use missing::missing;
pub use peers::{
    DashMapOfMutexes, KeyMutex, KeyedLock, Latchwork, Lockable, Locking, Peer, Released,
};
pub use race::{Contender, Race, Scale, race, wants};
pub use stats::{Ratio, jain, percentile};
pub use table::{Goal, Table};
pub use tasks::{runtime, tasks};
