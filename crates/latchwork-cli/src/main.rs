//! The command `latchwork`: run a command under a lock, see who holds what.
//!
//! One file a command in `commands/`; `supervise/` is what runs and stops a child.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "talking to a person is what this crate is for"
)]
#![cfg_attr(
    test,
    allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")
)]

mod cli;
mod commands;
mod duration;
mod exit;
mod key;
mod lock_location;
mod output;
#[cfg(feature = "sqlite")]
mod server_config;
mod show;
mod supervise;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let error = cli::explained(error);
            // A closed pipe is no reason to fail: the reader has seen enough.
            let _ = error.print();
            return if error.use_stderr() { exit::Exit::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    cli.run()
}
