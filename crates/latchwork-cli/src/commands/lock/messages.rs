//! What is said about a command that was stopped or left something behind.

use latchwork::lock::{Fence, Held};
use rustix::process::Pid;

use super::Lock;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::supervise::{Reason, grace};

impl Lock {
    /// Said once, when the command is stopped. The exit code comes with the end, but a user who reads
    /// along should know it now.
    pub(super) fn stopped(&self, reason: Reason, held: &Held) -> Failure {
        let lease = format!("the lease on {:?} (fence {})", self.key.as_str(), held.fence());
        let stopping = format!("stopping the command (TERM, and KILL in {})", {
            duration::show(grace(self.ttl))
        });
        let (code, message) = match reason {
            Reason::Lost => (
                "lock_lost",
                match held.renewal_error() {
                    Some(why) => format!(
                        "{lease} ran out, since it could not be renewed: {why}; the command was \
                         killed; check what it had done"
                    ),
                    None => format!(
                        "{lease} is gone: it was broken, taken over or forgotten, or ran out while \
                         this program was stopped; the command was killed; check what it had done"
                    ),
                },
            ),
            Reason::NotRenewed => (
                "lock_expired",
                match held.renewal_error() {
                    Some(why) => {
                        format!("{lease} could not be renewed and ends soon: {stopping}; {why}")
                    }
                    None => format!(
                        "{lease} could not be renewed in time and ends soon: {stopping}; \
                         no answer has come yet"
                    ),
                },
            ),
            Reason::Unrenewed => (
                "lock_expired",
                format!("{lease} ends soon, and --no-renew was asked for: {stopping}"),
            ),
            Reason::MaxHold => (
                "max_hold",
                format!(
                    "{:?} was held for {}, which is --max-hold: {stopping}",
                    self.key.as_str(),
                    duration::show(self.max_hold)
                ),
            ),
            Reason::KeeperDied => {
                ("internal", "the keeper process died: the command was killed".to_owned())
            }
        };
        let exit = if reason == Reason::KeeperDied { Exit::Internal } else { Exit::Lost };
        Failure::new(exit, code, message)
            .with("key", self.key.as_str())
            .with("fence", held.fence().get())
    }

    /// We were held up so long between the grant and the start that the lease is over.
    pub(super) fn lost_before_start(&self, fence: Fence) -> Failure {
        let message = format!(
            "the lease on {:?} (fence {fence}) ended before the command could be started",
            self.key.as_str()
        );
        Failure::new(Exit::Lost, "lock_lost", message)
            .with("key", self.key.as_str())
            .with("fence", fence.get())
    }

    /// The command ended by itself, and only the release showed that the lease had ended before.
    pub(super) fn lost_unseen(&self, fence: Fence) -> Failure {
        let message = format!(
            "the lease on {:?} (fence {fence}) ended before the command did: \
             somebody else may have been in; check what was done",
            self.key.as_str()
        );
        Failure::new(Exit::Lost, "lock_lost", message)
            .with("key", self.key.as_str())
            .with("fence", fence.get())
    }

    pub(super) fn report_not_released(&self, code: &str, why: &str, output: Output) {
        output.note(
            code,
            &format!(
                "the lease on {:?} could not be released and ends by itself in {} at most: {why}",
                self.key.as_str(),
                duration::show(self.ttl)
            ),
        );
    }

    pub(super) fn report_left_behind(&self, left: &[Pid], output: Output) {
        let pids: Vec<String> = left.iter().map(Pid::to_string).collect();
        output.note(
            "left_behind",
            &format!(
                "the command ended but left processes behind that go on without the lock: {}",
                pids.join(" ")
            ),
        );
    }
}
