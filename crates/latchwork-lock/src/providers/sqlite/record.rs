//! The rows of a key, read into the rules and written back as far as they changed.

use std::sync::Arc;
use std::time::Duration;

use latchwork_sql::sqlite::explain;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::boot::{Now, Stamp, micros};
use super::error::damaged;
use super::schema::{
    DELETE_HOLDER, DELETE_WAITER, HOLDER, MOVE_WAITER, PUT_FENCE, PUT_HOLDER, PUT_WAITER, WAITER,
};
use super::scripts::Script;
use crate::rules::{Held, Id, Party, Rules};
use crate::{Fence, Mode, Moment, Owner};

/// What is remembered of whoever asked.
#[derive(Clone, Debug)]
pub(super) struct Asker {
    /// As `host:pid`, for people.
    pub(super) process: Arc<str>,
    /// Whose heartbeat counts.
    pub(super) client: i64,
    /// A waiter is gone after this moment unless its process says otherwise.
    pub(super) alive: Moment,
}

impl Asker {
    pub(super) fn label(&self) -> String {
        self.process.as_ref().to_owned()
    }
}

/// One key as it was read.
#[derive(Default)]
pub(super) struct Record {
    pub(super) rules: Rules<Asker>,
    holders: Vec<Held<Asker>>,
    waiters: Vec<(i64, Id, i64)>,
    /// The last fence of the shard, now and when it was read.
    fence: Option<i64>,
    loaded_fence: Option<i64>,
}

impl Record {
    /// The one key that all rows are of.
    pub(super) fn of(rows: &[SqliteRow], now: Now) -> Result<Self, latchwork_sql::Error> {
        let mut record = Record::default();
        let mut queue: Vec<(i64, Party<Asker>)> = Vec::new();
        for row in rows {
            match row.try_get::<i64, _>(0).map_err(explain)? {
                HOLDER => record.add(row, now)?,
                WAITER => queue.push((row.try_get(1).map_err(explain)?, party(row, now)?)),
                _ => record.fence = row.try_get(14).map_err(explain)?,
            }
        }
        record.loaded_fence = record.fence;
        record.holders.sort_unstable_by_key(|held| held.fence);
        queue.sort_unstable_by_key(|(seq, _)| *seq);
        record.rules.holders.extend(record.holders.iter().cloned());
        record.waiters = queue.iter().map(|(seq, w)| (*seq, w.id, w.extra.client)).collect();
        record.rules.queue.extend(queue.into_iter().map(|(_, waiting)| waiting.into()));
        Ok(record)
    }

    /// Several keys, sorted; the rows of each are together in no order.
    pub(super) fn many(
        rows: Vec<SqliteRow>,
        now: Now,
    ) -> Result<Vec<(String, Rules<Asker>)>, latchwork_sql::Error> {
        let mut keys: std::collections::BTreeMap<String, Vec<SqliteRow>> = Default::default();
        for row in rows {
            keys.entry(row.try_get(2).map_err(explain)?).or_default().push(row);
        }
        keys.into_iter()
            .map(|(key, rows)| Record::of(&rows, now).map(|record| (key, record.rules)))
            .collect()
    }

    fn add(&mut self, row: &SqliteRow, now: Now) -> Result<(), latchwork_sql::Error> {
        let get = |at: usize| row.try_get::<i64, _>(at).map_err(explain);
        let party = party(row, now)?;
        let previous: Option<i64> = row.try_get(15).map_err(explain)?;
        self.rules.last_fence = self.rules.last_fence.max(Some(fence_of(get(16)?)));
        self.holders.push(Held {
            // The same columns are its end and a waiter's.
            expires: party.extra.alive,
            party: party.into(),
            fence: fence_of(get(14)?),
            previous: previous.map(fence_of),
            claimed: get(17)? != 0,
        });
        Ok(())
    }

    /// A fence higher than any before. Not below the wall clock either: a file that was put back
    /// from a copy, or made anew, goes on above what was seen.
    pub(super) fn next_fence(&mut self, now: Now) -> Fence {
        let next = self.fence.map_or(now.wall, |last| (last + 1).max(now.wall));
        self.fence = Some(next);
        fence_of(next)
    }

    /// Writes the difference.
    pub(super) fn save(&self, to: &mut Script, key: &str, shard: i64, now: Now) {
        for old in &self.holders {
            if !self.rules.holders.iter().any(|held| held.party.id == old.party.id) {
                to.put(DELETE_HOLDER).bind(key).bind(blob(old.party.id));
            }
        }
        for (seq, id, client) in &self.waiters {
            match self.rules.queue.iter().find(|w| w.id == *id) {
                None => {
                    to.put(DELETE_WAITER).bind(seq);
                }
                Some(kept) if kept.extra.client != *client => {
                    let script = to.put(MOVE_WAITER).bind(kept.extra.client);
                    script.bind(&*kept.extra.process).bind(seq);
                }
                Some(_) => {}
            }
        }
        if self.fence != self.loaded_fence {
            to.put(PUT_FENCE).bind(shard).bind(self.fence);
        }
        let last = self.rules.last_fence;
        // A row must know of a grant after it whose own row is gone.
        let told = self.rules.holders.iter().map(|held| held.fence).max() >= last;
        for (at, held) in self.rules.holders.iter().enumerate() {
            let old = self.holders.iter().find(|old| old.party.id == held.party.id);
            let retold = at == 0 && !told && self.holders.len() != self.rules.holders.len();
            if retold || !old.is_some_and(|old| same(old, held)) {
                put_holder(to, key, held, last.unwrap_or(held.fence), now);
            }
        }
        for waiting in &self.rules.queue {
            if !self.waiters.iter().any(|(_, id, _)| *id == waiting.id) {
                put_waiter(to, key, waiting, now);
            }
        }
    }
}

fn same(a: &Held<Asker>, b: &Held<Asker>) -> bool {
    a.fence == b.fence
        && a.expires == b.expires
        && a.claimed == b.claimed
        && a.party.ttl == b.party.ttl
        && a.party.extra.client == b.party.extra.client
}

fn put_holder(to: &mut Script, key: &str, held: &Held<Asker>, last: Fence, now: Now) {
    let party = &held.party;
    let expires = now.stamp(held.expires);
    to.put(PUT_HOLDER)
        .bind(key)
        .bind(blob(party.id))
        .bind(word(party.mode))
        .bind(party.owner.as_ref().map(Owner::as_str))
        .bind(party.note.as_deref())
        .bind(&*party.extra.process)
        .bind(party.extra.client)
        .bind(micros(party.ttl))
        .bind(now.stamp(party.since).at)
        .bind(expires.boot)
        .bind(expires.at)
        .bind(expires.ns)
        .bind(number(held.fence))
        .bind(held.previous.map(number))
        .bind(number(last.max(held.fence)))
        .bind(i64::from(held.claimed));
}

fn put_waiter(to: &mut Script, key: &str, party: &Party<Asker>, now: Now) {
    let alive = now.stamp(party.extra.alive);
    to.put(PUT_WAITER)
        .bind(key)
        .bind(blob(party.id))
        .bind(word(party.mode))
        .bind(party.owner.as_ref().map(Owner::as_str))
        .bind(party.note.as_deref())
        .bind(&*party.extra.process)
        .bind(party.extra.client)
        .bind(micros(party.ttl))
        .bind(now.stamp(party.since).at)
        .bind(alive.boot)
        .bind(alive.at)
        .bind(alive.ns);
}

fn party(row: &SqliteRow, now: Now) -> Result<Party<Asker>, latchwork_sql::Error> {
    let get = |at: usize| row.try_get::<i64, _>(at).map_err(explain);
    let text = |at: usize| row.try_get::<Option<&str>, _>(at).map_err(explain);
    let key = text(2)?.unwrap_or_default();
    let id: [u8; 16] = row
        .try_get::<&[u8], _>(3)
        .map_err(explain)?
        .try_into()
        .map_err(|_| damaged(key, "its id is not of 16 bytes"))?;
    let mode = match text(4)? {
        Some("exclusive") => Mode::Exclusive,
        Some("shared") => Mode::Shared,
        _ => return Err(damaged(key, "its mode is unknown")),
    };
    let owner = text(5)?.map(Owner::new).transpose().map_err(|e| damaged(key, e))?;
    let until = Stamp { boot: get(11)?, at: get(12)?, ns: get(13)? };
    Ok(Party {
        id: Id::from_be_bytes(id),
        mode,
        owner,
        note: text(6)?.map(Arc::from),
        ttl: Duration::from_micros(get(9)?.unsigned_abs()),
        since: now.of_wall(get(10)?),
        extra: Asker {
            process: Arc::from(text(7)?.unwrap_or_default()),
            client: get(8)?,
            alive: now.moment(until),
        },
    })
}

fn word(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
    }
}

fn blob(id: Id) -> Vec<u8> {
    id.to_be_bytes().to_vec()
}

pub(super) fn number(fence: Fence) -> i64 {
    i64::try_from(fence.get()).unwrap_or(i64::MAX)
}

fn fence_of(value: i64) -> Fence {
    Fence::new(value.unsigned_abs())
}
