//! Changes of a key that somebody waits for, each a whole transaction in one message.
//!
//! The server looks whether it is the common case; if not, nothing was changed and the rules decide.
//! So the key's row is locked for as long as the server needs, and never for the way to a client.

use std::time::Duration;

use latchwork_sql::mysql::{is_broken, is_collision, is_duplicate};
use sqlx::Row as _;

use super::record::ALIVE;
use super::record::{self, RequesterInfo, Row};
use super::store::Store;
use super::transaction::Transaction;
use super::{error, schema};
use crate::rules::{Id, Requester};
use crate::{Fence, Grant, Key, Result};

impl Store {
    /// Ends the only lease of a key, and begins that of the first in the queue with it, where that is a
    /// writer of this process: it need not claim what the process [sees to](crate::coordination::grant_slot). True when
    /// that was done. The inner error is a connection that died: whether it was heard is not known.
    pub(super) async fn hand_off(
        &self,
        during: &'static str,
        key: &Key,
        id: Id,
    ) -> Result<Result<bool>> {
        let Some((next, ttl)) =
            self.waiters.next_exclusive(key).filter(|_| self.heartbeat.is_alive(self.clock.now()))
        else {
            return Ok(Ok(false));
        };
        self.waiters.set_grant_in_flight(next, true);
        let handed = self.try_hand_off(during, key, id, next, ttl).await;
        if !matches!(handed, Ok(Ok(true))) {
            self.waiters.set_grant_in_flight(next, false);
        }
        handed
    }

    async fn try_hand_off(
        &self,
        during: &'static str,
        key: &Key,
        id: Id,
        next: Id,
        ttl: Duration,
    ) -> Result<Result<bool>> {
        let sent_at = self.clock.now();
        let row = Row::plain(next, ttl, &self.process, self.client);
        let words = schema::hand_off(key.as_str().as_bytes(), id, &row);
        let said = match Transaction::whole(&self.connections, words).await {
            Ok(said) => said,
            Err(error) if is_collision(&error) => return Ok(Ok(false)),
            Err(error) if is_broken(&error) => return Ok(Err(error::driver(during, error))),
            Err(error) => return Err(error::driver(during, error)),
        };
        let (Some(before), Some(fence)) = (said.rows.first(), said.insert_id(schema::HANDED_OFF))
        else {
            return Ok(Ok(false));
        };
        let before = before.try_get_unchecked(0).map_err(|e| error::driver(during, e))?;
        let grant = Grant {
            fence: Fence::new(fence),
            previous_fence: Some(record::fence_of(before)),
            waited: true,
            // The ttl began in the transaction, which began after this moment.
            trusted_from: Some(sent_at),
        };
        self.waiters.deliver_grant(next, grant, self.clock.now());
        Ok(Ok(true))
    }

    /// Puts one that asks for the first time at the end of the queue, where a writer holds the key.
    /// The first in the queue is told how long until something ahead runs out. None where the rules must
    /// decide.
    pub(super) async fn enqueue(
        &self,
        during: &'static str,
        key: &Key,
        requester: &Requester<RequesterInfo>,
        patience: Option<Duration>,
    ) -> Result<Option<Option<Duration>>> {
        let beat = (!self.heartbeat.is_alive(self.clock.now()))
            .then(|| schema::beat(self.client, ALIVE.as_micros()));
        let beats = beat.is_some();
        let begun = self.clock.now();
        let name = key.as_str().as_bytes();
        let words = schema::enqueue(name, &Row::of(requester), patience, beat);
        let said = match Transaction::whole(&self.connections, words).await {
            Ok(said) => said,
            // The rules will see whether it stands there already.
            Err(error) if is_collision(&error) || is_broken(&error) || is_duplicate(&error) => {
                return Ok(None);
            }
            Err(error) => return Err(error::driver(during, error)),
        };
        if beats {
            self.heartbeat.sent(begun);
        }
        let due_in = said.insert_id(schema::ENQUEUED).map(Duration::from_micros);
        Ok(said.has_changed(schema::ENQUEUED).then_some(due_in))
    }
}
