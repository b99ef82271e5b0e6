//! Leases on their way from one process to another.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use latchwork_lock::Lease;
use serde::{Deserialize, Serialize};

/// A directory with a file for each lease that was handed over.
pub(super) struct Mailbox {
    directory: PathBuf,
}

/// A lease, and the request that got it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredLease {
    pub(super) request: u64,
    pub(super) lease: Lease,
}

impl Mailbox {
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        Ok(Mailbox { directory: directory.to_owned() })
    }

    /// Leaves a lease for the next task that looks.
    pub(super) fn put(&self, stored: &StoredLease) -> io::Result<()> {
        let name = self.directory.join(format!("{:016x}", stored.request));
        let draft = name.with_extension("draft");
        fs::write(&draft, serde_json::to_vec(stored)?)?;
        fs::rename(draft, name.with_extension("lease")) // whole or not at all
    }

    /// Any lease that is there. Without `take` it stays, so that two may resume it.
    pub(super) fn get(&self, take: bool) -> io::Result<Option<StoredLease>> {
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "lease") {
                continue;
            }
            // Another may be faster, and then it is not ours.
            let Ok(text) = fs::read(&path) else { continue };
            if take && fs::rename(&path, path.with_extension("taken")).is_err() {
                continue;
            }
            return Ok(Some(serde_json::from_slice(&text)?));
        }
        Ok(None)
    }

    /// Takes one away that is of no use.
    pub(super) fn discard(&self, request: u64) {
        // Another may have done it.
        let _ = fs::remove_file(self.directory.join(format!("{request:016x}.lease")));
    }
}
