//! An entry of a key: how it is named, what it says, and what all of them together mean.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use etcd_client::KeyValue;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::rules::Id;
use crate::{Fence, Holder, Inspection, Mode, Owner, Token, Waiter};

/// Stands between a key and its entries. No key can have it, and it sorts before all that they can.
const SEPARATOR: char = '\u{1f}';

/// Whether an entry holds its key or waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    Hold,
    Wait,
}

/// Names of entries, behind the root that the address gave.
#[derive(Clone, Debug)]
pub(super) struct Names {
    root: Arc<str>,
}

impl Names {
    pub(super) fn new(root: &str) -> Self {
        Names { root: root.into() }
    }

    /// What all entries of a key begin with.
    pub(super) fn all(&self, key: &str) -> String {
        format!("{}{key}{SEPARATOR}", self.root)
    }

    /// What its entries of one part begin with.
    pub(super) fn part(&self, key: &str, part: Part) -> String {
        format!("{}{}", self.all(key), part.name())
    }

    /// What its exclusive holder begins with.
    pub(super) fn writer(&self, key: &str) -> String {
        format!("{}{}", self.part(key, Part::Hold), mode_name(Mode::Exclusive))
    }

    /// One entry.
    pub(super) fn entry(&self, key: &str, part: Part, mode: Mode, id: Id) -> String {
        format!("{}{}{}{id:032x}", self.all(key), part.name(), mode_name(mode))
    }

    /// What the entries of all keys with this beginning begin with.
    pub(super) fn beginning(&self, prefix: &str) -> String {
        format!("{}{prefix}", self.root)
    }

    /// Behind everything of a key, and before the next key.
    pub(super) fn behind(&self, key: &str) -> String {
        format!("{}{key}\u{20}", self.root)
    }

    /// What a name says; none for one that is not of ours.
    pub(super) fn parse<'a>(&self, name: &'a [u8]) -> Option<(&'a str, Part, Mode, Id)> {
        let name = std::str::from_utf8(name).ok()?.strip_prefix(&*self.root)?;
        let (key, rest) = name.split_once(SEPARATOR)?;
        let (part, rest) = [Part::Hold, Part::Wait]
            .into_iter()
            .find_map(|part| Some((part, rest.strip_prefix(part.name())?)))?;
        let (mode, id) = [Mode::Exclusive, Mode::Shared]
            .into_iter()
            .find_map(|mode| Some((mode, rest.strip_prefix(mode_name(mode))?)))?;
        let id = (id.len() == 32).then(|| Id::from_str_radix(id, 16).ok()).flatten()?;
        Some((key, part, mode, id))
    }
}

impl Part {
    const fn name(self) -> &'static str {
        match self {
            Part::Hold => "hold/",
            Part::Wait => "wait/",
        }
    }
}

const fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive/",
        Mode::Shared => "shared/",
    }
}

/// What an entry's value says of whoever asked. Informative but for the owner: nobody's clock
/// decides here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct About {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) owner: Option<Owner>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<Arc<str>>,
    /// `host:pid`.
    pub(super) process: Arc<str>,
    /// By the wall clock of its machine.
    #[serde(rename = "since_us")]
    since: i64,
}

impl About {
    pub(super) fn new(
        owner: Option<&Owner>,
        note: Option<&Arc<str>>,
        process: &Arc<str>,
        now: DateTime<Utc>,
    ) -> Self {
        About {
            owner: owner.cloned(),
            note: note.cloned(),
            process: process.clone(),
            since: now.timestamp_micros(),
        }
    }

    pub(super) fn text(&self) -> Vec<u8> {
        // Strings and numbers only: that cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    fn since(&self) -> DateTime<Utc> {
        DateTime::from_timestamp_micros(self.since).unwrap_or_default()
    }
}

/// One entry as it was read.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) part: Part,
    pub(super) mode: Mode,
    pub(super) id: Id,
    /// The revision that created it: the fence of a holder, the place of a waiter.
    pub(super) created: i64,
    pub(super) lease: i64,
    value: Vec<u8>,
}

impl Entry {
    /// None for what is not of ours.
    pub(super) fn read<'a>(names: &Names, kv: &'a KeyValue) -> Option<(&'a str, Entry)> {
        let (key, part, mode, id) = names.parse(kv.key())?;
        let (created, lease) = (kv.create_revision(), kv.lease());
        Some((key, Entry { part, mode, id, created, lease, value: kv.value().to_vec() }))
    }

    #[cfg(test)]
    pub(super) fn of(part: Part, mode: Mode, id: Id, created: i64) -> Self {
        Entry { part, mode, id, created, lease: 0, value: Vec::new() }
    }

    pub(super) fn fence(&self) -> Fence {
        fence_of(self.created)
    }

    pub(super) fn about(&self) -> Result<About, String> {
        serde_json::from_slice(&self.value).map_err(|error| error.to_string())
    }

    pub(super) fn holder(&self, now: DateTime<Utc>, left: Duration) -> Result<Holder, String> {
        let about = self.about()?;
        let since = about.since();
        Ok(Holder {
            owner: about.owner,
            process: about.process.as_ref().to_owned(),
            mode: self.mode,
            fence: self.fence(),
            since,
            expires_at: now.checked_add_signed(signed(left)).unwrap_or(now),
            expires_in: left,
            note: about.note.as_deref().map(str::to_owned),
        })
    }
}

/// All entries of one key at one revision.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) revision: i64,
    /// In the order of their creation.
    entries: Vec<Entry>,
}

impl State {
    pub(super) fn new(revision: i64, mut entries: Vec<Entry>) -> Self {
        entries.sort_by_key(|entry| entry.created);
        State { revision, entries }
    }

    /// Of the keys and values that a read of one key gave.
    pub(super) fn read(names: &Names, revision: i64, kvs: &[KeyValue]) -> Self {
        let entries = kvs.iter().filter_map(|kv| Some(Entry::read(names, kv)?.1)).collect();
        Self::new(revision, entries)
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Oldest grant first.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.part == Part::Hold)
    }

    /// Next one first.
    pub(super) fn waiters(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.part == Part::Wait)
    }

    pub(super) fn find(&self, part: Part, id: Id) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.part == part && entry.id == id)
    }

    /// The holder of this owner.
    pub(super) fn of_owner(&self, owner: &Owner) -> Result<Option<&Entry>, String> {
        for entry in self.holders() {
            if entry.about()?.owner.as_ref() == Some(owner) {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Holders and waiters; `left` tells how long a lease has yet, and none for one that is over.
    pub(super) fn inspection(
        &self,
        key: &str,
        now: DateTime<Utc>,
        left: impl Fn(i64) -> Option<Duration>,
    ) -> Result<Inspection, String> {
        let holders = self
            .holders()
            .filter_map(|entry| Some(entry.holder(now, left(entry.lease)?)))
            .collect::<Result<_, _>>()?;
        let mut waiters = Vec::new();
        for entry in self.waiters() {
            let about = entry.about()?;
            waiters.push(Waiter {
                process: about.process.as_ref().to_owned(),
                mode: entry.mode,
                position: waiters.len() + 1,
                since: about.since(),
                expected_wait: None,
                note: about.note.as_deref().map(str::to_owned),
                owner: about.owner,
            });
        }
        let found = Inspection { key: key.to_owned(), holders, waiters };
        Ok(found.with_expected_waits(now))
    }
}

/// The identity of a token in a store that others may read: not the token.
pub(super) fn id(token: Token) -> Id {
    let hash = Sha256::digest(token.expose().to_be_bytes());
    hash.iter().take(16).fold(0, |id, byte| id << 8 | u128::from(*byte))
}

pub(super) fn fence_of(revision: i64) -> Fence {
    Fence::new(revision.max(0).unsigned_abs())
}

pub(super) fn revision_of(fence: Fence) -> i64 {
    i64::try_from(fence.get()).unwrap_or(i64::MAX)
}

fn signed(span: Duration) -> chrono::TimeDelta {
    chrono::TimeDelta::from_std(span).unwrap_or(chrono::TimeDelta::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_it_was_made_of() {
        let names = Names::new("app/");
        for key in ["a", "a/b", "größe 7", "hold/exclusive/"] {
            for part in [Part::Hold, Part::Wait] {
                for mode in [Mode::Exclusive, Mode::Shared] {
                    let name = names.entry(key, part, mode, 0xabc);
                    assert_eq!(names.parse(name.as_bytes()), Some((key, part, mode, 0xabc)));
                    assert!(name.starts_with(&names.part(key, part)));
                    assert!(name.starts_with(&names.all(key)));
                    assert!(name < names.behind(key));
                }
            }
        }
        for foreign in ["app/a", "other/a\u{1f}hold/shared/0", "app/a\u{1f}hold/shared/zz"] {
            assert_eq!(names.parse(foreign.as_bytes()), None, "{foreign:?}");
        }
    }

    #[test]
    fn entries_of_other_keys_are_outside_of_a_keys_range() {
        let names = Names::new("");
        for other in ["a/", "a ", "a/b", "ab", "A"] {
            let entry = names.entry(other, Part::Hold, Mode::Shared, 1);
            assert!(!entry.starts_with(&names.all("a")), "{other:?}");
        }
    }

    /// Changing it would let two versions of the program hold one key at a time.
    #[test]
    fn names_never_change() {
        let name = Names::new("").entry("lock/a", Part::Hold, Mode::Exclusive, 1);
        assert_eq!(name, "lock/a\u{1f}hold/exclusive/00000000000000000000000000000001");
    }
}
