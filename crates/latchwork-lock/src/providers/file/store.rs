//! Where the truth lives: one record a key, edited under its shard's lock.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;
use rustix::fs::OFlags;

use super::boot;
use super::fault;
use super::name::{Place, SHARDS, place};
use super::process::{Asker, Census, Here};
use super::record::{Record, Unreadable};
use super::shard::{PATIENCE, Shard};
use crate::rules::Rules;
use crate::{Clock, Error, Fence, Key, Moment, Result};

pub(super) struct Store {
    pub(super) keys: PathBuf,
    pub(super) shards: PathBuf,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) here: Here,
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
enum Found {
    Nothing,
    Record(Record),
    Damaged(Error),
}

impl Store {
    /// Makes the directories where they are missing.
    pub(super) fn open(root: &Path, clock: Arc<dyn Clock>, here: Here) -> Result<Self> {
        let store = Store {
            keys: root.join("keys"),
            shards: root.join("shards"),
            clock,
            here,
            turns: (0..SHARDS).map(|_| Mutex::new(())).collect(),
            asked: AtomicU32::new(0),
        };
        for dir in [&store.keys, &store.shards] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)
                .map_err(|e| fault::io(fault::OPENING, dir, e))?;
        }
        boot::begin(&store)?;
        Ok(store)
    }

    /// One change of a key's record, then hands the key on to whoever is next. Answers what the
    /// change said, and the rules as they are now. A failure has changed nothing.
    pub(super) fn edit<T>(
        &self,
        key: &Key,
        change: impl FnOnce(&mut Rules<Asker>, &mut Edit<'_>) -> T,
    ) -> Result<(T, Rules<Asker>)> {
        let at = place(key.as_str());
        let path = self.keys.join(&at.file);
        let _turn = self.turn(&at)?;
        let mut shard = Shard::lock(self.shard(&at), &*self.clock)?;
        let before = match self.read(&path, Some(key))? {
            Found::Nothing => None,
            Found::Record(record) => Some(record),
            Found::Damaged(error) => return Err(error),
        };
        let mut rules = before.as_ref().map(|r| r.rules(&self.here.boot_id)).unwrap_or_default();
        shard.raise(rules.last_fence);
        let mut edit = Edit { now: self.clock.now(), shard: &mut shard };
        self.prune(&mut rules, edit.now);
        let out = change(&mut rules, &mut edit);
        rules.admit(edit.now, &mut edit.fences(), |_| {});
        if rules.is_empty() {
            if before.is_some() {
                self.remove(&path)?;
            }
        } else {
            let after = Record::new(key, &rules, &self.here.boot_id, &*self.clock);
            if before.as_ref() != Some(&after) {
                // A fence that somebody has seen must not be given again after a crash.
                shard.save()?;
                self.write(&at, &path, &after)?;
            }
        }
        Ok((out, rules))
    }

    /// The rules of a key as they would be after an edit without a change, and whether such an
    /// edit is due. Needs no lock: records are replaced as a whole.
    pub(super) fn peek(&self, key: &Key) -> Result<(Rules<Asker>, bool)> {
        let path = self.keys.join(place(key.as_str()).file);
        match self.read(&path, Some(key))? {
            Found::Nothing => Ok((Rules::default(), false)),
            Found::Record(record) => Ok(self.view(&record)),
            Found::Damaged(error) => Err(error),
        }
    }

    /// All keys that begin like this, with their rules, unsorted. What is damaged is left out.
    pub(super) fn all(&self, prefix: &str) -> Result<Vec<(Key, Rules<Asker>)>> {
        const DURING: &str = "listing the keys";
        let wrong = |e| fault::io(DURING, &self.keys, e);
        let mut found = Vec::new();
        // Listing is also what cleans up after those who were killed.
        for entry in fs::read_dir(&self.keys).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            let record = match self.read(&path, None) {
                Ok(Found::Nothing) => continue, // released meanwhile
                Ok(Found::Record(record)) => record,
                Ok(Found::Damaged(error)) | Err(error) => {
                    tracing::warn!(%error, "a record was left out of the list");
                    continue;
                }
            };
            if !record.key().starts_with(prefix) {
                continue;
            }
            let Ok(key) = Key::try_from(record.key().to_owned()) else { continue };
            if path.file_name() != Some(OsStr::new(&place(key.as_str()).file)) {
                continue; // a copy that somebody made
            }
            let (rules, due) = self.view(&record);
            if !rules.is_empty() {
                found.push((key, rules));
            } else if due {
                self.tidy(&key);
            }
        }
        Ok(found)
    }

    /// Removes the record of a key if it is damaged; true when it was.
    pub(super) fn remove_damaged(&self, key: &Key) -> Result<bool> {
        let at = place(key.as_str());
        let path = self.keys.join(&at.file);
        let _turn = self.turn(&at)?;
        let _shard = Shard::lock(self.shard(&at), &*self.clock)?;
        match self.read(&path, Some(key))? {
            Found::Damaged(_) => self.remove(&path).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Removes every record that is damaged. Only before anybody of this boot has written one.
    pub(super) fn remove_all_damaged(&self) -> Result<()> {
        let wrong = |e| fault::io(fault::OPENING, &self.keys, e);
        for entry in fs::read_dir(&self.keys).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            if let Ok(Found::Damaged(error)) = self.read(&path, None) {
                tracing::warn!(%error, "a record that did not outlive the reboot is removed");
                self.remove(&path)?;
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

    fn view(&self, record: &Record) -> (Rules<Asker>, bool) {
        let mut rules = record.rules(&self.here.boot_id);
        let pruned = self.prune(&mut rules, self.clock.now());
        let idle = rules.holders.is_empty();
        (rules, pruned || idle)
    }

    /// Ends what ran out and what belongs to the dead; true when there was something.
    fn prune(&self, rules: &mut Rules<Asker>, now: Moment) -> bool {
        let before = (rules.holders.len(), rules.queue.len());
        let mut census = Census::new(&self.here);
        rules.expire(now);
        rules.holders.retain(|h| !census.is_dead(&h.party.extra));
        rules.queue.retain(|w| w.extra.until > now && !census.is_dead(&w.extra));
        before != (rules.holders.len(), rules.queue.len())
    }

    fn turn(&self, at: &Place) -> Result<parking_lot::MutexGuard<'_, ()>> {
        self.turns[at.shard]
            .try_lock_for(PATIENCE)
            .ok_or_else(|| fault::stuck(&self.shard(at), PATIENCE))
    }

    fn shard(&self, at: &Place) -> PathBuf {
        self.shards.join(format!("{:02x}", at.shard))
    }

    fn read(&self, path: &Path, key: Option<&Key>) -> Result<Found> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(e) => return Err(fault::io("reading a record", path, e)),
        };
        match Record::parse(path, &text, key) {
            Ok(record) => Ok(Found::Record(record)),
            Err(Unreadable::Damaged(error)) => Ok(Found::Damaged(error)),
            Err(Unreadable::Foreign(error)) => Err(error),
        }
    }

    /// Replaces a record as a whole.
    fn write(&self, at: &Place, path: &Path, record: &Record) -> Result<()> {
        // One for each shard: the shard's lock is its lock, and the next edit cleans it up.
        let aside = self.shards.join(format!("{:02x}.tmp", at.shard));
        // Not synced: see `boot.rs`.
        let written = (|| {
            create(&aside)?.write_all(&record.text()?)?;
            fs::rename(&aside, path)
        })();
        written.map_err(|e| {
            // What it takes up may be the very space that is missing.
            let _ = fs::remove_file(&aside);
            fault::io("writing a record", path, e)
        })
    }

    fn remove(&self, path: &Path) -> Result<()> {
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(fault::io("removing a record", path, e))
            }
            _ => Ok(()),
        }
    }
}

/// Opens a file to be written anew.
pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
}
