//! The keeper: it kills the command's group when the supervisor is gone.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process};

use super::group::Group;
use super::{signals, terminal};
use crate::exit::Exit;

/// The argument that makes this program a keeper. Not a command: no help shows it.
pub(crate) const KEEPER: &str = "__keeper";

/// Said by the supervisor when all is well; anything else is its death.
const DONE: u8 = b'.';

/// The supervisor's end of the line to its keeper.
///
/// The line is a pipe whose writing end only the supervisor has (close-on-exec), so it breaks
/// when the supervisor dies in whatever way.
pub(crate) struct Keeper {
    process: Child,
    ready: bool,
}

impl Keeper {
    /// Starts a keeper as leader of a new group.
    pub(crate) fn start() -> io::Result<Self> {
        let process = Command::new("/proc/self/exe") // right also after an upgrade
            .arg0("latchwork-keeper")
            .arg(KEEPER)
            .arg(getpgrp().to_string())
            .process_group(0)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Keeper { process, ready: false })
    }

    /// Waits until the keeper is deaf to signals. Before that no command may join its group.
    pub(crate) fn ready(&mut self) -> io::Result<()> {
        if let (false, Some(stdout)) = (self.ready, &mut self.process.stdout) {
            stdout.read_exact(&mut [0])?;
            self.ready = true;
        }
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn group(&self) -> Group {
        Group::new(Pid::from_child(&self.process))
    }

    /// Whether the keeper died, which it never does by itself.
    pub(crate) fn is_dead(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// What the terminal told the group since it was last continued.
    ///
    /// The keeper is told too, and since it blocks all signals, they stay pending in it. Waiting
    /// for a stop of the child would not do: a shell that has just forked lets its child be
    /// stopped and does not stop itself.
    pub(crate) fn heard(&self) -> Heard {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let pending = signals::mask(&status.unwrap_or_default(), "ShdPnd:");
        let has = |signal| signals::has(pending, signal);
        Heard { suspend: has(Signal::TSTP), wants_terminal: has(Signal::TTIN) || has(Signal::TTOU) }
    }

    /// Ends the keeper. What is left of its group lives on.
    pub(crate) fn dismiss(mut self) {
        if let Some(mut line) = self.process.stdin.take() {
            let _ = line.write_all(&[DONE]);
        }
        // Somebody may have stopped the whole group.
        if !self.is_dead() {
            let _ = kill_process(Pid::from_child(&self.process), Signal::CONT);
        }
        let _ = self.process.wait();
    }
}

/// See [`Keeper::heard`].
pub(crate) struct Heard {
    /// Somebody pressed Ctrl-Z.
    pub(crate) suspend: bool,
    /// One of the group read or changed the terminal without having it.
    pub(crate) wants_terminal: bool,
}

/// The keeper's own main.
pub(crate) fn keep() -> ExitCode {
    // By hand, in somebody else's group, it would kill what is not its own.
    if getpgrp() != getpid() {
        return Exit::Usage.into();
    }
    // What is sent to the group is not meant for the keeper; KILL and STOP cannot be blocked.
    if nix::sys::signal::SigSet::all().thread_block().is_err() {
        return Exit::Internal.into();
    }
    let _ = io::stdout().write_all(b"!").and_then(|()| io::stdout().flush());
    let mut said = [0];
    if io::stdin().read_exact(&mut said).is_ok() && said[0] == DONE {
        return ExitCode::SUCCESS;
    }
    if let Some(owner) = std::env::args().nth(2).and_then(|id| Pid::from_raw(id.parse().ok()?)) {
        terminal::return_to(owner);
    }
    // The file provider takes the lease for dead when the keeper is: so the others go first.
    let group = Group::new(getpid());
    group.kill_others();
    group.signal(Signal::KILL);
    Exit::Internal.into()
}
