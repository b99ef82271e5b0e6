//! Heartbeats: a lease lasts as long as they come.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::{WorkClient, transact};
use crate::store::{ItemEdit, LeaseRow, Session};
use crate::{Error, ErrorKind, EventType, Heartbeat, ItemState, LeaseId, Result};

/// A heartbeat stands in the trail once in so long, per lease: more would flood it.
const RECORDED_EVERY: Duration = Duration::from_secs(300);

/// So many heartbeats in one call, at most.
const MAX_HEARTBEATS: usize = 1_000;

impl WorkClient {
    /// Extends a lease by its whole ttl. The first heartbeat moves the item, and its order, to
    /// `in_progress`.
    ///
    /// # Errors
    /// [`LeaseExpired`](ErrorKind::LeaseExpired) when it is over, and
    /// [`LeaseForeign`](ErrorKind::LeaseForeign) when it is another agent's: stop working then.
    pub async fn heartbeat(&self, lease: LeaseId) -> Result<Heartbeat> {
        let mut all = self.heartbeat_many(&[lease]).await?;
        all.remove(&lease).unwrap_or_else(|| Err(expired(lease)))
    }

    /// Extends several leases; each has its own answer.
    ///
    /// # Errors
    /// The store's.
    pub async fn heartbeat_many(
        &self,
        leases: &[LeaseId],
    ) -> Result<BTreeMap<LeaseId, Result<Heartbeat>>> {
        if leases.len() > MAX_HEARTBEATS {
            let reason = format!("at most {MAX_HEARTBEATS} leases at once");
            return Err(Error::invalid("leases", reason));
        }
        let agent = self.agent()?;
        let (answers, begun) = transact!(begin_short, self.manager, session => {
            let rows = session.leases(leases).await?;
            let mut answers = BTreeMap::new();
            let mut mine = Vec::new();
            for id in leases {
                match rows.iter().find(|row| row.id == *id && self.may_use(&row.order_type)) {
                    None => drop(answers.insert(*id, Err(expired(*id)))),
                    Some(row) if row.agent != agent => {
                        answers.insert(*id, Err(ErrorKind::LeaseForeign { id: *id }.into()));
                    }
                    Some(row) => mine.push(row.clone()),
                }
            }
            let begun = self.begin_work(session, &mine).await?;
            self.extend(session, &mine, &mut answers).await?;
            Ok((answers, begun))
        })?;
        self.manager.follow_if_needed(begun).await;
        let mut kept = BTreeMap::new();
        for (id, answer) in answers {
            let answer = match answer {
                Err(error) => Err(self.keep_foreign(error).await),
                held => held,
            };
            kept.insert(id, answer);
        }
        Ok(kept)
    }

    /// Moves items whose first heartbeat this is.
    async fn begin_work(
        &self,
        session: &mut Session<'_>,
        leases: &[LeaseRow],
    ) -> Result<Vec<crate::OrderId>> {
        let ids: Vec<_> = leases.iter().map(|lease| lease.item_id).collect();
        let items = session.items(&ids).await?;
        let fresh = items.iter().filter(|item| item.state == ItemState::Leased);
        let fresh: Vec<_> = fresh.map(|item| item.id).collect();
        if fresh.is_empty() {
            return Ok(Vec::new());
        }
        let now = session.now();
        let mut edits = Vec::new();
        for item in session.lock_items(&fresh).await? {
            let current = session.leases_of_items(&[item.id]).await?;
            let held = current.first().is_some_and(|row| {
                row.expires_at > now && leases.iter().any(|lease| lease.id == row.id)
            });
            if item.state != ItemState::Leased || !held {
                continue; // it ended meanwhile, and the lease says so
            }
            let mut edit = ItemEdit::new(item);
            edit.step(self.manager.tables(), ItemState::InProgress, self.note(), now)?;
            edits.push(edit);
        }
        let orders = edits.iter().map(|edit| edit.item().order_id).collect();
        session.write_items(edits).await?;
        Ok(orders)
    }

    async fn extend(
        &self,
        session: &mut Session<'_>,
        leases: &[LeaseRow],
        answers: &mut BTreeMap<LeaseId, Result<Heartbeat>>,
    ) -> Result<()> {
        let ids: Vec<_> = leases.iter().map(|lease| lease.id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let extended = session.extend_leases(&ids).await?;
        let now = session.now();
        let mut events = Vec::new();
        for lease in leases {
            match extended.iter().find(|beat| beat.id == lease.id) {
                None => drop(answers.insert(lease.id, Err(expired(lease.id)))),
                Some(beat) => {
                    if lease.heartbeat_event_at + RECORDED_EVERY <= now {
                        events.push(lease.clone());
                    }
                    answers.insert(lease.id, Ok(beat.clone()));
                }
            }
        }
        if !events.is_empty() {
            let ids: Vec<_> = events.iter().map(|lease| lease.id).collect();
            session.note_heartbeats(&ids).await?;
            for lease in events {
                let payload = json!({"lease_id": lease.id, "fence": lease.fence});
                let note = self.note().payload(payload);
                session
                    .record(lease.order_id, Some(lease.item_id), EventType::Heartbeat, note)
                    .await?;
            }
        }
        Ok(())
    }
}

pub(super) fn expired(id: LeaseId) -> Error {
    let reason = "it ran out, was given back, or the item was submitted or taken back";
    ErrorKind::LeaseExpired { id, reason }.into()
}
