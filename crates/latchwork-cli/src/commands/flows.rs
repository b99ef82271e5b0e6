//! `latchwork flows ls|show|signal|cancel|retry|release`.

mod change;
mod ls;
mod one;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use latchwork::flow::Contexts;

use super::block_on;
use crate::exit::{Exit, Failure};
use crate::lock_location::{ENVIRONMENT, FILE_ENVIRONMENT, address, existing_sqlite};
use crate::output::Output;

/// See what stored transitions wait for, and help those that are stuck.
#[derive(Args, Debug)]
pub(crate) struct FlowsCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Ls(ls::Ls),
    Show(one::Show),
    Signal(change::Signal),
    Cancel(change::Cancel),
    Retry(change::Retry),
    Release(change::Release),
}

impl FlowsCommand {
    pub(crate) fn run(self) -> ExitCode {
        let (json, done) = match &self.command {
            Command::Ls(ls) => (ls.json, block_on(ls.run())),
            Command::Show(show) => (show.json, block_on(show.run())),
            Command::Signal(signal) => (signal.one.json, block_on(signal.run())),
            Command::Cancel(cancel) => (cancel.one.json, block_on(cancel.run())),
            Command::Retry(retry) => (retry.one.json, block_on(retry.run())),
            Command::Release(release) => (release.one.json, block_on(release.run())),
        };
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => Output { json, quiet: false }.fail(failure),
        }
    }
}

/// Where the contexts are.
#[derive(Args, Clone, Debug)]
struct Store {
    /// Where the transitions are stored: sqlite:///var/lib/app.db or postgres://host/database.
    #[arg(long, env = ENVIRONMENT, value_name = "URL", hide_env_values = true)]
    at: Option<String>,

    /// A file whose first line is the address, which then need not stand on the command line.
    #[arg(long, env = FILE_ENVIRONMENT, value_name = "FILE")]
    at_file: Option<PathBuf>,
}

impl Store {
    /// Opens the contexts to look after them. A mistyped file is not made, but told.
    async fn open(&self) -> Result<Contexts, Failure> {
        let at = address(self.at.as_deref(), self.at_file.as_deref())?.unwrap_or_default();
        let at = match existing_sqlite(&at, "no transition is stored there") {
            Some(existing) => {
                existing.map_err(|what| Failure::new(Exit::Unavailable, "store_backend", what))?
            }
            None if at.starts_with("postgres") => at,
            None => {
                // The address may hold a password, so it is not repeated.
                let message = "which transitions? They are stored at --at sqlite:///file.db or \
                               --at postgres://host/database";
                return Err(Failure::new(Exit::Usage, "invalid_argument", message));
            }
        };
        Ok(Contexts::connect(&at).await?)
    }
}

/// A value as one line of JSON.
fn json_line(value: &impl serde::Serialize) -> Result<String, Failure> {
    let line = serde_json::to_string(value)
        .map_err(|error| Failure::internal(format!("no JSON of it: {error}")))?;
    Ok(line + "\n")
}
