//! The process group of the command, led by the keeper.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

/// A process group. Its number cannot be given to others while its leader, the keeper, is there
/// and not yet reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group(Pid);

impl Group {
    pub(crate) fn new(leader: Pid) -> Self {
        Group(leader)
    }

    pub(crate) fn id(self) -> Pid {
        self.0
    }

    /// Sends a signal to all of the group. That nobody is left to get it is fine.
    pub(crate) fn signal(self, signal: Signal) {
        let _ = rustix::process::kill_process_group(self.0, signal);
    }

    /// The living members besides the leader. Zombies do no harm, so they do not count.
    ///
    /// The next holder waits for this, so of most processes only the group is asked for, which is one
    /// call and no file.
    pub(crate) fn others(self) -> Vec<Pid> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(Pid::from_raw)
            .filter(|pid| *pid != self.0 && self.was_of(*pid) && self.has(*pid))
            .collect()
    }

    /// Whether the process, dead or alive, is in the group. Not by rustix, which cannot express that
    /// a thread of the kernel is in none.
    fn was_of(self, pid: Pid) -> bool {
        let raw = |pid: Pid| nix::unistd::Pid::from_raw(pid.as_raw_nonzero().get());
        nix::unistd::getpgid(Some(raw(pid))) == Ok(raw(self.0))
    }

    /// Whether the process lives and is in the group.
    fn has(self, pid: Pid) -> bool {
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        parse_stat(&stat) == Some(self.0.as_raw_nonzero().get())
    }

    /// Kills every member but the leader, and returns when none is left. For the leader only:
    /// its own death is the sign that the others are gone.
    pub(crate) fn kill_others(self) {
        // One empty look may miss a child whose number was lower than its parent's.
        let mut empty = 0;
        while empty < 2 {
            let others = self.others();
            empty = if others.is_empty() { empty + 1 } else { 0 };
            for pid in others {
                self.kill(pid);
            }
            if empty == 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }

    /// Kills one member, and never a stranger that got its number meanwhile.
    fn kill(self, pid: Pid) {
        use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(exactly) if self.has(pid) => {
                let _ = pidfd_send_signal(&exactly, Signal::KILL);
            }
            // A kernel before 5.3, or one whose sandbox has no such call.
            Err(Errno::NOSYS | Errno::PERM) => {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            Ok(_) | Err(_) => {}
        }
    }
}

/// The process group in a line of `/proc/PID/stat`, unless the process is dead. The name in it
/// may contain anything, so the fields are counted from its closing bracket.
fn parse_stat(stat: &str) -> Option<i32> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?;
    let group = fields.nth(1)?.parse().ok()?;
    (!matches!(state, "Z" | "X" | "x")).then_some(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_fields() {
        assert_eq!(parse_stat("7 (a) S 1 2) S 3 42 42 0 -1"), Some(42));
        assert_eq!(parse_stat("7 (a) Z 3 42 42 0 -1"), None);
        assert_eq!(parse_stat("7 (a"), None);
    }
}
