//! Changes that nobody waits for: the releases that drops have queued, and cleaning up.

use std::sync::Arc;

use latchwork_sql::Fault;

use super::boot::Here;
use super::record::Asker;
use super::store::{Edit, Job};
use super::watch::Seat;
use crate::Key;
use crate::rules::{Id, Rules};

/// Ends a lease, or leaves the queue. True when it was held and had not run out.
pub(super) fn release(rules: &mut Rules<Asker>, id: Id) -> bool {
    let held = rules.release(id).is_some();
    if !held {
        rules.leave(id);
    }
    held
}

/// A release that was queued (L21).
pub(super) struct Later {
    key: Key,
    id: Id,
    /// How often it is tried while the database refuses; then the ttl ends the lease.
    tries: u32,
}

impl Later {
    pub(super) fn new(key: Key, id: Id) -> Self {
        Later { key, id, tries: 4 }
    }
}

impl Job for Later {
    fn key(&self) -> &Key {
        &self.key
    }

    fn is_wanted(&self) -> bool {
        true
    }

    fn seat(&self) -> Option<&Arc<Seat>> {
        None
    }

    fn change(&mut self, rules: &mut Rules<Asker>, _: &mut Edit<'_>) {
        release(rules, self.id);
    }

    fn settled(&mut self, _: &Rules<Asker>, _: &Here) {}

    fn tries_again(&mut self, error: &latchwork_sql::Error) -> bool {
        self.tries -= 1;
        error.fault == Fault::Temporary && self.tries > 0
    }

    fn finish(self: Box<Self>, failed: Option<&latchwork_sql::Error>) {
        if let Some(error) = failed {
            tracing::warn!(key = %self.key, %error, "a queued release failed: the ttl ends the lease");
        }
    }
}

/// Ends what is over, and hands on. If that fails, the next one will do it.
pub(super) struct Tidy(pub(super) Key);

impl Job for Tidy {
    fn key(&self) -> &Key {
        &self.0
    }

    fn is_wanted(&self) -> bool {
        true
    }

    fn seat(&self) -> Option<&Arc<Seat>> {
        None
    }

    fn change(&mut self, _: &mut Rules<Asker>, _: &mut Edit<'_>) {}

    fn settled(&mut self, _: &Rules<Asker>, _: &Here) {}

    fn tries_again(&mut self, _: &latchwork_sql::Error) -> bool {
        false
    }

    fn finish(self: Box<Self>, failed: Option<&latchwork_sql::Error>) {
        if let Some(error) = failed {
            tracing::debug!(key = %self.0, %error, "an old row was not removed");
        }
    }
}
