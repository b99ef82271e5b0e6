//! Who holds what and who waits for it (L11). Never a token.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::lease::{millis, option_millis};
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

    /// The processes that both hold the key and wait for it, as `host:pid`. That is usual where the
    /// tasks of a process take turns; and it is how a task looks that waits for its own guard.
    pub fn held_and_waited_for_by(&self) -> Vec<&str> {
        let mut both: Vec<&str> = Vec::new();
        for holder in &self.holders {
            let waits = self.waiters.iter().any(|waiter| waiter.process == holder.process);
            if waits && !both.contains(&&*holder.process) {
                both.push(&holder.process);
            }
        }
        both
    }

    /// Estimates how long each waiter may have to wait yet; for providers. `now` is the backend's
    /// wall clock.
    ///
    /// Nothing is kept of a key but who uses it now, so this is what the estimate is made of. A hold
    /// is taken to last as long again as the present one has lasted; and where the first in line
    /// has seen others come and go, at least as long as the turns took that it waited for, of which
    /// there are taken to have been as many as there are in line now. No hold lasts longer than its
    /// lease. Readers who stand together take one turn.
    #[must_use]
    pub fn with_expected_waits(mut self, now: DateTime<Utc>) -> Self {
        let age = |since: DateTime<Utc>| (now - since).to_std().unwrap_or_default();
        let mut turn = 0;
        let turns: Vec<u32> = std::iter::once(0)
            .chain(self.waiters.windows(2).map(|pair| {
                turn += u32::from(pair.iter().any(|waiter| waiter.mode == Mode::Exclusive));
                turn
            }))
            .collect();
        let Some(newest) = self.holders.iter().map(|holder| holder.since).max() else {
            return self;
        };
        let lasted = self.holders.iter().map(|holder| age(holder.since)).max().unwrap_or_default();
        let seen = match self.waiters.first() {
            Some(first) if first.since < newest => age(first.since) / (turn + 1),
            _ => Duration::ZERO,
        };
        let hold = lasted.max(seen);
        let present = self.holders.iter().map(|holder| holder.expires_in.min(hold)).max();
        for (waiter, turns) in self.waiters.iter_mut().zip(turns) {
            waiter.expected_wait =
                present.map(|present| present.saturating_add(hold.saturating_mul(turns)));
        }
        self
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
    /// How long it may have to wait yet: an estimate from
    /// [what is known](Inspection::with_expected_waits), no promise. None where nothing is.
    #[serde(
        rename = "expected_wait_ms",
        default,
        skip_serializing_if = "Option::is_none",
        with = "option_millis"
    )]
    pub expected_wait: Option<Duration>,
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

#[cfg(test)]
mod tests {
    use Mode::{Exclusive, Shared};

    use super::*;

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_000_000 + second, 0).expect("a time")
    }

    /// Held since a second, for so many more; waited for since others; all seen at second 100.
    fn waits(since: i64, left: u64, queue: &[(i64, Mode)]) -> Vec<Option<u64>> {
        let holder = Holder {
            owner: None,
            process: "here:1".into(),
            mode: Exclusive,
            fence: Fence::new(1),
            since: at(since),
            expires_at: at(100 + left.cast_signed()),
            expires_in: Duration::from_secs(left),
            note: None,
        };
        let waiter = |(at_place, (since, mode)): (usize, &(i64, Mode))| Waiter {
            owner: None,
            process: "here:2".into(),
            mode: *mode,
            position: at_place + 1,
            since: at(*since),
            expected_wait: None,
            note: None,
        };
        let waiters = queue.iter().enumerate().map(waiter).collect();
        let seen = Inspection { key: "k".into(), holders: vec![holder], waiters };
        let seen = seen.with_expected_waits(at(100)).waiters;
        seen.iter().map(|waiter| waiter.expected_wait.map(|wait| wait.as_secs())).collect()
    }

    #[test]
    fn a_hold_lasts_as_long_again_and_not_longer_than_its_lease() {
        let queue = [(95, Exclusive), (96, Exclusive), (97, Exclusive)];
        assert_eq!(waits(90, 60, &queue), [Some(10), Some(20), Some(30)]);
        assert_eq!(waits(90, 4, &queue), [Some(4), Some(14), Some(24)]);
        assert_eq!(waits(90, 4, &[]), []);
    }

    #[test]
    fn readers_take_one_turn() {
        let queue = [(95, Shared), (96, Shared), (97, Exclusive), (98, Shared)];
        assert_eq!(waits(90, 60, &queue), [Some(10), Some(10), Some(20), Some(30)]);
    }

    #[test]
    fn who_has_seen_others_come_and_go_knows_their_pace() {
        // Three in line, and the first has been there for sixty seconds: twenty for each.
        let queue = [(40, Exclusive), (50, Exclusive), (60, Exclusive)];
        assert_eq!(waits(99, 60, &queue), [Some(20), Some(40), Some(60)]);
    }

    #[test]
    fn of_a_key_that_nobody_holds_nothing_is_known() {
        let mut seen = Inspection { key: "k".into(), ..Inspection::default() };
        seen = seen.with_expected_waits(at(100));
        assert!(seen.waiters.is_empty() && !seen.is_held());
    }
}
