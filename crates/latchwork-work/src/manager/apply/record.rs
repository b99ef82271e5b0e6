//! Recording what became of an apply: each under the lock of the order, with its fence.

use std::time::Duration;

use serde_json::{Value, json};

use super::{ApplyWorker, Claimed, is_doubtful, lease_of};
use crate::manager::{read, transact};
use crate::store::{ItemEdit, Note, OrderEdit, Session};
use crate::{Diff, Error, EventType, ItemState, OrderState, Result};

impl ApplyWorker {
    /// Whether the order is this worker's still, in the state in which it was taken. Locks it.
    pub(super) async fn holds(
        &self,
        session: &mut Session<'_>,
        claimed: &Claimed,
        state: OrderState,
    ) -> Result<bool> {
        let order = session.lock_order(claimed.order.id).await?;
        let review = session.review_state(order.id).await?;
        Ok(order.state == state && review.fence == claimed.fence && review.worker.is_some())
    }

    /// A summary comes from the type's own code, as a failure's message does: what was done must be
    /// recorded whatever it says, or it would be done again.
    fn note(&self, message: &str) -> Note {
        Note::system(&super::hooks::storable(message))
    }

    /// Records the changes; false where another worker has the order by now. While the store is away it
    /// is tried again: what was done elsewhere should not be done twice for nothing.
    pub(super) async fn record(&self, claimed: &Claimed, diff: Diff) -> Result<bool> {
        let mut tries = 0;
        loop {
            tries += 1;
            let recorded = transact!(self.manager, session => {
                if !self.holds(session, claimed, OrderState::Approved).await? {
                    return Ok(false);
                }
                self.write_applied(session, claimed, &diff).await?;
                Ok(true)
            });
            match recorded {
                Err(error) if is_doubtful(&error) && tries < 20 => {
                    tokio::time::sleep(Duration::from_millis(250)).await;
                    if let Ok(true) = self.was_recorded(claimed).await {
                        return Ok(true);
                    }
                }
                recorded => return recorded,
            }
        }
    }

    /// Approved becomes applied, its items accepted. The order must be locked and held.
    pub(super) async fn write_applied(
        &self,
        session: &mut Session<'_>,
        claimed: &Claimed,
        diff: &Diff,
    ) -> Result<()> {
        let (now, tables) = (session.now(), self.manager.tables());
        let order = session.lock_order(claimed.order.id).await?;
        let row = session.review(order.id, claimed.version).await?;
        let diff = bounded(diff, order.settings.review.max_diff_bytes);
        let payload = json!({"worker": self.name, "fence": claimed.fence, "attempt": claimed.attempt,
            "idempotency_key": order.id, "content_version": claimed.version,
            "digest": row.as_ref().map(|row| &row.digest),
            "results_digest": row.as_ref().map(|row| &row.results_digest)});
        let message = diff.summary.clone().unwrap_or_else(|| "the changes were made".to_owned());
        let mut note = self.note(&message).payload(payload);
        note.diff = Some(json!(diff));
        session.insert_applied(order.id, claimed.version, claimed.fence, &self.name, &diff).await?;
        // The time is that of the transaction's beginning, which is before all that apply did in it.
        let until = now + lease_of(&order);
        let id = order.id;
        let mut edit = OrderEdit::new(order);
        edit.step(tables, OrderState::Applied, note, now)?;
        session.write_order(edit).await?;
        session.keep_apply(id, 1, claimed.fence, until).await?;
        let mut edits = Vec::new();
        for item in session.lock_order_items(id, &[ItemState::Submitted, ItemState::Failed]).await?
        {
            let (to, why) = match item.state {
                ItemState::Submitted => (ItemState::Accepted, "its order was applied"),
                _ => (ItemState::DeadLettered, "its order was applied without it"),
            };
            let mut edit = ItemEdit::new(item);
            edit.step(tables, to, self.note(why), now)?;
            edits.push(edit);
        }
        session.write_items(edits).await?;
        Ok(())
    }

    /// Everything is done: the items complete, and the order with them.
    pub(super) async fn complete(&self, claimed: &Claimed) -> Result<()> {
        transact!(self.manager, session => {
            if !self.holds(session, claimed, OrderState::Applied).await? {
                return Ok(());
            }
            let (now, id) = (session.now(), claimed.order.id);
            let mut edits = Vec::new();
            for item in session.lock_order_items(id, &[ItemState::Accepted]).await? {
                let mut edit = ItemEdit::new(item);
                edit.step(self.manager.tables(), ItemState::Completed, self.note("done"), now)?;
                edits.push(edit);
            }
            session.write_items(edits).await?;
            let mut edit = OrderEdit::new(session.lock_order(id).await?);
            self.manager.follow_in(session, &mut edit).await?;
            session.write_order(edit).await?;
            self.end(session, claimed, 0, Duration::ZERO).await
        })
    }

    /// after_apply failed: it is tried again later, or the order fails. What was applied stays so.
    pub(super) async fn clean_later(
        &self,
        claimed: &Claimed,
        attempt: u32,
        code: &'static str,
        message: &str,
    ) -> Result<()> {
        let policy = claimed.order.settings.apply.cleanup;
        if attempt >= u32::from(policy.max_attempts) {
            let message =
                format!("after_apply failed at attempt {attempt}, the changes are made: {message}");
            return self.fail_cleanup(claimed, code, &message).await;
        }
        transact!(self.manager, session => {
            if !self.holds(session, claimed, OrderState::Applied).await? {
                return Ok(());
            }
            let tries = u16::try_from(attempt).unwrap_or(u16::MAX);
            let pause = policy.pause(tries, rand::random());
            let payload = json!({"stage": "cleanup", "code": code, "message": message,
                "attempt": attempt, "max_attempts": policy.max_attempts, "worker": self.name,
                "fence": claimed.fence});
            let note = self.note("after_apply failed and is tried again").payload(payload);
            session.record(claimed.order.id, None, EventType::CleanupFailed, note).await?;
            self.end(session, claimed, attempt, pause).await
        })
    }

    /// Apply failed.
    pub(super) async fn fail(
        &self,
        claimed: &Claimed,
        stage: &'static str,
        code: &'static str,
        message: &str,
        details: Option<Value>,
    ) -> Result<()> {
        self.fail_in(claimed, OrderState::Approved, stage, code, message, details).await
    }

    /// after_apply is given up. What was applied stays so.
    pub(super) async fn fail_cleanup(
        &self,
        claimed: &Claimed,
        code: &'static str,
        message: &str,
    ) -> Result<()> {
        self.fail_in(claimed, OrderState::Applied, "cleanup", code, message, None).await
    }

    /// What is stored of the order cannot be read, before apply or after it.
    pub(super) async fn fail_unreadable(&self, claimed: &Claimed, error: &Error) -> Result<()> {
        let code = "content_damaged";
        match read!(self.manager, session => { session.order(claimed.order.id).await })?.state {
            OrderState::Applied => self.fail_cleanup(claimed, code, &error.to_string()).await,
            _ => self.fail(claimed, "apply", code, &error.to_string(), None).await,
        }
    }

    async fn fail_in(
        &self,
        claimed: &Claimed,
        state: OrderState,
        stage: &'static str,
        code: &'static str,
        message: &str,
        details: Option<Value>,
    ) -> Result<()> {
        let mut error = json!({"code": code, "stage": stage, "message": message});
        if let Some(details) = details {
            error["details"] = details;
        }
        transact!(self.manager, session => {
            if !self.holds(session, claimed, state).await? {
                return Ok(());
            }
            let now = session.now();
            let mut edit = OrderEdit::new(session.lock_order(claimed.order.id).await?);
            edit.set_error(error.clone());
            let mut told = error.clone();
            told["worker"] = json!(self.name);
            told["fence"] = json!(claimed.fence);
            told["attempt"] = json!(claimed.attempt);
            let note = self.note(message).payload(told);
            edit.step(self.manager.tables(), OrderState::Failed, note, now)?;
            session.write_order(edit).await?;
            if code == "preview_changed" {
                // Reviewers have to see the new preview: the old one is of an older version from now on.
                session.set_content(claimed.order.id, claimed.version + 1).await?;
            }
            self.end(session, claimed, 0, Duration::ZERO).await
        })
    }

    /// Gives an order back that this program cannot apply; the attempt does not count.
    pub(super) async fn hand_back(&self, claimed: &Claimed, pause: Duration) -> Result<()> {
        transact!(self.manager, session => {
            if !self.holds(session, claimed, claimed.order.state).await? {
                return Ok(());
            }
            self.end(session, claimed, claimed.attempt - 1, pause).await
        })
    }

    /// Ends the lease. The order must be locked and held.
    async fn end(
        &self,
        session: &mut Session<'_>,
        claimed: &Claimed,
        tries: u32,
        pause: Duration,
    ) -> Result<()> {
        let after = session.now() + pause;
        session.end_apply(claimed.order.id, tries, after).await
    }
}

/// A diff that the store keeps: one that is too large is told without its bodies, since what was done
/// is done.
fn bounded(diff: &Diff, max: usize) -> Diff {
    let size = serde_json::to_string(diff).map_or(usize::MAX, |text| text.len());
    if size <= max {
        return diff.clone();
    }
    let summary = diff.summary.clone().unwrap_or_default();
    let summary: String = summary.chars().take(1_000).collect();
    let summary =
        format!("{summary} (the diff has {size} bytes and is not kept: the limit is {max})");
    Diff::empty().summary(summary.trim_start().to_owned())
}
