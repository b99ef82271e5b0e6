//! What an order or an item waits for, in words and codes.

mod words;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use self::words::{blocker, failed_item, later, leased, limited, moment, of_order};
use super::review::status_of;
use super::{HeldBack, WorkManager, read};
use crate::names::named;
use crate::store::{LimitKey, LimitRow, Session, Wait, Waiting};
use crate::{Item, ItemCounts, ItemId, ItemState, Order, OrderId, OrderState, Result};

named! {
    /// Why an order or an item does not move on.
    pub enum BlockerCode ("blocker") {
        /// An agent has leased the item.
        Leased = "leased",
        /// Its lease is over; the item has not been taken back yet.
        LeaseExpired = "lease_expired",
        /// A limit on leases is reached.
        Limit = "limit",
        /// It stands behind another item of its ordered key.
        Ordered = "ordered",
        /// It waits for its time: a retry, or a snooze.
        Backoff = "backoff",
        /// No agent has asked for it.
        Unclaimed = "unclaimed",
        /// It failed, and is not tried again by itself.
        Failed = "failed",
        /// Its result is in, and other items of its order are not.
        Siblings = "siblings",
        /// The order waits for approval.
        Approval = "approval",
        /// The order is approved and waits for the apply step, or for its end.
        Apply = "apply",
        /// The order is in a state in which nothing moves by itself.
        OrderState = "order_state",
    }
}

/// One reason why something does not move on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Blocker {
    /// The reason, for programs.
    pub code: BlockerCode,
    /// The reason, for people.
    pub message: String,
    /// When it ends by itself, by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<DateTime<Utc>>,
    /// The item that waits; none where the order itself does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_id: Option<ItemId>,
    /// The agent it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The limit that holds it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<HeldBack>,
    /// The item before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<ItemId>,
}

/// What an item waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ItemExplanation {
    /// The item.
    pub item_id: ItemId,
    /// Where it stands.
    pub state: ItemState,
    /// The state of its order.
    pub order_state: OrderState,
    /// What it waits for; none when it is completed.
    pub blocker: Option<Blocker>,
}

/// What an order waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OrderExplanation {
    /// The order.
    pub order_id: OrderId,
    /// Where it stands.
    pub state: OrderState,
    /// How many of its items are in each state.
    pub item_counts: ItemCounts,
    /// What it waits for; none when it is completed.
    pub blockers: Vec<BlockerGroup>,
}

/// All items of an order that wait for the same kind of thing, or what the order itself waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BlockerGroup {
    /// The reason.
    pub code: BlockerCode,
    /// How many items have it; 1 where the order itself does.
    pub count: u32,
    /// The first few of them.
    pub first: Vec<Blocker>,
}

/// So many items are told of for each reason.
const FIRST: i64 = 5;

impl WorkManager {
    /// What an order waits for: each reason with the number of its items, and the first few of them.
    ///
    /// # Errors
    /// [`OrderNotFound`](crate::ErrorKind::OrderNotFound).
    pub async fn explain_order(&self, id: OrderId) -> Result<OrderExplanation> {
        let not_ready = self.not_ready(id).await?;
        let mut told = read!(self, session => {
            let order = session.order(id).await?;
            let item_counts = session.item_counts(id).await?;
            let own = match order.state {
                OrderState::Submitted => Some(self.waits_for_approval(session, &order).await?),
                OrderState::Approved | OrderState::Applied => {
                    Some(waits_for_apply(session, &order).await?)
                }
                _ => of_order(&order),
            };
            let mut blockers: Vec<_> = own.into_iter().map(alone).collect();
            if order.state.is_claimable() {
                blockers.extend(self.leased_of(session, id, &item_counts).await?);
                blockers.extend(self.queued_of(session, &order).await?);
            }
            let failed = [ItemState::Failed, ItemState::DeadLettered];
            let count = failed.iter().map(|state| item_counts.get(*state)).sum();
            if count > 0 && !order.state.is_terminal() {
                let items = session.first_items(id, &failed, FIRST).await?;
                let first = items.iter().map(failed_item).collect();
                blockers.push(BlockerGroup { code: BlockerCode::Failed, count, first });
            }
            Ok(OrderExplanation { order_id: id, state: order.state, item_counts, blockers })
        })?;
        if told.state == OrderState::Submitted
            && let (Some(why), Some(own)) = (not_ready, told.blockers.first_mut())
            && let Some(own) = own.first.first_mut()
        {
            own.message = format!("{}; it cannot be approved yet: {why}", own.message);
        }
        Ok(told)
    }

    /// Why the type's own rule does not let an order in review be approved. Asked outside of a
    /// transaction, as it is the type's own code.
    async fn not_ready(&self, id: OrderId) -> Result<Option<String>> {
        let found = read!(self, session => {
            let order = session.order(id).await?;
            match order.state {
                OrderState::Submitted => session.content(&order).await.map(Some),
                _ => Ok(None),
            }
        })?;
        let Some(content) = found else { return Ok(None) };
        let Ok(known) = self.types().get(&content.order.order_type) else {
            return Ok(Some("this program does not know its type".to_owned()));
        };
        Ok(match known.can_approve(&content).await {
            Ok(()) => None,
            Err(error) => match error.kind() {
                crate::ErrorKind::NotReady { violations } => {
                    let lines: Vec<_> = violations.iter().map(ToString::to_string).collect();
                    Some(lines.join("; "))
                }
                _ => Some(error.to_string()),
            },
        })
    }

    /// Which approvals an order lacks.
    async fn waits_for_approval(
        &self,
        session: &mut Session<'_>,
        order: &Order,
    ) -> Result<Blocker> {
        let state = session.review_state(order.id).await?;
        let key = session.content_key(order).await?;
        let row = session.review(order.id, state.content_version).await?;
        // Approvals of content that has changed since do not count.
        let version = match row {
            Some(row) if row.content == key => state.content_version,
            _ => 0,
        };
        let status = status_of(session, order, &state, version).await?;
        let mut message = format!(
            "all results are in; the order waits for approval: {}",
            status.missing.join(", ")
        );
        if let Some(due) = status.due {
            let late = if due <= session.now() { "was" } else { "is" };
            message.push_str(&format!("; the review {late} due {}", moment(due, session.now())));
        }
        let mut found = blocker(BlockerCode::Approval, message);
        found.until = status.due;
        Ok(found)
    }

    /// What an item waits for.
    ///
    /// # Errors
    /// [`ItemNotFound`](crate::ErrorKind::ItemNotFound).
    pub async fn explain_item(&self, id: ItemId) -> Result<ItemExplanation> {
        read!(self, session => {
            let item = session.item(id).await?;
            let order = session.order(item.order_id).await?;
            let blocker = self.of_item(session, &order, &item).await?;
            let (state, order_state) = (item.state, order.state);
            Ok(ItemExplanation { item_id: id, state, order_state, blocker })
        })
    }

    async fn of_item(
        &self,
        session: &mut Session<'_>,
        order: &Order,
        item: &Item,
    ) -> Result<Option<Blocker>> {
        Ok(match item.state {
            ItemState::Completed => None,
            ItemState::Failed | ItemState::DeadLettered => Some(failed_item(item)),
            ItemState::Leased | ItemState::InProgress => {
                let leases = session.leases_of_items(&[item.id]).await?;
                leases.first().map(|lease| leased(lease, session.now()))
            }
            ItemState::Queued if order.state.is_claimable() => {
                Some(self.queued_item(session, item).await?)
            }
            ItemState::Submitted if order.state.is_claimable() => {
                let message = "its result is in; the order waits for its other items";
                Some(blocker(BlockerCode::Siblings, message).of(item.id))
            }
            _ => of_order(order).map(|blocker| blocker.of(item.id)),
        })
    }

    /// What a queued item of a live order waits for.
    async fn queued_item(&self, session: &mut Session<'_>, item: &Item) -> Result<Blocker> {
        let now = session.now();
        let waiting = session.wait_of_item(item.id).await?;
        let waiting = waiting.unwrap_or(Waiting { wait: Wait::Open, limit: None, first: None });
        let key = item.concurrency.as_ref().map(|concurrency| concurrency.key.as_str());
        let found = match waiting.wait {
            Wait::Later => later(item, now),
            Wait::Limit => {
                let name = format!("`{}`", key.unwrap_or_default());
                let lane = item.concurrency.as_ref().map(LimitKey::from);
                limited(&name, lane.zip(waiting.limit))
            }
            Wait::Ordered => {
                let key = key.unwrap_or_default();
                let mut message = format!("stands behind another item of the ordered key `{key}`");
                let first = waiting.first.filter(|first| *first != item.id);
                let mut until = None;
                if let Some(first) = first {
                    let first = session.item(first).await?;
                    message.push_str(&format!(": item {}", first.id));
                    if first.available_at > now {
                        until = Some(first.available_at);
                        let when = moment(first.available_at, now);
                        message.push_str(&format!(", which is tried again {when}"));
                    }
                }
                let mut found = blocker(BlockerCode::Ordered, message);
                (found.until, found.behind) = (until, first);
                found
            }
            Wait::Open => match self.full_type(session, &item.item_type).await? {
                Some((key, row)) => {
                    limited(&format!("the type `{}`", item.item_type), Some((key, row)))
                }
                None => {
                    let since = moment(item.available_at.max(item.created_at), now);
                    let message = format!("no agent has asked for it; it is ready since {since}");
                    blocker(BlockerCode::Unclaimed, message)
                }
            },
        };
        Ok(found.of(item.id))
    }

    /// The limit of a type, where it is reached.
    async fn full_type(
        &self,
        session: &mut Session<'_>,
        name: &str,
    ) -> Result<Option<(LimitKey, LimitRow)>> {
        let known = self.types().get(name).ok();
        if known.and_then(|known| known.settings().max_leases).is_none() {
            return Ok(None);
        }
        let limits = session.limits([&LimitKey::order_type(name)]).await?;
        Ok(limits.into_iter().find(|(_, row)| row.is_full()))
    }

    async fn leased_of(
        &self,
        session: &mut Session<'_>,
        order: OrderId,
        counts: &ItemCounts,
    ) -> Result<Vec<BlockerGroup>> {
        let all = counts.get(ItemState::Leased) + counts.get(ItemState::InProgress);
        if all == 0 {
            return Ok(Vec::new());
        }
        let now = session.now();
        let rows = session.first_leases(order, FIRST).await?;
        let (over, held): (Vec<_>, Vec<_>) = rows
            .iter()
            .map(|row| leased(row, now))
            .partition(|found| found.code == BlockerCode::LeaseExpired);
        // Those that end first come first, so leases beyond the first few are over only if all of the
        // first few are; then they are counted by themselves.
        let expired = match held.is_empty() {
            true => session.expired_leases(order).await?,
            false => u32::try_from(over.len()).unwrap_or(0),
        };
        let group = |code, count, first| BlockerGroup { code, count, first };
        let groups = [
            group(BlockerCode::LeaseExpired, expired, over),
            group(BlockerCode::Leased, all.saturating_sub(expired), held),
        ];
        Ok(groups.into_iter().filter(|group| group.count > 0).collect())
    }

    async fn queued_of(
        &self,
        session: &mut Session<'_>,
        order: &Order,
    ) -> Result<Vec<BlockerGroup>> {
        let mut groups: Vec<BlockerGroup> = Vec::new();
        for (wait, count, _) in session.waits(order.id).await? {
            let mut first = Vec::new();
            for item in session.waiting_items(order.id, wait, FIRST).await? {
                first.push(self.queued_item(session, &item).await?);
            }
            let Some(code) = first.first().map(|found| found.code) else { continue };
            match groups.iter_mut().find(|group| group.code == code) {
                // The limits of a key and of the type.
                Some(group) => {
                    group.count += count;
                    group.first.extend(first);
                    group.first.truncate(FIRST as usize);
                }
                None => groups.push(BlockerGroup { code, count, first }),
            }
        }
        Ok(groups)
    }
}

impl Blocker {
    fn of(mut self, item: ItemId) -> Self {
        self.item_id = Some(item);
        self
    }
}

/// What an approved or applied order waits for.
async fn waits_for_apply(session: &mut Session<'_>, order: &Order) -> Result<Blocker> {
    let (state, now) = (session.review_state(order.id).await?, session.now());
    let what = match order.state {
        OrderState::Approved => "approved and waits to be applied",
        _ => "applied and waits for its items to end",
    };
    let by_hand = match order.state {
        OrderState::Approved => state.approved_version.is_none(),
        _ => state.applied_fence.is_none(),
    };
    let held = state.worker.zip(state.until);
    let message = match held {
        _ if by_hand => format!("the order is {what}: it was moved by hand, so no worker takes it"),
        Some((worker, until)) if until > now => {
            format!(
                "the order is {what}: the worker {worker} has it until {}, attempt {}",
                moment(until, now),
                state.tries
            )
        }
        Some((worker, _)) => format!(
            "the order is {what}: the lease of the worker {worker} is over, another one takes it"
        ),
        None => format!("the order is {what}: no worker has taken it"),
    };
    Ok(blocker(BlockerCode::Apply, message))
}

fn alone(found: Blocker) -> BlockerGroup {
    BlockerGroup { code: found.code, count: 1, first: vec![found] }
}
