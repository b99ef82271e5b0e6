//! Where the locks are: `--at`, or one directory per user.

use std::path::{Path, PathBuf};

use clap::Args;
use latchwork::Locks;

use crate::exit::{Exit, Failure};

/// Where the locks are, as every command asks for it.
#[derive(Args, Clone, Debug)]
pub(crate) struct Place {
    /// Where the locks are: a directory, or an address such as file:///var/lib/locks.
    ///
    /// By default a directory of the user: ~/.local/state/latchwork/locks, where ~ is the home in the
    /// user database, not $HOME or a variable of the session. A job under cron, a service and a
    /// login shell of one user therefore always mean the same locks.
    #[arg(long, env = "LATCHWORK_AT", value_name = "URL", hide_env_values = true)]
    at: Option<String>,
}

impl Place {
    /// Opens the locks.
    pub(crate) async fn open(&self) -> Result<Locks, Failure> {
        self.open_with(None).await
    }

    /// Opens the locks; a lease lives on while the `companion` process does.
    pub(crate) async fn open_with(&self, companion: Option<u32>) -> Result<Locks, Failure> {
        let directory = match &self.at {
            Some(at) => match as_directory(at)? {
                Some(directory) => directory,
                None => return Ok(latchwork::connect(at).await?),
            },
            None => default_directory()?,
        };
        open_directory(&directory, companion).await
    }

    /// How to name this place in a command that a message proposes. An address may hold a
    /// password, so only directories are repeated.
    pub(crate) fn option(&self) -> String {
        match &self.at {
            Some(at) if as_directory(at).is_ok_and(|d| d.is_some()) => format!(" --at {at}"),
            _ => String::new(),
        }
    }
}

async fn open_directory(directory: &Path, companion: Option<u32>) -> Result<Locks, Failure> {
    let _ = (directory, companion);
    Err(Failure::internal("files come with the branch `file`"))
}

/// The directory that an address means, if it means one.
fn as_directory(at: &str) -> Result<Option<PathBuf>, Failure> {
    if ["/", "./", "../"].iter().any(|start| at.starts_with(start)) || at == "." || at == ".." {
        let path = std::path::absolute(at).map_err(|error| {
            Failure::new(Exit::Usage, "invalid_argument", format!("invalid url: {error}"))
        })?;
        return Ok(Some(path));
    }
    Ok(None)
}

/// The directory of this user. It must not depend on what differs between a login shell and
/// cron, or the two would not exclude each other: so neither `XDG_*` nor, under `sudo -E`,
/// a foreign `HOME`.
fn default_directory() -> Result<PathBuf, Failure> {
    let uid = nix::unistd::Uid::effective();
    let known = nix::unistd::User::from_uid(uid).ok().flatten().map(|user| user.dir);
    // A container may run under a number that no user has.
    let home = known.or_else(|| std::env::var_os("HOME").map(PathBuf::from));
    match home.filter(|home| home.is_absolute()) {
        Some(home) => Ok(home.join(".local/state/latchwork/locks")),
        None => Err(Failure::new(
            Exit::Usage,
            "invalid_argument",
            format!("user {uid} has no home directory to keep locks in: say where with --at"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_told_from_an_address() {
        let directory = |at| as_directory(at).expect("legal");
        assert_eq!(directory("/var/lib/locks"), Some("/var/lib/locks".into()));
        assert!(directory("./locks").is_some_and(|path| path.is_absolute()));
        assert_eq!(directory("memory:"), None);
        assert_eq!(directory("locks"), None);
    }
}
