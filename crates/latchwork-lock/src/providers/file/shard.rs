//! What is locked around an edit, and where the last fence is kept.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::dir::Dir;
use super::error;
use crate::{Clock, Fence, Result};

/// How long an edit may take elsewhere. An edit takes milliseconds; a process that is stopped in the
/// middle of one must not hang everybody else without a word.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The longest pause between two tries. Long enough to cost little, short enough that a process that has
/// tried for long is not always beaten by one that has just come.
const LONGEST_PAUSE: Duration = Duration::from_micros(500);

/// The two copies of the last fence lie in different blocks, so that no torn write hits both.
const SLOTS: [u64; 2] = [0, 4096];
const SLOT_BYTES: usize = 64;

/// How far a fence jumps over a damaged copy, which may have been the higher one.
const LEAP: u64 = 1 << 20;

/// A locked shard file; dropped, it is unlocked.
pub(super) struct Shard {
    file: File,
    path: PathBuf,
    last: u64,
    stored: u64,
    next_slot: usize,
}

impl Shard {
    /// Waits for the lock and reads the last fence.
    pub(super) fn lock(dir: &Dir, name: &str, clock: &dyn Clock) -> Result<Self> {
        let path = dir.path(name);
        let file = lock_file(dir, name, &path, clock)?;
        // From here on a drop unlocks.
        let mut shard = Shard { file, path, last: 0, stored: 0, next_slot: 0 };
        shard.read_fence(clock)?;
        Ok(shard)
    }

    /// Makes sure that fences are above this one.
    pub(super) fn raise(&mut self, floor: Option<Fence>) {
        self.last = self.last.max(floor.map_or(0, Fence::get));
    }

    /// A fence above all before. It counts once [`save`](Self::save) went well.
    pub(super) fn next_fence(&mut self) -> Fence {
        self.last = self.last.saturating_add(1);
        Fence::new(self.last)
    }

    /// Makes the fences that were given durable.
    pub(super) fn save(&mut self) -> Result<()> {
        if self.last == self.stored {
            return Ok(());
        }
        if self.last == u64::MAX {
            return Err(error::no_fence(&self.path)); // somebody wrote that by hand
        }
        let text = slot(self.last);
        self.file
            .write_all_at(text.as_bytes(), SLOTS[self.next_slot])
            .and_then(|()| self.file.sync_data())
            .map_err(|e| error::io("writing the fence", &self.path, e))?;
        self.stored = self.last;
        self.next_slot = 1 - self.next_slot;
        Ok(())
    }

    fn read_fence(&mut self, clock: &dyn Clock) -> Result<()> {
        let wrong = |e| error::io("reading the last fence", &self.path, e);
        let bytes = self.file.metadata().map_err(wrong)?.len();
        let read = |at: u64| {
            let mut slot = [0; SLOT_BYTES];
            match self.file.read_exact_at(&mut slot, at) {
                Ok(()) => Ok(slot),
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok([0; SLOT_BYTES]),
                Err(e) => Err(e),
            }
        };
        let texts = [read(SLOTS[0]).map_err(wrong)?, read(SLOTS[1]).map_err(wrong)?];
        let second_is_new = bytes <= SLOTS[1];
        (self.last, self.next_slot) = match [parse(&texts[0]), parse(&texts[1])] {
            [Some(a), Some(b)] if a > b => (a, 1),
            [Some(_), Some(b)] => (b, 0),
            [Some(a), None] if second_is_new => (a, 1),
            [Some(a), None] => (a.saturating_add(LEAP), 1),
            [None, Some(b)] => (b.saturating_add(LEAP), 0),
            // Never used, or its first write never became durable. The wall clock keeps fences
            // growing where the file system forgets everything in a reboot (L4).
            [None, None] if second_is_new && texts[0] == [0; SLOT_BYTES] => {
                (clock.wall().timestamp_micros().max(0).unsigned_abs(), 0)
            }
            [None, None] => return Err(error::no_fence(&self.path)),
        };
        self.stored = self.last;
        Ok(())
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        // Closing alone would not do: a child forked meanwhile may have a copy of the descriptor.
        if let Err(error) = flock(&self.file, FlockOperation::Unlock) {
            tracing::warn!(path = %self.path.display(), %error, "a shard was not unlocked");
        }
    }
}

fn lock_file(dir: &Dir, name: &str, path: &Path, clock: &dyn Clock) -> Result<File> {
    const DURING: &str = "locking a shard";
    let deadline = clock.now().after(PATIENCE);
    let mut pause = Duration::from_micros(60);
    loop {
        let file = dir.open_or_create(name).map_err(|e| error::io(DURING, path, e))?;
        // Asked again and again, not waited for: a blocking flock has no time limit.
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if clock.now() >= deadline => {
                    return Err(error::stuck(path, PATIENCE));
                }
                Err(Errno::WOULDBLOCK) => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error::io(DURING, path, error)),
            }
        }
        // Somebody may have replaced the file before we had the lock, or the whole directory since
        // we opened it; then ours guards nothing.
        let ours = file.metadata().map_err(|e| error::io(DURING, path, e))?;
        match std::fs::symlink_metadata(path) {
            Ok(named) if (named.dev(), named.ino()) == (ours.dev(), ours.ino()) => return Ok(file),
            _ if dir.is_in_place() => drop(file),
            _ => return Err(error::replaced(path)),
        }
    }
}

/// One copy of a fence: a line that people can read too.
fn slot(fence: u64) -> String {
    let check = hex::encode(Sha256::digest(format!("latchwork fence {fence}")));
    format!("fence {fence:020} check {}\n", &check[..30])
}

fn parse(text: &[u8; SLOT_BYTES]) -> Option<u64> {
    let fence = std::str::from_utf8(text.get(6..26)?).ok()?.parse().ok()?;
    (slot(fence).as_bytes() == text).then_some(fence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SystemClock;
    use std::fs::OpenOptions;

    fn next(path: &Path) -> Result<u64> {
        let dir = Dir::open(path.parent().expect("a directory"), |_| Ok(())).expect("opens");
        let mut shard = Shard::lock(&dir, "00", &SystemClock)?;
        let fence = shard.next_fence().get();
        shard.save()?;
        Ok(fence)
    }

    #[test]
    fn a_slot_is_as_long_as_it_must_be() {
        assert_eq!(slot(0).len(), SLOT_BYTES);
        assert_eq!(slot(u64::MAX).len(), SLOT_BYTES);
    }

    #[test]
    fn a_torn_slot_leaves_the_other_and_two_are_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("00");
        let mut last = 0;
        for round in 0..6 {
            let fence = next(&path).expect("a fence");
            assert!(fence > last);
            last = fence;
            if round > 1 {
                let file = OpenOptions::new().write(true).open(&path).expect("opens");
                file.write_all_at(b"torn", SLOTS[round % 2] + 10).expect("written");
            }
        }
        let file = OpenOptions::new().write(true).open(&path).expect("opens");
        for at in SLOTS {
            file.write_all_at(b"torn", at + 10).expect("written");
        }
        let error = next(&path).expect_err("no fence is left");
        assert_eq!(error.code(), "lock_backend");
        assert!(error.to_string().contains("00"), "{error}");
    }

    #[test]
    fn a_first_write_that_never_became_durable_is_no_damage() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("00");
        std::fs::write(&path, [0; 64]).expect("written");
        assert!(next(&path).expect("a fence") > 1_700_000_000_000_000);
    }
}
