//! Which items and which leases are wanted.

use std::fmt;
use std::str::FromStr;

use super::PAGE_SIZE;
use super::parse::{each, invalid, size_of, texts, unknown};
use crate::{Error, ItemId, ItemState, OrderId, Result};

/// Which items are wanted; sorted by order, then by their place in its plan.
///
/// | name | value |
/// | --- | --- |
/// | `order` | an order's id |
/// | `type`, `state` | one or several, separated by commas |
/// | `leased_by` | the name of an agent |
/// | `page[size]` (`limit`, `per_page`) | 1 to 100; 50 unless told |
/// | `page[cursor]` | the `next` of the page before |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemQuery {
    /// Of this order.
    pub order: Option<OrderId>,
    /// Of one of these types; of any when empty.
    pub types: Vec<String>,
    /// In one of these states; in any when empty.
    pub states: Vec<ItemState>,
    /// Leased by this agent.
    pub leased_by: Option<String>,
    /// How many at most, 1 to [`MAX_PAGE_SIZE`](super::MAX_PAGE_SIZE).
    pub page_size: u32,
    /// Where the page begins; the beginning unless told.
    pub after: Option<ItemCursor>,
}

impl Default for ItemQuery {
    /// All items.
    fn default() -> Self {
        ItemQuery {
            order: None,
            types: Vec::new(),
            states: Vec::new(),
            leased_by: None,
            page_size: PAGE_SIZE,
            after: None,
        }
    }
}

impl ItemQuery {
    /// Reads pairs of names and values, as in the query of a URL; each name may stand in `filter[…]`.
    ///
    /// # Errors
    /// [`UnknownName`](crate::ErrorKind::UnknownName) for a name that does not exist, and
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a value that cannot be read.
    pub fn parse<N: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self> {
        let mut query = ItemQuery::default();
        for (name, value) in pairs {
            let (name, value) = (name.as_ref(), value.as_ref());
            let filter = name.strip_prefix("filter[").and_then(|rest| rest.strip_suffix(']'));
            match filter.unwrap_or(name) {
                "order" => query.order = Some(value.parse()?),
                "type" => query.types = texts("type", value)?,
                "state" => query.states = each("state", value)?,
                "leased_by" => query.leased_by = Some(value.to_owned()),
                "page[size]" | "limit" | "per_page" => query.page_size = size_of(value)?,
                "page[cursor]" => query.after = Some(value.parse()?),
                _ => {
                    let known =
                        ["order", "type", "state", "leased_by", "page[size]", "page[cursor]"];
                    return Err(unknown("parameter", name, known.iter()));
                }
            }
        }
        Ok(query)
    }
}

/// The place behind one item in a listing. Opaque to callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemCursor {
    pub(crate) order_id: OrderId,
    pub(crate) seq: u32,
}

impl fmt::Display for ItemCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.order_id, self.seq)
    }
}

impl FromStr for ItemCursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (order, seq) = text.split_once('.').unwrap_or_default();
        match (order.parse(), seq.parse()) {
            (Ok(order_id), Ok(seq)) => Ok(ItemCursor { order_id, seq }),
            _ => {
                let reason = "it was not made by a listing: take the `next` of the page before";
                Err(invalid("page[cursor]", reason.to_owned()))
            }
        }
    }
}

impl serde::Serialize for ItemCursor {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for ItemCursor {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Which leases are wanted; sorted by item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseQuery {
    /// Of this agent.
    pub agent: Option<String>,
    /// Of items of this order.
    pub order: Option<OrderId>,
    /// How many at most, 1 to [`MAX_PAGE_SIZE`](super::MAX_PAGE_SIZE).
    pub page_size: u32,
    /// Behind the lease of this item; from the beginning unless told.
    pub after: Option<ItemId>,
}

impl Default for LeaseQuery {
    /// All leases.
    fn default() -> Self {
        LeaseQuery { agent: None, order: None, page_size: PAGE_SIZE, after: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w13_an_item_query_reads_and_names_what_it_does_not_know() {
        let order = OrderId::from_uuid(uuid::Uuid::from_u128(7));
        let cursor = ItemCursor { order_id: order, seq: 9 };
        let query = ItemQuery::parse([
            ("order", order.to_string()),
            ("filter[state]", "queued,leased".to_owned()),
            ("leased_by", "agent ' -- 1".to_owned()),
            ("page[size]", "7".to_owned()),
            ("page[cursor]", cursor.to_string()),
        ]);
        let query = query.expect("it reads");
        assert_eq!((query.order, query.page_size, query.after), (Some(order), 7, Some(cursor)));
        assert_eq!(query.states, [ItemState::Queued, ItemState::Leased]);
        let error = ItemQuery::parse([("colour", "red")]).expect_err("unknown");
        assert_eq!(error.code(), "unknown_name");
        assert!(error.to_string().contains("leased_by"), "{error}");
        for (name, value) in [("page[cursor]", "x"), ("limit", "0"), ("order", "7")] {
            let error = ItemQuery::parse([(name, value)]).expect_err("not readable");
            assert_eq!(error.code(), "invalid_argument", "{error}");
        }
    }
}
