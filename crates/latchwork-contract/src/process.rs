//! Signals to the processes that a test has started.

use std::process::Child;

use rustix::io::Errno;
pub use rustix::process::Signal;
use rustix::process::{Pid, WaitId, WaitIdOptions, kill_process, waitid};

/// Sends a signal, SIGSTOP by way of [`stop`]. An error means that the process has ended.
pub fn send(child: &Child, signal: Signal) -> Result<(), Errno> {
    if signal == Signal::STOP { stop(child) } else { kill_process(number(child), signal) }
}

/// Stops a process, and returns when all its threads stand still: the signal alone is only under
/// way, and on a busy machine a thread goes on with what it is told in the meantime.
pub fn stop(child: &Child) -> Result<(), Errno> {
    kill_process(number(child), Signal::STOP)?;
    // Not for its end, which belongs to the process that reaps it.
    waitid(WaitId::Pid(number(child)), WaitIdOptions::STOPPED)?;
    Ok(())
}

fn number(child: &Child) -> Pid {
    // It is not reaped yet, so the number is not another's.
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("the number of a process")
}
