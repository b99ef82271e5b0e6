//! The rows of a key, read into the rules and written back as far as they changed.

use std::sync::Arc;
use std::time::Duration;

use latchwork_sql::sqlite::explain;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::boot::{Now, Stamp, micros};
use super::error::damaged;
use super::schema::{
    DELETE_HOLDER, DELETE_WAITER, GIVE, HOLDER, MOVE_WAITER, PUT_FENCE, PUT_HOLDER, PUT_WAITER,
    TAKE_FENCE, TAKE_HOLDER, WAITER,
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
}

/// The last fence of a shard, now and when it was read.
#[derive(Default)]
pub(super) struct LastFence {
    now: Option<i64>,
    loaded: Option<i64>,
}

impl LastFence {
    pub(super) fn of(row: &SqliteRow) -> Result<Self, latchwork_sql::Error> {
        let now = row.try_get(14).map_err(explain)?;
        Ok(LastFence { now, loaded: now })
    }

    /// Of which this one is the next.
    pub(super) fn before(next: i64) -> Self {
        LastFence { now: Some(next - 1), loaded: Some(next - 1) }
    }

    /// A fence higher than any before. Not below the wall clock either: a file that was put back
    /// from a copy, or made anew, goes on above what was seen.
    pub(super) fn next(&mut self, now: Now) -> Fence {
        let next = self.now.map_or(now.wall, |last| (last + 1).max(now.wall));
        self.now = Some(next);
        fence_of(next)
    }

    /// Writes it, if it has grown.
    pub(super) fn save(&self, to: &mut Script, shard: i64) {
        if self.now != self.loaded {
            to.put(PUT_FENCE).bind(shard).bind(self.now);
        }
    }
}

impl Record {
    /// The one key that all rows are of.
    pub(super) fn of<'r>(
        rows: impl IntoIterator<Item = &'r SqliteRow>,
        now: Now,
    ) -> Result<Self, latchwork_sql::Error> {
        let mut record = Record::default();
        let mut queue: Vec<(i64, Party<Asker>)> = Vec::new();
        for row in rows {
            match row.try_get::<i64, _>(0).map_err(explain)? {
                HOLDER => record.add(row, now)?,
                WAITER => queue.push((row.try_get(1).map_err(explain)?, party(row, now)?)),
                _ => {}
            }
        }
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

    /// Removes what is gone.
    pub(super) fn remove(&self, to: &mut Script, key: &str) {
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
    }

    /// Writes what is new.
    pub(super) fn put(&self, to: &mut Script, key: &str, now: Now) {
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
    put_party(to.put(PUT_HOLDER), key, &held.party, held.expires, now)
        .bind(number(held.fence))
        .bind(held.previous.map(number))
        .bind(number(last.max(held.fence)))
        .bind(i64::from(held.claimed));
}

/// Takes a key that nobody uses; gives a row with the fence if that was so.
pub(super) fn take(to: &mut Script, key: &str, shard: i64, party: &Party<Asker>, now: Now) {
    to.put(TAKE_FENCE).bind(shard).bind(now.wall).bind(key).bind(key);
    let party = Party { since: now.moment, ..party.clone() };
    let expires = now.moment.after(party.ttl);
    put_party(to.put(TAKE_HOLDER), key, &party, expires, now).bind(shard);
}

/// Gives back a key that nobody else uses; gives the row that was removed if that was so.
pub(super) fn give(to: &mut Script, key: &str, id: Id) {
    to.put(GIVE).bind(key).bind(blob(id)).bind(key).bind(key).bind(blob(id));
}

fn put_party<'s>(
    to: &'s mut Script,
    key: &str,
    party: &Party<Asker>,
    until: Moment,
    now: Now,
) -> &'s mut Script {
    let until = now.stamp(until);
    to.bind(key)
        .bind(blob(party.id))
        .bind(word(party.mode))
        .bind(party.owner.as_ref().map(Owner::as_str))
        .bind(party.note.as_deref())
        .bind(&*party.extra.process)
        .bind(party.extra.client)
        .bind(micros(party.ttl))
        .bind(now.stamp(party.since).at)
        .bind(until.boot)
        .bind(until.at)
        .bind(until.ns)
}

fn put_waiter(to: &mut Script, key: &str, party: &Party<Asker>, now: Now) {
    put_party(to.put(PUT_WAITER), key, party, party.extra.alive, now);
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
