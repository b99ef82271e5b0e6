//! What is locked around an edit, and where the last fence is kept.
//!
//! A fence that somebody has seen must not be given again, also not after a power cut. To sync each of
//! them would take longer than all the rest of a grant. So what is synced is how far fences are
//! *reserved*, some ahead of those that are given; and the last that was given is stored beside it,
//! not synced, which a process that is killed does not undo. That line is bound to the boot and to the
//! reservation for which it was written. In a later boot, or when an older program has moved the
//! reservation, it counts for nothing, and fences go on above what is reserved.

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

/// The two copies of the reservation lie in different blocks, so that no torn write hits both; and the
/// last fence in another one, since that is written without a sync.
const SLOTS: [u64; 2] = [0, 4096];
const LAST: u64 = 8192;
const LINE_BYTES: usize = 64;

/// How many fences are reserved at once.
const AHEAD: u64 = 64;

/// How far a fence jumps over a damaged copy, which may have been the higher one.
const LEAP: u64 = 1 << 20;

/// A locked shard file; dropped, it is unlocked.
pub(super) struct Shard {
    file: File,
    path: PathBuf,
    boot_id: String,
    last: u64,
    stored: u64,
    /// No fence above this one was given; synced.
    reserved: u64,
    next_slot: usize,
}

impl Shard {
    /// Waits for the lock and reads the last fence.
    pub(super) fn lock(dir: &Dir, name: &str, clock: &dyn Clock, boot_id: &str) -> Result<Self> {
        let path = dir.path(name);
        let file = lock_file(dir, name, &path, clock)?;
        // From here on a drop unlocks.
        let boot_id = boot_id.to_owned();
        let mut shard =
            Shard { file, path, boot_id, last: 0, stored: 0, reserved: 0, next_slot: 0 };
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

    /// Makes sure that the fences that were given are not given again.
    pub(super) fn save(&mut self) -> Result<()> {
        if self.last == self.stored {
            return Ok(());
        }
        if self.last == u64::MAX {
            return Err(error::no_fence(&self.path)); // somebody wrote that by hand
        }
        let written = (|| {
            if self.last > self.reserved {
                self.reserved = self.last.saturating_add(AHEAD);
                let text = slot_line(self.reserved);
                self.file.write_all_at(text.as_bytes(), SLOTS[self.next_slot])?;
                self.file.sync_data()?;
                self.next_slot = 1 - self.next_slot;
            }
            // After the reservation that it names: until then fences go on above both.
            let text = last_line(self.last, self.reserved, &self.boot_id);
            self.file.write_all_at(text.as_bytes(), LAST)
        })();
        written.map_err(|e| error::io("writing the fence", &self.path, e))?;
        self.stored = self.last;
        Ok(())
    }

    fn read_fence(&mut self, clock: &dyn Clock) -> Result<()> {
        let read =
            |at| self.read_line(at).map_err(|e| error::io("reading the last fence", &self.path, e));
        let (slots, last) = ([read(SLOTS[0])?, read(SLOTS[1])?], read(LAST)?);
        // A slot that was never written is a hole, which reads as zeros.
        let empty = slots.map(|slot| slot == [0; LINE_BYTES]);
        (self.reserved, self.next_slot) = match slots.map(|slot| parse_slot(&slot)) {
            [Some(a), Some(b)] if a > b => (a, 1),
            [Some(_), Some(b)] => (b, 0),
            [Some(a), None] if empty[1] => (a, 1),
            [Some(a), None] => (a.saturating_add(LEAP), 1),
            [None, Some(b)] => (b.saturating_add(LEAP), 0),
            // Never used, or its first write never became durable. The wall clock keeps fences
            // growing where the file system forgets everything in a reboot (L4).
            [None, None] if empty == [true, true] => {
                (clock.wall().timestamp_micros().max(0).unsigned_abs(), 0)
            }
            [None, None] => return Err(error::no_fence(&self.path)),
        };
        let last = parse_last(&last, self.reserved, &self.boot_id);
        self.last = last.unwrap_or(self.reserved);
        self.stored = self.last;
        Ok(())
    }

    fn read_line(&self, at: u64) -> std::io::Result<[u8; LINE_BYTES]> {
        let mut line = [0; LINE_BYTES];
        match self.file.read_exact_at(&mut line, at) {
            Ok(()) => Ok(line),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok([0; LINE_BYTES]),
            Err(e) => Err(e),
        }
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

/// How far fences are reserved: a line that people can read too.
fn slot_line(fence: u64) -> String {
    let check = hex::encode(Sha256::digest(format!("latchwork fence {fence}")));
    format!("fence {fence:020} check {}\n", &check[..30])
}

fn parse_slot(line: &[u8; LINE_BYTES]) -> Option<u64> {
    let fence = std::str::from_utf8(line.get(6..26)?).ok()?.parse().ok()?;
    (slot_line(fence).as_bytes() == line).then_some(fence)
}

/// The last fence that was given, under a reservation and in a boot.
fn last_line(last: u64, reserved: u64, boot_id: &str) -> String {
    let checked = format!("latchwork last {last} of {reserved} in {boot_id}");
    let check = hex::encode(Sha256::digest(checked));
    format!("last {last:020} of {reserved:020} {}\n", &check[..13])
}

fn parse_last(line: &[u8; LINE_BYTES], reserved: u64, boot_id: &str) -> Option<u64> {
    let last = std::str::from_utf8(line.get(5..25)?).ok()?.parse().ok()?;
    (last_line(last, reserved, boot_id).as_bytes() == line).then_some(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SystemClock;
    use std::fs::OpenOptions;

    const BOOT: &str = "b5d3a2f0-0d0a-4c4f-9a3c-1f0e7a6b5c4d";

    fn next(path: &Path) -> Result<u64> {
        next_in(path, BOOT)
    }

    fn next_in(path: &Path, boot_id: &str) -> Result<u64> {
        let dir = Dir::open(path.parent().expect("a directory"), |_| Ok(())).expect("opens");
        let mut shard = Shard::lock(&dir, "00", &SystemClock, boot_id)?;
        let fence = shard.next_fence().get();
        shard.save()?;
        Ok(fence)
    }

    fn write(path: &Path, at: u64, text: &[u8]) {
        let file = OpenOptions::new().write(true).open(path).expect("opens");
        file.write_all_at(text, at).expect("written");
    }

    #[test]
    fn lines_are_as_long_as_they_must_be() {
        for fence in [0, u64::MAX] {
            assert_eq!(slot_line(fence).len(), LINE_BYTES);
            assert_eq!(last_line(fence, fence, BOOT).len(), LINE_BYTES);
        }
    }

    #[test]
    fn within_a_boot_no_fence_is_left_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("00");
        let first = next(&path).expect("a fence");
        for fence in first + 1..first + 3 * AHEAD {
            assert_eq!(next(&path).expect("a fence"), fence);
        }
    }

    /// A power cut leaves what was synced, and of the line that was not anything that was ever there.
    #[test]
    fn after_a_power_cut_fences_go_on_above_all_that_were_given() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("00");
        let mut left = vec![vec![0; LINE_BYTES]];
        let mut last = 0;
        for _ in 0..AHEAD + 10 {
            last = next(&path).expect("a fence");
            let line = std::fs::read(&path).expect("reads")
                [usize::try_from(LAST).expect("small")..]
                .to_vec();
            left.push(line);
        }
        for line in left {
            write(&path, LAST, &line);
            let after = next_in(&path, "another boot").expect("a fence");
            assert!(after > last, "{after} after {last}");
            last = after;
        }
        // Back in the first boot, as far as the line can tell: it was not written there last.
        assert!(next(&path).expect("a fence") > last);
    }

    /// It reads and writes the two slots only.
    #[test]
    fn an_older_program_may_give_fences_in_between() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("00");
        let ours = next(&path).expect("a fence");
        let theirs = ours + AHEAD + 1;
        write(&path, SLOTS[1], slot_line(theirs).as_bytes());
        assert_eq!(next(&path).expect("a fence"), theirs + 1);
    }

    #[test]
    fn a_torn_slot_leaves_the_other_and_two_are_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("00");
        let mut last = 0;
        for round in 0..6 {
            // In a boot of its own, so that each one reserves.
            let fence = next_in(&path, &format!("boot {round}")).expect("a fence");
            assert!(fence > last);
            last = fence;
            if round > 1 {
                write(&path, SLOTS[round % 2] + 10, b"torn");
            }
        }
        for at in SLOTS {
            write(&path, at + 10, b"torn");
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
