//! Holding the lock while the command runs, and what comes of it.

use std::io;
use std::time::Duration;

use latchwork::lock::provider::Moment;
use latchwork::lock::{self, Clock as _, Guard, Locks, SystemClock};
use nix::sys::signal::SigSet;
use rustix::process::Signal;

use super::{Lock, Run, cannot};
use crate::exit::{Exit, Failure};
use crate::output::{BackgroundOutput, Output};
use crate::supervise::{
    Ending, Keeper, Limits, Monitor, Reason, Signals, Terminal, signal_own_group, spawn,
};

/// How long to wait for a place that does not answer when there is nothing left to protect.
const PATIENCE: Duration = Duration::from_secs(2);

impl Lock {
    /// Asks for the lock and holds it while the command runs.
    pub(super) async fn under_lock(
        &self,
        output: Output,
        mask: SigSet,
        keeper: &mut Keeper,
    ) -> Result<Run, Failure> {
        let mut signals = Signals::listen().map_err(cannot("listen for signals"))?;
        let started = SystemClock.now();
        let locks = tokio::select! {
            opened = self.connect(output, keeper.pid()) => opened?,
            signal = signals.next_request() => return Ok(Run::DieOf(signal)),
        };
        let asked = tokio::select! {
            got = self.acquire(&locks, output, started) => got.map(Ok),
            // Dropping the question leaves the queue.
            signal = signals.next_request() => Ok(Err(signal)),
        };
        let run = match asked {
            Ok(Ok(guard)) => self.hold(output, mask, keeper, &mut signals, &locks, guard).await,
            Ok(Err(signal)) => Ok(Run::DieOf(signal)),
            Err(failure) => Err(failure),
        };
        // What was dropped or could not be told is told now, if that does not take long.
        let _ = tokio::time::timeout(PATIENCE, locks.close()).await;
        run
    }

    async fn hold(
        &self,
        output: Output,
        mask: SigSet,
        keeper: &mut Keeper,
        signals: &mut Signals,
        locks: &Locks,
        guard: Guard,
    ) -> Result<Run, Failure> {
        let clock = locks.clock().clone();
        let until = if self.no_renew { Moment::NEVER } else { clock.now().after(self.max_hold) };
        let env = [
            ("LATCHWORK_KEY", self.key.as_str().to_owned()),
            ("LATCHWORK_FENCE", guard.fence().to_string()),
        ];
        if !guard.is_held() {
            return Err(self.lost_before_start(guard.fence()));
        }
        let background = BackgroundOutput::default();
        // Before the command starts, so that it finds itself in the foreground.
        let mut terminal = Terminal::open();
        if let Some(terminal) = &mut terminal {
            terminal.lend_if_interactive(keeper.group());
        }
        let hidden = match self.inherit_at {
            true => Vec::new(),
            false => self.location.secret_variables(),
        };
        let child = match spawn(&self.command, keeper.group(), mask, &env, &hidden) {
            Ok(child) => child,
            Err(error) => {
                if let Some(terminal) = &mut terminal {
                    terminal.reclaim(keeper.group());
                }
                let _ = release(guard).await;
                return Err(self.not_started(&error, keeper));
            }
        };
        let watch = Monitor {
            held: &guard,
            clock,
            limits: Limits { until, renewed: !self.no_renew },
            keeper,
            child,
            signals,
            terminal,
            output,
            background: &background,
            state: Default::default(),
        };
        let told = |reason| background.fail(output, self.stopped(reason, &guard));
        let ending = watch.run(told).await;
        let run = self.finish(ending, guard, output).await;
        background.flush().await;
        run
    }

    /// Releases, and makes an exit code of it all. A loss wins over whatever the command said,
    /// because it may not have been alone.
    async fn finish(&self, ending: Ending, guard: Guard, output: Output) -> Result<Run, Failure> {
        let left_behind = || {
            if !ending.left_behind.is_empty() {
                self.report_left_behind(&ending.left_behind, output);
            }
        };
        if let Some(reason) = ending.stopped {
            // What is left of the lease is of no use to anybody.
            let _ = release(guard).await;
            left_behind(); // another user's, or hanging in the kernel
            let exit = if reason == Reason::KeeperDied { Exit::Internal } else { Exit::Lost };
            return Ok(Run::Exit(exit as u8));
        }
        let fence = guard.fence();
        match release(guard).await {
            Some(Ok(())) => {}
            Some(Err(error)) if error.is_loss() => return Err(self.lost_unseen(fence)),
            Some(Err(error)) => self.report_not_released(error.code(), &error.to_string(), output),
            None => self.report_not_released("lock_unavailable", "no answer", output),
        }
        left_behind();
        let Some(status) = ending.status else {
            return Err(Failure::internal("the command's exit code cannot be known"));
        };
        match (status.exit_status(), status.terminating_signal()) {
            (_, Some(number)) => match Signal::from_named_raw(number) {
                // Ctrl-C reached the command only, and is meant for the calling script too.
                Some(signal @ (Signal::INT | Signal::QUIT)) if ending.had_terminal => {
                    signal_own_group(signal);
                    Ok(Run::DieOf(signal))
                }
                _ => Ok(Run::Exit(u8::try_from(128 + number).unwrap_or(u8::MAX))),
            },
            (code, None) => Ok(Run::Exit(u8::try_from(code.unwrap_or(0)).unwrap_or(u8::MAX))),
        }
    }

    fn not_started(&self, error: &io::Error, keeper: &mut Keeper) -> Failure {
        let name = self.program();
        if keeper.is_dead() {
            return Failure::internal("the keeper process died: the command was not started");
        }
        if error.kind() == io::ErrorKind::NotFound {
            let message = format!("{name}: command not found");
            return Failure::new(Exit::NotFound, "command_not_found", message);
        }
        let message = format!("{name}: cannot be started: {error}");
        Failure::new(Exit::NotExecutable, "command_not_executable", message)
    }
}

/// Releases, but does not wait for a place that does not answer: the ttl ends what cannot be told.
async fn release(guard: Guard) -> Option<lock::Result<()>> {
    tokio::time::timeout(PATIENCE, guard.release()).await.ok()
}
