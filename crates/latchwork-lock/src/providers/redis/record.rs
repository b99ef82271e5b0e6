//! What is stored about a holder or a waiter.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use redis::Value;

pub(super) use crate::coordination::token_id::id;
use crate::reporter::Reporter;
use crate::rules::{HolderState, Id, Requester, Rules};
use crate::{AcquireRequest, Fence, Holder, Inspection, Mode, Moment, Owner};

/// The length of a stored id. The script relies on it.
pub(super) const ID_LENGTH: usize = 22;

/// An id as it is stored: base64, since the server hashes each of its bytes several times.
pub(super) fn encode_id(id: Id) -> [u8; ID_LENGTH] {
    let mut text = [0; ID_LENGTH];
    // Cannot fail: 16 bytes are 22 digits of six bits.
    let _ = URL_SAFE_NO_PAD.encode_slice(id.to_be_bytes(), &mut text);
    text
}

/// Several ids, one after the other.
pub(super) fn encode_ids(ids: &[Id]) -> String {
    ids.iter().flat_map(|id| encode_id(*id)).map(char::from).collect()
}

pub(super) fn decode_id(text: &[u8]) -> Option<Id> {
    let mut bytes = [0; 16];
    let length = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok()?;
    (length == bytes.len()).then(|| Id::from_be_bytes(bytes))
}

/// What a request says about its requester.
#[derive(PartialEq, Eq)]
pub(super) struct RequestInfo {
    mode: Mode,
    owner: Option<Owner>,
    note: Option<Arc<str>>,
}

impl RequestInfo {
    pub(super) fn new(request: &AcquireRequest) -> Self {
        RequestInfo { mode: request.mode, owner: request.owner.clone(), note: request.note.clone() }
    }

    /// Writes what the script calls INFO; the ttl in milliseconds.
    pub(super) fn write(&self, out: &mut Vec<u8>, ttl: u64) {
        let note = self.note.as_deref().unwrap_or_default();
        self.write_parts(out, ttl, &[self.owner(), "\n", note]);
    }

    /// Writes what the script calls RECORD.
    pub(super) fn write_record(&self, out: &mut Vec<u8>, ttl: u64, client: &str) {
        let (process, note) = (crate::process_label(), self.note.as_deref().unwrap_or_default());
        self.write_parts(out, ttl, &[client, "\n", self.owner(), "\n", process, "\n", note]);
    }

    fn owner(&self) -> &str {
        self.owner.as_ref().map_or("", Owner::as_str)
    }

    fn write_parts(&self, out: &mut Vec<u8>, ttl: u64, parts: &[&str]) {
        out.extend_from_slice(match self.mode {
            Mode::Exclusive => b"x\n",
            Mode::Shared => b"s\n",
        });
        out.extend_from_slice(ttl.to_string().as_bytes());
        out.extend_from_slice(b"000\n"); // as microseconds
        for part in parts {
            out.extend_from_slice(part.as_bytes());
        }
    }
}

/// A ttl in milliseconds, rounded up: a lease may last longer than its holder believes, but never
/// shorter.
pub(super) fn millis(ttl: Duration) -> u64 {
    // Limited to some tens of years, since the script's numbers must stay exact.
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(1 << 40)
}

/// Holders and waiters from the reply to an inspection. `None` if it is not readable.
pub(super) fn inspection(key: &str, reply: &Value) -> Option<Inspection> {
    let [Value::Int(now), Value::Array(holders), Value::Array(waiters)] = reply.as_sequence()?
    else {
        return None;
    };
    let now = moment(*now);
    let mut rules = Rules::<String>::default();
    for pair in holders.chunks(2) {
        rules.holders.push(held(pair, now)?);
    }
    rules.holders.sort_by_key(|held| held.fence);
    for waiter in waiters {
        rules.queue.push_back(Entry::parse(waiter)?.requester.into());
    }
    Some(reporter(now).inspection(key, &rules, String::clone))
}

/// Holders from pairs of the time left and an entry. Their times are relative to this clock.
pub(super) fn holders(pairs: &[Value], wall: DateTime<Utc>) -> Option<Vec<Holder>> {
    let now = moment(wall.timestamp_micros());
    let report = reporter(now);
    let holder = |pair: &[Value]| {
        let held = held(pair, now)?;
        let process = held.requester.extra.clone();
        Some(report.holder(&held, process))
    };
    pairs.chunks(2).map(holder).collect()
}

fn held(pair: &[Value], now: Moment) -> Option<HolderState<String>> {
    let [Value::Int(left), entry] = pair else { return None };
    let entry = Entry::parse(entry)?;
    Some(HolderState {
        requester: entry.requester.into(),
        fence: entry.fence,
        previous: None,
        expires: now.after(Duration::from_micros(u64::try_from(*left).unwrap_or(0))),
        claimed: true,
    })
}

/// A holder or a waiter; `extra` is its process.
struct Entry {
    requester: Requester<String>,
    fence: Fence,
}

impl Entry {
    fn parse(value: &Value) -> Option<Entry> {
        let Value::BulkString(bytes) = value else { return None };
        let mut parts = std::str::from_utf8(bytes).ok()?.splitn(10, '\n');
        let _state = parts.next()?;
        let fence = Fence::new(parts.next()?.parse().ok()?);
        let _previous_fence = parts.next()?;
        let since = moment(parts.next()?.parse().ok()?);
        let mode = if parts.next()? == "s" { Mode::Shared } else { Mode::Exclusive };
        let ttl = Duration::from_micros(parts.next()?.parse().ok()?);
        let _client = parts.next()?;
        let owner = parts.next().filter(|name| !name.is_empty());
        let owner = owner.map(Owner::new).transpose().ok()?;
        let extra = parts.next()?.to_owned();
        let note: Option<Arc<str>> = parts.next().filter(|note| !note.is_empty()).map(Arc::from);
        Some(Entry { requester: Requester { id: 0, mode, owner, note, ttl, since, extra }, fence })
    }
}

/// The server's clock in microseconds as a moment. It must not be compared with a moment of the
/// provider's clock.
fn moment(micros: i64) -> Moment {
    Moment::from_nanos(micros.max(0).unsigned_abs().saturating_mul(1_000))
}

/// A reporter for one reading of the server's clock.
fn reporter(now: Moment) -> Reporter {
    let micros = i64::try_from(now.as_nanos() / 1_000).unwrap_or(i64::MAX);
    Reporter::of(now, DateTime::<Utc>::from_timestamp_micros(micros).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_id_is_decoded() {
        for id in [0, 1, 1 << 64, Id::MAX, Id::MAX - 62] {
            let text = encode_id(id);
            assert_eq!(decode_id(&text), Some(id));
            assert!(!text.contains(&b'*') && !text.contains(&b':'), "the script tells them apart");
        }
        assert_eq!(decode_id(b""), None);
        assert_eq!(decode_id(&encode_id(7)[1..]), None, "too short");
        assert_eq!(decode_id(&[encode_id(7), encode_id(8)].concat()), None, "too long");
    }
}
