use std::path::{Path, PathBuf};

use super::fault::{self, NAME};
use super::process::Here;
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
        const DURING: &str = "opening the directory";
        let here = Here::new(&self.companions).map_err(|e| match self.companions[..] {
            [] => fault::io(DURING, Path::new("/proc"), e),
            _ => Error::invalid_argument("companion", format!("it is no running process ({e})")),
        })?;
        // A later change of the working directory must not change the locks.
        let root = std::path::absolute(&self.directory)
            .map_err(|e| fault::io(DURING, &self.directory, e))?;
        let store = Store::open(&root, SystemClock::shared(), here)?;
        if !self.allow_network {
            refuse_network(&root)?;
        }
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

fn refuse_network(root: &Path) -> Result<()> {
    let found =
        rustix::fs::statfs(root).map_err(|e| fault::io("opening the directory", root, e))?;
    // The field's width depends on the machine; the numbers have 32 bits.
    let kind = found.f_type as u32;
    match NETWORK.iter().find(|(magic, _)| *magic == kind) {
        None => Ok(()),
        Some((_, name)) => Err(Error::backend(
            NAME,
            "opening the directory",
            format!(
                "{} is on a {name} file system: other machines may use it too, and this provider \
                 judges leases by one machine's clock and processes; choose a local directory, or, \
                 if no other machine uses it, say allow_network() or ?allow-network-fs=true",
                root.display()
            ),
            None,
        )),
    }
}
