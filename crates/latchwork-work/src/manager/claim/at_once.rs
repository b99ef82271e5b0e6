//! The claim by one statement, where the database has it.

use std::time::Duration;

use super::super::{Checkout, WorkClient, read, transact};
use super::{Past, Round, lease_of};
use crate::store::{LeaseRow, Store, json, span};
use crate::stores::postgres::{ClaimRequest, Slot, Wanted};
use crate::{EventId, ItemState, LeaseId, OrderState, Result};

/// How often a process that claims by single statements opens what has become due.
const PROMOTE_EVERY: Duration = Duration::from_millis(100);

impl WorkClient {
    /// Leases items of one type by one statement, together with the claims of other agents of this
    /// process. What it does not find, the general way may.
    pub(super) async fn claim_at_once(&self, checkout: &Checkout) -> Result<Round> {
        let inner = &self.manager.inner;
        let Store::Postgres(store) = &inner.store else { return Ok(Round::default()) };
        let types = self.wanted_types(checkout);
        let [order_type] = types[..] else { return Ok(Round::default()) };
        if checkout.order.is_some() || !store.has_scripts() {
            return Ok(Round::default());
        }
        self.promote_now_and_then().await?;
        let settings = self.manager.types().get(order_type)?.settings();
        let wanted = Wanted {
            order_type: order_type.to_owned(),
            min_priority: checkout.min_priority.map_or(i64::MIN, i64::from),
            meta: checkout.meta.as_ref().map(json).transpose()?,
            ttl: settings.lease_ttl,
            heartbeat_every: settings.heartbeat_every,
            step: self.manager.tables().item_move(ItemState::Queued, ItemState::Leased)?,
            max_of_type: settings.max_leases,
            max_of_agent: inner.max_leases_per_agent,
        };
        let (agent, at) = (self.agent()?, inner.clock.wall());
        let provenance = self.stored_provenance()?;
        let slot = |n| Slot {
            n,
            agent: agent.to_owned(),
            lease: LeaseId::new(at),
            event: EventId::new(at),
            provenance: provenance.clone(),
        };
        let slots = (0..checkout.limit.unwrap_or(1) as usize).map(slot).collect();
        let claimed = store.claim(ClaimRequest { wanted, slots }).await?;
        let leased = claimed.leases;
        let with_past = leased.iter().filter(|one| one.item.results > 0);
        let with_past: Vec<_> = with_past.map(|one| one.item.id).collect();
        let past = match with_past.is_empty() {
            true => Past::default(),
            false => read!(self.manager, session => { Past::read(session, &with_past).await })?,
        };
        let mut round = Round { has_taken_open: !claimed.is_unsure, ..Round::default() };
        for one in leased {
            if one.order_state == OrderState::Queued {
                round.follow.insert(one.item.order_id);
            }
            let row = LeaseRow {
                id: one.id,
                item_id: one.item.id,
                order_id: one.item.order_id,
                order_type: order_type.to_owned(),
                agent: agent.to_owned(),
                fence: one.item.fence,
                heartbeat_every: span(settings.heartbeat_every),
                leased_at: one.leased_at,
                expires_at: one.leased_at + settings.lease_ttl,
                heartbeat_at: one.leased_at,
                heartbeat_event_at: one.leased_at,
            };
            let past = past.of(row.item_id);
            round.leases.push(lease_of(&row, &one.item, one.input, past));
        }
        Ok(round)
    }

    /// A retry that has become due has its turn before what is less urgent.
    async fn promote_now_and_then(&self) -> Result<()> {
        let inner = &self.manager.inner;
        let now = inner.clock.now();
        {
            let mut last = inner.promoted_at.lock();
            if now < last.after(PROMOTE_EVERY) {
                return Ok(());
            }
            *last = now;
        }
        transact!(self.manager, session => { session.promote().await })
    }
}
