//! The watch over a running command and its lease.

use std::sync::Arc;
use std::time::Duration;

use latchwork::lock::provider::Moment;
use latchwork::lock::{Clock, Held};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, waitpid};

use super::{Keeper, Signals, Terminal};
use crate::output::{BackgroundOutput, Output};

/// How long a command has to end by itself between TERM and KILL, at most.
const LONGEST_GRACE: Duration = Duration::from_secs(10);

/// How long processes that a command left behind may take to end before they are spoken of.
const SETTLE: Duration = Duration::from_millis(100);

/// How long to wait for the group to vanish after KILL: an uninterruptible call may take a while.
const VANISH: Duration = Duration::from_secs(5);

/// The time between TERM and KILL: a quarter of the ttl, ten seconds at most.
///
/// Renewal begins when two thirds of the ttl are left, so a lease with less than a quarter
/// left has failed to renew for long.
pub(crate) fn grace(ttl: Duration) -> Duration {
    (ttl / 4).min(LONGEST_GRACE)
}

/// What bounds the command's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// When it was held for as long as it may be.
    pub(crate) until: Moment,
    /// Whether the lease is renewed at all.
    pub(crate) renewed: bool,
}

/// Why a command was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The lease is gone: broken, taken over, or it ran out while we were stopped.
    Lost,
    /// The backend did not renew it, and its end comes near.
    NotRenewed,
    /// It was not to be renewed, and its end comes near.
    Unrenewed,
    /// It was held for as long as it may be.
    MaxHold,
    /// The keeper is dead, so nobody would kill the command if we died.
    KeeperDied,
}

/// How it ended.
pub(crate) struct Ending {
    pub(crate) status: Option<WaitStatus>,
    /// Set when we stopped it.
    pub(crate) stopped: Option<Reason>,
    /// Whether it had the terminal.
    pub(crate) had_terminal: bool,
    /// Processes of its group that still run.
    pub(crate) left_behind: Vec<Pid>,
}

/// A running command under a lease.
pub(crate) struct Monitor<'a> {
    pub(crate) held: &'a Held,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limits: Limits,
    pub(crate) keeper: &'a mut Keeper,
    pub(crate) child: Pid,
    pub(crate) signals: &'a mut Signals,
    pub(crate) terminal: Option<Terminal>,
    pub(crate) output: Output,
    pub(crate) background: &'a BackgroundOutput,
    pub(crate) state: State,
}

#[derive(Default)]
pub(crate) struct State {
    /// How it ended, where that can be known, and when.
    ended: Option<(Option<WaitStatus>, Moment)>,
    stop: Option<Stop>,
    /// Whether the group was told to end.
    told_to_end: bool,
}

struct Stop {
    reason: Reason,
    kill_at: Moment,
    killed_at: Option<Moment>,
}

impl Monitor<'_> {
    /// Watches until the command has ended. `told` is called once, when it is to be stopped.
    ///
    /// Each turn looks at everything anew, so no event can be missed: they only end the nap.
    pub(crate) async fn run(mut self, told: impl Fn(Reason)) -> Ending {
        loop {
            let now = self.clock.now();
            self.update(now);
            self.judge(now, &told);
            if let Some(left_behind) = self.is_over(now) {
                return self.end(left_behind);
            }
            let nap = self.nap(now);
            tokio::select! {
                signal = self.signals.next() => self.forward(signal),
                () = self.held.lost(), if self.state.stop.is_none() => {}
                () = tokio::time::sleep(nap) => {}
            }
        }
    }

    fn forward(&mut self, signal: Signal) {
        let group = self.keeper.group();
        match signal {
            Signal::CHILD => {} // only a reason to look
            Signal::USR1 | Signal::USR2 => group.signal(signal),
            ending => {
                self.state.told_to_end = true;
                group.signal(ending);
                group.signal(Signal::CONT); // a stopped one could not hear it
            }
        }
    }

    /// What became of the child and its group.
    fn update(&mut self, now: Moment) {
        if self.state.ended.is_none() {
            self.state.ended = match waitpid(Some(self.child), WaitOptions::NOHANG) {
                Ok(None) => None,
                Ok(Some((_, status))) => Some((Some(status), now)),
                Err(_) => Some((None, now)), // there is no such child
            };
        }
        let terminal_signals = self.keeper.terminal_signals();
        if terminal_signals.suspend {
            self.keeper.group().signal(Signal::CONT);
            let message = "a command under a lock is not suspended: it goes on (Ctrl-C ends it)";
            self.background.note(self.output, "not_suspended", message.to_owned());
        }
        // It was stopped for using the terminal. It gets it now, or when we are in the foreground.
        if terminal_signals.wants_terminal
            && let Some(terminal) = &mut self.terminal
            && terminal.lend(self.keeper.group())
        {
            self.keeper.group().signal(Signal::CONT);
        }
    }

    /// Whether the command may go on, and what follows if not.
    fn judge(&mut self, now: Moment, told: &impl Fn(Reason)) {
        let left = self.held.remaining();
        let grace = grace(self.held.ttl());
        if self.state.stop.is_none()
            && let Some(reason) = self.reason_to_stop(now, left, grace)
        {
            let at_once = matches!(reason, Reason::Lost | Reason::KeeperDied);
            let kill_at = if at_once { now } else { now.after(grace.min(left)) };
            if !at_once {
                self.keeper.group().signal(Signal::TERM);
                self.keeper.group().signal(Signal::CONT); // a stopped one could not hear it
            }
            self.state.stop = Some(Stop { reason, kill_at, killed_at: None });
            self.kill_when_due(now, left);
            told(reason);
        }
        self.kill_when_due(now, left);
    }

    fn reason_to_stop(&mut self, now: Moment, left: Duration, grace: Duration) -> Option<Reason> {
        if self.state.ended.is_some() && !self.state.told_to_end {
            return None; // the release will tell whether the lease held to the end
        }
        if left.is_zero() {
            Some(Reason::Lost)
        } else if self.keeper.is_dead() {
            Some(Reason::KeeperDied)
        } else if now >= self.limits.until {
            Some(Reason::MaxHold)
        } else if left < grace {
            Some(if self.limits.renewed { Reason::NotRenewed } else { Reason::Unrenewed })
        } else {
            None
        }
    }

    fn kill_when_due(&mut self, now: Moment, left: Duration) {
        if let Some(stop) = &mut self.state.stop
            && stop.killed_at.is_none()
            && (left.is_zero() || now >= stop.kill_at)
        {
            self.keeper.group().signal(Signal::KILL);
            stop.killed_at = Some(now);
        }
    }

    /// Whether all is over, and who is left if so.
    fn is_over(&self, now: Moment) -> Option<Vec<Pid>> {
        let (_, ended_at) = self.state.ended.as_ref()?;
        let others = self.keeper.group().others();
        let patience_ends = match &self.state.stop {
            Some(stop) => stop.killed_at.map_or(Moment::NEVER, |at| at.after(VANISH)),
            // The parts of a pipeline end one after the other when they are told to.
            None if self.state.told_to_end => ended_at.after(LONGEST_GRACE),
            None => ended_at.after(SETTLE),
        };
        (others.is_empty() || now >= patience_ends).then_some(others)
    }

    /// How long nothing will happen unless somebody makes it. The runtime's timers stand still
    /// while the machine is suspended, so never much longer than a second.
    fn nap(&self, now: Moment) -> Duration {
        const LONGEST: Duration = Duration::from_secs(1);
        let left = self.held.remaining();
        let next = match &self.state.stop {
            _ if self.state.ended.is_some() => Duration::from_millis(10),
            None => left.saturating_sub(grace(self.held.ttl())).min(self.limits.until.since(now)),
            Some(stop) if stop.killed_at.is_none() => stop.kill_at.since(now).min(left),
            Some(_) => LONGEST,
        };
        next.min(LONGEST) + Duration::from_millis(1) // timers have this grain
    }

    fn end(mut self, left_behind: Vec<Pid>) -> Ending {
        let mut had_terminal = false;
        if let Some(terminal) = &mut self.terminal {
            had_terminal = terminal.is_lent();
            terminal.reclaim(self.keeper.group());
        }
        Ending {
            status: self.state.ended.and_then(|(status, _)| status),
            stopped: self.state.stop.map(|stop| stop.reason),
            had_terminal,
            left_behind,
        }
    }
}
