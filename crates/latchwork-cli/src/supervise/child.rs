//! Starting the command.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::sys::signal::SigSet;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use super::group::Group;

/// Starts the command in a group, with the signal mask of our caller, and without the variables that are
/// hidden from it. It is killed when the thread that calls this ends, so call it
/// from the main thread only.
#[expect(unsafe_code, reason = "only between fork and exec can a child be tied to its parent")]
pub(crate) fn spawn(
    argv: &[OsString],
    group: Group,
    mask: SigSet,
    env: &[(&str, String)],
    hidden: &[&str],
) -> io::Result<Pid> {
    let (program, args) = argv
        .split_first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no command was given"))?;
    let mut command = Command::new(program);
    for name in hidden {
        command.env_remove(name);
    }
    command.args(args).envs(env.iter().map(|(name, value)| (name, value)));
    command.process_group(group.id().as_raw_nonzero().get());
    let supervisor = getpid();
    // SAFETY: the closure runs in the forked child, where only async-signal-safe calls are
    // allowed. It makes three plain system calls, and neither allocates nor locks.
    unsafe {
        command.pre_exec(move || {
            mask.thread_set_mask()?;
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The supervisor may have died before the line above: then nobody would tell us.
            if getppid() == Some(supervisor) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
        });
    }
    let child = command.spawn()?;
    // Dropping the handle neither waits nor kills: the watch reaps by number.
    Ok(Pid::from_child(&child))
}
