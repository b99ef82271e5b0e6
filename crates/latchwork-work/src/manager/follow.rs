//! Orders follow their items.
//!
//! An item's transaction does not lock its order: agents of one order would wait for each other. After
//! its commit the order is looked at, and moved in a short transaction of its own if its items ask for
//! it ([`next_order_state`]). A crash in between leaves an order behind its items; the sealer looks at
//! every order that has new events, before it seals them, and so closes the gap.

use crate::store::{Note, OrderEdit, Session, has_to_follow, json, params, progress_row};
use crate::{ItemState, Order, OrderId, OrderState, Result, next_order_state};

use super::{WorkManager, transact};

impl WorkManager {
    /// Moves orders to where their items are. Errors are logged: the operation itself is done, and the
    /// sealer looks again.
    pub(super) async fn follow_all(&self, orders: impl IntoIterator<Item = OrderId>) {
        for order in orders {
            if let Err(error) = self.follow(order).await {
                tracing::warn!(%order, %error, "an order lags behind its items; the sealer looks again");
            }
        }
    }

    /// Looks whether an order has to move, and moves it.
    pub(super) async fn follow_if_needed(&self, orders: impl IntoIterator<Item = OrderId>) {
        let orders: Vec<_> = orders.into_iter().collect();
        if orders.is_empty() {
            return;
        }
        match self.lagging(&orders).await {
            Ok(lagging) => self.follow_all(lagging).await,
            Err(error) => tracing::warn!(%error, "orders could not be looked at"),
        }
    }

    /// A cheap look: those of the orders that may have to move.
    pub(super) async fn lagging(&self, orders: &[OrderId]) -> Result<Vec<OrderId>> {
        let found =
            self.store().fetch_once(|sql| sql.order_progress, params![json(&orders)?]).await?;
        let mut lagging = Vec::new();
        for mut row in found {
            let (order, state, has_open_items) = progress_row(&mut row)?;
            if has_to_follow(state, has_open_items) {
                lagging.push(order);
            }
        }
        Ok(lagging)
    }

    /// Where an order stands that may have to move; none where it need not. With `moved_back` an item
    /// failed or lost its agent, which a look at open items does not show.
    pub(super) async fn state_to_follow(
        &self,
        order: OrderId,
        moved_back: bool,
    ) -> Result<Option<OrderState>> {
        let ids = params![json(&[order])?];
        let found = self.store().fetch_once(|sql| sql.order_progress, ids).await?;
        let Some(mut row) = found.into_iter().next() else { return Ok(None) };
        let (_, state, has_open_items) = progress_row(&mut row)?;
        // What was decided, or failed, does not follow its items; nobody waits for its row here, which
        // an apply in the store's transaction has locked.
        let moves = matches!(
            state,
            OrderState::Queued
                | OrderState::CheckedOut
                | OrderState::InProgress
                | OrderState::Submitted
                | OrderState::Applied
        );
        let wanted = moved_back && moves || has_to_follow(state, has_open_items);
        Ok(wanted.then_some(state))
    }

    /// Moves an order to where its items are.
    pub(super) async fn follow(&self, order: OrderId) -> Result<Order> {
        // The crash that the sealer repairs comes here; a proof ends its process at this event.
        tracing::trace!(%order, "an order follows its items");
        let (order, moved) = transact!(begin_short, self, session => {
            let mut edit = OrderEdit::new(session.lock_order(order).await?);
            self.follow_in(session, &mut edit).await?;
            if !edit.has_moved() {
                return Ok((edit.order().clone(), false));
            }
            session.write_order(edit).await.map(|order| (order, true))
        })?;
        if moved {
            self.judge_submitted(&order).await;
        }
        Ok(order)
    }

    /// Moves an order that is being changed to where its items are; the caller writes it.
    pub(super) async fn follow_in(
        &self,
        session: &mut Session<'_>,
        edit: &mut OrderEdit,
    ) -> Result<()> {
        let counts = session.item_counts(edit.order().id).await?;
        let policy = edit.order().settings.failure;
        let now = session.now();
        while let Some(next) = next_order_state(edit.order().state, &counts, policy) {
            let message = reason(next);
            if next == OrderState::Failed {
                let failed = counts.get(ItemState::Failed) + counts.get(ItemState::DeadLettered);
                let error = serde_json::json!({"code": "items_failed", "stage": "items",
                    "message": format!("{failed} of {} items failed", counts.total())});
                edit.set_error(error);
            }
            edit.step(self.tables(), next, Note::system(message), now)?;
        }
        Ok(())
    }
}

fn reason(next: OrderState) -> &'static str {
    match next {
        OrderState::CheckedOut => "an agent has leased an item",
        OrderState::InProgress => "an agent works on an item",
        OrderState::Submitted => "all items are in",
        OrderState::Queued => "no agent has a lease any more",
        OrderState::Failed => "too many items failed",
        OrderState::Completed => "all items completed",
        _ => "it follows its items",
    }
}
