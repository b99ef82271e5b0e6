//! Who holds what and who waits for it (L11). Never a token.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::lease::millis;
use crate::{Fence, Mode, Owner};

/// All that a backend tells of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// The key, without the prefix of the [`Locks`](crate::Locks) that asked.
    pub key: String,
    /// Who holds it now, oldest grant first; empty when it is free.
    pub holders: Vec<Holder>,
    /// Who waits for it, next one first.
    pub waiters: Vec<Waiter>,
}

impl Inspection {
    /// Whether somebody holds it.
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }
}

/// One who holds a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The owner, where a name was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The process that asked, as `host:pid`.
    pub process: String,
    /// Alone or shared.
    pub mode: Mode,
    /// The fence of the grant.
    pub fence: Fence,
    /// When it was granted.
    pub since: DateTime<Utc>,
    /// When it ends unless renewed.
    pub expires_at: DateTime<Utc>,
    /// How long that is from the moment of asking, by the backend's clock.
    #[serde(rename = "expires_in_ms", with = "millis")]
    pub expires_in: Duration,
    /// What the holder said about itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Holder {
    /// The owner's name, or the process where none was chosen.
    pub fn who(&self) -> &str {
        self.owner.as_ref().map_or(&self.process, Owner::as_str)
    }
}

/// One who waits for a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// The owner, where a name was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The process that asked, as `host:pid`.
    pub process: String,
    /// Alone or shared.
    pub mode: Mode,
    /// Place in the queue: 1 is next.
    pub position: usize,
    /// Since when it waits.
    pub since: DateTime<Utc>,
    /// What the waiter said about itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Waiter {
    /// The owner's name, or the process where none was chosen.
    pub fn who(&self) -> &str {
        self.owner.as_ref().map_or(&self.process, Owner::as_str)
    }
}

/// Which part of a listing is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// How many keys at most, 1 to 1,000.
    pub limit: usize,
    /// Only keys behind this one: the [`next`](Page::next) of the page before.
    pub after: Option<String>,
}

impl Default for PageRequest {
    fn default() -> Self {
        PageRequest { limit: 100, after: None }
    }
}

/// One part of a listing, sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Keys that are held or waited for.
    pub keys: Vec<Inspection>,
    /// Where the next page begins; none when this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Page {
    /// The wanted part of a sorted listing, for providers that have it whole.
    pub fn cut(mut keys: Vec<Inspection>, page: &PageRequest) -> Page {
        if let Some(after) = &page.after {
            keys.retain(|i| i.key > *after);
        }
        let more = keys.len() > page.limit;
        keys.truncate(page.limit);
        Page { next: if more { keys.last().map(|i| i.key.clone()) } else { None }, keys }
    }
}
