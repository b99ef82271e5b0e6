use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use super::dir::Dir;
use super::fault::{self, NAME};
use super::process::{Here, Process};
use super::provider::FileLockProvider;
use super::store::Store;
use crate::{Error, Result, SystemClock};

/// Settings of a [`FileLockProvider`].
#[derive(Clone, Debug)]
#[must_use = "settings do nothing until they are opened"]
pub struct FileLockProviderBuilder {
    directory: PathBuf,
    companions: Vec<u32>,
    allow_network: bool,
}

impl FileLockProviderBuilder {
    pub(super) fn new(directory: PathBuf) -> Self {
        FileLockProviderBuilder { directory, companions: Vec::new(), allow_network: false }
    }

    /// Names another process that uses the leases too: they are freed early only when this
    /// process and all companions are dead. May be called more than once.
    pub fn companion(mut self, pid: u32) -> Self {
        self.companions.push(pid);
        self
    }

    /// Accepts a network file system. Only for one that a single machine uses: leases are judged by
    /// this machine's boot clock and processes.
    pub fn allow_network(mut self) -> Self {
        self.allow_network = true;
        self
    }

    /// Opens the directory, and makes it where it is missing. It blocks for a few system calls.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a companion that does not run,
    /// [`Backend`](crate::ErrorKind::Backend) when the directory cannot be used or is on a network file
    /// system.
    pub fn open(self) -> Result<FileLockProvider> {
        const DURING: &str = fault::OPENING;
        let companion = |pid: &u32| {
            Process::of(*pid).map_err(|e| {
                Error::invalid_argument("companion", format!("{pid} is no running process ({e})"))
            })
        };
        let companions = self.companions.iter().map(companion).collect::<Result<_>>()?;
        let here = Here::new(companions)
            .map_err(|e| Error::backend(NAME, DURING, e.to_string(), Some(Box::new(e))))?;
        // A later change of the working directory must not change the locks.
        let root = std::path::absolute(&self.directory)
            .map_err(|e| fault::io(DURING, &self.directory, e))?;
        let allow_network = self.allow_network;
        let check = |fd: &OwnedFd| if allow_network { Ok(()) } else { refuse_network(fd) };
        let dir = Dir::open(&root, check).map_err(|e| fault::io(DURING, &root, e))?;
        let store = Store::open(dir, SystemClock::shared(), here)?;
        Ok(FileLockProvider::of(store))
    }
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
