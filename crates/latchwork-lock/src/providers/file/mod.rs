//! Locks between the processes of one Linux machine, in a directory.
//!
//! # The mechanism
//!
//! `DIR/keys/NAME.json` says who holds a key and who waits for it, for people too. It exists only
//! while somebody does. `DIR/shards/00` to `3f` are what is `flock`ed: only around one edit of a
//! record, never for the length of a lease, because a process that was stopped must lose its lease.
//! They also keep the last fence, so that nothing need remain of a key.
//!
//! A record is written aside and renamed: whoever is killed at any instant leaves the old one or
//! the new one, and readers need no lock. Only fences are synced; `DIR/boot` says why records
//! need not be: it names the boot in which the directory was last looked through, and what an
//! earlier boot left holds nothing.
//!
//! # What ends a lease
//!
//! Its release, its ttl on the boot clock, a reboot, and the death of the process that took it,
//! which waiters notice at once. A lease that was handed over outlives its process. A process of
//! another pid namespace (a container) cannot be seen, so there only the ttl counts.
//!
//! Processes of a time namespace with an offset have a boot clock of their own, by which the leases
//! of others cannot be judged. A record names its clock, and one of another clock of this boot is
//! refused, whatever is asked of the key, until it is released there or broken.
//!
//! # Whose files they are
//!
//! All are private (`0700`, `0600`) and of whoever made them, which should be one user. Root may lock
//! in another user's directory: what it makes there belongs to the directory's owner and group
//! ([`dir`] tells how that owner cannot abuse it). What may not be read is an error and never
//! "nothing is locked". A directory that was replaced under a process is an error, too.

mod blocking;
mod boot;
mod builder;
mod dir;
mod fault;
mod name;
mod process;
mod provider;
mod record;
mod release;
mod shard;
mod store;
mod sweep;
mod wait;
mod watch;
mod watcher;

use std::path::PathBuf;

use url::Url;

pub use builder::FileLockProviderBuilder;
pub use provider::FileLockProvider;

use crate::{Error, Result};

/// Opens the directory that `file:///directory` names. `address` is the url as it was written: a
/// parsed one no longer tells `file:locks` from `file:/locks`.
pub(crate) async fn connect(url: &Url, address: &str) -> Result<FileLockProvider> {
    let mut builder = FileLockProvider::builder(directory(url, address)?);
    for (name, value) in url.query_pairs() {
        builder = match (&*name, &*value) {
            ("allow-network-fs", "true") => builder.allow_network(),
            ("allow-network-fs", "false") => builder,
            ("allow-network-fs", other) => {
                return Err(wrong(format!("allow-network-fs is true or false, not {other:?}")));
            }
            (other, _) => {
                return Err(wrong(format!(
                    "file: knows no parameter {other:?}; there is allow-network-fs=true"
                )));
            }
        };
    }
    blocking::run(fault::OPENING, move || builder.open()).await
}

fn directory(url: &Url, address: &str) -> Result<PathBuf> {
    const WRITE: &str = "write file:///directory";
    let rest = address.trim_start().get("file:".len()..).unwrap_or_default();
    if !rest.starts_with('/') {
        return Err(wrong(format!("its path is relative; {WRITE}")));
    }
    if url.has_host() && url.host_str().is_some_and(|host| !host.is_empty()) {
        return Err(wrong(format!(
            "it names a host, but files are locked on this machine only; {WRITE} with three slashes"
        )));
    }
    if url.fragment().is_some() {
        return Err(wrong("it has a #; write %23 where the directory's name has one"));
    }
    if url.path().chars().all(|c| c == '/') {
        return Err(wrong(format!("it names no directory; {WRITE}")));
    }
    url.to_file_path().map_err(|()| wrong(format!("its path is none of this system; {WRITE}")))
}

fn wrong(reason: impl Into<String>) -> Error {
    Error::invalid_argument("url", reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(address: &str) -> Result<PathBuf> {
        directory(&Url::parse(address).expect("an url"), address)
    }

    #[test]
    fn addresses_name_a_directory_of_this_machine() {
        for good in
            ["file:///var/lib/locks", "file:/var/lib/locks", "file://localhost/var/lib/locks"]
        {
            assert_eq!(parse(good).expect(good), PathBuf::from("/var/lib/locks"));
        }
        assert_eq!(parse("file:///a%20b/c%23").expect("encoded"), PathBuf::from("/a b/c#"));
        for bad in ["file:locks", "file://host/locks", "file://", "file:///", "file:///a#b"] {
            assert_eq!(parse(bad).expect_err(bad).code(), "invalid_argument", "{bad}");
        }
    }
}
