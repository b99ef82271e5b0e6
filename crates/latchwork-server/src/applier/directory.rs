//! A directory of the operator: one file an order type, and one with the commands.

use std::path::{Path, PathBuf};

use latchwork_work::{Appliers, DeclarationFile, DeclaredOrderType, OrderTypes, Result};

use super::CommandApplier;

/// The file with the commands; every other `*.toml` of the directory is an order type.
pub const APPLIERS: &str = "appliers.toml";

/// The order types of a directory, with the commands of its [`APPLIERS`].
///
/// # Errors
/// [`InvalidDeclaration`](latchwork_work::ErrorKind::InvalidDeclaration) with file, line and field; also where there is no
/// order type in it.
pub fn types_of(directory: &Path) -> Result<OrderTypes> {
    let appliers = read_appliers(&directory.join(APPLIERS))?;
    let mut types = OrderTypes::new();
    for file in declarations(directory)? {
        types.add_declared(DeclaredOrderType::read(&file)?, &appliers)?;
    }
    if types.iter().next().is_none() {
        return Err(refused(directory, "there is no order type in it: no file NAME.toml"));
    }
    Ok(types)
}

/// The appliers that a declaration in this file may name: those beside it.
///
/// # Errors
/// As for [`types_of`].
pub fn appliers_beside(file: &Path) -> Result<Appliers> {
    read_appliers(&file.with_file_name(APPLIERS))
}

fn read_appliers(file: &Path) -> Result<Appliers> {
    match file.exists() {
        true => CommandApplier::read(file),
        false => Ok(Appliers::new()),
    }
}

/// The files with order types, sorted, so that of two with one name the same one is told.
fn declarations(directory: &Path) -> Result<Vec<PathBuf>> {
    let wrong = |error: std::io::Error| refused(directory, &format!("it cannot be read: {error}"));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".toml") && !name.starts_with('.') && name != APPLIERS {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn refused(directory: &Path, reason: &str) -> latchwork_work::Error {
    DeclarationFile::new(directory.display().to_string(), "").mistake("", reason)
}
