//! The record of one key on disk: JSON that a person can read. Never a token.

use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

use super::error;
use super::process::{Process, RequesterInfo};
use crate::provider::BootClock;
use crate::reporter::wall_at;
use crate::rules::{HolderState, Id, Requester, Rules};
use crate::{Clock, Error, Fence, Key, Mode, Moment, Owner};

/// The version of this format. A higher one is not touched.
const FORMAT: u32 = 1;

/// Everything that is known of one key.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    format: u32,
    key: String,
    /// The boot that wrote it. After another one nothing of it holds: boot clock and processes
    /// began anew.
    boot_id: String,
    /// How far its boot clock is ahead of the machine's own; see [`BootClock`].
    #[serde(default, skip_serializing_if = "is_zero")]
    boot_offset_ns: i64,
    last_fence: Option<Fence>,
    holders: Vec<HolderEntry>,
    waiters: Vec<WaiterEntry>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct HolderEntry {
    #[serde(flatten)]
    who: PartyEntry,
    fence: Fence,
    previous_fence: Option<Fence>,
    expires: ForPeople,
    expires_boot_ns: Moment,
    /// False: it was next, and has not yet said that it is still there.
    claimed: bool,
    handed_over: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct WaiterEntry {
    #[serde(flatten)]
    who: PartyEntry,
    /// When it gives up; none: never.
    until_boot_ns: Option<Moment>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct PartyEntry {
    /// A hash of the token, which itself is a secret.
    id: String,
    mode: Mode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<Owner>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<std::sync::Arc<str>>,
    host: String,
    #[serde(flatten)]
    process: Process,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    companions: Vec<Process>,
    pid_namespace: Option<String>,
    since: ForPeople,
    since_boot_ns: Moment,
    ttl_ms: u64,
}

/// Text that is written for people and decides nothing, so that it makes no difference either.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
struct ForPeople(String);

impl PartialEq for ForPeople {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Why a text is no record of a key.
pub(super) enum Unreadable {
    /// It is no record at all.
    Damaged(Error),
    /// It is one, but not for us.
    Foreign(Error),
}

impl Record {
    pub(super) fn new(
        key: &Key,
        rules: &Rules<RequesterInfo>,
        here: &BootClock,
        clock: &dyn Clock,
    ) -> Self {
        let (now, wall) = (clock.now(), clock.wall());
        let people = |moment| {
            let at: DateTime<Utc> = wall_at(wall, now, moment);
            ForPeople(at.to_rfc3339_opts(SecondsFormat::Millis, true))
        };
        let who = |requester: &Requester<RequesterInfo>| PartyEntry {
            id: format!("{:032x}", requester.id),
            mode: requester.mode,
            owner: requester.owner.clone(),
            note: requester.note.clone(),
            host: requester.extra.host.clone(),
            process: requester.extra.process,
            companions: requester.extra.companions.clone(),
            pid_namespace: requester.extra.pid_namespace.clone(),
            since: people(requester.since),
            since_boot_ns: requester.since,
            // Rounded up: a lease may last a moment longer than its holder thinks, never shorter.
            ttl_ms: u64::try_from(requester.ttl.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX),
        };
        let holder = |held: &HolderState<RequesterInfo>| HolderEntry {
            who: who(&held.requester),
            fence: held.fence,
            previous_fence: held.previous,
            expires: people(held.expires),
            expires_boot_ns: held.expires,
            claimed: held.claimed,
            handed_over: held.requester.extra.handed_over,
        };
        let waiter = |requester: &Requester<RequesterInfo>| WaiterEntry {
            who: who(requester),
            until_boot_ns: Some(requester.extra.until).filter(|until| *until != Moment::NEVER),
        };
        Record {
            format: FORMAT,
            key: key.as_str().to_owned(),
            boot_id: here.boot_id.clone(),
            boot_offset_ns: here.offset_ns,
            last_fence: rules.last_fence,
            holders: rules.holders.iter().map(holder).collect(),
            waiters: rules.queue.iter().map(|requester| waiter(requester)).collect(),
        }
    }

    /// Reads the record of a key, or of any key.
    pub(super) fn parse(path: &Path, text: &[u8], key: Option<&Key>) -> Result<Self, Unreadable> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let damaged = |e: serde_json::Error| Unreadable::Damaged(error::corrupt(path, e));
        let version: Version = serde_json::from_slice(text).map_err(damaged)?;
        if version.format != FORMAT {
            return Err(Unreadable::Foreign(error::foreign(
                path,
                format_args!(
                    "has format {}, and this program knows {FORMAT}; let all processes that lock \
                     here run the same version",
                    version.format
                ),
            )));
        }
        let record: Record = serde_json::from_slice(text).map_err(damaged)?;
        let ids = record.holders.iter().map(|h| &h.who.id);
        if ids.chain(record.waiters.iter().map(|w| &w.who.id)).any(|id| parse_id(id).is_none()) {
            return Err(Unreadable::Damaged(error::corrupt(
                path,
                "an id is no hexadecimal number",
            )));
        }
        match key {
            Some(key) if key.as_str() != record.key => Err(Unreadable::Foreign(error::foreign(
                path,
                format_args!(
                    "belongs to the key {:?} and not to {key:?}; is the file system blind to case? \
                     If not, remove the file while no process uses either key",
                    record.key
                ),
            ))),
            _ => Ok(record),
        }
    }

    /// The bytes to write.
    pub(super) fn text(&self) -> serde_json::Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Whether another clock of this boot wrote it: then its moments mean nothing to us.
    pub(super) fn is_of_other_clock(&self, here: &BootClock) -> bool {
        self.boot_id == here.boot_id && self.boot_offset_ns != here.offset_ns
    }

    /// What the record says, which is nothing if another boot wrote it.
    pub(super) fn rules(&self, here: &BootClock) -> Rules<RequesterInfo> {
        let mut rules = Rules { last_fence: self.last_fence, ..Rules::default() };
        if self.boot_id != here.boot_id {
            return rules;
        }
        rules.holders.extend(self.holders.iter().map(|held| HolderState {
            requester: held.who.requester(held.handed_over, Moment::NEVER).into(),
            fence: held.fence,
            previous: held.previous_fence,
            expires: held.expires_boot_ns,
            claimed: held.claimed,
        }));
        rules.queue.extend(
            self.waiters
                .iter()
                .map(|w| w.who.requester(false, w.until_boot_ns.unwrap_or(Moment::NEVER)).into()),
        );
        rules
    }
}

impl PartyEntry {
    fn requester(&self, handed_over: bool, until: Moment) -> Requester<RequesterInfo> {
        Requester {
            id: parse_id(&self.id).unwrap_or_default(), // checked when it was read
            mode: self.mode,
            owner: self.owner.clone(),
            note: self.note.clone(),
            ttl: Duration::from_millis(self.ttl_ms),
            since: self.since_boot_ns,
            extra: RequesterInfo {
                host: self.host.clone(),
                process: self.process,
                companions: self.companions.clone(),
                pid_namespace: self.pid_namespace.clone(),
                handed_over,
                until,
            },
        }
    }
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

fn parse_id(text: &str) -> Option<Id> {
    (text.len() == 32).then(|| Id::from_str_radix(text, 16).ok()).flatten()
}
