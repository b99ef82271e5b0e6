//! Giving back, and how the releases that drops have
//! [deferred](crate::coordination::deferred_release) are made.

use futures::future::BoxFuture;
use latchwork_sql::mysql::is_collision;
use sqlx::Row as _;

use super::store::{BACKGROUND, Store};
use super::transaction::Transaction;
use super::{error, schema};
use crate::coordination::deferred_release::{Lease, ReleaseBackend};
use crate::rules::{Id, Rules};
use crate::{Key, Result};

const DURING: &str = "releasing";

impl ReleaseBackend for Store {
    fn spawn(&self, job: BoxFuture<'static, ()>) -> Result<()> {
        BACKGROUND.handle()?.spawn(job);
        Ok(())
    }

    /// Those that somebody waits for need the rules.
    async fn release_together(&self, leases: &[Lease]) -> Result<Vec<Lease>> {
        let is_waited_for = |lease: &Lease| self.waiters.has_waiters(&lease.0);
        let (mut left, unwanted): (Vec<Lease>, Vec<Lease>) =
            leases.iter().cloned().partition(is_waited_for);
        if unwanted.is_empty() {
            return Ok(left);
        }
        let told = Transaction::in_one(&self.connections, schema::release_all(&unwanted)).await;
        let rows = match told {
            Ok(rows) => rows,
            Err(error) if is_collision(&error) => {
                left.extend(unwanted);
                return Ok(left);
            }
            Err(error) => return Err(error::driver(DURING, error)),
        };
        let mut still = Vec::with_capacity(rows.len());
        for row in rows {
            let id: Vec<u8> = row.try_get_unchecked(0).map_err(|e| error::driver(DURING, e))?;
            still.push(Id::from_be_bytes(id.try_into().unwrap_or_default()));
        }
        left.extend(unwanted.into_iter().filter(|(_, id)| still.contains(id)));
        Ok(left)
    }

    async fn release(&self, key: &Key, id: Id) -> Result<bool> {
        release(self, key, id).await
    }
}

/// Ends a lease, or leaves the queue. True when it was held and had not run out.
pub(super) async fn release(store: &Store, key: &Key, id: Id) -> Result<bool> {
    let given = if store.waiters.has_waiters(key) {
        store.hand_off(DURING, key, id).await?
    } else {
        store.release_uncontended(DURING, key, id).await?
    };
    let lost = match given {
        Ok(true) => return Ok(true),
        Ok(false) => None,
        Err(lost) => Some(lost),
    };
    let change = |rules: &mut Rules<_>, _: &mut _| {
        let held = rules.release(id).is_some();
        if !held {
            rules.leave(id);
        }
        held
    };
    let held = store.edit(DURING, key, change).await?.0;
    match lost {
        // Ended by the question whose answer was lost, or before: it cannot be told.
        Some(lost) if !held => Err(lost),
        _ => Ok(held),
    }
}
