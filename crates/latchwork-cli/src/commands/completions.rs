//! `latchwork completions`.

use std::process::ExitCode;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::output::out;

const EXAMPLES: &str = "\
Examples:
  latchwork completions bash > ~/.local/share/bash-completion/completions/latchwork
  latchwork completions zsh > ~/.zfunc/_latchwork
  latchwork completions fish > ~/.config/fish/completions/latchwork.fish";

/// Print completions for a shell.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Completions {
    /// The shell.
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> ExitCode {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "latchwork", &mut text);
        out(&String::from_utf8_lossy(&text));
        ExitCode::SUCCESS
    }
}
