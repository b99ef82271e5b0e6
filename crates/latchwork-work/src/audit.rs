//! The audit trail: a chain of hashes per order, and a global position without gaps (W10).
//!
//! Events are written unsealed, in the transaction that they tell of. One elected sealer then gives
//! committed events their [`Seal`]: the next global position, and a hash over the event and over the
//! hash of the order's event before it. Readers see sealed events only, so that an event which commits
//! late never appears behind a position that a reader has already passed.
//!
//! # The bytes under a hash
//!
//! A hash is SHA-256 over these fields, each written as a netstring (`<length in bytes>:<bytes>,`), an
//! absent one as `-,`:
//!
//! 1. `latchwork-event-1`
//! 2. the hash before it in the order's chain, in lower-case hex; 64 zeros for the first
//! 3. the global position, in decimal
//! 4. the event's id, 5. the order's id, 6. the item's id or absent (lower-case, hyphenated)
//! 7. the event's name, 8. the actor's type, 9. the actor's id or absent
//! 10. the time, as microseconds since 1970 in decimal
//! 11. payload, 12. diff, 13. message, 14. provenance: the stored text, byte by byte, or absent
//!
//! JSON is hashed as the text that is stored, so nobody has to agree on a canonical form.
//! `docs/verify.py` verifies an exported trail with Python's standard library.
//!
//! # What it shows
//!
//! Accidents and ordinary tampering: a changed, removed, inserted or reordered event. It does not stop
//! a database administrator, who can write the whole chain anew; keep a [`Checkpoint`] elsewhere for that.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{EventId, ItemId, OrderId};

/// A SHA-256 in an order's chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventHash([u8; 32]);

impl EventHash {
    /// What stands before the first event of an order.
    pub const FIRST: EventHash = EventHash([0; 32]);

    /// A hash that a store has kept; none when it has the wrong length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(EventHash)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Display for EventHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl std::fmt::Debug for EventHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EventHash({self})")
    }
}

impl std::str::FromStr for EventHash {
    type Err = crate::Error;

    fn from_str(text: &str) -> crate::Result<Self> {
        let bytes = hex::decode(text).ok().and_then(|bytes| EventHash::from_bytes(&bytes));
        bytes.ok_or_else(|| crate::Error::invalid("hash", "a hash has 64 hexadecimal digits"))
    }
}

impl Serialize for EventHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EventHash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = hex::decode(&text).map_err(serde::de::Error::custom)?;
        EventHash::from_bytes(&bytes)
            .ok_or_else(|| serde::de::Error::custom("a hash has 64 hexadecimal digits"))
    }
}

/// The place of a sealed event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// Its global position: 1, 2, 3, … over all orders, without gaps.
    pub position: u64,
    /// Its hash, which covers all events of its order up to it.
    pub hash: EventHash,
}

/// An event as it is stored: JSON as text, so that its hash can be made again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredEvent {
    /// Its own id.
    pub id: EventId,
    /// The order.
    pub order_id: OrderId,
    /// The item, for events of items.
    pub item_id: Option<ItemId>,
    /// The event's name.
    pub event: String,
    /// The actor's type.
    pub actor_type: String,
    /// The actor's id.
    pub actor_id: Option<String>,
    /// When, by the database's clock; microseconds since 1970 in an export.
    #[serde(with = "chrono::serde::ts_microseconds")]
    pub created_at: DateTime<Utc>,
    /// JSON text.
    pub payload: Option<String>,
    /// JSON text.
    pub diff: Option<String>,
    /// A sentence for people.
    pub message: Option<String>,
    /// JSON text.
    pub provenance: Option<String>,
}

impl StoredEvent {
    /// The seal of this event at a position, behind the order's event with that hash.
    pub fn seal(&self, previous: EventHash, position: u64) -> Seal {
        let mut hasher = Sha256::new();
        let mut field = |bytes: Option<&[u8]>| match bytes {
            Some(bytes) => {
                hasher.update(bytes.len().to_string());
                hasher.update(b":");
                hasher.update(bytes);
                hasher.update(b",");
            }
            None => hasher.update(b"-,"),
        };
        field(Some(b"latchwork-event-1"));
        field(Some(previous.to_string().as_bytes()));
        field(Some(position.to_string().as_bytes()));
        field(Some(self.id.to_string().as_bytes()));
        field(Some(self.order_id.to_string().as_bytes()));
        field(self.item_id.map(|id| id.to_string()).as_deref().map(str::as_bytes));
        field(Some(self.event.as_bytes()));
        field(Some(self.actor_type.as_bytes()));
        field(self.actor_id.as_deref().map(str::as_bytes));
        field(Some(self.created_at.timestamp_micros().to_string().as_bytes()));
        for text in [&self.payload, &self.diff, &self.message, &self.provenance] {
            field(text.as_deref().map(str::as_bytes));
        }
        Seal { position, hash: EventHash(hasher.finalize().into()) }
    }
}

impl StoredEvent {
    /// The type of the order, if this is the event of its proposal.
    pub(crate) fn proposed_type(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Proposed {
            r#type: String,
        }
        if self.event != crate::EventType::Proposed.as_str() {
            return None;
        }
        let payload = self.payload.as_deref()?;
        Some(serde_json::from_str::<Proposed>(payload).ok()?.r#type)
    }
}

/// A sealed event as one line of an export, which `docs/verify.py` reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedEvent {
    /// The event.
    #[serde(flatten)]
    pub event: StoredEvent,
    /// Its seal.
    #[serde(flatten)]
    pub seal: Seal,
}

/// What is kept of a pruned part of the trail: where an order's chain stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The order.
    pub order_id: OrderId,
    /// The seal of the last event that was pruned.
    pub seal: Seal,
}

/// What is wrong with a trail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Finding {
    /// Positions are missing.
    Gap {
        /// The first that is missing.
        from: u64,
        /// The last that is missing.
        to: u64,
    },
    /// A position came again, or out of order.
    OutOfOrder {
        /// The position.
        position: u64,
    },
    /// The hash is not that of the event and of what stood before it.
    WrongHash {
        /// The position.
        position: u64,
        /// The order.
        order_id: OrderId,
    },
}

/// Checks sealed events one after another, in the order of their positions.
///
/// Memory: one hash per order that is not over. [`Verifier::forget`] drops an order that has no more
/// events to come.
#[derive(Debug)]
pub struct Verifier {
    next: u64,
    chains: std::collections::HashMap<OrderId, EventHash>,
    findings: Vec<Finding>,
}

impl Verifier {
    /// Begins at a position with the chains as they stood there: 1 and nothing for a whole trail.
    pub fn new(first: u64, checkpoints: impl IntoIterator<Item = Checkpoint>) -> Self {
        let chains = checkpoints.into_iter().map(|at| (at.order_id, at.seal.hash)).collect();
        Verifier { next: first, chains, findings: Vec::new() }
    }

    /// Checks the next event.
    pub fn event(&mut self, event: &StoredEvent, seal: Seal) {
        match seal.position.cmp(&self.next) {
            std::cmp::Ordering::Less => {
                self.findings.push(Finding::OutOfOrder { position: seal.position });
            }
            std::cmp::Ordering::Equal => self.next += 1,
            std::cmp::Ordering::Greater => {
                let gap = Finding::Gap { from: self.next, to: seal.position - 1 };
                self.findings.push(gap);
                self.next = seal.position + 1;
            }
        }
        let previous = self.chains.get(&event.order_id).copied().unwrap_or(EventHash::FIRST);
        if event.seal(previous, seal.position).hash != seal.hash {
            let (position, order_id) = (seal.position, event.order_id);
            self.findings.push(Finding::WrongHash { position, order_id });
        }
        // With the stored hash, so that one broken event is one finding and not all that follow.
        self.chains.insert(event.order_id, seal.hash);
    }

    /// Drops an order that has no more events to come.
    pub fn forget(&mut self, order: OrderId) {
        self.chains.remove(&order);
    }

    /// What was wrong; nothing for a trail that verifies.
    pub fn finish(self) -> Vec<Finding> {
        self.findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_micros(micros).expect("a time")
    }

    fn event(number: u128, order: u128) -> StoredEvent {
        StoredEvent {
            id: EventId::from_uuid(uuid::Uuid::from_u128(number)),
            order_id: OrderId::from_uuid(uuid::Uuid::from_u128(order)),
            item_id: None,
            event: "proposed".to_owned(),
            actor_type: "user".to_owned(),
            actor_id: Some("ada".to_owned()),
            created_at: at(1_700_000_000_123_456),
            payload: Some(r#"{"n": 1.0, "é": "x"}"#.to_owned()),
            diff: None,
            message: None,
            provenance: None,
        }
    }

    fn trail() -> Vec<(StoredEvent, Seal)> {
        let mut chains = std::collections::HashMap::new();
        (1..=9)
            .map(|number| {
                let event = event(number, number % 2);
                let previous = chains.get(&event.order_id).copied().unwrap_or(EventHash::FIRST);
                let seal = event.seal(previous, number as u64);
                chains.insert(event.order_id, seal.hash);
                (event, seal)
            })
            .collect()
    }

    fn findings(trail: &[(StoredEvent, Seal)]) -> Vec<Finding> {
        let mut verifier = Verifier::new(1, []);
        for (event, seal) in trail {
            verifier.event(event, *seal);
        }
        verifier.finish()
    }

    #[test]
    fn w10_a_trail_verifies() {
        assert_eq!(findings(&trail()), []);
    }

    /// The bytes are a promise to strangers: this hash was computed with Python's hashlib.
    #[test]
    fn w10_the_bytes_under_a_hash_are_as_documented() {
        let seal = event(1, 2).seal(EventHash::FIRST, 1);
        assert_eq!(
            seal.hash.to_string(),
            "a86c2e12ca14854fc79f5588a6e097b44637bac5929605c2260d66fa5c0c0061",
        );
    }

    fn python(trail: &[(StoredEvent, Seal)], checkpoints: &[Checkpoint]) -> (i32, String) {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str, lines: Vec<String>| {
            let path = dir.path().join(name);
            std::fs::write(&path, lines.join("\n")).expect("written");
            path
        };
        let line = |(event, seal): &(StoredEvent, Seal)| {
            let line = ExportedEvent { event: event.clone(), seal: *seal };
            serde_json::to_string(&line).expect("JSON")
        };
        let mut command = std::process::Command::new("python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/verify.py"));
        command.arg(file("export", trail.iter().map(line).collect()));
        if !checkpoints.is_empty() {
            let lines = checkpoints.iter().map(|at| serde_json::to_string(at).expect("JSON"));
            command.arg(file("checkpoints", lines.collect()));
        }
        let output = command.output().expect("python3 runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code().expect("it exits"), said)
    }

    #[test]
    fn w10_a_stranger_verifies_an_export_with_a_page_of_python() {
        let trail = trail();
        let (code, said) = python(&trail, &[]);
        assert_eq!((code, said.trim()), (0, "9 events, 0 findings"));
        let mut changed = trail.clone();
        changed[3].0.payload = Some("{}".to_owned());
        let (code, said) = python(&changed, &[]);
        assert!(code == 1 && said.contains("position 4: the hash does not fit"), "{code} {said}");
        let mut removed = trail.clone();
        removed.remove(4);
        let (code, said) = python(&removed, &[]);
        assert!(code == 1 && said.contains("position 6 follows 4"), "{code} {said}");
        let kept = [&trail[3], &trail[4]]
            .map(|(event, seal)| Checkpoint { order_id: event.order_id, seal: *seal });
        assert_eq!(python(&trail[5..], &kept).0, 0);
        assert_eq!(python(&trail[5..], &[]).0, 1);
    }

    #[test]
    fn w10_every_change_of_a_field_is_found() {
        let changes: [fn(&mut StoredEvent); 9] = [
            |e| e.id = EventId::from_uuid(uuid::Uuid::nil()),
            |e| e.item_id = Some(ItemId::from_uuid(uuid::Uuid::nil())),
            |e| e.event = "approved".to_owned(),
            |e| e.actor_type = "system".to_owned(),
            |e| e.actor_id = None,
            |e| e.created_at = at(1),
            |e| e.payload = Some("{}".to_owned()),
            |e| e.diff = Some("null".to_owned()),
            |e| e.message = Some(String::new()),
        ];
        for change in changes {
            let mut trail = trail();
            change(&mut trail[3].0);
            let order_id = trail[3].0.order_id;
            assert_eq!(findings(&trail), [Finding::WrongHash { position: 4, order_id }]);
        }
    }

    #[test]
    fn w10_a_removed_event_is_a_gap_and_a_broken_chain() {
        let mut trail = trail();
        trail.remove(4);
        let order_id = trail[5].0.order_id;
        let expected =
            [Finding::Gap { from: 5, to: 5 }, Finding::WrongHash { position: 7, order_id }];
        assert_eq!(findings(&trail), expected);
    }

    #[test]
    fn w10_swapped_events_are_found() {
        let mut trail = trail();
        trail.swap(2, 4);
        assert!(findings(&trail).contains(&Finding::OutOfOrder { position: 3 }));
    }

    #[test]
    fn w10_fields_cannot_run_into_each_other() {
        let mut one = event(1, 1);
        (one.payload, one.message) = (Some("ab".to_owned()), Some("c".to_owned()));
        let mut two = event(1, 1);
        (two.payload, two.message) = (Some("a".to_owned()), Some("bc".to_owned()));
        assert_ne!(one.seal(EventHash::FIRST, 1), two.seal(EventHash::FIRST, 1));
        let mut absent = event(1, 1);
        absent.message = None;
        let mut dash = event(1, 1);
        dash.message = Some("-".to_owned());
        assert_ne!(absent.seal(EventHash::FIRST, 1), dash.seal(EventHash::FIRST, 1));
    }

    #[test]
    fn w10_pruning_leaves_a_checkpoint_to_go_on_from() {
        let trail = trail();
        let (last_of_1, last_of_0) = (&trail[4], &trail[3]);
        let kept = [last_of_0, last_of_1]
            .map(|(event, seal)| Checkpoint { order_id: event.order_id, seal: *seal });
        let mut verifier = Verifier::new(6, kept);
        for (event, seal) in &trail[5..] {
            verifier.event(event, *seal);
        }
        assert_eq!(verifier.finish(), []);
    }
}
