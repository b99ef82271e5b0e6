//! The command line as a whole.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[cfg(feature = "temporal")]
use crate::commands::temporal;
use crate::commands::{completions, demo, flows, lock, locks};
#[cfg(feature = "sqlite")]
use crate::commands::{config, serve, tokens, types};
use crate::output::has_colour;

/// Distributed locks, durable flows, and reviewed work.
#[derive(Parser, Debug)]
#[command(name = "latchwork", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  latchwork lock nightly-backup -- ./backup.sh     one at a time, on this machine
  latchwork locks ls                               who holds what
  latchwork serve                                  orders and items over HTTP, on this machine
  latchwork tokens create me --role admin          from now on every caller needs a token
  latchwork demo                                   see it all happen, in ten seconds

Set LATCHWORK_LOG=debug to see what the lock layer does (on stderr).";

#[derive(Subcommand, Debug)]
enum Command {
    Lock(lock::Lock),
    Locks(locks::LocksCommand),
    Flows(flows::FlowsCommand),
    #[cfg(feature = "sqlite")]
    Serve(serve::Serve),
    #[cfg(feature = "temporal")]
    Temporal(temporal::TemporalCommand),
    #[cfg(feature = "sqlite")]
    Tokens(tokens::TokensCommand),
    #[cfg(feature = "sqlite")]
    Config(config::ConfigCommand),
    #[cfg(feature = "sqlite")]
    Types(types::TypesCommand),
    Demo(demo::Demo),
    Completions(completions::Completions),
}

impl Cli {
    pub(crate) fn run(self) -> ExitCode {
        // A server logs unless told otherwise, and its configuration says how.
        #[cfg(feature = "sqlite")]
        let logs_by_itself = matches!(self.command, Command::Serve(_));
        #[cfg(not(feature = "sqlite"))]
        let logs_by_itself = false;
        if !logs_by_itself {
            log(&self.command);
        }
        match self.command {
            Command::Lock(lock) => lock.run(),
            Command::Locks(locks) => locks.run(),
            Command::Flows(flows) => flows.run(),
            #[cfg(feature = "sqlite")]
            Command::Serve(serve) => serve.run(),
            #[cfg(feature = "temporal")]
            Command::Temporal(temporal) => temporal.run(),
            #[cfg(feature = "sqlite")]
            Command::Tokens(tokens) => tokens.run(),
            #[cfg(feature = "sqlite")]
            Command::Config(config) => config.run(),
            #[cfg(feature = "sqlite")]
            Command::Types(types) => types.run(),
            Command::Demo(demo) => demo.run(),
            Command::Completions(completions) => completions.run(),
        }
    }
}

/// A usage error with what to do about a word that was not expected. The parser's own proposal is to
/// put it behind `--`, where the command of `lock` begins, and where no option may follow.
pub(crate) fn explained(mut error: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    if error.kind() == ErrorKind::UnknownArgument
        && error.get(ContextKind::SuggestedArg).is_none()
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
        && let Some(tip) = tip_for(word)
    {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

fn tip_for(word: &str) -> Option<String> {
    let mut words = std::env::args_os().skip(1);
    let command = words.next()?;
    let of_a_key = |it: OsString| it == "show" || it == "break";
    let takes_a_key = command == "lock" || command == "locks" && words.next().is_some_and(of_a_key);
    if word.starts_with('-') {
        takes_a_key.then(|| format!("for a key that begins with a dash write '--key={word}'"))
    } else {
        (command == "lock")
            .then(|| "the command stands behind '--': latchwork lock KEY -- COMMAND".to_owned())
    }
}

/// The lock layer's own log, for users who ask for it. Without that, `locks` shows its warnings: what
/// could not be read is missing in what is printed.
fn log(command: &Command) {
    use tracing_subscriber::EnvFilter;
    let shown = match EnvFilter::try_from_env("LATCHWORK_LOG") {
        Err(_) if matches!(command, Command::Locks(_)) => Ok(EnvFilter::new("warn")),
        asked => asked,
    };
    let Ok(filter) = shown else { return };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(has_colour(&std::io::stderr()));
    if std::env::var_os("LATCHWORK_LOG").is_some() {
        log.init();
    } else {
        log.without_time().with_target(false).init();
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
