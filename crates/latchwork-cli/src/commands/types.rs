//! `latchwork types`: the operator's order types.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use latchwork::work::{DeclaredOrderType, Error, OrderTypes, RegisteredType};
use latchwork_server::{APPLIERS, CommandApplier, appliers_beside, types_of};

use crate::exit::Failure;
use crate::output::{Output, out};

/// Look at declarations of order types.
#[derive(Args, Debug)]
pub(crate) struct TypesCommand {
    #[command(subcommand)]
    command: TypesSubcommand,
}

#[derive(Subcommand, Debug)]
enum TypesSubcommand {
    Check(Check),
}

/// Check declarations before a server reads them: each file, or all of a directory.
///
/// A mistake is told with file, line and field. Commands are those of appliers.toml beside the
/// declaration; they are looked for, and not started.
#[derive(Args, Debug)]
struct Check {
    /// Files, or directories as `latchwork serve --types` takes them.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl TypesCommand {
    pub(crate) fn run(self) -> ExitCode {
        let TypesSubcommand::Check(check) = self.command;
        let mut code = ExitCode::SUCCESS;
        // All files, so that one run shows what there is to do.
        for file in &check.files {
            if let Err(error) = check_file(file) {
                code = Output::default().fail(Failure::from(error));
            }
        }
        code
    }
}

fn check_file(file: &Path) -> Result<(), Error> {
    if file.is_dir() {
        let types = types_of(file)?;
        types.iter().for_each(|known| show(file, known));
        return Ok(());
    }
    if file.file_name().is_some_and(|name| name == APPLIERS) {
        let appliers = CommandApplier::read(file)?;
        let names: Vec<_> = appliers.names().collect();
        out(&format!("{}: {} appliers: {}\n", file.display(), names.len(), names.join(", ")));
        return Ok(());
    }
    let mut types = OrderTypes::new();
    types.add_declared(DeclaredOrderType::read(file)?, &appliers_beside(file)?)?;
    types.iter().for_each(|known| show(file, known));
    Ok(())
}

fn show(file: &Path, known: &RegisteredType) {
    let (name, version) = (known.name(), known.version());
    out(&format!("{}: order type {name}, version {version}\n", file.display()));
}
