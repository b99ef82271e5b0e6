//! Where a page begins: the sort keys and the id of the last row before it.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Sort;
use crate::{Error, ErrorKind, OrderId};

/// The place behind one row in a sorted listing.
///
/// It holds the values of the row's sort keys and not a number of rows, so that rows which come and
/// go meanwhile neither repeat nor hide others. Opaque to callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The sorting that it belongs to.
    sort: String,
    /// The row's sort keys; times in microseconds, none where the row has none.
    keys: Vec<Option<i64>>,
    /// The row.
    id: OrderId,
}

impl Cursor {
    /// The place behind a row with these sort keys.
    pub fn new(sort: &[Sort], keys: Vec<Option<i64>>, id: OrderId) -> Self {
        Cursor { sort: name(sort), keys, id }
    }

    /// The row's sort keys.
    pub fn keys(&self) -> &[Option<i64>] {
        &self.keys
    }

    /// The row.
    pub fn id(&self) -> OrderId {
        self.id
    }

    /// Whether it belongs to this sorting.
    pub(crate) fn check(&self, sort: &[Sort]) -> Result<(), Error> {
        let expected = name(sort);
        if self.sort == expected && self.keys.len() == sort.len() {
            return Ok(());
        }
        Err(wrong(format!(
            "it belongs to a listing sorted by {:?}, and this one is sorted by {expected:?}",
            self.sort
        )))
    }
}

fn name(sort: &[Sort]) -> String {
    let names = sort.iter().map(|key| {
        let sign = if key.descending { "-" } else { "" };
        format!("{sign}{}", key.field)
    });
    names.collect::<Vec<_>>().join(",")
}

fn wrong(reason: String) -> Error {
    ErrorKind::InvalidArgument { name: "page[cursor]", reason }.into()
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = (&self.sort, &self.keys, self.id);
        let text = serde_json::to_string(&parts).map_err(|_| fmt::Error)?;
        f.write_str(&URL_SAFE_NO_PAD.encode(text))
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok();
        let parts = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let (sort, keys, id) = parts.ok_or_else(|| {
            wrong("it was not made by a listing: take the `next` of the page before".to_owned())
        })?;
        Ok(Cursor { sort, keys, id })
    }
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
