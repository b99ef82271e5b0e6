//! `latchwork lock KEY -- command`.

mod ask;
mod tell;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use latchwork::lock::{self, Guard, Locks, Moment};
use nix::sys::signal::SigSet;
use rustix::process::Signal;

use super::block_on;
use crate::exit::{self, Exit, Failure};
use crate::place::Place;
use crate::span;
use crate::supervise::{
    Ending, Keeper, Limits, Reason, Signals, Terminal, Watch, block_job_control, die_of, spawn,
    tell_own_group,
};
use crate::voice::{Aside, Voice};

/// Run a command under a lock.
///
/// The lease is renewed while the command runs, and released when it ends. When the lease cannot
/// be kept, the command is stopped before it ends: TERM first, then KILL. The command and all of
/// its process group die with this program, whatever kills it.
#[derive(Args, Debug)]
#[command(after_help = after_help())]
pub(crate) struct Lock {
    /// What to lock: any name that all who share the resource use.
    key: String,

    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,

    /// Share the lock with others that share it.
    #[arg(long)]
    shared: bool,

    /// How long the lease lasts from its last renewal.
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = span::parse)]
    ttl: Duration,

    /// How long to wait while somebody else has the key.
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = span::parse)]
    wait: Duration,

    /// Fail at once when somebody else has the key.
    #[arg(long, conflicts_with_all = ["wait", "wait_forever"])]
    no_wait: bool,

    /// Wait until the key is free.
    #[arg(long, conflicts_with = "wait")]
    wait_forever: bool,

    /// Stop the command when it has held the lock for this long.
    #[arg(long, value_name = "SPAN", default_value = "1h", value_parser = span::parse)]
    max_hold: Duration,

    /// Do not renew: the command is stopped before the ttl ends.
    #[arg(long, conflicts_with = "max_hold")]
    no_renew: bool,

    /// Name the owner. A run with the same owner takes the lock over, and this one is stopped.
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,

    /// What others see beside the holder; by default the command's name.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,

    #[command(flatten)]
    place: Place,

    /// Say nothing: the exit code tells.
    #[arg(long, short)]
    quiet: bool,

    /// Say it as JSON, one object a line, on stderr.
    #[arg(long)]
    json: bool,
}

fn after_help() -> String {
    format!(
        "\
Examples:
  latchwork lock nightly-backup -- ./backup.sh
  latchwork lock deploy --no-wait -- ./deploy.sh || echo \"somebody else deploys\"
  latchwork lock reports --shared --wait 1m -- ./read-reports
  latchwork lock import --ttl 10s -- sh -c './import --fence \"$LATCHWORK_FENCE\"'

{}
The command sees LATCHWORK_KEY and LATCHWORK_FENCE. The fence is a number that grows with every
grant of the key: a store that refuses a lower one than it has seen is safe even when this
program, or the whole machine, was stopped past the end of the lease and goes on. No supervisor
can stop anything while it is itself stopped (SIGSTOP, a suspended laptop); when it goes on, it
kills the command first. A process that leaves the command's process group (setsid, a daemon, an
interactive shell's jobs) is out of its reach.",
        exit::table()
    )
}

/// How long to wait for a place that does not answer when there is nothing left to protect.
const PATIENCE: Duration = Duration::from_secs(2);

/// How the run ended, if it did not fail.
enum Run {
    Exit(u8),
    /// We end by this signal, as whoever started us expects.
    DieOf(Signal),
}

impl Lock {
    pub(crate) fn run(self) -> ExitCode {
        let voice = Voice { json: self.json, quiet: self.quiet };
        match self.supervise(voice) {
            Ok(Run::Exit(code)) => ExitCode::from(code),
            Ok(Run::DieOf(signal)) => die_of(signal),
            Err(failure) => voice.fail(failure),
        }
    }

    fn supervise(&self, voice: Voice) -> Result<Run, Failure> {
        let mask = block_job_control().map_err(cannot("set the signal mask"))?;
        // Before the lock is asked for: the lease names the keeper as its companion.
        let mut keeper = Keeper::start().map_err(cannot("start the keeper process"))?;
        let run = block_on(self.under_lock(voice, mask, &mut keeper));
        keeper.dismiss();
        run
    }

    async fn under_lock(
        &self,
        voice: Voice,
        mask: SigSet,
        keeper: &mut Keeper,
    ) -> Result<Run, Failure> {
        let mut signals = Signals::listen().map_err(cannot("listen for signals"))?;
        let asked = async {
            let locks = self.place.open_with(Some(keeper.pid())).await?;
            let guard = self.acquire(&locks, voice).await?;
            Ok::<_, Failure>((locks, guard))
        };
        let (locks, guard) = tokio::select! {
            got = asked => got?,
            // Dropping the question has left the queue.
            signal = signals.next_request() => return Ok(Run::DieOf(signal)),
        };
        let run = self.hold(voice, mask, keeper, &mut signals, &locks, guard).await;
        // A release that could not be told is tried once more, but not for long.
        let _ = tokio::time::timeout(PATIENCE, locks.close()).await;
        run
    }

    async fn hold(
        &self,
        voice: Voice,
        mask: SigSet,
        keeper: &mut Keeper,
        signals: &mut Signals,
        locks: &Locks,
        guard: Guard,
    ) -> Result<Run, Failure> {
        let clock = locks.clock().clone();
        let until = if self.no_renew { Moment::NEVER } else { clock.now().after(self.max_hold) };
        let env =
            [("LATCHWORK_KEY", self.key.clone()), ("LATCHWORK_FENCE", guard.fence().to_string())];
        keeper.ready().map_err(cannot("reach the keeper process"))?;
        if !guard.is_held() {
            return Err(self.lost_before_start(guard.fence()));
        }
        let aside = Aside::default();
        // Before the command starts, so that it finds itself in the foreground.
        let mut terminal = Terminal::open();
        if let Some(terminal) = &mut terminal {
            terminal.lend_if_interactive(keeper.group());
        }
        let child = match spawn(&self.command, keeper.group(), mask, &env) {
            Ok(child) => child,
            Err(error) => {
                if let Some(terminal) = &mut terminal {
                    terminal.take_back(keeper.group());
                }
                let _ = release(guard).await;
                return Err(self.not_started(&error, keeper));
            }
        };
        let watch = Watch {
            held: &guard,
            clock,
            limits: Limits { until, renewed: !self.no_renew },
            keeper,
            child,
            signals,
            terminal,
            voice,
            aside: &aside,
            state: Default::default(),
        };
        let told = |reason| aside.fail(voice, self.stopped(reason, &guard));
        let ending = watch.run(told).await;
        let run = self.finish(ending, guard, voice).await;
        aside.settle().await;
        run
    }

    /// Releases, and makes an exit code of it all. A loss wins over whatever the command said,
    /// because it may not have been alone.
    async fn finish(&self, ending: Ending, guard: Guard, voice: Voice) -> Result<Run, Failure> {
        if let Some(reason) = ending.stopped {
            // What is left of the lease is of no use to anybody.
            let _ = release(guard).await;
            let exit = if reason == Reason::KeeperDied { Exit::Internal } else { Exit::Lost };
            return Ok(Run::Exit(exit as u8));
        }
        let fence = guard.fence();
        match release(guard).await {
            Some(Ok(())) => {}
            Some(Err(error)) if error.is_loss() => return Err(self.lost_unseen(fence)),
            Some(Err(error)) => self.tell_not_released(error.code(), &error.to_string(), voice),
            None => self.tell_not_released("lock_unavailable", "no answer", voice),
        }
        if !ending.left_behind.is_empty() {
            self.tell_left_behind(&ending.left_behind, voice);
        }
        let Some(status) = ending.status else {
            return Err(Failure::internal("the command's exit code cannot be known"));
        };
        match (status.exit_status(), status.terminating_signal()) {
            (_, Some(number)) => match Signal::from_named_raw(number) {
                // Ctrl-C reached the command only, and is meant for the calling script too.
                Some(signal @ (Signal::INT | Signal::QUIT)) if ending.had_terminal => {
                    tell_own_group(signal);
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

    fn program(&self) -> String {
        self.command.first().map(|name| name.display().to_string()).unwrap_or_default()
    }

    /// The command's name without its path. Its arguments may hold secrets.
    fn default_note(&self) -> String {
        let program = self.program();
        let name = Path::new(&program).file_name().map(|name| name.display().to_string());
        name.unwrap_or(program).chars().filter(|c| !c.is_control()).take(60).collect()
    }
}

/// Releases, but does not wait for a place that does not answer: the ttl ends what cannot be told.
async fn release(guard: Guard) -> Option<lock::Result<()>> {
    tokio::time::timeout(PATIENCE, guard.release()).await.ok()
}

fn cannot(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::internal(format!("cannot {what}: {error}"))
}
