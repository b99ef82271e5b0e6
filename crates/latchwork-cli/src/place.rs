//! Where the locks are: `--at`, or one directory per user.

use std::path::PathBuf;

use clap::Args;
use latchwork::Locks;
use latchwork::lock::FileLockProvider;

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
    /// Opens the locks to look at them. A mistyped directory is not made, but told.
    pub(crate) async fn open(&self) -> Result<Locks, Failure> {
        if let Some(at) = &self.at
            && let Some(directory) = as_path(at).or_else(|| Some(as_file_url(at)?.0))
        {
            let directory_is_there = directory.try_exists();
            let what = match (directory.join("keys").try_exists(), directory_is_there) {
                (Ok(true), _) => return self.open_with(None).await,
                (Ok(false), Ok(true)) => {
                    "is no lock directory: nothing was locked there".to_owned()
                }
                (Ok(false), Ok(false)) => "does not exist: nothing was locked there".to_owned(),
                (Err(error), _) | (_, Err(error)) => unreadable(&error),
            };
            let message = format!("{} {what}", directory.display());
            return Err(Failure::new(Exit::Unavailable, "lock_backend", message));
        }
        self.open_with(None).await
    }

    /// Opens the locks; a lease lives on while the `companion` process does, where the locks know
    /// about processes at all.
    pub(crate) async fn open_with(&self, companion: Option<u32>) -> Result<Locks, Failure> {
        let (directory, network) = match &self.at {
            None => (default_directory()?, false),
            Some(at) => match as_path(at) {
                Some(path) => (path, false),
                None if !at.contains(':') => return Err(neither(at)),
                None => {
                    // Also for files: it knows what an address of them may look like.
                    let locks = latchwork::connect(at).await?;
                    match as_file_url(at) {
                        Some(file) if companion.is_some() => file,
                        _ => return Ok(locks),
                    }
                }
            },
        };
        let mut builder = FileLockProvider::builder(directory);
        if network {
            builder = builder.allow_network();
        }
        if let Some(pid) = companion {
            builder = builder.companion(pid);
        }
        Ok(Locks::new(builder.open()?))
    }

    /// How to name this place in a command that a message proposes. An address may hold a
    /// password, so only directories are repeated.
    pub(crate) fn option(&self) -> String {
        match &self.at {
            Some(at) if as_path(at).is_some() || as_file_url(at).is_some() => {
                format!(" --at {}", quoted(at))
            }
            _ => String::new(),
        }
    }
}

/// What may not be looked into is not the same as what is not there.
fn unreadable(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "cannot be read: permission denied; run this as the user who owns it".to_owned()
        }
        _ => format!("cannot be read: {error}"),
    }
}

fn neither(at: &str) -> Failure {
    Failure::new(
        Exit::Usage,
        "invalid_argument",
        format!("invalid --at {at:?}: for a directory write ./{at}, for an address file:///…"),
    )
}

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The directory, where one was given and no address. `locks` alone could be a mistyped scheme.
fn as_path(at: &str) -> Option<PathBuf> {
    let path = ["/", "./", "../"].iter().any(|start| at.starts_with(start)) || at == ".";
    path.then(|| PathBuf::from(at))
}

/// The directory of a legal `file:` address, and whether it may be on a network.
fn as_file_url(at: &str) -> Option<(PathBuf, bool)> {
    let url = url::Url::parse(at).ok().filter(|url| url.scheme() == "file")?;
    let network =
        url.query_pairs().any(|(name, value)| name == "allow-network-fs" && value == "true");
    Some((url.to_file_path().ok()?, network))
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
        assert_eq!(as_path("/var/lib/locks"), Some("/var/lib/locks".into()));
        assert_eq!(as_path("./locks"), Some("./locks".into()));
        for address in ["memory:", "locks", "file:///var/lib/locks"] {
            assert_eq!(as_path(address), None, "{address}");
        }
        assert_eq!(as_file_url("file:///a%20b"), Some(("/a b".into(), false)));
        assert_eq!(as_file_url("memory:"), None);
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("order:1"), "order:1");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
