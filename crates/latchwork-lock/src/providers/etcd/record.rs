//! A key's entries: what one of them stores, and the state of a key that they form together.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use etcd_client::{KeyValue, TxnResponse};
use serde::{Deserialize, Serialize};

use super::names::{Names, Part};
pub(super) use crate::coordination::token_id::id;
use crate::rules::Id;
use crate::{Fence, Holder, Inspection, Key, Mode, Owner, Waiter};

/// A request for a key, as its entries describe it.
#[derive(Clone, Debug)]
pub(super) struct Requester {
    pub(super) key: Key,
    pub(super) id: Id,
    pub(super) mode: Mode,
    pub(super) owner: Option<Owner>,
    pub(super) note: Option<Arc<str>>,
    pub(super) ttl: Duration,
}

/// The value of an entry. It only informs, except for the owner: no client's clock decides anything
/// here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EntryValue {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) owner: Option<Owner>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<Arc<str>>,
    /// `host:pid`.
    pub(super) process: Arc<str>,
    /// By the wall clock of the requester's machine.
    #[serde(rename = "since_us")]
    since: i64,
}

impl EntryValue {
    pub(super) fn new(requester: &Requester, process: &Arc<str>, now: DateTime<Utc>) -> Self {
        EntryValue {
            owner: requester.owner.clone(),
            note: requester.note.clone(),
            process: process.clone(),
            since: now.timestamp_micros(),
        }
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        // Cannot fail: it has only strings and numbers.
        serde_json::to_vec(self).unwrap_or_default()
    }

    fn since(&self) -> DateTime<Utc> {
        DateTime::from_timestamp_micros(self.since).unwrap_or_default()
    }
}

/// One entry as read from the server.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) part: Part,
    pub(super) mode: Mode,
    pub(super) id: Id,
    /// The revision that created it: the fence of a holder, the queue position of a waiter.
    pub(super) created: i64,
    /// The id of the server lease that the entry is attached to.
    pub(super) lease: i64,
    value: Vec<u8>,
}

impl Entry {
    /// The entry and its key. `None` if another program wrote it.
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

    pub(super) fn value(&self) -> Result<EntryValue, String> {
        serde_json::from_slice(&self.value).map_err(|error| error.to_string())
    }

    pub(super) fn holder(&self, now: DateTime<Utc>, left: Duration) -> Result<Holder, String> {
        let value = self.value()?;
        let since = value.since();
        let until = chrono::TimeDelta::from_std(left).unwrap_or(chrono::TimeDelta::MAX);
        Ok(Holder {
            owner: value.owner,
            process: value.process.as_ref().to_owned(),
            mode: self.mode,
            fence: self.fence(),
            since,
            expires_at: now.checked_add_signed(until).unwrap_or(now),
            expires_in: left,
            note: value.note.as_deref().map(str::to_owned),
        })
    }
}

/// All entries of one key at one revision.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyState {
    pub(super) revision: i64,
    /// In the order of their creation.
    entries: Vec<Entry>,
}

impl KeyState {
    pub(super) fn new(revision: i64, mut entries: Vec<Entry>) -> Self {
        entries.sort_by_key(|entry| entry.created);
        KeyState { revision, entries }
    }

    /// The state that a read of one key returned.
    pub(super) fn read<'a>(
        names: &Names,
        revision: i64,
        kvs: impl IntoIterator<Item = &'a KeyValue>,
    ) -> Self {
        let entries = kvs.into_iter().filter_map(|kv| Some(Entry::read(names, kv)?.1));
        Self::new(revision, entries.collect())
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Oldest grant first.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.part == Part::Hold)
    }

    /// In queue order.
    pub(super) fn waiters(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.part == Part::Wait)
    }

    pub(super) fn find(&self, part: Part, id: Id) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.part == part && entry.id == id)
    }

    /// Whether the holders allow another one of this mode.
    pub(super) fn admits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.holders().next().is_none(),
            Mode::Shared => self.holders().all(|entry| entry.mode == Mode::Shared),
        }
    }

    /// The holder with this owner.
    pub(super) fn held_by(&self, owner: &Owner) -> Result<Option<&Entry>, String> {
        for entry in self.holders() {
            if entry.value()?.owner.as_ref() == Some(owner) {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Holders and waiters. `left` gives the time that a server lease has left, and `None` for one
    /// that has ended.
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
            let value = entry.value()?;
            waiters.push(Waiter {
                process: value.process.as_ref().to_owned(),
                mode: entry.mode,
                position: waiters.len() + 1,
                since: value.since(),
                expected_wait: None,
                note: value.note.as_deref().map(str::to_owned),
                owner: value.owner,
            });
        }
        let found = Inspection { key: key.to_owned(), holders, waiters };
        Ok(found.with_expected_waits(now))
    }
}

pub(super) fn fence_of(revision: i64) -> Fence {
    Fence::new(revision.max(0).unsigned_abs())
}

pub(super) fn revision_of(fence: Fence) -> i64 {
    i64::try_from(fence.get()).unwrap_or(i64::MAX)
}

/// The revision at which a transaction was executed.
pub(super) fn txn_revision(response: &TxnResponse) -> i64 {
    response.header().map_or(0, |header| header.revision())
}
