//! `latchwork temporal worker`: runs the mutexes of a task queue.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use latchwork::temporal::{TemporalConfig, run_worker};
use tokio::signal::unix::{SignalKind, signal};

use super::block_on_threads;
use crate::exit::{Exit, Failure};
use crate::lock_location::{ENVIRONMENT, FILE_ENVIRONMENT, address};
use crate::output::Output;

/// Locks on a Temporal cluster.
#[derive(Args, Debug)]
pub(crate) struct TemporalCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Worker(Worker),
}

/// Run the mutexes of a task queue: locks at its address need such a worker, and may have several.
///
/// It ends at a SIGTERM or SIGINT. Locks that are held stay held, and another worker goes on with them.
#[derive(Args, Debug)]
struct Worker {
    /// The server, its namespace and the task queue: temporal://host:7233/namespace?task-queue=latchwork.
    ///
    /// The key of a cloud's API is taken from TEMPORAL_API_KEY.
    #[arg(long, env = ENVIRONMENT, value_name = "URL", hide_env_values = true)]
    at: Option<String>,

    /// A file whose first line is the address, which then need not stand on the command line.
    #[arg(long, env = FILE_ENVIRONMENT, value_name = "FILE")]
    at_file: Option<std::path::PathBuf>,

    /// Print messages as JSON.
    #[arg(long)]
    json: bool,
}

impl TemporalCommand {
    pub(crate) fn run(self) -> ExitCode {
        let Command::Worker(worker) = self.command;
        let output = Output { json: worker.json, quiet: false };
        match block_on_threads(worker.run(output)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => output.fail(failure),
        }
    }
}

impl Worker {
    async fn run(self, output: Output) -> Result<(), Failure> {
        let at = address(self.at.as_deref(), self.at_file.as_deref())?;
        let at = at.ok_or_else(|| {
            let message = "say where by --at temporal://host:7233/namespace?task-queue=latchwork";
            Failure::new(Exit::Usage, "invalid_argument", message)
        })?;
        let config = TemporalConfig::parse(&at)?;
        let client = config.connect().await?;
        let failed = |error: std::io::Error| Failure::internal(error.to_string());
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let stop = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        let message = format!(
            "running the mutexes of the task queue {:?} in the namespace {:?}",
            config.task_queue, config.namespace
        );
        output.note("worker_started", &message);
        run_worker(client, &config.task_queue, stop)
            .await
            .map_err(|error| Failure::new(Exit::Unavailable, error.code(), error.to_string()))
    }
}
