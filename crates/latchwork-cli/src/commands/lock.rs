//! `latchwork lock KEY -- command`.

mod acquire;
mod hold;
mod messages;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rustix::process::Signal;

use super::block_on;
use crate::duration;
use crate::exit::{self, Failure};
use crate::key::KeyArg;
use crate::lock_location::LockLocation;
use crate::output::Output;
use crate::supervise::{Keeper, block_job_control, die_of};

/// Run a command under a lock.
///
/// The lease is renewed while the command runs, and released when it ends. When the lease cannot
/// be kept, the command is stopped before it ends: TERM first, then KILL. The command and all of
/// its process group die with this program, also when that is killed.
#[derive(Args, Debug)]
#[command(after_help = after_help(), override_usage = "latchwork lock [OPTIONS] <KEY> -- <COMMAND>...")]
pub(crate) struct Lock {
    #[command(flatten)]
    key: KeyArg,

    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,

    /// Share the lock with others that share it.
    #[arg(long)]
    shared: bool,

    /// How long the lease lasts from its last renewal.
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = duration::parse)]
    ttl: Duration,

    /// How long to wait while somebody else has the key, or the place of the locks does not answer.
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = duration::parse)]
    wait: Duration,

    /// Fail at once when somebody else has the key, or the place of the locks does not answer.
    #[arg(long, conflicts_with_all = ["wait", "wait_forever"])]
    no_wait: bool,

    /// Wait until the key is free.
    #[arg(long, conflicts_with = "wait")]
    wait_forever: bool,

    /// Stop the command when it has held the lock for this long.
    #[arg(long, value_name = "SPAN", default_value = "1h", value_parser = duration::parse)]
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
    location: LockLocation,

    /// Let the command see LATCHWORK_AT and the password of the locks (PGPASSWORD, REDISCLI_AUTH, …).
    ///
    /// Without it these variables are taken out of its environment where the locks use them.
    #[arg(long)]
    inherit_at: bool,

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
interactive shell's jobs) is out of its reach. So is what the command has started when KILL hits
both this program and its helper process at once (`pkill -9 -f latchwork`): then the command itself
dies, and its children go on without the lock.",
        exit::table()
    )
}

/// How the run ended, if it did not fail.
enum Run {
    Exit(u8),
    /// We end by this signal, as our parent process expects.
    DieOf(Signal),
}

impl Lock {
    pub(crate) fn run(self) -> ExitCode {
        let output = Output { json: self.json, quiet: self.quiet };
        match self.supervise(output) {
            Ok(Run::Exit(code)) => ExitCode::from(code),
            Ok(Run::DieOf(signal)) => die_of(signal),
            Err(failure) => output.fail(failure),
        }
    }

    fn supervise(&self, output: Output) -> Result<Run, Failure> {
        let mask = block_job_control().map_err(cannot("set the signal mask"))?;
        // Before the lock is asked for: the lease names the keeper as its companion.
        let mut keeper = Keeper::start().map_err(cannot("start the keeper process"))?;
        let run = block_on(self.under_lock(output, mask, &mut keeper));
        keeper.dismiss();
        run
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

fn cannot(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::internal(format!("cannot {what}: {error}"))
}
