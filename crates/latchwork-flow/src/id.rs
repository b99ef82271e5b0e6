//! The name of one transition.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Error, Result};

/// Names one transition, from its first event to its last.
///
/// A UUID of version 7: ids sort by when they were made, so that a listing by id is one by age, and
/// new rows of a store stand side by side.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TransitionId(Uuid);

impl TransitionId {
    /// Sorts before every other.
    pub const LEAST: TransitionId = TransitionId(Uuid::nil());

    /// A fresh id of this time.
    pub fn new(at: DateTime<Utc>) -> Self {
        let millis = u64::try_from(at.timestamp_millis()).unwrap_or(0);
        // Version 7 of RFC 9562: 48 bits of time, the version, random bits, the variant, more of them.
        let random: u128 = rand::rng().random();
        let bits = (u128::from(millis) << 80) | (random & !(u128::MAX << 76));
        let bits = bits & !(0xf << 76) | (7 << 76);
        TransitionId(Uuid::from_u128(bits & !(0b11 << 62) | (0b10 << 62)))
    }

    /// The id of a UUID that was one.
    pub const fn from_uuid(uuid: Uuid) -> Self {
        TransitionId(uuid)
    }

    /// The UUID.
    pub const fn as_uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for TransitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for TransitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for TransitionId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let id = Uuid::parse_str(text);
        id.map(TransitionId).map_err(|_| {
            Error::invalid_argument("transition id", "it is not a UUID, such as a context shows")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_ids_sort_later() {
        let at = DateTime::from_timestamp(1_767_225_600, 0).expect("in range");
        let (one, two) =
            (TransitionId::new(at), TransitionId::new(at + std::time::Duration::from_secs(1)));
        assert_eq!(one.as_uuid().get_version_num(), 7);
        assert_eq!(one.as_uuid().get_variant(), uuid::Variant::RFC4122);
        assert_eq!(one.as_uuid().as_u128() >> 80, 1_767_225_600_000);
        assert!(one < two && one.to_string() < two.to_string());
        assert_eq!(one.to_string().parse::<TransitionId>().expect("it was shown so"), one);
        assert_eq!("x".parse::<TransitionId>().expect_err("no id").code(), "invalid_argument");
    }
}
