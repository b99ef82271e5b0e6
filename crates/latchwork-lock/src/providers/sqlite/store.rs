//! Changes of keys inside a transaction: load their rows, let the rules decide, write what
//! differs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use rusqlite::Connection;

use super::boot::{ClockReading, LocalProcess};
use super::error::Failure;
use super::name::shard;
use super::record::{LastFence, Record, RequesterInfo, StoredRow, run, stored_rows};
use super::schema::{HEARTBEAT, LOAD, LOAD_ALL, PAGE, PEEK};
use crate::coordination::waiters::WaiterRegistry;
use crate::reporter::Reporter;
use crate::rules::{Id, Rules};
use crate::{Fence, Grant, Key, Moment, Page, PageRequest};

/// What a change may use: the time, read inside the transaction, and fences.
pub(super) struct Edit<'a> {
    pub(super) now: Moment,
    next: &'a mut dyn FnMut() -> Fence,
}

impl Edit<'_> {
    pub(super) fn fences(&mut self) -> impl FnMut() -> Fence {
        || (self.next)()
    }
}

/// The state of a key after a change, for its waiters in this process.
pub(super) struct View {
    pub(super) queue: Vec<Id>,
    /// When a lease expires, or the belief that another process is alive.
    pub(super) due: Moment,
}

impl View {
    pub(super) fn of(rules: &Rules<RequesterInfo>, here: &LocalProcess) -> Self {
        let others = rules.queue.iter().filter(|w| w.extra.client != here.client);
        let alive = others.map(|w| w.extra.alive).min().unwrap_or(Moment::NEVER);
        View {
            queue: rules.queue.iter().map(|w| w.id).collect(),
            due: rules.next_expiry().min(alive),
        }
    }
}

/// The keys of one transaction: as they were read, and as the changes leave them. So the rows of a key
/// are read once and written once, however many changes there are.
pub(super) struct KeySet {
    now: ClockReading,
    keys: BTreeMap<String, Record>,
    shards: BTreeMap<i64, LastFence>,
    /// Leases that waiters of this process have now.
    pub(super) granted: Vec<(Id, Grant)>,
}

impl KeySet {
    /// Reads the keys of all changes, inside their transaction.
    pub(super) fn load(
        on: &Connection,
        here: &LocalProcess,
        keys: &[&Key],
    ) -> Result<Self, Failure> {
        let now = here.now();
        let lines = match keys {
            [key] => {
                let key = key.as_str();
                stored_rows(on, LOAD, (key, shard(key)), now)?
            }
            _ => {
                let names: BTreeSet<&str> = keys.iter().map(|key| key.as_str()).collect();
                let shards: BTreeSet<i64> = names.iter().map(|key| shard(key)).collect();
                stored_rows(on, LOAD_ALL, (json(names.iter().map(quoted)), json(shards)), now)?
            }
        };
        let mut shards = BTreeMap::new();
        let mut of_keys = Vec::with_capacity(lines.len());
        for (key, line) in lines {
            match line {
                StoredRow::Shard(shard, last) => {
                    shards.insert(shard, last);
                }
                line => of_keys.push((key, line)),
            }
        }
        let keys = Record::many(of_keys);
        Ok(KeySet { now, keys, shards, granted: Vec::new() })
    }

    /// Makes one change, then grants the key to the next waiters. A waiter of this process has its
    /// lease at once: the process releases it if the waiter does not take it.
    pub(super) fn edit(
        &mut self,
        here: &LocalProcess,
        waiters: &WaiterRegistry,
        key: &Key,
        change: impl FnOnce(&mut Rules<RequesterInfo>, &mut Edit<'_>),
    ) -> &Rules<RequesterInfo> {
        let last = self.shards.entry(shard(key.as_str())).or_default();
        let record = self.keys.entry(key.as_str().to_owned()).or_default();
        let now = self.now;
        record.prune(here, now.moment);
        let rules = &mut record.rules;
        let mut next = || last.next(now);
        let mut edit = Edit { now: now.moment, next: &mut next };
        change(rules, &mut edit);
        rules.admit(now.moment, &mut edit.fences(), |held| {
            let id = held.requester.id;
            if held.requester.extra.client == here.client && waiters.is_registered(id) {
                held.claimed = true;
                held.expires = now.moment.after(held.requester.ttl);
                self.granted.push((id, held.grant(true, Some(now.moment))));
            }
        });
        rules
    }

    /// Writes what differs.
    pub(super) fn save(&self, to: &Connection) -> Result<(), Failure> {
        for (shard, last) in &self.shards {
            last.save(to, *shard)?;
        }
        for (key, record) in &self.keys {
            record.remove(to, key, self.now)?;
            record.put(to, key, self.now)?;
        }
        let until = self.now.stamp(self.now.moment);
        for client in self.keys.values().flat_map(|record| &record.doubted) {
            run(to, HEARTBEAT, (client, until.clock.0, until.at, until.ns))?;
        }
        Ok(())
    }
}

/// An array. Its parts are JSON already.
fn json(parts: impl IntoIterator<Item = impl Display>) -> String {
    let parts: Vec<String> = parts.into_iter().map(|part| part.to_string()).collect();
    format!("[{}]", parts.join(","))
}

/// A key has no control characters, so these two are all that must be escaped.
fn quoted(key: &&str) -> String {
    format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The rules of a key without a change, and whether one is due.
pub(super) fn peek(
    on: &Connection,
    here: &LocalProcess,
    key: &Key,
) -> Result<(Rules<RequesterInfo>, bool), Failure> {
    let now = here.now();
    let lines = stored_rows(on, PEEK, (key.as_str(),), now)?;
    let mut record = Record::of(lines.into_iter().map(|(_, line)| line));
    let due = record.prune(here, now.moment);
    Ok((record.rules, due))
}

/// One page, and keys of which nothing is left but rows.
pub(super) fn list(
    on: &Connection,
    here: &LocalProcess,
    prefix: &str,
    page: &PageRequest,
) -> Result<(Page, Vec<Key>), Failure> {
    const STEP: i64 = 256;
    let mut after = page.after.clone().unwrap_or_default();
    let (mut found, mut over) = (Vec::new(), Vec::new());
    loop {
        let (now, report) = (here.now(), Reporter::new(&*here.clock));
        let keys = Record::many(stored_rows(on, PAGE, (prefix, &*after, STEP), now)?);
        let more = keys.len() as i64 == STEP;
        for (key, mut record) in keys {
            after.clone_from(&key);
            if !key.starts_with(prefix) {
                return Ok((Page::cut(found, page), over));
            }
            record.prune(here, now.moment);
            if !record.rules.is_empty() {
                found.push(report.inspection(&key, &record.rules, RequesterInfo::label));
            } else {
                over.extend(Key::try_from(key));
            }
        }
        if !more || found.len() > page.limit {
            return Ok((Page::cut(found, page), over));
        }
    }
}
