//! Changes of keys inside a transaction: load their rows, let the rules decide, write what
//! differs.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Display;
use std::sync::Arc;

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::boot::{Here, Now};
use super::error;
use super::name::shard;
use super::record::{Asker, LastFence, Line, Record, lines, run};
use super::schema::{HEARTBEAT, LOAD, LOAD_ALL, PAGE, PEEK};
use super::watch::Seat;
use super::watcher::Failure;
use crate::reporter::Reporter;
use crate::rules::{Id, Rules};
use crate::{Fence, Grant, Key, Moment, Page, PageRequest, Result};

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

/// A change that somebody asked for. It may be made twice, when its first transaction failed for
/// another one's fault.
pub(super) trait Job: Send {
    fn key(&self) -> &Key;
    /// False when nobody waits for the answer and the change is not needed without.
    fn is_wanted(&self) -> bool;
    /// Where to call whoever asks, should it have to queue.
    fn seat(&self) -> Option<&Arc<Seat>>;
    fn change(&mut self, rules: &mut Rules<Asker>, edit: &mut Edit<'_>);
    /// Called after the change that was made last, with how the key stands.
    fn settled(&mut self, rules: &Rules<Asker>, here: &Here);
    /// Whether to try once more after this failure.
    fn tries_again(&mut self, error: &Failure) -> bool;
    /// Tells the answer.
    fn finish(self: Box<Self>, failed: Option<&Failure>);
}

/// The usual job: a closure, and where its answer goes.
pub(super) struct Task<T, F> {
    pub(super) during: &'static str,
    pub(super) key: Key,
    pub(super) change: F,
    /// Sees the key after those were let in who could be.
    pub(super) look: fn(&mut T, &Rules<Asker>, &Here),
    pub(super) out: Option<T>,
    pub(super) reply: oneshot::Sender<Result<T>>,
    pub(super) terms: Terms,
}

/// How a job is to be done.
#[derive(Default)]
pub(super) struct Terms {
    /// Also when nobody waits for the answer any more.
    pub(super) needed: bool,
    pub(super) seat: Option<Arc<Seat>>,
}

impl<T, F> Job for Task<T, F>
where
    T: Send,
    F: FnMut(&mut Rules<Asker>, &mut Edit<'_>) -> T + Send,
{
    fn key(&self) -> &Key {
        &self.key
    }

    fn is_wanted(&self) -> bool {
        self.terms.needed || !self.reply.is_closed()
    }

    fn seat(&self) -> Option<&Arc<Seat>> {
        self.terms.seat.as_ref()
    }

    fn change(&mut self, rules: &mut Rules<Asker>, edit: &mut Edit<'_>) {
        self.out = Some((self.change)(rules, edit));
    }

    fn settled(&mut self, rules: &Rules<Asker>, here: &Here) {
        if let Some(out) = &mut self.out {
            (self.look)(out, rules, here);
        }
    }

    fn tries_again(&mut self, _: &Failure) -> bool {
        false
    }

    fn finish(self: Box<Self>, failed: Option<&Failure>) {
        let answer = match (failed, self.out) {
            (None, Some(out)) => Ok(out),
            (Some(failed), _) => Err(error::of(self.during, failed)),
            (None, None) => Err(error::gone(self.during)),
        };
        let _ = self.reply.send(answer);
    }
}

/// How a key stands after a change, for those who wait for it here.
pub(super) struct View {
    pub(super) queue: Vec<Id>,
    /// When something of another process or a lease ends by itself.
    pub(super) due: Moment,
}

impl View {
    pub(super) fn of(rules: &Rules<Asker>, here: &Here) -> Self {
        let others = rules.queue.iter().filter(|w| w.extra.client != here.client);
        let alive = others.map(|w| w.extra.alive).min().unwrap_or(Moment::NEVER);
        View {
            queue: rules.queue.iter().map(|w| w.id).collect(),
            due: rules.next_expiry().min(alive),
        }
    }
}

/// The keys of one transaction: as they were read, and as the changes leave them. So many changes
/// of a key are read once and written once.
pub(super) struct Sheet {
    now: Now,
    keys: BTreeMap<String, Record>,
    shards: BTreeMap<i64, LastFence>,
    /// Waiters of this process who are there, and those of them whose turn it was.
    seated: HashSet<Id>,
    pub(super) handed: Vec<(Key, Id, Grant)>,
}

impl Sheet {
    /// Reads the keys of all changes, inside their transaction.
    pub(super) fn load(
        on: &Connection,
        here: &Here,
        batch: &[Box<dyn Job>],
        seated: HashSet<Id>,
    ) -> Result<Self, Failure> {
        let now = here.now();
        let lines = match batch {
            [job] => {
                let key = job.key().as_str();
                lines(on, LOAD, (key, shard(key)), now)?
            }
            _ => {
                let names: BTreeSet<&str> = batch.iter().map(|job| job.key().as_str()).collect();
                let shards: BTreeSet<i64> = names.iter().map(|key| shard(key)).collect();
                lines(on, LOAD_ALL, (json(names.iter().map(quoted)), json(shards)), now)?
            }
        };
        let mut shards = BTreeMap::new();
        let mut of_keys = Vec::with_capacity(lines.len());
        for (key, line) in lines {
            match line {
                Line::Shard(shard, last) => {
                    shards.insert(shard, last);
                }
                line => of_keys.push((key, line)),
            }
        }
        let keys = Record::many(of_keys);
        Ok(Sheet { now, keys, shards, seated, handed: Vec::new() })
    }

    /// Makes one change, then lets in whoever can be.
    pub(super) fn edit(&mut self, here: &Here, job: &mut dyn Job) -> View {
        let key = job.key().clone();
        let name = key.as_str();
        let last = self.shards.entry(shard(name)).or_default();
        let record = self.keys.entry(name.to_owned()).or_default();
        let now = self.now;
        record.prune(here, now.moment);
        let rules = &mut record.rules;
        let mut next = || last.next(now);
        let mut edit = Edit { now: now.moment, next: &mut next };
        job.change(rules, &mut edit);
        rules.admit(now.moment, &mut edit.fences(), |held| {
            // It is of this process, which will see to it: nothing need be claimed.
            if held.requester.extra.client == here.client
                && self.seated.contains(&held.requester.id)
            {
                held.claimed = true;
                held.expires = now.moment.after(held.requester.ttl);
                let grant = held.grant(true, Some(now.moment));
                self.handed.push((key.clone(), held.requester.id, grant));
            }
        });
        job.settled(rules, here);
        View::of(rules, here)
    }

    /// Writes what differs.
    pub(super) fn save(&self, to: &Connection) -> Result<(), Failure> {
        for (shard, last) in &self.shards {
            last.save(to, *shard)?;
        }
        for (key, record) in &self.keys {
            record.remove(to, key)?;
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
    here: &Here,
    key: &Key,
) -> Result<(Rules<Asker>, bool), Failure> {
    let now = here.now();
    let lines = lines(on, PEEK, (key.as_str(),), now)?;
    let mut record = Record::of(lines.into_iter().map(|(_, line)| line));
    let due = record.prune(here, now.moment);
    Ok((record.rules, due))
}

/// One page, and keys of which nothing is left but rows.
pub(super) fn list(
    on: &Connection,
    here: &Here,
    prefix: &str,
    page: &PageRequest,
) -> Result<(Page, Vec<Key>), Failure> {
    const STEP: i64 = 256;
    let mut after = page.after.clone().unwrap_or_default();
    let (mut found, mut over) = (Vec::new(), Vec::new());
    loop {
        let (now, report) = (here.now(), Reporter::new(&*here.clock));
        let keys = Record::many(lines(on, PAGE, (prefix, &*after, STEP), now)?);
        let more = keys.len() as i64 == STEP;
        for (key, mut record) in keys {
            after.clone_from(&key);
            if !key.starts_with(prefix) {
                return Ok((Page::cut(found, page), over));
            }
            record.prune(here, now.moment);
            if !record.rules.is_empty() {
                found.push(report.inspection(&key, &record.rules, Asker::label));
            } else {
                over.extend(Key::try_from(key));
            }
        }
        if !more || found.len() > page.limit {
            return Ok((Page::cut(found, page), over));
        }
    }
}
