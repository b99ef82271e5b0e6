//! What is stored of one who holds or waits, and the rules of a key made of it.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use redis::Value;
use sha2::{Digest, Sha256};

use crate::reporter::Reporter;
use crate::rules::{HolderState, Id, Requester, Rules};
use crate::{AcquireRequest, Fence, Holder, Inspection, Mode, Moment, Owner, Token};

/// The identity of a token in a store that others may read: not the token.
pub(super) fn id(token: Token) -> Id {
    let hash = Sha256::digest(token.expose().to_be_bytes());
    hash.iter().take(16).fold(0, |id, byte| id << 8 | u128::from(*byte))
}

/// How long an identity is where it is stored. The script counts on it.
pub(super) const ID: usize = 22;

/// An identity as it is stored: in base64, since the server hashes every byte of it several times.
pub(super) fn text(id: Id) -> [u8; ID] {
    let mut text = [0; ID];
    // It fits: 16 bytes are 22 digits of six bits.
    let _ = URL_SAFE_NO_PAD.encode_slice(id.to_be_bytes(), &mut text);
    text
}

/// Several identities in one text.
pub(super) fn texts(ids: &[Id]) -> String {
    ids.iter().flat_map(|id| text(*id)).map(char::from).collect()
}

/// An identity from its text.
pub(super) fn read_id(text: &[u8]) -> Option<Id> {
    let mut bytes = [0; 16];
    let length = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok()?;
    (length == bytes.len()).then(|| Id::from_be_bytes(bytes))
}

/// Whoever asks, as the script keeps it.
#[derive(PartialEq, Eq)]
pub(super) struct Asker {
    mode: Mode,
    owner: Option<Owner>,
    note: Option<Arc<str>>,
}

impl Asker {
    pub(super) fn of(request: &AcquireRequest) -> Self {
        Asker { mode: request.mode, owner: request.owner.clone(), note: request.note.clone() }
    }

    /// Writes what the script calls an asker; the ttl in milliseconds.
    pub(super) fn write(&self, out: &mut Vec<u8>, ttl: u64) {
        let note = self.note.as_deref().unwrap_or_default();
        self.write_parts(out, ttl, &[self.owner(), "\n", note]);
    }

    /// Writes what the script calls a record.
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
        // As microseconds.
        out.extend_from_slice(b"000\n");
        for part in parts {
            out.extend_from_slice(part.as_bytes());
        }
    }
}

/// Rounded up: a lease may last a moment longer than its holder thinks, never shorter.
pub(super) fn millis(ttl: Duration) -> u64 {
    // A number of the script must stay whole: some tens of years are enough.
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(1 << 40)
}

/// Who holds and who waits, from the answer to an inspection; none where that is not readable.
pub(super) fn inspection(key: &str, answer: &Value) -> Option<Inspection> {
    let [Value::Int(now), Value::Array(holders), Value::Array(waiters)] = answer.as_sequence()?
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

/// Those who held a key, from pairs of the time that was left and an entry, as the clock says.
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

/// One who holds or waits; `extra` is the process.
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
        let _before = parts.next()?;
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

/// The server's clock in microseconds as a moment. It is not this machine's, so it must
/// not be compared with one of the provider's clock.
fn moment(micros: i64) -> Moment {
    Moment::from_nanos(micros.max(0).unsigned_abs().saturating_mul(1_000))
}

/// By one reading of the server's clock.
fn reporter(now: Moment) -> Reporter {
    let micros = i64::try_from(now.as_nanos() / 1_000).unwrap_or(i64::MAX);
    Reporter::of(now, DateTime::<Utc>::from_timestamp_micros(micros).unwrap_or_default())
}

/// The fence of an answer.
pub(super) fn fence(number: i64) -> Fence {
    Fence::new(number.max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written() {
        for id in [0, 1, 1 << 64, Id::MAX, Id::MAX - 62] {
            let text = text(id);
            assert_eq!(read_id(&text), Some(id));
            assert!(!text.contains(&b'*') && !text.contains(&b':'), "the script tells it by those");
        }
        assert_eq!(read_id(b""), None);
        assert_eq!(read_id(&text(7)[1..]), None, "too short");
        assert_eq!(read_id(&[text(7), text(8)].concat()), None, "too long");
    }
}
