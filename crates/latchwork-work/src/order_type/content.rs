//! What is reviewed and applied: an order's payload and the results that count.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;

use crate::{Actor, ItemId, Order};

/// An order with its payload and the results that are in: what a type judges, previews and applies.
///
/// Of a typed order it has the Rust types of payload, input and result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OrderContent<P = Value, I = Value, R = Value> {
    /// The order.
    pub order: Order,
    /// What it carries.
    pub payload: P,
    /// The items whose results count, in the order of the plan.
    pub items: Vec<ReviewedItem<I, R>>,
    /// The items that failed, where the failure policy goes on without them.
    pub failed: Vec<ItemId>,
}

/// An item whose result counts.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ReviewedItem<I = Value, R = Value> {
    /// The item.
    pub id: ItemId,
    /// Its place in the plan, from 0.
    pub seq: u32,
    /// What the agent was given.
    pub input: I,
    /// The result that counts.
    pub result: R,
    /// Which version of the result this is.
    pub result_version: u32,
    /// Who submitted it, or edited it.
    pub by: Actor,
    /// The version that a reviewer edited; none for an agent's own result.
    pub edited_from: Option<u32>,
    /// When it came in.
    pub created_at: DateTime<Utc>,
}

impl OrderContent {
    /// The same with other types, as far as they can be read.
    pub(super) fn read<P, I, R, E>(
        &self,
        payload: impl FnOnce(&Value) -> Result<P, E>,
        input: impl Fn(&Value) -> Result<I, E>,
        result: impl Fn(&Value) -> Result<R, E>,
    ) -> Result<OrderContent<P, I, R>, E> {
        let item = |item: &ReviewedItem| {
            Ok(ReviewedItem {
                id: item.id,
                seq: item.seq,
                input: input(&item.input)?,
                result: result(&item.result)?,
                result_version: item.result_version,
                by: item.by.clone(),
                edited_from: item.edited_from,
                created_at: item.created_at,
            })
        };
        Ok(OrderContent {
            order: self.order.clone(),
            payload: payload(&self.payload)?,
            items: self.items.iter().map(item).collect::<Result<_, E>>()?,
            failed: self.failed.clone(),
        })
    }

    /// The results as JSON, each with its item: what a digest covers where a type has no preview.
    pub(crate) fn results(&self) -> Value {
        let one = |item: &ReviewedItem| serde_json::json!({"item_id": item.id, "version": item.result_version, "result": item.result});
        self.items.iter().map(one).collect()
    }

    /// The document that an auto-approve rule judges.
    pub(crate) fn judged(&self) -> Value {
        let one =
            |item: &ReviewedItem| serde_json::json!({"input": item.input, "result": item.result});
        serde_json::json!({
            "payload": self.payload,
            "results": self.items.iter().map(one).collect::<Vec<_>>(),
        })
    }
}
