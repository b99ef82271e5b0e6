//! Checking items out: what is asked for, and waiting for it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::claim::Claim;
use super::client::{Answer, check_meta};
use super::wake::{FALLBACK, Wishes};
use super::{WorkClient, read};
use crate::{Error, ErrorKind, Lease, LeaseId, OrderId, Result};

/// Which items an agent wants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checkout {
    /// Items of this order only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<OrderId>,
    /// Items of these order types only; of all that the manager knows when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
    /// Items of orders with at least this priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_priority: Option<i32>,
    /// Items of orders whose meta contains this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta: Option<Map<String, Value>>,
    /// How many items at most; 1 unless told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// How long to wait where nothing can be leased; not at all unless told.
    #[serde(skip)]
    pub wait: Duration,
}

/// The most items of one checkout.
const MAX_LIMIT: u32 = 1_000;

impl Checkout {
    /// Any item, the most urgent first, then the oldest.
    pub fn any() -> Self {
        Self::default()
    }

    /// An item of an order of this type. May be told several times.
    pub fn of_type(order_type: impl Into<String>) -> Self {
        Checkout { types: vec![order_type.into()], ..Self::default() }
    }

    /// An item of this order.
    pub fn of_order(order: OrderId) -> Self {
        Checkout { order: Some(order), ..Self::default() }
    }

    /// Also of orders of this type.
    #[must_use]
    pub fn or_type(mut self, order_type: impl Into<String>) -> Self {
        self.types.push(order_type.into());
        self
    }

    /// Of orders with at least this priority.
    #[must_use]
    pub fn min_priority(mut self, priority: i32) -> Self {
        self.min_priority = Some(priority);
        self
    }

    /// Of orders whose meta has this value.
    #[must_use]
    pub fn meta(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.meta.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    /// Up to this many items.
    #[must_use]
    pub fn limit(mut self, items: u32) -> Self {
        self.limit = Some(items);
        self
    }

    /// Waits as long as this where nothing can be leased.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

/// What a checkout got.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CheckedOut {
    /// The leases; none where nothing can be leased.
    pub leases: Vec<Lease>,
    /// The limits that held items back.
    pub held_back: Vec<HeldBack>,
}

/// A limit that is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HeldBack {
    /// `agent:…`, `type:…` or `key:…`.
    pub limit: String,
    /// How many leases count for it.
    pub held: u32,
    /// How many may.
    pub max: u32,
}

impl WorkClient {
    /// Leases items: no two agents get one item, and the second one gets the next item (W3).
    ///
    /// With [`wait`](Checkout::wait) it is woken when something can be leased. If the future is dropped
    /// while it waits, nothing was leased; if it is dropped in the very moment of the claim, the lease
    /// is unclaimed until its ttl ends and the item goes to the next agent then.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an actor that is no agent or an illegal
    /// limit, [`OrderTypeNotFound`](ErrorKind::OrderTypeNotFound),
    /// [`OrderNotFound`](ErrorKind::OrderNotFound), and the store's.
    pub async fn checkout(&self, checkout: Checkout) -> Result<CheckedOut> {
        Ok(self.checkout_once(checkout).await?.value)
    }

    /// The same, and whether the answer is that of an earlier request with the same
    /// [key](Self::idempotent): then the leases are told as they are now.
    ///
    /// # Errors
    /// As for [`checkout`](Self::checkout); [`LeaseExpired`](ErrorKind::LeaseExpired) when the leases of
    /// the earlier request are over.
    pub async fn checkout_once(&self, checkout: Checkout) -> Result<Answer<CheckedOut>> {
        self.check_out(checkout).await.inspect_err(crate::metrics::count_refusal)
    }

    async fn check_out(&self, checkout: Checkout) -> Result<Answer<CheckedOut>> {
        let limit = checkout.limit.unwrap_or(1);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(Error::invalid("limit", format!("it is from 1 to {MAX_LIMIT}")));
        }
        for name in &checkout.types {
            self.manager.types().get(name)?;
        }
        if let Some(meta) = &checkout.meta {
            check_meta(meta)?;
        }
        self.agent()?;
        if let Some(order) = checkout.order {
            let order = read!(self.manager, session => { session.order(order).await })?;
            // Who does not know the type could never submit.
            self.manager.types().get(&order.order_type)?;
        }
        let clock = &self.manager.inner.clock;
        let deadline = clock.now().after(checkout.wait);
        let got = self.checkout_now(&checkout).await?;
        if !got.value.leases.is_empty() {
            return Ok(got);
        }
        if checkout.wait.is_zero() {
            return self.say_what_holds_back(&checkout, got).await;
        }
        let rest = Checkout { types: Vec::new(), limit: None, ..checkout.clone() };
        let rest = serde_json::to_string(&rest).unwrap_or_default();
        let wishes = Wishes { types: checkout.types.clone(), rest };
        let group = self.manager.inner.wake.group(&wishes);
        loop {
            // Registered before the look, so that what comes meanwhile wakes us.
            let woken = group.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            let got = self.checkout_now(&checkout).await?;
            if !got.value.leases.is_empty() {
                // There may be more: the next one looks.
                group.notify_one();
                return Ok(got);
            }
            let due = self.next_due(&checkout).await?.unwrap_or(FALLBACK).min(FALLBACK);
            let left = deadline.since(clock.now());
            if left.is_zero() {
                return self.say_what_holds_back(&checkout, got).await;
            }
            let sleep = left.min(due.max(Duration::from_millis(1)));
            let _ = tokio::time::timeout(sleep, woken).await;
        }
    }

    /// Adds the full lanes to an empty answer: claims do not look at what these hold back.
    async fn say_what_holds_back(
        &self,
        checkout: &Checkout,
        mut got: Answer<CheckedOut>,
    ) -> Result<Answer<CheckedOut>> {
        let types = self.wanted_types(checkout);
        let lanes = read!(self.manager, session => { session.full_lanes(&types).await })?;
        for lane in lanes.into_iter().map(HeldBack::from) {
            if !got.value.held_back.iter().any(|told| told.limit == lane.limit) {
                got.value.held_back.push(lane);
            }
        }
        Ok(got)
    }

    async fn next_due(&self, checkout: &Checkout) -> Result<Option<Duration>> {
        let types = self.wanted_types(checkout);
        self.manager.store().next_due(&types).await
    }

    pub(super) fn wanted_types<'a>(&'a self, checkout: &'a Checkout) -> Vec<&'a str> {
        if checkout.types.is_empty() {
            return self.manager.types().iter().map(|known| known.name()).collect();
        }
        checkout.types.iter().map(String::as_str).collect()
    }

    /// One try.
    async fn checkout_now(&self, checkout: &Checkout) -> Result<Answer<CheckedOut>> {
        let key = self.key("checkout", checkout)?;
        match self.claim(checkout, key.as_ref()).await? {
            Claim::Now(value) => Ok(Answer { value, replayed: false }),
            Claim::Before(ids) => {
                let leases = self.current_leases(&ids).await?;
                let value = CheckedOut { leases, ..Default::default() };
                Ok(Answer { value, replayed: true })
            }
        }
    }

    /// Leases of this agent as they are now.
    async fn current_leases(&self, ids: &[LeaseId]) -> Result<Vec<Lease>> {
        let agent = self.agent()?;
        read!(self.manager, session => {
            let rows = session.leases(ids).await?;
            let now = session.now();
            let mut leases = Vec::new();
            for id in ids {
                let row = rows.iter().find(|row| row.id == *id && row.expires_at > now);
                let Some(row) = row.filter(|row| row.agent == agent) else {
                    let reason = "it ended after the request that got it";
                    return Err(ErrorKind::LeaseExpired { id: *id, reason }.into());
                };
                let item = session.item(row.item_id).await?;
                let input = session.inputs(&[item.id]).await?.remove(&item.id);
                let past = super::claim::Past::read(session, &[item.id]).await?;
                let past = past.of(item.id);
                leases.push(super::claim::lease_of(row, &item, input.unwrap_or_default(), past));
            }
            Ok(leases)
        })
    }
}
