//! Where the truth lives: one record a key, edited under its shard's lock.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;

use super::dir::Dir;
use super::error;
use super::name::{KeyLocation, SHARDS, locate};
use super::process::{Census, LocalProcess, RequesterInfo};
use super::record::{Record, Unreadable};
use super::shard::{PATIENCE, Shard};
use crate::rules::Rules;
use crate::{Clock, Error, Fence, Key, Mode, Moment, Result};

pub(super) struct Store {
    pub(super) root: Dir,
    pub(super) keys: Dir,
    pub(super) shards: Dir,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) here: LocalProcess,
    /// Threads of one process take turns here, which is cheaper than asking the kernel again.
    turns: Box<[Mutex<()>]>,
    /// How many leases were asked for; see [`sweep`](super::sweep).
    pub(super) asked: AtomicU32,
}

/// What a change may use: the time, read under the lock, and fences.
pub(super) struct Edit<'a> {
    pub(super) now: Moment,
    shard: &'a mut Shard,
}

impl Edit<'_> {
    pub(super) fn fences(&mut self) -> impl FnMut() -> Fence {
        || self.shard.next_fence()
    }
}

/// What a file holds.
enum ReadOutcome {
    Nothing,
    Record(Record),
    Damaged(Error),
    /// Healthy, but of a clock that is not ours.
    OtherClock(Record, Error),
}

impl Store {
    /// Makes the directories where they are missing.
    pub(super) fn open(root: Dir, clock: Arc<dyn Clock>, here: LocalProcess) -> Result<Self> {
        let child = |name: &str| {
            root.child(name).map_err(|e| error::io(error::OPENING, &root.path(name), e))
        };
        Ok(Store {
            keys: child("keys")?,
            shards: child("shards")?,
            root,
            clock,
            here,
            turns: (0..SHARDS).map(|_| Mutex::new(())).collect(),
            asked: AtomicU32::new(0),
        })
    }

    /// One change of a key's record, then grants the key to the next waiter. Returns what the
    /// change said, and the rules as they are now. A failure has changed nothing.
    pub(super) fn edit<T>(
        &self,
        key: &Key,
        change: impl FnOnce(&mut Rules<RequesterInfo>, &mut Edit<'_>) -> T,
    ) -> Result<(T, Rules<RequesterInfo>)> {
        let at = locate(key.as_str());
        let _turn = self.lock_thread(&at)?;
        let mut shard = self.lock(&at)?;
        let before = match self.read(&at.file, Some(key))? {
            ReadOutcome::Nothing => None,
            ReadOutcome::Record(record) => Some(record),
            ReadOutcome::Damaged(error) | ReadOutcome::OtherClock(_, error) => return Err(error),
        };
        let mut rules = before.as_ref().map(|r| r.rules(&self.here.clock)).unwrap_or_default();
        shard.raise(rules.last_fence);
        let mut edit = Edit { now: self.clock.now(), shard: &mut shard };
        let mut census = Census::new(&self.here);
        prune_front(&mut rules, edit.now, &mut census);
        let out = change(&mut rules, &mut edit);
        // The change may have brought another one to the front.
        prune_front(&mut rules, edit.now, &mut census);
        rules.admit(edit.now, &mut edit.fences(), |_| {});
        if rules.is_empty() {
            if before.is_some() {
                self.remove(&at.file)?;
            }
        } else {
            let after = Record::new(key, &rules, &self.here.clock, &*self.clock);
            if before.as_ref() != Some(&after) {
                // A fence that somebody has seen must not be given again after a crash.
                shard.save()?;
                self.write(&at, &after)?;
            }
        }
        Ok((out, rules))
    }

    /// The rules of a key as they would be after an edit without a change, and whether such an
    /// edit is due. Needs no lock: records are replaced as a whole.
    pub(super) fn peek(
        &self,
        key: &Key,
        census: &mut Census<'_>,
    ) -> Result<(Rules<RequesterInfo>, bool)> {
        match self.read(locate(key.as_str()).file, Some(key))? {
            ReadOutcome::Nothing => Ok((Rules::default(), false)),
            ReadOutcome::Record(record) => Ok(self.view(&record, census)),
            ReadOutcome::Damaged(error) | ReadOutcome::OtherClock(_, error) => Err(error),
        }
    }

    /// All keys that begin like this, with their rules, unsorted. What is damaged is left out; what
    /// may not be read, or not be judged, is an error.
    pub(super) fn all(&self, prefix: &str) -> Result<Vec<(Key, Rules<RequesterInfo>)>> {
        const DURING: &str = "listing the keys";
        let mut found = Vec::new();
        // Listing is also what cleans up after those who were killed.
        for file in self.files(DURING)? {
            let (record, unjudged) = match self.read(&file, None)? {
                ReadOutcome::Nothing => continue, // released meanwhile
                ReadOutcome::Record(record) => (record, None),
                ReadOutcome::OtherClock(record, error) => (record, Some(error)),
                ReadOutcome::Damaged(error) => {
                    tracing::warn!(%error, "a record was left out of the list");
                    continue;
                }
            };
            if !record.key().starts_with(prefix) {
                continue;
            }
            let Ok(key) = Key::try_from(record.key().to_owned()) else { continue };
            if file != OsStr::new(&locate(key.as_str()).file) {
                continue; // a copy that somebody made
            }
            if let Some(error) = unjudged {
                return Err(error);
            }
            let (rules, due) = self.view(&record, &mut Census::new(&self.here));
            if !rules.is_empty() {
                found.push((key, rules));
            } else if due {
                self.tidy(&key);
            }
        }
        Ok(found)
    }

    /// Removes the record of a key if it is damaged or of another clock; true when it was.
    pub(super) fn remove_unjudged(&self, key: &Key) -> Result<bool> {
        let at = locate(key.as_str());
        let _turn = self.lock_thread(&at)?;
        let _shard = self.lock(&at)?;
        match self.read(&at.file, Some(key))? {
            ReadOutcome::Damaged(_) | ReadOutcome::OtherClock(..) => {
                self.remove(&at.file).map(|()| true)
            }
            ReadOutcome::Nothing | ReadOutcome::Record(_) => Ok(false),
        }
    }

    /// Removes every record that is damaged. Only before anybody of this boot has written one.
    pub(super) fn remove_all_damaged(&self) -> Result<()> {
        for file in self.files(error::OPENING)? {
            if let Ok(ReadOutcome::Damaged(error)) = self.read(&file, None) {
                tracing::warn!(%error, "a record that did not outlive the reboot is removed");
                self.remove(&file)?;
            }
        }
        Ok(())
    }

    /// Removes what remains of a key that nobody uses; if that fails, the next one will do it.
    pub(super) fn tidy(&self, key: &Key) {
        if let Err(error) = self.edit(key, |_, _| ()) {
            tracing::debug!(%key, %error, "an old record was not removed");
        }
    }

    /// What a record says without what ran out and what belongs to the dead, and whether there was
    /// such, or nobody holds the key.
    fn view(&self, record: &Record, census: &mut Census<'_>) -> (Rules<RequesterInfo>, bool) {
        let mut rules = record.rules(&self.here.clock);
        let now = self.clock.now();
        let before = (rules.holders.len(), rules.queue.len());
        rules.expire(now);
        rules.holders.retain(|h| !census.is_dead(&h.requester.extra));
        rules.queue.retain(|w| w.extra.until > now && !census.is_dead(&w.extra));
        let due = before != (rules.holders.len(), rules.queue.len()) || rules.holders.is_empty();
        (rules, due)
    }

    fn lock_thread(&self, at: &KeyLocation) -> Result<parking_lot::MutexGuard<'_, ()>> {
        self.turns[at.shard]
            .try_lock_for(PATIENCE)
            .ok_or_else(|| error::stuck(&self.shards.path(at.shard_file()), PATIENCE))
    }

    fn lock(&self, at: &KeyLocation) -> Result<Shard> {
        let boot_id = &self.here.clock.boot_id;
        let shard = Shard::lock(&self.shards, &at.shard_file(), &*self.clock, boot_id)?;
        // Others may have come to another directory of records meanwhile.
        if !self.keys.is_in_place() {
            return Err(error::replaced(&self.keys.path("")));
        }
        Ok(shard)
    }

    fn files(&self, during: &'static str) -> Result<Vec<OsString>> {
        self.keys.list().map_err(|e| error::io(during, &self.keys.path(""), e))
    }

    fn read(&self, file: impl AsRef<OsStr>, key: Option<&Key>) -> Result<ReadOutcome> {
        let file = file.as_ref();
        let path = self.keys.path(file);
        let text = match self.keys.read(file) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(ReadOutcome::Nothing),
            Err(e) => return Err(error::io("reading a record", &path, e)),
        };
        match Record::parse(&path, &text, key) {
            Ok(record) if record.is_of_other_clock(&self.here.clock) => {
                Ok(ReadOutcome::OtherClock(record, error::other_clock(&path)))
            }
            Ok(record) => Ok(ReadOutcome::Record(record)),
            Err(Unreadable::Damaged(error)) => Ok(ReadOutcome::Damaged(error)),
            Err(Unreadable::Foreign(error)) => Err(error),
        }
    }

    /// Replaces a record as a whole.
    fn write(&self, at: &KeyLocation, record: &Record) -> Result<()> {
        // One for each shard: the shard's lock is its lock, and the next edit cleans it up.
        let aside = format!("{}.tmp", at.shard_file());
        // Not synced: see `boot.rs`.
        let written = (|| {
            self.shards.create(&aside)?.write_all(&record.text()?)?;
            self.shards.rename(&aside, &self.keys, &at.file)
        })();
        written.map_err(|e| {
            // What it takes up may be the very space that is missing.
            let _ = self.shards.remove(&aside);
            error::io("writing a record", &self.keys.path(&at.file), e)
        })
    }

    fn remove(&self, file: impl AsRef<OsStr>) -> Result<()> {
        let file = file.as_ref();
        let wrong = |e| error::io("removing a record", &self.keys.path(file), e);
        self.keys.remove(file).map_err(wrong)
    }
}

/// Ends what ran out and what belongs to the dead, as far as an edit must know: those who could be let
/// in live. A waiter behind a writer is checked when its turn comes.
fn prune_front(rules: &mut Rules<RequesterInfo>, now: Moment, census: &mut Census<'_>) {
    rules.expire(now);
    rules.holders.retain(|h| !census.is_dead(&h.requester.extra));
    let mut behind_a_writer = false;
    rules.queue.retain(|w| {
        let stays = w.extra.until > now && (behind_a_writer || !census.is_dead(&w.extra));
        behind_a_writer |= stays && w.mode == Mode::Exclusive;
        stays
    });
}
