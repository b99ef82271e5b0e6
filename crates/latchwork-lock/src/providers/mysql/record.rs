//! What is stored of a key, and the rules made of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use crate::coordination::liveness::Absent;
use crate::coordination::server_record;
pub(super) use crate::coordination::server_record::{
    ALIVE, fence_of, micros, moment, number, reporter, ttl_micros,
};
pub(super) use crate::coordination::token_id::id;
use crate::rules::{HolderState, Id, Requester, Rules};
use crate::{Fence, Mode, Moment, Owner};

/// What is stored of a requester besides its request.
pub(super) type RequesterInfo = server_record::RequesterInfo<Id>;

/// A key as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    /// The last one that was given.
    pub(super) fence: i64,
    /// Whether it was ever given to anybody.
    pub(super) is_known: bool,
    /// The holder in the key's own row.
    pub(super) first: Option<Row>,
    /// Other holders, and waiters.
    pub(super) others: Vec<Row>,
}

/// One who holds or waits.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) id: Id,
    pub(super) shared: bool,
    pub(super) owner: Option<String>,
    pub(super) note: Option<Arc<str>>,
    pub(super) process: Arc<str>,
    pub(super) client: Id,
    pub(super) ttl_us: i64,
    pub(super) since_us: i64,
    pub(super) place: Option<i64>,
    pub(super) until_us: Option<i64>,
    pub(super) fence: Option<i64>,
    pub(super) previous: Option<i64>,
    pub(super) expires_us: Option<i64>,
    pub(super) claimed: bool,
    /// Of its process; from another table.
    alive_us: Option<i64>,
}

/// A key that was read: its name, the server's time, and what is stored.
pub(super) type Read = (Vec<u8>, Moment, Record);

/// The keys in the rows of [`peek`](super::schema::peek) or [`list`](super::schema::list). A key
/// without a row of its own is not there.
pub(super) fn read(rows: &[MySqlRow]) -> sqlx::Result<Vec<Read>> {
    let mut keys: Vec<Read> = Vec::new();
    let mut others: HashMap<Vec<u8>, Vec<Row>> = HashMap::new();
    // Rows of one column only say that the key's row is locked.
    for row in rows.iter().filter(|row| row.len() > 1) {
        let name: Vec<u8> = row.try_get_unchecked(2)?;
        if row.try_get_unchecked::<i64, _>(0)? == 1 {
            others.entry(name).or_default().push(Row::read(row)?);
            continue;
        }
        let held: Option<Vec<u8>> = row.try_get_unchecked(3)?;
        let record = Record {
            fence: row.try_get_unchecked(17)?,
            is_known: row.try_get_unchecked::<i64, _>(10)? > 0,
            first: match held {
                Some(_) => Some(Row { alive_us: None, ..Row::read(row)? }),
                None => None,
            },
            others: Vec::new(),
        };
        keys.push((name, moment(row.try_get_unchecked(1)?), record));
    }
    for (name, _, record) in &mut keys {
        record.others = others.remove(name).unwrap_or_default();
    }
    Ok(keys)
}

impl Record {
    /// The rules of the key, with what has run out by `now` left out, and those whom this client
    /// passes over.
    pub(super) fn rules(
        &self,
        client: Id,
        now: Moment,
    ) -> Result<(Rules<RequesterInfo>, Absent<RequesterInfo>), String> {
        let last_fence = self.is_known.then(|| fence_of(self.fence));
        let mut rules = Rules { last_fence, ..Rules::default() };
        for row in self.first.iter().chain(&self.others) {
            let requester = row.requester()?;
            match row.fence {
                Some(fence) => rules.holders.push(HolderState {
                    requester: requester.into(),
                    fence: fence_of(fence),
                    previous: row.previous.map(fence_of),
                    expires: row.expires_us.map_or(Moment::default(), moment),
                    claimed: row.claimed,
                }),
                None if requester.extra.until > now => rules.queue.push_back(requester.into()),
                None => {}
            }
        }
        rules.holders.sort_by_key(|held| held.fence);
        rules.queue.make_contiguous().sort_by_key(|requester| requester.extra.place);
        let absent = rules.set_absent_aside(&client, ALIVE, now);
        Ok((rules, absent))
    }

    /// What is to be stored after the rules have decided, and of the waiters who are passed over. A
    /// holder in the key's own row stays there.
    pub(super) fn after(
        &self,
        rules: &Rules<RequesterInfo>,
        silent: &[Box<Requester<RequesterInfo>>],
        last: Fence,
    ) -> Record {
        let waiting = || rules.queue.iter().chain(silent);
        let mut holders: Vec<Row> = rules.holders.iter().map(Row::held).collect();
        let stays = self.first.as_ref().and_then(|row| holders.iter().position(|h| h.id == row.id));
        let first = (!holders.is_empty()).then(|| holders.remove(stays.unwrap_or(0)));
        let mut place = waiting().filter_map(|w| w.extra.place).max().unwrap_or(0);
        holders.extend(waiting().map(|requester| {
            let place = requester.extra.place.unwrap_or_else(|| {
                place += 1;
                place
            });
            let until = requester.extra.until;
            Row {
                place: Some(place),
                until_us: (until != Moment::NEVER).then(|| micros(until)),
                ..Row::of(requester)
            }
        }));
        let is_known = self.is_known || first.is_some();
        Record { fence: number(last), is_known, first, others: holders }
    }

    /// Whether this one holds it, or may claim it.
    pub(super) fn holds(&self, id: Id) -> bool {
        let mut rows = self.first.iter().chain(&self.others);
        rows.any(|row| row.id == id && row.fence.is_some())
    }

    /// Whether the two are stored alike.
    pub(super) fn is(&self, other: &Record) -> bool {
        let (gone, new) = self.difference(other);
        self.fence == other.fence && self.first == other.first && gone.is_empty() && new.is_empty()
    }

    /// Which rows beside the key's own must be removed and which written to get to another record.
    pub(super) fn difference<'a>(&self, after: &'a Record) -> (Vec<Id>, Vec<&'a Row>) {
        let known: HashMap<Id, &Row> = self.others.iter().map(|row| (row.id, row)).collect();
        let kept: HashMap<Id, &Row> = after.others.iter().map(|row| (row.id, row)).collect();
        let gone = self.others.iter().map(|row| row.id).filter(|id| !kept.contains_key(id));
        let is_new = |row: &&Row| {
            known.get(&row.id).is_none_or(|old| Row { alive_us: None, ..(*old).clone() } != **row)
        };
        (gone.collect(), after.others.iter().filter(is_new).collect())
    }
}

impl Row {
    /// Of one that asks.
    pub(super) fn of(requester: &Requester<RequesterInfo>) -> Row {
        Row {
            id: requester.id,
            shared: requester.mode == Mode::Shared,
            owner: requester.owner.as_ref().map(|owner| owner.as_str().to_owned()),
            note: requester.note.clone(),
            process: requester.extra.process.clone(),
            client: requester.extra.client,
            ttl_us: ttl_micros(requester.ttl),
            since_us: micros(requester.since),
            place: None,
            until_us: None,
            fence: None,
            previous: None,
            expires_us: None,
            claimed: false,
            alive_us: None,
        }
    }

    /// Of a writer that has no owner and no note.
    pub(super) fn plain(id: Id, ttl: Duration, process: &Arc<str>, client: Id) -> Row {
        let (since, extra) =
            (Moment::default(), RequesterInfo::new(process, &client, Moment::NEVER));
        let (owner, note) = (None, None);
        Row::of(&Requester { id, mode: Mode::Exclusive, owner, note, ttl, since, extra })
    }

    fn held(held: &HolderState<RequesterInfo>) -> Row {
        Row {
            fence: Some(number(held.fence)),
            previous: held.previous.map(number),
            expires_us: Some(micros(held.expires)),
            claimed: held.claimed,
            ..Row::of(&held.requester)
        }
    }

    fn read(row: &MySqlRow) -> sqlx::Result<Row> {
        let id = |at| {
            let bytes: Vec<u8> = row.try_get_unchecked(at)?;
            // Other than sixteen bytes are nobody's.
            Ok::<Id, sqlx::Error>(Id::from_be_bytes(bytes.try_into().unwrap_or_default()))
        };
        let text = |at| {
            let bytes: Option<Vec<u8>> = row.try_get_unchecked(at)?;
            let utf8 = bytes.map(String::from_utf8).transpose();
            utf8.map_err(|e| sqlx::Error::Decode(Box::new(e)))
        };
        let flag = |at| Ok::<bool, sqlx::Error>(row.try_get_unchecked::<i64, _>(at)? != 0);
        Ok(Row {
            id: id(3)?,
            shared: flag(4)?,
            owner: text(5)?,
            note: text(6)?.map(Arc::from),
            process: text(7)?.unwrap_or_default().into(),
            client: id(8)?,
            ttl_us: row.try_get_unchecked(9)?,
            since_us: row.try_get_unchecked(10)?,
            place: row.try_get_unchecked(11)?,
            until_us: row.try_get_unchecked(12)?,
            fence: row.try_get_unchecked(13)?,
            previous: row.try_get_unchecked(14)?,
            expires_us: row.try_get_unchecked(15)?,
            claimed: flag(16)?,
            alive_us: row.try_get_unchecked(17)?,
        })
    }

    fn requester(&self) -> Result<Requester<RequesterInfo>, String> {
        let owner = self.owner.as_deref().map(Owner::new).transpose();
        Ok(Requester {
            id: self.id,
            mode: if self.shared { Mode::Shared } else { Mode::Exclusive },
            owner: owner.map_err(|error| error.to_string())?,
            note: self.note.clone(),
            ttl: Duration::from_micros(self.ttl_us.max(0).unsigned_abs()),
            since: moment(self.since_us),
            extra: RequesterInfo {
                process: self.process.clone(),
                client: self.client,
                place: self.place,
                until: self.until_us.map_or(Moment::NEVER, moment),
                alive: self.alive_us.map_or(Moment::default(), moment),
            },
        })
    }
}
