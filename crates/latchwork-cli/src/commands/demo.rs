//! `latchwork demo`.
use std::process::ExitCode;

use clap::Args;

/// See locks, fences and leases at work, in ten seconds.
#[derive(Args, Debug)]
pub(crate) struct Demo {}

impl Demo {
    pub(crate) fn run(self) -> ExitCode {
        ExitCode::SUCCESS
    }
}
