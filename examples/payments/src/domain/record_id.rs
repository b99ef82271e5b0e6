//! Which capture or transfer.

use std::fmt;

use uuid::Uuid;

/// The name of a capture or a transfer: it happened once, and this is how to speak of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordId(Uuid);

impl RecordId {
    /// A new one.
    pub fn random() -> Self {
        RecordId(uuid::Builder::from_random_bytes(rand::random()).into_uuid())
    }

    /// Reads what was stored.
    ///
    /// # Errors
    /// When it is no UUID.
    pub fn parse(text: &str) -> Result<Self, uuid::Error> {
        Uuid::try_parse(text).map(RecordId)
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordId({self})")
    }
}
