//! The ids of orders, items, leases and events.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::{NoContext, Timestamp, Uuid};

use crate::{Error, ErrorKind};

macro_rules! id {
    ($(#[$meta:meta])* $name:ident, $what:literal) => {
        $(#[$meta])*
        ///
        /// A UUID of version 7: ids sort by when they were made, so that new rows of a store stand
        /// side by side.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A fresh id of this time.
            pub fn new(at: DateTime<Utc>) -> Self {
                let seconds = u64::try_from(at.timestamp()).unwrap_or(0);
                let nanos = at.timestamp_subsec_nanos();
                $name(Uuid::new_v7(Timestamp::from_unix(NoContext, seconds, nanos)))
            }

            /// The id as a UUID.
            pub const fn as_uuid(self) -> Uuid {
                self.0
            }

            /// An id that a store has kept.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                $name(uuid)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                Uuid::parse_str(text).map($name).map_err(|_| {
                    let reason = format!("{text:?} is not an id of an {}: it is a UUID", $what);
                    ErrorKind::InvalidArgument { name: "id", reason }.into()
                })
            }
        }
    };
}

id!(
    /// Names an order.
    OrderId,
    "order"
);
id!(
    /// Names an item.
    ItemId,
    "item"
);
id!(
    /// Names a lease.
    LeaseId,
    "lease"
);
id!(
    /// Names an event.
    EventId,
    "event"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_read_back() {
        let at = |ms| DateTime::from_timestamp_millis(ms).expect("a time");
        let (early, late) = (OrderId::new(at(1_000)), OrderId::new(at(2_000)));
        assert!(early < late);
        assert_eq!(late.to_string().parse::<OrderId>().expect("its own form"), late);
        let error = "42".parse::<ItemId>().expect_err("not a UUID");
        assert!(error.to_string().contains("42"), "{error}");
    }
}
