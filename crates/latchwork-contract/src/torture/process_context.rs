//! What the tasks of one process share.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use latchwork_lock::Locks;
use latchwork_lock::provider::Moment;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use super::drops::Drops;
use super::gate::FileGate;
use super::mailbox::Mailbox;
use super::settings::Torture;
use crate::history::{Recorder, What};

/// What a worker is told by its supervisor.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Assignment {
    pub(super) torture: Torture,
    pub(super) directory: PathBuf,
    /// Its number among all processes of the run; the supervisor is 0.
    pub(super) number: u32,
    pub(super) end: Moment,
}

/// What the tasks of one process share: its assignment, its locks, its history.
pub(super) struct ProcessContext {
    pub(super) assignment: Assignment,
    pub(super) locks: Locks,
    pub(super) keys: Vec<String>,
    pub(super) gate: FileGate,
    pub(super) mailbox: Mailbox,
    pub(super) drops: Drops,
    recorder: Recorder<File>,
    requests: AtomicU64,
}

impl ProcessContext {
    /// Opens everything, with a history of its own.
    pub(super) fn open(assignment: Assignment, locks: &Locks) -> io::Result<Self> {
        let prefix = format!("dropped-{:016x}/{}/", assignment.torture.seed, assignment.number);
        let drops = Drops::new(locks, &prefix).map_err(io::Error::other)?;
        let locks = locks.with_prefix(assignment.torture.prefix()).map_err(io::Error::other)?;
        // Unbuffered: what was written down is in the hands of the system, which outlives us.
        let history = File::create(history(&assignment.directory, assignment.number))?;
        Ok(ProcessContext {
            locks,
            keys: assignment.torture.key_names(),
            gate: FileGate::new(&assignment.directory.join("gate"))?,
            mailbox: Mailbox::new(&assignment.directory.join("handed-over"))?,
            drops,
            recorder: Recorder::of_process(assignment.number, history),
            requests: AtomicU64::new(0),
            assignment,
        })
    }

    pub(super) fn record(&self, key: &str, request: u64, what: What) {
        self.recorder.record(key, request, what).expect("the history can be written");
    }

    /// A number that no request of any process has had.
    pub(super) fn request(&self) -> u64 {
        let own = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        u64::from(self.assignment.number) << 40 | own
    }

    pub(super) fn now(&self) -> Moment {
        self.locks.clock().now()
    }

    pub(super) fn is_over(&self) -> bool {
        self.now() >= self.assignment.end
    }

    /// The chance of one task of this process.
    pub(super) fn chance(&self, task: u32) -> StdRng {
        let place = u64::from(self.assignment.number) << 32 | u64::from(task);
        // Spread by a constant, so that neighbours are not alike.
        StdRng::seed_from_u64(
            self.assignment.torture.seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        )
    }
}

/// The number of the process that made a request.
pub(super) fn process_of(request: u64) -> u32 {
    u32::try_from(request >> 40).unwrap_or(u32::MAX)
}

/// The file with the history of one process.
pub(super) fn history(directory: &Path, number: u32) -> PathBuf {
    directory.join(format!("history-{number:05}.jsonl"))
}
