//! Running a child under a lease: it is watched, stopped in time, and does not outlive us.
//!
//! Three processes take part. The *supervisor* (this program) holds and renews the lease. The
//! *command* runs in a process group of its own. The *keeper* leads that group and does nothing
//! but wait for the supervisor's death, whatever its cause, to kill the group then. The kernel's
//! parent-death signal alone would kill the direct child only, and leave a script's children to
//! work on without the lock.
//!
//! That still happens when supervisor and keeper are killed together. Nothing that needs no rights
//! prevents it: the parent-death signal is not inherited, a cgroup or a PID namespace needs rights (or a
//! user namespace, in which `sudo` and file owners are others), and a tracer that takes its tracees with
//! it breaks debuggers and set-user-id programs.

mod child;
mod group;
mod keeper;
mod monitor;
mod signals;
mod terminal;

pub(crate) use child::spawn;
pub(crate) use keeper::Keeper;
pub(crate) use monitor::{Ending, Limits, Monitor, Reason, grace};
pub(crate) use signals::{Signals, block_job_control, die_of, signal_own_group};
pub(crate) use terminal::Terminal;
