//! Proposing orders: checked and planned outside of the transaction, stored in one.

use serde_json::json;

use super::client::{Answer, check_meta, check_text, once};
use super::{WorkClient, WorkManager, transact};
use crate::store::{Connection, MAX_ROWS, NewItem, Note, OrderEdit, Session};
use crate::{
    Error, EventType, Item, ItemId, ItemState, Order, OrderId, OrderState, PlannedItem, Proposal,
    Proposed, RegisteredType, Result,
};

/// So many orders in one call, at most.
const MAX_PROPOSALS: usize = 1_000;

/// The longest unique key, in bytes.
const MAX_UNIQUE_KEY: usize = 512;

/// That something can be leased. Dropped without [`send`](Self::send), waiting agents find out by their
/// fallback look, a second or two later.
#[must_use = "send it after the commit, so that waiting agents begin at once"]
pub struct Notice {
    manager: WorkManager,
    types: Vec<String>,
}

impl Notice {
    /// Wakes waiting agents. After the commit: what is not committed cannot be leased.
    pub fn send(self) {
        self.manager.inner.wake.notify(self.types);
    }
}

/// A proposal that was checked and planned, not stored yet.
struct Planned<'p> {
    proposal: &'p Proposal,
    order_type: RegisteredType,
    items: Vec<PlannedItem<serde_json::Value>>,
}

impl WorkClient {
    /// Proposes an order: checks the payload, plans its items, and stores both.
    ///
    /// A proposal whose `unique_key` a live order has gets that order, marked as existing (W20).
    ///
    /// # Errors
    /// [`OrderTypeNotFound`](crate::ErrorKind::OrderTypeNotFound),
    /// [`PayloadInvalid`](crate::ErrorKind::PayloadInvalid), [`TooLarge`](crate::ErrorKind::TooLarge),
    /// [`PlanEmpty`](crate::ErrorKind::PlanEmpty) and the store's.
    pub async fn propose(&self, proposal: Proposal) -> Result<Proposed> {
        Ok(self.propose_once(proposal).await?.value)
    }

    /// The same, and whether the answer is that of an earlier request with the same
    /// [key](Self::idempotent).
    ///
    /// # Errors
    /// As for [`propose`](Self::propose).
    pub async fn propose_once(&self, proposal: Proposal) -> Result<Answer<Proposed>> {
        let answer = self.propose_many_once(vec![proposal]).await;
        let Answer { value, replayed } = answer.inspect_err(crate::metrics::count_refusal)?;
        let one = value.into_iter().next().ok_or_else(|| Error::damaged("an empty answer"))?;
        Ok(Answer { value: one, replayed })
    }

    /// Proposes several orders: all of them are stored, or none.
    ///
    /// # Errors
    /// As for [`propose`](Self::propose).
    pub async fn propose_many(&self, proposals: Vec<Proposal>) -> Result<Vec<Proposed>> {
        let answer = self.propose_many_once(proposals).await;
        Ok(answer.inspect_err(crate::metrics::count_refusal)?.value)
    }

    async fn propose_many_once(&self, proposals: Vec<Proposal>) -> Result<Answer<Vec<Proposed>>> {
        let key = self.key("propose", &proposals)?;
        if let Some(replay) = self.replay(&key).await? {
            return Ok(replay);
        }
        let planned = self.plan_all(&proposals).await?;
        let answer = transact!(self.manager, session => {
            once!(session, &key, { self.store_planned(session, &planned).await? })
        })?;
        if !answer.replayed {
            let types = answer.value.iter().map(|one| one.order.order_type.clone()).collect();
            self.manager.inner.wake.notify(types);
        }
        Ok(answer)
    }

    /// Proposes in the caller's own transaction on the manager's database: the orders exist if and
    /// only if that transaction commits. Send the notice after the commit.
    ///
    /// # Errors
    /// As for [`propose`](Self::propose); [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a
    /// manager of another database. After an error the transaction should be rolled back.
    #[cfg(feature = "postgres")]
    pub async fn propose_in_postgres(
        &self,
        connection: &mut sqlx::PgConnection,
        proposals: Vec<Proposal>,
    ) -> Result<(Vec<Proposed>, Notice)> {
        let crate::store::Store::Postgres(store) = self.manager.store() else {
            return Err(Error::invalid("connection", "the orders are kept in another database"));
        };
        let planned = self.plan_all(&proposals).await?;
        let mut session = Session::new(Connection::Postgres(store.within(connection).await?));
        let proposed = self.store_planned(&mut session, &planned).await?;
        session.finish().await?;
        Ok((proposed, self.notice(&proposals)))
    }

    /// The same in an SQLite transaction, which must have begun with `BEGIN IMMEDIATE`.
    ///
    /// # Errors
    /// As for [`propose`](Self::propose); [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a
    /// manager of another database. After an error the transaction should be rolled back.
    #[cfg(feature = "sqlite")]
    pub async fn propose_in_sqlite(
        &self,
        connection: &mut sqlx::SqliteConnection,
        proposals: Vec<Proposal>,
    ) -> Result<(Vec<Proposed>, Notice)> {
        let crate::store::Store::Sqlite(store) = self.manager.store() else {
            return Err(Error::invalid("connection", "the orders are kept in another database"));
        };
        let planned = self.plan_all(&proposals).await?;
        let mut session = Session::new(Connection::Sqlite(store.within(connection)));
        let proposed = self.store_planned(&mut session, &planned).await?;
        session.finish().await?;
        Ok((proposed, self.notice(&proposals)))
    }

    fn notice(&self, proposals: &[Proposal]) -> Notice {
        let types = proposals.iter().map(|one| one.order_type.clone()).collect();
        Notice { manager: self.manager.clone(), types }
    }

    /// The items that a proposal would have; nothing is stored.
    ///
    /// # Errors
    /// As for [`propose`](Self::propose).
    pub async fn plan(&self, proposal: &Proposal) -> Result<Vec<PlannedItem<serde_json::Value>>> {
        Ok(self.plan_one(proposal).await?.items)
    }

    async fn plan_all<'p>(&self, proposals: &'p [Proposal]) -> Result<Vec<Planned<'p>>> {
        if proposals.is_empty() || proposals.len() > MAX_PROPOSALS {
            let reason = format!("1 to {MAX_PROPOSALS} can be proposed at once");
            return Err(Error::invalid("proposals", reason));
        }
        let mut planned = Vec::with_capacity(proposals.len());
        for proposal in proposals {
            planned.push(self.plan_one(proposal).await?);
        }
        Ok(planned)
    }

    async fn plan_one<'p>(&self, proposal: &'p Proposal) -> Result<Planned<'p>> {
        let order_type = self.manager.types().get(&proposal.order_type)?.clone();
        if let Some(key) = &proposal.unique_key {
            check_text("unique_key", key, MAX_UNIQUE_KEY)?;
            if key.is_empty() {
                return Err(Error::invalid("unique_key", "it is empty; leave it out instead"));
            }
        }
        if let Some(state) = proposal.unique_states.iter().find(|state| state.is_live()) {
            let reason = format!(
                "{state} is always covered: name failed, rejected, completed or \
                                  dead_lettered"
            );
            return Err(Error::invalid("unique_states", reason));
        }
        if let Some(meta) = &proposal.meta {
            check_meta(meta)?;
        }
        let items = order_type.plan(&proposal.payload).await?;
        Ok(Planned { proposal, order_type, items })
    }

    async fn store_planned(
        &self,
        session: &mut Session<'_>,
        planned: &[Planned<'_>],
    ) -> Result<Vec<Proposed>> {
        let now = session.now();
        let mut proposed = Vec::with_capacity(planned.len());
        for plan in planned {
            proposed.push(self.store_one(session, plan, now).await?);
        }
        Ok(proposed)
    }

    async fn store_one(
        &self,
        session: &mut Session<'_>,
        plan: &Planned<'_>,
        now: chrono::DateTime<chrono::Utc>,
    ) -> Result<Proposed> {
        let Planned { proposal, order_type, items } = plan;
        let order = Order {
            id: OrderId::new(now),
            order_type: order_type.name().to_owned(),
            type_version: order_type.version(),
            state: OrderState::Queued,
            version: 1,
            priority: proposal.priority.unwrap_or(order_type.settings().priority),
            requested_by: self.actor.clone(),
            meta: proposal.meta.clone(),
            unique_key: proposal.unique_key.clone(),
            unique_states: proposal.unique_states.clone(),
            items: u32::try_from(items.len()).unwrap_or(u32::MAX),
            settings: order_type.settings().clone(),
            error: None,
            created_at: now,
            last_transitioned_at: now,
            applied_at: None,
            completed_at: None,
        };
        if session.insert_orders(std::slice::from_ref(&order)).await?.is_empty() {
            let key = order.unique_key.as_deref().unwrap_or_default();
            // The clash is with a committed row, or with one of this very transaction.
            let existing = session.find_unique(&order.order_type, key).await?;
            let existing = existing.ok_or(crate::ErrorKind::Conflict { entity: "order" })?;
            return Ok(Proposed { order: session.order(existing).await?, existing: true });
        }
        session.insert_payloads(&[(order.id, &proposal.payload)]).await?;
        let item = |(seq, planned): (usize, &PlannedItem<serde_json::Value>)| Item {
            id: ItemId::new(now),
            order_id: order.id,
            seq: u32::try_from(seq).unwrap_or(u32::MAX),
            item_type: order.order_type.clone(),
            state: ItemState::Queued,
            version: 1,
            priority: order.priority,
            attempts: 0,
            max_attempts: planned.max_attempts.unwrap_or(order.settings.retry.max_attempts),
            available_at: now,
            concurrency: planned.concurrency.clone(),
            fence: 0,
            leased_at: None,
            accepted_at: None,
            error: None,
            results: 0,
            created_at: now,
        };
        let new: Vec<_> = (items.iter().enumerate())
            .map(|(seq, planned)| NewItem { item: item((seq, planned)), input: &planned.input })
            .collect();
        session.set_lanes(new.iter().map(|new| &new.item)).await?;
        for chunk in new.chunks(MAX_ROWS) {
            session.insert_items(chunk).await?;
        }
        let proposed = json!({"type": order.order_type, "priority": order.priority,
            "type_version": order.type_version, "unique_key": order.unique_key});
        let count = json!({"item_count": items.len()});
        let mut edit = OrderEdit::new(order.clone());
        edit.record(EventType::Proposed, self.note().payload(proposed));
        edit.record(EventType::Planned, Note::system("planned").payload(count));
        session.write_order(edit).await?;
        Ok(Proposed { order, existing: false })
    }
}
