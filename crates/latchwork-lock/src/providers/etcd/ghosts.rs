//! Places in the queue that nobody of this process stands in any more.
//!
//! Who asks for a place and hears nothing may have gone when a member that was stopped carries the
//! question out. Such a place would stand in everybody's way for as long as this process waits for
//! anything, since it is the process that keeps its places.

use std::collections::HashSet;

use etcd_client::{Txn, TxnOp};

use super::compare::is;
use super::record::{Part, State};
use super::store::Store;
use crate::rules::Id;
use crate::{Key, Mode, Result};

/// What the last look has found.
#[derive(Default)]
pub(super) struct Ghosts(HashSet<Place>);

#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    key: Key,
    mode: Mode,
    id: Id,
    created: i64,
}

impl Ghosts {
    /// Those among the places at a key, as they were read.
    pub(super) fn find(&mut self, store: &Store, key: &Key, seen: &State) {
        // Nobody's, on our own lease: who stands there has signed in before it stood there.
        let nobodys = seen
            .waiters()
            .filter(|entry| store.presence.is(entry.lease) && !store.desk.seats(key, entry.id));
        self.0.extend(nobodys.map(|entry| Place {
            key: key.clone(),
            mode: entry.mode,
            id: entry.id,
            created: entry.created,
        }));
    }

    /// Takes those away that were there at the look before, too: who asks again after an outage
    /// keeps its place, and may not have come back at the first one.
    pub(super) async fn lay(&self, before: &Ghosts, store: &Store) {
        for place in self.0.intersection(&before.0) {
            if let Err(error) = store.clear(place).await {
                let key = &place.key;
                tracing::debug!(%key, %error, "a place that nobody stands in was not cleared");
            }
        }
    }
}

impl Store {
    async fn clear(&self, place: &Place) -> Result<()> {
        const DURING: &str = "waiting";
        let Place { key, mode, id, created } = place;
        let name = self.names.entry(key.as_str(), Part::Wait, *mode, *id);
        let txn =
            Txn::new().when([is(name.clone(), *created)]).and_then([TxnOp::delete(name, None)]);
        self.ask_again(txn, DURING).await.map(drop).map_err(|wrong| wrong.error(DURING))
    }
}
