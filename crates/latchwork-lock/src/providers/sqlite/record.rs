//! The rows of a key, read into the rules and written back as far as they changed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use latchwork_sql::sqlite::boot::{ClockId, Stamp, micros};
use latchwork_sql::sqlite::explain_direct;
use rusqlite::{CachedStatement, Connection, Params, Row, ToSql, params};

use super::boot::{ClockReading, LocalProcess};
use super::error::{Failure, damaged, other_clock};
use super::schema::{
    DELETE_HOLDER, DELETE_WAITER, HOLDER, MOVE_WAITER, PUT_FENCE, PUT_HOLDER, PUT_WAITER, WAITER,
};
use crate::coordination::liveness::Session;
use crate::rules::{HolderState, Id, Requester, Rules};
use crate::{Fence, Mode, Moment, Owner};

/// How long the waiters of a process are believed to be alive after a heartbeat: longer than a writer
/// waits for another one, lest one outage empties the queue.
pub(super) const ALIVE: Duration = Duration::from_secs(8);

/// What is stored of a requester.
#[derive(Clone, Debug)]
pub(super) struct RequesterInfo {
    /// As `host:pid`, for people.
    pub(super) process: Arc<str>,
    /// Whose heartbeat counts.
    pub(super) client: i64,
    /// A waiter is gone after this moment unless its process says otherwise.
    pub(super) alive: Moment,
}

impl Session for RequesterInfo {
    type Client = i64;

    fn client(&self) -> &i64 {
        &self.client
    }

    fn alive(&self) -> Moment {
        self.alive
    }
}

impl RequesterInfo {
    pub(super) fn label(&self) -> String {
        self.process.as_ref().to_owned()
    }
}

/// One key as it was read.
#[derive(Default)]
pub(super) struct Record {
    pub(super) rules: Rules<RequesterInfo>,
    holders: Vec<HolderState<RequesterInfo>>,
    waiters: Vec<(i64, Id, i64)>,
    /// Waiters who are passed over.
    silent: HashSet<Id>,
    /// Processes that are doubted from now on.
    pub(super) doubted: BTreeSet<i64>,
}

/// The last fence of a shard, now and when it was read.
#[derive(Default)]
pub(super) struct LastFence {
    now: Option<i64>,
    loaded: Option<i64>,
}

/// One row that was read.
pub(super) enum StoredRow {
    /// A holder, and the last fence of its key as far as it knows.
    Holder(HolderState<RequesterInfo>, Fence),
    /// A place in the queue, and who has it.
    Waiter(i64, Requester<RequesterInfo>),
    /// A shard, and its last fence.
    Shard(i64, LastFence),
}

/// Runs a statement that gives no rows.
pub(super) fn run(
    on: &Connection,
    statement: &'static str,
    values: impl Params,
) -> Result<(), Failure> {
    let done = on.prepare_cached(statement).and_then(|mut it| it.execute(values));
    done.map(|_| ()).map_err(explain_direct)
}

/// The rows that a load gives, each with its key.
pub(super) fn stored_rows(
    on: &Connection,
    statement: &'static str,
    values: impl Params,
    now: ClockReading,
) -> Result<Vec<(String, StoredRow)>, Failure> {
    let mut statement = on.prepare_cached(statement).map_err(explain_direct)?;
    let mut rows = statement.query(values).map_err(explain_direct)?;
    let mut lines = Vec::new();
    while let Some(row) = rows.next().map_err(explain_direct)? {
        let key: String = row.get(2).map_err(explain_direct)?;
        let line = StoredRow::of(&key, row, now)?;
        lines.push((key, line));
    }
    Ok(lines)
}

impl StoredRow {
    fn of(key: &str, row: &Row<'_>, now: ClockReading) -> Result<Self, Failure> {
        let get = |at: usize| row.get::<_, i64>(at).map_err(explain_direct);
        let previous = || row.get::<_, Option<i64>>(15).map_err(explain_direct);
        Ok(match get(0)? {
            HOLDER => {
                let requester = requester(key, row, now)?;
                let held = HolderState {
                    // The same columns are its end and a waiter's.
                    expires: requester.extra.alive,
                    requester: requester.into(),
                    fence: fence_of(get(14)?),
                    previous: previous()?.map(fence_of),
                    claimed: get(17)? != 0,
                };
                StoredRow::Holder(held, fence_of(get(16)?))
            }
            WAITER => StoredRow::Waiter(get(1)?, requester(key, row, now)?),
            _ => {
                let last = Some(get(14)?);
                StoredRow::Shard(get(1)?, LastFence { now: last, loaded: last })
            }
        })
    }
}

impl LastFence {
    /// A fence higher than any before. Not below the wall clock either: a file that was put back
    /// from a copy, or made anew, goes on above what was seen.
    pub(super) fn next(&mut self, now: ClockReading) -> Fence {
        let next = self.now.map_or(now.wall(), |last| (last + 1).max(now.wall()));
        self.now = Some(next);
        fence_of(next)
    }

    /// Writes it, if it has grown.
    pub(super) fn save(&self, to: &Connection, shard: i64) -> Result<(), Failure> {
        if self.now == self.loaded {
            return Ok(());
        }
        run(to, PUT_FENCE, (shard, self.now))
    }
}

impl Record {
    /// The one key that all rows are of.
    pub(super) fn of(lines: impl IntoIterator<Item = StoredRow>) -> Self {
        let mut record = Record::default();
        let mut queue: Vec<(i64, Requester<RequesterInfo>)> = Vec::new();
        for line in lines {
            match line {
                StoredRow::Holder(held, last) => {
                    record.rules.last_fence = record.rules.last_fence.max(Some(last));
                    record.holders.push(held);
                }
                StoredRow::Waiter(seq, requester) => queue.push((seq, requester)),
                StoredRow::Shard(..) => {}
            }
        }
        record.holders.sort_unstable_by_key(|held| held.fence);
        queue.sort_unstable_by_key(|(seq, _)| *seq);
        record.rules.holders.extend(record.holders.iter().cloned());
        record.waiters = queue.iter().map(|(seq, w)| (*seq, w.id, w.extra.client)).collect();
        record.rules.queue.extend(queue.into_iter().map(|(_, waiting)| waiting.into()));
        record
    }

    /// Several keys, sorted.
    pub(super) fn many(lines: Vec<(String, StoredRow)>) -> BTreeMap<String, Record> {
        let mut keys: BTreeMap<String, Vec<StoredRow>> = BTreeMap::new();
        for (key, line) in lines {
            keys.entry(key).or_default().push(line);
        }
        keys.into_iter().map(|(key, lines)| (key, Record::of(lines))).collect()
    }

    /// Ends what ran out, and puts aside those whose process seems to be dead; true when there is
    /// something to be stored, or somebody can be let in.
    pub(super) fn prune(&mut self, here: &LocalProcess, now: Moment) -> bool {
        let rules = &mut self.rules;
        let (held, waiting) = (rules.holders.len(), rules.queue.len());
        let absent = rules.set_absent_aside(&here.client, ALIVE, now);
        let is_over = held != rules.holders.len()
            || waiting != rules.queue.len() + absent.silent.len()
            || rules.can_admit();
        self.silent.extend(absent.silent.iter().map(|waiting| waiting.id));
        self.doubted.extend(absent.doubted.into_keys());
        is_over
    }

    /// Removes what is gone, and moves waiters that another process has queued.
    pub(super) fn remove(
        &self,
        from: &Connection,
        key: &str,
        now: ClockReading,
    ) -> Result<(), Failure> {
        for old in &self.holders {
            if !self.rules.holders.iter().any(|held| held.requester.id == old.requester.id) {
                run(from, DELETE_HOLDER, (key, blob(old.requester.id)))?;
            }
        }
        for (seq, id, client) in &self.waiters {
            match self.rules.queue.iter().find(|w| w.id == *id) {
                None if self.silent.contains(id) => {}
                None => run(from, DELETE_WAITER, (seq,))?,
                Some(kept) if kept.extra.client != *client => {
                    let (client, process) = (kept.extra.client, &*kept.extra.process);
                    let alive = now.stamp(kept.extra.alive);
                    let values = (client, process, alive.clock.0, alive.at, alive.ns, seq);
                    run(from, MOVE_WAITER, values)?;
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Writes what is new.
    pub(super) fn put(&self, to: &Connection, key: &str, now: ClockReading) -> Result<(), Failure> {
        let last = self.rules.last_fence;
        // A row must know of a grant after it whose own row is gone.
        let told = self.rules.holders.iter().map(|held| held.fence).max() >= last;
        for (at, held) in self.rules.holders.iter().enumerate() {
            let old = self.holders.iter().find(|old| old.requester.id == held.requester.id);
            let retold = at == 0 && !told && self.holders.len() != self.rules.holders.len();
            if retold || !old.is_some_and(|old| same(old, held)) {
                put_holder(to, key, held, last.unwrap_or(held.fence), now)
                    .map_err(explain_direct)?;
            }
        }
        for waiting in &self.rules.queue {
            if !self.waiters.iter().any(|(_, id, _)| *id == waiting.id) {
                put_waiter(to, key, waiting, now).map_err(explain_direct)?;
            }
        }
        Ok(())
    }
}

fn same(a: &HolderState<RequesterInfo>, b: &HolderState<RequesterInfo>) -> bool {
    a.fence == b.fence
        && a.expires == b.expires
        && a.claimed == b.claimed
        && a.requester.ttl == b.requester.ttl
        && a.requester.extra.client == b.requester.extra.client
}

fn put_holder(
    to: &Connection,
    key: &str,
    held: &HolderState<RequesterInfo>,
    last: Fence,
    now: ClockReading,
) -> rusqlite::Result<()> {
    let mut to = to.prepare_cached(PUT_HOLDER)?;
    let next = bind_party(&mut to, key, &held.requester, held.expires, now)?;
    bind(
        &mut to,
        next,
        params![
            number(held.fence),
            held.previous.map(number),
            number(last.max(held.fence)),
            held.claimed,
        ],
    )?;
    to.raw_execute().map(|_| ())
}

fn put_waiter(
    to: &Connection,
    key: &str,
    requester: &Requester<RequesterInfo>,
    now: ClockReading,
) -> rusqlite::Result<()> {
    let mut to = to.prepare_cached(PUT_WAITER)?;
    bind_party(&mut to, key, requester, requester.extra.alive, now)?;
    to.raw_execute().map(|_| ())
}

/// Binds what holders and waiters have in common, and tells where to go on.
fn bind_party(
    to: &mut CachedStatement<'_>,
    key: &str,
    requester: &Requester<RequesterInfo>,
    until: Moment,
    now: ClockReading,
) -> rusqlite::Result<usize> {
    let until = now.stamp(until);
    bind(
        to,
        1,
        params![
            key,
            blob(requester.id),
            word(requester.mode),
            requester.owner.as_ref().map(Owner::as_str),
            requester.note.as_deref(),
            &*requester.extra.process,
            requester.extra.client,
            micros(requester.ttl),
            now.stamp(requester.since).at,
            until.clock.0,
            until.at,
            until.ns,
        ],
    )
}

fn bind(
    to: &mut CachedStatement<'_>,
    first: usize,
    values: &[&dyn ToSql],
) -> rusqlite::Result<usize> {
    for (at, value) in values.iter().enumerate() {
        to.raw_bind_parameter(first + at, value)?;
    }
    Ok(first + values.len())
}

fn requester(
    key: &str,
    row: &Row<'_>,
    now: ClockReading,
) -> Result<Requester<RequesterInfo>, Failure> {
    let get = |at: usize| row.get::<_, i64>(at).map_err(explain_direct);
    let text = |at: usize| {
        let value = row.get_ref(at).map_err(explain_direct)?;
        value.as_str_or_null().map_err(|e| damaged(key, e))
    };
    let id: [u8; 16] = row.get(3).map_err(|_| damaged(key, "its id is not of 16 bytes"))?;
    let mode = match text(4)? {
        Some("exclusive") => Mode::Exclusive,
        Some("shared") => Mode::Shared,
        _ => return Err(damaged(key, "its mode is unknown")),
    };
    let owner = text(5)?.map(Owner::new).transpose().map_err(|e| damaged(key, e))?;
    let until = Stamp { clock: ClockId(get(11)?), at: get(12)?, ns: get(13)? };
    Ok(Requester {
        id: Id::from_be_bytes(id),
        mode,
        owner,
        note: text(6)?.map(Arc::from),
        ttl: Duration::from_micros(get(9)?.unsigned_abs()),
        since: now.of_wall(get(10)?),
        extra: RequesterInfo {
            process: Arc::from(text(7)?.unwrap_or_default()),
            client: get(8)?,
            alive: now.moment(until).map_err(|e| other_clock(key, e))?,
        },
    })
}

fn word(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
    }
}

fn blob(id: Id) -> [u8; 16] {
    id.to_be_bytes()
}

pub(super) fn number(fence: Fence) -> i64 {
    i64::try_from(fence.get()).unwrap_or(i64::MAX)
}

fn fence_of(value: i64) -> Fence {
    Fence::new(value.unsigned_abs())
}
