//! Lending the terminal to the command, which is in another process group than we are.

use std::fs::File;
use std::io::IsTerminal as _;

use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::group::Group;

/// The terminal that this program was started from.
///
/// Setting the foreground group from the background stops the caller unless it blocks SIGTTOU:
/// see [`block_job_control`](super::block_job_control).
pub(crate) struct Terminal {
    tty: File,
    lent: bool,
}

impl Terminal {
    /// The terminal, if there is one.
    pub(crate) fn open() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Terminal { tty, lent: false })
    }

    /// Lends it to a command that a person at the terminal talks to. Not in a pipeline: there it
    /// may be the other end, a pager say, that needs the terminal, and the command is served when
    /// it asks.
    pub(crate) fn lend_if_interactive(&mut self, group: Group) {
        if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            self.lend(group);
        }
    }

    /// Lends it, if it is ours to lend, and says whether the group has it now. Asked again after
    /// a shell has given us the foreground back, it lends it again.
    pub(crate) fn lend(&mut self, group: Group) -> bool {
        match tcgetpgrp(&self.tty) {
            Ok(foreground) if foreground == group.id() => true,
            Ok(foreground) if foreground == getpgrp() => {
                self.lent = tcsetpgrp(&self.tty, group.id()).is_ok();
                self.lent
            }
            _ => false,
        }
    }

    pub(crate) fn is_lent(&self) -> bool {
        self.lent
    }

    /// Takes it back, unless a shell gave it to somebody else meanwhile.
    pub(crate) fn reclaim(&mut self, group: Group) {
        if self.lent && tcgetpgrp(&self.tty) == Ok(group.id()) {
            let _ = tcsetpgrp(&self.tty, getpgrp());
        }
        self.lent = false;
    }
}

/// The keeper's way: if the terminal is lent to our group, it goes back to its owner.
pub(crate) fn return_to(owner: Pid) {
    if let Some(terminal) = Terminal::open()
        && tcgetpgrp(&terminal.tty) == Ok(getpgrp())
    {
        let _ = tcsetpgrp(&terminal.tty, owner);
    }
}
