//! A row of `latchwork_lock`, and the rules of a key made of rows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::coordination::liveness::Absent;
use crate::coordination::server_record;
pub(super) use crate::coordination::server_record::{
    ALIVE, fence_of, micros, moment, number, reporter, ttl_micros,
};
pub(super) use crate::coordination::token_id::id;
use crate::rules::{HolderState, Id, Requester, Rules};
use crate::{Fence, Holder, Key, Mode, Moment, Owner};

/// What is stored of a requester besides its request.
pub(super) type RequesterInfo = server_record::RequesterInfo<Arc<str>>;

/// One who holds or waits, as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    key: String,
    id: String,
    shared: bool,
    owner: Option<String>,
    note: Option<Arc<str>>,
    process: Arc<str>,
    client: Arc<str>,
    ttl_us: i64,
    since_us: i64,
    place: Option<i64>,
    until_us: Option<i64>,
    fence: Option<i64>,
    previous: Option<i64>,
    expires_us: Option<i64>,
    claimed: bool,
    /// Of its process; from another table.
    #[serde(skip_serializing, default)]
    alive_us: Option<i64>,
}

/// The rules of a key as the rows have them, with what has run out by `now` left out, and those
/// whom this client passes over.
pub(super) fn rules(
    rows: &[Row],
    client: &Arc<str>,
    now: Moment,
) -> Result<(Rules<RequesterInfo>, Absent<RequesterInfo>), String> {
    let mut rules = Rules::default();
    for row in rows {
        let requester = row.requester()?;
        match row.fence {
            Some(fence) => {
                let fence = fence_of(fence);
                rules.last_fence = rules.last_fence.max(Some(fence));
                rules.holders.push(HolderState {
                    requester: requester.into(),
                    fence,
                    previous: row.previous.map(fence_of),
                    expires: row.expires_us.map_or(Moment::default(), moment),
                    claimed: row.claimed,
                });
            }
            None if requester.extra.until > now => rules.queue.push_back(requester.into()),
            None => {}
        }
    }
    rules.holders.sort_by_key(|held| held.fence);
    rules.queue.make_contiguous().sort_by_key(|requester| requester.extra.place);
    let absent = rules.set_absent_aside(client, ALIVE, now);
    Ok((rules, absent))
}

/// The rows that say what the rules say, and those of the waiters who are passed over.
pub(super) fn rows(
    key: &Key,
    rules: &Rules<RequesterInfo>,
    silent: &[Box<Requester<RequesterInfo>>],
) -> Vec<Row> {
    let waiting = || rules.queue.iter().chain(silent);
    let mut place = waiting().filter_map(|w| w.extra.place).max().unwrap_or(0);
    let holders = rules.holders.iter().map(|held| Row {
        fence: Some(number(held.fence)),
        previous: held.previous.map(number),
        expires_us: Some(micros(held.expires)),
        claimed: held.claimed,
        ..Row::of(key, &held.requester)
    });
    let mut rows: Vec<Row> = holders.collect();
    rows.extend(waiting().map(|requester| {
        let place = requester.extra.place.unwrap_or_else(|| {
            place += 1;
            place
        });
        let until = requester.extra.until;
        Row {
            place: Some(place),
            until_us: (until != Moment::NEVER).then(|| micros(until)),
            ..Row::of(key, requester)
        }
    }));
    rows
}

/// What must be removed and what must be written to get from one set of rows to another.
pub(super) fn difference(before: &[Row], after: Vec<Row>) -> (Vec<String>, Vec<Row>) {
    let known: HashMap<&str, &Row> = before.iter().map(|row| (&*row.id, row)).collect();
    let gone = before.iter().filter(|row| !after.iter().any(|new| new.id == row.id));
    let gone = gone.map(|row| row.id.clone()).collect();
    let is_new = |row: &Row| {
        known.get(&*row.id).is_none_or(|old| Row { alive_us: None, ..(*old).clone() } != *row)
    };
    (gone, after.into_iter().filter(is_new).collect())
}

/// The holder that a row tells of, seen at this time of the server; none if it cannot be read.
pub(super) fn holder(row: &str, seen_us: i64) -> Option<Box<Holder>> {
    let now = moment(seen_us);
    let row: Row = serde_json::from_str(row).ok()?;
    let (rules, _) = rules(std::slice::from_ref(&row), &row.client, now).ok()?;
    let held = rules.holders.first()?;
    Some(Box::new(reporter(now).holder(held, held.requester.extra.label())))
}

impl Row {
    /// Of a holder.
    pub(super) fn fence(&self) -> Option<Fence> {
        self.fence.map(fence_of)
    }

    /// Whether this is somebody in the queue, of this process.
    pub(super) fn waits_in(&self, client: &str) -> bool {
        self.fence.is_none() && *self.client == *client
    }

    /// If this is the place of that waiter, it is one of this process from now on.
    pub(super) fn come_back(&mut self, id: Id, client: &Arc<str>) {
        if self.fence.is_none() && self.id == hex(id) {
            self.client = client.clone();
            self.alive_us = Some(i64::MAX);
        }
    }

    fn of(key: &Key, requester: &Requester<RequesterInfo>) -> Row {
        Row {
            key: key.as_str().to_owned(),
            id: hex(requester.id),
            shared: requester.mode == Mode::Shared,
            owner: requester.owner.as_ref().map(|owner| owner.as_str().to_owned()),
            note: requester.note.clone(),
            process: requester.extra.process.clone(),
            client: requester.extra.client.clone(),
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

    fn requester(&self) -> Result<Requester<RequesterInfo>, String> {
        let id = (self.id.len() == 32).then(|| Id::from_str_radix(&self.id, 16).ok()).flatten();
        let owner = self.owner.as_deref().map(Owner::new).transpose();
        Ok(Requester {
            id: id.ok_or("its id is no hexadecimal number")?,
            mode: if self.shared { Mode::Shared } else { Mode::Exclusive },
            owner: owner.map_err(|error| error.to_string())?,
            note: self.note.clone(),
            ttl: Duration::from_micros(self.ttl_us.max(0).unsigned_abs()),
            since: moment(self.since_us),
            extra: RequesterInfo {
                process: self.process.clone(),
                client: self.client.clone(),
                place: self.place,
                until: self.until_us.map_or(Moment::NEVER, moment),
                alive: self.alive_us.map_or(Moment::default(), moment),
            },
        })
    }
}

pub(super) fn hex(id: Id) -> String {
    format!("{id:032x}")
}

/// The number of a name's advisory lock: the same in every process, for ever.
pub(super) fn number_of(room: &str, name: &str) -> i64 {
    let hash = Sha256::new().chain_update(room).chain_update(name).finalize();
    hash.iter().take(8).fold(0, |number, byte| number << 8 | i64::from(*byte))
}

/// A row of JSON that a function of the schema has answered.
pub(super) fn decode<T: for<'a> serde::Deserialize<'a>>(json: &str) -> sqlx::Result<T> {
    serde_json::from_str(json).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

pub(super) fn id_from_hex(hex: &str) -> Option<Id> {
    Id::from_str_radix(hex, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changing it would let two versions of the program edit one key at a time.
    #[test]
    fn the_number_of_a_key_never_changes() {
        // printf %s lock/a | sha256sum: the first eight bytes.
        assert_eq!(number_of("", "lock/a"), 0xeda1_831c_90ee_ab34_u64.cast_signed());
    }
}
