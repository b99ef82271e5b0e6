//! The other ends of a lease: given back, put off, failed, run out.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::client::{Answer, check_text, once};
use super::{WorkClient, WorkManager, transact};
use crate::store::{ItemEdit, Note, Session};
use crate::{Error, EventType, Item, ItemState, LeaseId, Result, TypeSettings};

/// Why an agent could not do an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// What kind of failure, in a word.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// Anything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
    /// Whether another attempt is useless.
    #[serde(default)]
    pub permanent: bool,
}

impl Failure {
    /// A failure that another attempt may not have.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Failure { code: code.into(), message: message.into(), details: None, permanent: false }
    }

    /// Another attempt is useless: the item fails at once.
    #[must_use]
    pub fn permanent(mut self) -> Self {
        self.permanent = true;
        self
    }
}

/// The longest time that an item can be put off.
const MAX_SNOOZE: Duration = Duration::from_secs(366 * 24 * 3_600);

impl WorkClient {
    /// Gives a lease back: the item waits for the next agent, and the attempt does not count.
    ///
    /// # Errors
    /// [`LeaseExpired`](crate::ErrorKind::LeaseExpired) and
    /// [`LeaseForeign`](crate::ErrorKind::LeaseForeign).
    pub async fn release(&self, lease: LeaseId, reason: Option<&str>) -> Result<Item> {
        let note = |note: Note| match reason {
            Some(reason) => note.message(reason),
            None => note,
        };
        check_text("reason", reason.unwrap_or_default(), super::submit::MAX_NOTES)?;
        let key = self.key("release", &(lease, reason))?;
        self.give_back(lease, key, EventType::Released, None, note).await
    }

    /// Gives a lease back, and lets nobody lease the item for a while; the attempt does not count.
    ///
    /// # Errors
    /// As for [`release`](Self::release); [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for
    /// more than a year.
    pub async fn snooze(&self, lease: LeaseId, span: Duration) -> Result<Item> {
        if span > MAX_SNOOZE {
            return Err(Error::invalid("snooze", "an item can be put off for a year at most"));
        }
        let key = self.key("snooze", &(lease, span))?;
        self.give_back(lease, key, EventType::Snoozed, Some(span), |note| note).await
    }

    async fn give_back(
        &self,
        lease: LeaseId,
        key: Option<crate::store::IdempotencyKey>,
        event: EventType,
        after: Option<Duration>,
        note: impl Fn(Note) -> Note,
    ) -> Result<Item> {
        let answer: Result<Answer<Item>> = transact!(begin_short, self.manager, session => {
            once!(session, &key, {
                let mut leased = self.lock_leased(session, &[lease]).await?;
                let (row, item) = leased.remove(0);
                let now = session.now();
                let mut edit = ItemEdit::new(item);
                let until = now + after.unwrap_or_default();
                edit.set_available_at(until);
                edit.give_attempt_back();
                let payload = json!({"lease_id": row.id, "available_at": until});
                let note = note(self.note().event(event).payload(payload));
                edit.step(self.manager.tables(), ItemState::Queued, note, now)?;
                session.write_items(vec![edit]).await?.remove(0)
            })
        });
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                crate::metrics::count_refusal(&error);
                return Err(self.keep_foreign(error).await);
            }
        };
        self.ended(lease, answer).await
    }

    /// Says that the item could not be done. It is tried again after a back-off, or fails for good when
    /// the failure is permanent or the attempts are used up (W5).
    ///
    /// # Errors
    /// As for [`release`](Self::release).
    pub async fn fail(&self, lease: LeaseId, failure: Failure) -> Result<Item> {
        check_text("message", &failure.message, super::submit::MAX_NOTES)?;
        check_text("code", &failure.code, 255)?;
        let key = self.key("fail", &(lease, &failure))?;
        let answer: Result<Answer<Item>> = transact!(begin_short, self.manager, session => {
            once!(session, &key, {
                let mut leased = self.lock_leased(session, &[lease]).await?;
                let (_, item) = leased.remove(0);
                let settings = self.manager.settings_of(&item);
                let now = session.now();
                let mut edit = ItemEdit::new(item);
                edit.set_error(Some(json!(failure)));
                let note = self.note().payload(json!(failure)).message(failure.message.clone());
                again_or_failed(&self.manager, &mut edit, &settings, note, failure.permanent, now)?;
                session.write_items(vec![edit]).await?.remove(0)
            })
        });
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                crate::metrics::count_refusal(&error);
                return Err(self.keep_foreign(error).await);
            }
        };
        self.ended(lease, answer).await
    }

    async fn ended(&self, lease: LeaseId, answer: Answer<Item>) -> Result<Item> {
        let Answer { value: item, replayed } = answer;
        if replayed {
            self.check_replay(lease, item.order_id).await?;
        } else {
            self.manager.wake_freed([item.item_type.clone()]);
            self.manager.follow_all([item.order_id]).await;
        }
        Ok(item)
    }
}

impl WorkManager {
    /// Takes back items whose leases have run out; the items are locked. Tells those that moved.
    pub(super) async fn reclaim_items(
        &self,
        session: &mut Session<'_>,
        items: Vec<Item>,
    ) -> Result<Vec<Item>> {
        let now = session.now();
        let ids: Vec<_> = items.iter().map(|item| item.id).collect();
        // Locked: a heartbeat that is under way extends its lease without the item's lock.
        let leases = session.lock_leases_of_items(&ids).await?;
        let mut edits = Vec::new();
        for item in items {
            let lease = leases.iter().find(|lease| lease.item_id == item.id);
            let Some(lease) = lease.filter(|lease| lease.expires_at <= now) else { continue };
            if !item.state.is_leased() {
                tracing::error!(item = %item.id, state = %item.state, "an item has a lease and is not leased");
                continue;
            }
            let settings = self.settings_of(&item);
            let payload = json!({"lease_id": lease.id, "agent": lease.agent, "fence": lease.fence,
                "lease_expires_at": lease.expires_at, "attempts": item.attempts});
            let error = json!({"code": "lease_expired",
                "message": format!("the lease of {} ran out", lease.agent)});
            let mut edit = ItemEdit::new(item);
            edit.set_error(Some(error));
            let note =
                Note::system("the lease ran out").payload(payload).event(EventType::LeaseExpired);
            again_or_failed(self, &mut edit, &settings, note, false, now)?;
            edits.push(edit);
        }
        session.write_items(edits).await
    }

    /// Whether the end of the item's lease may let another one in.
    pub(super) fn is_limited(&self, item: &Item) -> bool {
        item.concurrency.is_some()
            || self.inner.max_leases_per_agent.is_some()
            || self.settings_of(item).max_leases.is_some()
    }

    /// How an item is run: by its type as this program knows it.
    pub(super) fn settings_of(&self, item: &Item) -> TypeSettings {
        let known = self.types().get(&item.item_type);
        known.map(|known| known.settings().clone()).unwrap_or_default()
    }
}

/// Queues an item again after its back-off, or fails it.
fn again_or_failed(
    manager: &WorkManager,
    edit: &mut ItemEdit,
    settings: &TypeSettings,
    note: Note,
    permanent: bool,
    now: DateTime<Utc>,
) -> Result<()> {
    let item = edit.item();
    if permanent || item.attempts >= item.max_attempts {
        // What happened, then what it means.
        if note.event == Some(EventType::LeaseExpired) {
            edit.record(EventType::LeaseExpired, note);
            let why = Note::system("its attempts are used up");
            return edit.step(manager.tables(), ItemState::Failed, why, now);
        }
        return edit.step(manager.tables(), ItemState::Failed, note, now);
    }
    let pause = settings.retry.pause(item.attempts, rand::random());
    edit.set_available_at(now + pause);
    edit.step(manager.tables(), ItemState::Queued, note, now)
}
