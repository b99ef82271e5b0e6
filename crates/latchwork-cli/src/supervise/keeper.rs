//! The keeper: it kills the command's group when the supervisor is gone.

use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};

use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::ForkResult;
use rustix::process::{Pid, Signal, WaitOptions, getpgrp, getpid, kill_process, setpgid, waitpid};

use super::group::Group;
use super::{signals, terminal};
use crate::exit::Exit;

/// Said by the supervisor when all is well; anything else is its death.
const DONE: u8 = b'.';

/// The supervisor's end of the line to its keeper.
///
/// The line is a pipe whose writing end only the supervisor has (close-on-exec), so it breaks
/// when the supervisor dies in whatever way.
pub(crate) struct Keeper {
    pid: Pid,
    line: PipeWriter,
    reaped: bool,
}

impl Keeper {
    /// Starts a keeper as leader of a new group, deaf to all signals from its first moment. To be
    /// called before any thread is started: it is a fork of this program, since to load a program
    /// once more takes as long as most of the rest.
    #[expect(unsafe_code, reason = "only a fork starts a process without loading a program")]
    pub(crate) fn start() -> io::Result<Self> {
        let (heard, line) = io::pipe()?;
        let owner = getpgrp();
        // What is sent to the group is not meant for the keeper; KILL and STOP cannot be blocked.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        // SAFETY: there is no other thread, so the child may do what any program may.
        let forked = unsafe { nix::unistd::fork() };
        let pid = match forked {
            Ok(ForkResult::Child) => {
                drop(line);
                std::process::exit(keep(owner, heard));
            }
            Ok(ForkResult::Parent { child }) => Ok(child),
            Err(error) => Err(error),
        };
        mask.thread_set_mask()?;
        let Some(pid) = Pid::from_raw(pid?.as_raw()) else { unreachable!("a child has a number") };
        // The keeper does the same; either of them may be first. No command may join before.
        setpgid(Some(pid), Some(pid))?;
        Ok(Keeper { pid, line, reaped: false })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    pub(crate) fn group(&self) -> Group {
        Group::new(self.pid)
    }

    /// Whether the keeper died, which it never does by itself.
    pub(crate) fn is_dead(&mut self) -> bool {
        // Once reaped, its number may be another's.
        self.reaped =
            self.reaped || !matches!(waitpid(Some(self.pid), WaitOptions::NOHANG), Ok(None));
        self.reaped
    }

    /// What the terminal told the group since it was last continued.
    ///
    /// The keeper is told too, and since it blocks all signals, they stay pending in it. Waiting
    /// for a stop of the child would not do: a shell that has just forked lets its child be
    /// stopped and does not stop itself.
    pub(crate) fn terminal_signals(&self) -> TerminalSignals {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let pending = signals::mask(&status.unwrap_or_default(), "ShdPnd:");
        let has = |signal| signals::has(pending, signal);
        TerminalSignals {
            suspend: has(Signal::TSTP),
            wants_terminal: has(Signal::TTIN) || has(Signal::TTOU),
        }
    }

    /// Ends the keeper. What is left of its group lives on. It is not waited for: this program ends,
    /// too, and what it leaves is reaped by others.
    pub(crate) fn dismiss(mut self) {
        let _ = self.line.write_all(&[DONE]);
        // Somebody may have stopped the whole group.
        if !self.is_dead() {
            let _ = kill_process(self.pid, Signal::CONT);
        }
    }
}

/// See [`Keeper::heard`].
pub(crate) struct TerminalSignals {
    /// Somebody pressed Ctrl-Z.
    pub(crate) suspend: bool,
    /// One of the group read or changed the terminal without having it.
    pub(crate) wants_terminal: bool,
}

/// What the keeper does; `owner` is the group that the terminal goes back to.
fn keep(owner: Pid, mut line: PipeReader) -> i32 {
    let failed = i32::from(Exit::Internal as u8);
    if setpgid(None, None).is_err() || forget_output().is_err() {
        return failed;
    }
    let _ = rustix::thread::set_name(c"latchwork-keep");
    let _ = std::env::set_current_dir("/");
    let mut said = [0];
    if line.read_exact(&mut said).is_ok() && said[0] == DONE {
        return 0;
    }
    terminal::return_to(owner);
    // The file provider takes the lease for dead when the keeper is: so the others go first.
    let group = Group::new(getpid());
    group.kill_others();
    group.signal(Signal::KILL);
    failed
}

/// Closes what the program was started with: a reader of its output waits until all have.
fn forget_output() -> io::Result<()> {
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nowhere)?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    rustix::stdio::dup2_stderr(&nowhere)?;
    Ok(())
}
