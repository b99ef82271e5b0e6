//! From an address or settings to a store.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use url::Url;

use super::boot;
use super::dir::Dir;
use super::error::{self, NAME, OPENING};
use super::process::{LocalProcess, Process};
use super::store::Store;
use crate::{Error, Result, SystemClock};

/// How a directory is opened.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) directory: PathBuf,
    /// Processes that use the leases, too.
    pub(super) companions: Vec<u32>,
    pub(super) allow_network: bool,
}

impl Settings {
    pub(super) fn new(directory: PathBuf) -> Self {
        Settings { directory, companions: Vec::new(), allow_network: false }
    }

    /// The settings in `file:///directory`. `address` is the url as it was written: a parsed one no
    /// longer tells `file:locks` from `file:/locks`.
    pub(super) fn from_url(url: &Url, address: &str) -> Result<Self> {
        let mut settings = Settings::new(directory(url, address)?);
        for (name, value) in url.query_pairs() {
            match (&*name, &*value) {
                ("allow-network-fs", "true") => settings.allow_network = true,
                ("allow-network-fs", "false") => {}
                ("allow-network-fs", other) => {
                    return Err(wrong(format!("allow-network-fs is true or false, not {other:?}")));
                }
                (other, _) => {
                    return Err(wrong(format!(
                        "file: knows no parameter {other:?}; there is allow-network-fs=true"
                    )));
                }
            }
        }
        Ok(settings)
    }

    /// Opens the directory, and makes it where it is missing.
    pub(super) fn open(self) -> Result<Store> {
        let companion = |pid: &u32| {
            Process::of(*pid).map_err(|e| {
                Error::invalid_argument("companion", format!("{pid} is no running process ({e})"))
            })
        };
        let companions = self.companions.iter().map(companion).collect::<Result<_>>()?;
        let here = LocalProcess::new(companions)
            .map_err(|e| Error::backend(NAME, OPENING, e.to_string(), Some(Box::new(e))))?;
        // A later change of the working directory must not change the locks.
        let root = std::path::absolute(&self.directory)
            .map_err(|e| error::io(OPENING, &self.directory, e))?;
        let allow_network = self.allow_network;
        let check = |fd: &OwnedFd| if allow_network { Ok(()) } else { refuse_network(fd) };
        let dir = Dir::open(&root, check).map_err(|e| error::io(OPENING, &root, e))?;
        let store = Store::open(dir, SystemClock::shared(), here)?;
        boot::begin(&store)?;
        Ok(store)
    }
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

/// File systems whose locks, renames or notifications may reach over machines, or not at all.
const NETWORK: [(u32, &str); 12] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "FUSE"),
    (0x5346_414F, "AFS"),
    (0x00C3_6400, "Ceph"),
    (0x564C, "NCP"),
    (0x7375_7245, "Coda"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
];

fn refuse_network(root: &OwnedFd) -> io::Result<()> {
    let found = rustix::fs::fstatfs(root)?;
    // The field's width depends on the machine; the numbers have 32 bits.
    let kind = found.f_type as u32;
    match network(kind) {
        None => Ok(()),
        Some(name) => Err(io::Error::other(format!(
            "it is on a {name} file system: other machines may use it too, and this provider \
             judges leases by one machine's clock and processes; choose a local directory, or, \
             if no other machine uses it, say allow_network() or ?allow-network-fs=true"
        ))),
    }
}

fn network(kind: u32) -> Option<&'static str> {
    NETWORK.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| *name)
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

    #[test]
    fn network_file_systems_are_known_by_their_number() {
        // As linux/magic.h and statfs(2) have them; the upper ones do not fit into 31 bits.
        assert_eq!(network(0x6969), Some("NFS"));
        assert_eq!(network(0xFF53_4D42_u32.cast_signed() as u32), Some("CIFS"));
        for local in [0xEF53, 0x0102_1994, 0x5846_5342, 0x9123_683E, 0x794C_7630, 0x2FC1_2FC1] {
            assert_eq!(network(local), None, "ext4, tmpfs, xfs, btrfs, overlay, zfs");
        }
    }
}
