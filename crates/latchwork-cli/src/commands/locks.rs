//! `latchwork locks ls|show|break|schema`.

mod end;
mod ls;
mod one;
mod schema;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::block_on;
use crate::exit::Failure;
use crate::output::Output;

/// See who holds what, and end a lease.
#[derive(Args, Debug)]
pub(crate) struct LocksCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Ls(ls::Ls),
    Show(one::Show),
    Break(end::Break),
    Schema(schema::Schema),
}

impl LocksCommand {
    pub(crate) fn run(self) -> ExitCode {
        let (json, done) = match &self.command {
            Command::Ls(ls) => (ls.json, block_on(ls.run())),
            Command::Show(show) => (show.json, block_on(show.run())),
            Command::Break(end) => (end.json, block_on(end.run())),
            Command::Schema(schema) => (false, schema.run()),
        };
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => Output { json, quiet: false }.fail(failure),
        }
    }
}

/// A value as one line of JSON.
fn json_line(value: &impl serde::Serialize) -> Result<String, Failure> {
    let line = serde_json::to_string(value)
        .map_err(|error| Failure::internal(format!("no JSON of it: {error}")))?;
    Ok(line + "\n")
}
