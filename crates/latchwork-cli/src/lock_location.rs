//! Where the locks are: `--at`, `--at-file`, `LATCHWORK_AT`, or one directory per user.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use latchwork::Locks;
use latchwork::lock::{ConnectOptions, FileLockProvider};

use crate::exit::{Exit, Failure};

/// What names the place where no option does.
pub(crate) const ENVIRONMENT: &str = "LATCHWORK_AT";
pub(crate) const FILE_ENVIRONMENT: &str = "LATCHWORK_AT_FILE";

/// Where the locks are, as every command asks for it.
#[derive(Args, Clone, Debug)]
pub(crate) struct LockLocation {
    /// Where the locks are: a directory, or an address such as file:///var/lib/locks.
    ///
    /// By default a directory of the user: ~/.local/state/latchwork/locks, where ~ is the home in the
    /// user database, not $HOME or a variable of the session. A job under cron, a service and a
    /// login shell of one user therefore always mean the same locks.
    ///
    /// Who lists the processes of the machine sees a password that stands here: put the address into
    /// the variable or a file, or the password where the database's own tools look for it (PGPASSWORD,
    /// ~/.pgpass, REDISCLI_AUTH, MYSQL_PWD, ETCDCTL_PASSWORD).
    #[arg(long, env = ENVIRONMENT, value_name = "URL", hide_env_values = true)]
    at: Option<String>,

    /// A file whose first line is the address, which then need not stand on the command line.
    #[arg(long, env = FILE_ENVIRONMENT, value_name = "FILE")]
    at_file: Option<PathBuf>,
}

impl LockLocation {
    /// Opens the locks to look at them. A mistyped directory is not made, but told.
    pub(crate) async fn open(&self) -> Result<Locks, Failure> {
        if let Some(at) = &self.address()?
            && let Some(directory) = as_path(at).or_else(|| Some(as_file_url(at)?.0))
            && let Some(what) = why_not(&directory)
        {
            let message = format!("{} {what}", directory.display());
            return Err(Failure::new(Exit::Unavailable, "lock_backend", message));
        }
        self.open_with(None, &ConnectOptions::default()).await
    }

    /// Opens the locks; a lease lives on while the `companion` process does, where the locks know
    /// about processes at all.
    pub(crate) async fn open_with(
        &self,
        companion: Option<u32>,
        options: &ConnectOptions,
    ) -> Result<Locks, Failure> {
        let address = self.address()?;
        let (directory, network) = match &address {
            None => (default_directory()?, false),
            Some(at) => match as_path(at) {
                Some(path) => (path, false),
                None if !at.contains(':') => return Err(neither(at)),
                None => {
                    // Also for files: it knows what an address of them may look like.
                    let locks = latchwork::connect_with(at, options).await?;
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
        builder.open().map(Locks::new).map_err(|error| {
            let mut failure = Failure::from(error);
            if address.is_none() {
                failure.hint = Some("this is the default place; name another with --at".to_owned());
            }
            failure
        })
    }

    /// What names the place, if anything does.
    fn address(&self) -> Result<Option<String>, Failure> {
        address(self.at.as_deref(), self.at_file.as_deref())
    }

    /// How to name this place in a command that a message proposes, never with its password.
    pub(crate) fn option(&self) -> String {
        match (&self.at_file, &self.at) {
            (Some(file), _) => format!(" --at-file {}", quoted(&file.display().to_string())),
            (None, Some(at)) if !self.needs_environment() => {
                format!(" --at {}", quoted(&without_password(at)))
            }
            _ => String::new(),
        }
    }

    /// Whether only the environment can name this place in a command that a message proposes: it has a
    /// password there, which no message repeats.
    pub(crate) fn needs_environment(&self) -> bool {
        self.at_file.is_none()
            && self.at.as_ref().is_some_and(|at| {
                std::env::var(ENVIRONMENT).as_ref() == Ok(at) && without_password(at) != *at
            })
    }

    /// The variables that name this place or have its password: nothing that a command under a lock
    /// should know unless it was meant to.
    pub(crate) fn secret_variables(&self) -> Vec<&'static str> {
        let address = self.address().ok().flatten().unwrap_or_default();
        let scheme = address.split(':').next().unwrap_or_default();
        let mut names = vec![ENVIRONMENT, FILE_ENVIRONMENT];
        names.extend(match scheme {
            "postgres" | "postgresql" => &["PGPASSWORD"][..],
            "mysql" | "mariadb" => &["MYSQL_PWD"],
            "redis" | "rediss" | "redis+unix" => &["REDISCLI_AUTH"],
            "etcd" | "etcds" => &["ETCDCTL_PASSWORD"],
            "temporals" => &["TEMPORAL_API_KEY"],
            _ => &[],
        });
        names
    }
}

/// An address from `--at` and `--at-file`: an option counts before a variable, and a file before
/// `LATCHWORK_AT`.
pub(crate) fn address(at: Option<&str>, file: Option<&Path>) -> Result<Option<String>, Failure> {
    let refuse = |what: String| Err(Failure::new(Exit::Usage, "invalid_argument", what));
    let Some(file) = file else { return Ok(at.map(str::to_owned)) };
    let by_variable =
        |name, value: &OsStr| std::env::var_os(name).is_some_and(|found| found == *value);
    if let Some(at) = at
        && !by_variable(ENVIRONMENT, at.as_ref())
    {
        return match by_variable(FILE_ENVIRONMENT, file.as_os_str()) {
            true => Ok(Some(at.to_owned())),
            false => refuse("name the place by --at or by --at-file, not by both".into()),
        };
    }
    let name = file.display();
    match std::fs::read_to_string(file) {
        Ok(text) => match text.lines().next().map(str::trim).filter(|line| !line.is_empty()) {
            Some(line) => Ok(Some(line.to_owned())),
            None => refuse(format!("--at-file {name}: its first line is empty")),
        },
        Err(error) => refuse(format!("--at-file {name} cannot be read: {error}")),
    }
}

/// Why there are no locks to look at in a directory, if so.
fn why_not(directory: &Path) -> Option<String> {
    match directory.join("keys").try_exists() {
        Ok(true) => None,
        Ok(false) if directory.exists() => {
            Some("is no lock directory: nothing was locked there".to_owned())
        }
        Ok(false) => Some("does not exist: nothing was locked there".to_owned()),
        Err(error) => Some(match error.kind() {
            ErrorKind::PermissionDenied => format!(
                "cannot be read: permission denied; run this as the user who owns it{}",
                owner_of(directory)
            ),
            ErrorKind::NotADirectory => "is no directory".to_owned(),
            _ => format!("cannot be read: {error}"),
        }),
    }
}

/// Whose directory it is, where that can be seen.
fn owner_of(directory: &Path) -> String {
    let Ok(found) = std::fs::metadata(directory) else { return String::new() };
    let uid = nix::unistd::Uid::from_raw(found.uid());
    let user = nix::unistd::User::from_uid(uid).ok().flatten();
    let name = user.map_or_else(|| format!("user {uid}"), |user| user.name);
    format!(": {name}")
}

fn neither(at: &str) -> Failure {
    Failure::new(
        Exit::Usage,
        "invalid_argument",
        format!("invalid --at {at:?}: for a directory write ./{at}, for an address file:///…"),
    )
}

/// An address with `***` for its password. By its text: not every kind of address is a URL to
/// others.
pub(crate) fn without_password(at: &str) -> String {
    if as_path(at).is_some() {
        return at.to_owned();
    }
    let (address, query) = at.split_once('?').map_or((at, None), |(a, query)| (a, Some(query)));
    let mut shown = match address.split_once("://") {
        Some((scheme, rest)) => {
            // A password may have slashes that were not written as %2F.
            let (user, host) = rest.rsplit_once('@').map_or((None, rest), |(u, h)| (Some(u), h));
            let user = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
                Some((user, "")) => format!("{user}@"),
                Some((user, _)) => format!("{user}:***@"),
                None => String::new(),
            };
            format!("{scheme}://{user}{host}")
        }
        None => address.to_owned(),
    };
    for (at, setting) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
        let name = setting.split('=').next().unwrap_or_default();
        let secret = matches!(name, "password" | "pass");
        shown.push(if at == 0 { '?' } else { '&' });
        shown += &if secret { format!("{name}=***") } else { setting.to_owned() };
    }
    shown
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
pub(crate) fn default_directory() -> Result<PathBuf, Failure> {
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
    use proptest::prelude::*;

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
    fn an_address_is_repeated_without_its_password() {
        for (at, shown) in [
            ("/srv/a@b:c", "/srv/a@b:c"),
            ("file:///srv/locks", "file:///srv/locks"),
            ("redis://:hush@host:1/0", "redis://:***@host:1/0"),
            ("postgres://me@host/db", "postgres://me@host/db"),
            (
                "postgres://me:hu/s:h@host/db?sslmode=require",
                "postgres://me:***@host/db?sslmode=require",
            ),
            ("postgres://host/db?user=me&password=hush", "postgres://host/db?user=me&password=***"),
            ("redis+unix:///run/r.sock?pass=hush&db=1", "redis+unix:///run/r.sock?pass=***&db=1"),
            ("etcd://me:hush@a:1,b:2/prefix", "etcd://me:***@a:1,b:2/prefix"),
        ] {
            assert_eq!(without_password(at), shown);
        }
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("order:1"), "order:1");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    proptest! {
        #[test]
        fn no_password_is_ever_shown(
            scheme in "(postgres|mysql|redis|etcd)",
            password in "[!-~&&[^?&]]{0,6}hushhush[!-~&&[^?&]]{0,6}",
            host in "[a-z0-9.:,]{1,12}",
            query in "[a-z=&]{0,12}",
        ) {
            let shown = without_password(&format!("{scheme}://me:{password}@{host}/db?{query}"));
            prop_assert!(!shown.contains("hushhush"), "{shown}");
            let shown = without_password(&format!("{scheme}://{host}/db?{query}&password={password}"));
            prop_assert!(!shown.contains("hushhush"), "{shown}");
        }

        #[test]
        fn any_text_can_be_shown(text in "\\PC{0,40}") {
            drop((without_password(&text), as_path(&text), as_file_url(&text), quoted(&text)));
        }
    }
}
