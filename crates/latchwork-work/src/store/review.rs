//! What review and apply know of an order. None of it is a state: states are written by edits only.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;

use super::param::json;
use super::{Cells, MAX_ROWS, Session, params};
use crate::canonical::sha256;
use crate::{
    Actor, Diff, Error, ErrorKind, ItemId, ItemState, Order, OrderContent, OrderId, Result,
    ReviewedItem, TypeSettings,
};

/// The columns of an order that review and apply own.
#[derive(Clone, Debug)]
pub(crate) struct ReviewState {
    /// The latest version of the content that was looked at; 0 for none.
    pub(crate) content_version: u32,
    pub(crate) approved_version: Option<u32>,
    pub(crate) overdue_at: Option<DateTime<Utc>>,
    pub(crate) worker: Option<String>,
    pub(crate) until: Option<DateTime<Utc>>,
    pub(crate) fence: u64,
    pub(crate) tries: u32,
    /// The fence of the apply that was recorded.
    pub(crate) applied_fence: Option<u64>,
}

/// A version of an order's content, as it was looked at.
#[derive(Clone, Debug)]
pub(crate) struct ReviewRow {
    /// A hash of the type's version and of the items with the versions of their results.
    pub(crate) content: String,
    pub(crate) digest: String,
    pub(crate) results_digest: String,
    /// The preview as canonical JSON.
    pub(crate) preview: Option<String>,
}

/// An approval of a version.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApprovalRow {
    pub(crate) actor: Actor,
    pub(crate) roles: Vec<String>,
    pub(crate) created_at: DateTime<Utc>,
}

/// A recorded apply.
#[derive(Clone, Debug)]
pub(crate) struct AppliedRow {
    pub(crate) diff: Diff,
}

/// What a reviewer asks of an item.
#[derive(Serialize)]
pub(crate) struct Rework {
    pub(crate) item_id: ItemId,
    pub(crate) result_version: u32,
    /// JSON.
    pub(crate) note: String,
}

impl Session<'_> {
    pub(crate) async fn review_state(&mut self, order: OrderId) -> Result<ReviewState> {
        let row = self.fetch_one(self.sql().review_state, params![order]).await?;
        let mut row = row.ok_or_else(|| Error::from(ErrorKind::OrderNotFound { id: order }))?;
        Ok(ReviewState {
            content_version: row.number()?,
            approved_version: row.opt_number()?,
            overdue_at: row.opt_time()?,
            worker: row.opt_text()?,
            until: row.opt_time()?,
            fence: row.number()?,
            tries: row.number()?,
            applied_fence: row.opt_number()?,
        })
    }

    /// Names the content of an order: which results count. Bodies need not be read, since a version
    /// of a result never changes.
    pub(crate) async fn content_key(&mut self, order: &Order) -> Result<String> {
        let mut text = format!("{} {}", order.order_type, order.type_version);
        for mut row in self.fetch(self.sql().content_items, params![order.id]).await? {
            let (id, state, results) = (row.text()?, row.parse::<ItemState>()?, row.int()?);
            match state {
                ItemState::Failed | ItemState::DeadLettered => text.push_str(&format!(" -{id}")),
                _ => text.push_str(&format!(" {id}:{results}")),
            }
        }
        Ok(sha256(&text))
    }

    /// The content of an order, with all bodies.
    pub(crate) async fn content(&mut self, order: &Order) -> Result<OrderContent> {
        let payload = self.payload(order.id).await.map_err(|error| match error.kind() {
            ErrorKind::OrderNotFound { .. } => Error::damaged("the payload of an order is missing"),
            _ => error,
        })?;
        let read = |mut row: Cells| {
            Ok::<_, Error>(ReviewedItem {
                id: row.parse()?,
                seq: row.number()?,
                input: row.json()?,
                result: row.json()?,
                result_version: row.number()?,
                by: Actor { actor_type: row.parse()?, id: row.opt_text()? },
                edited_from: row.opt_number()?,
                created_at: row.time()?,
            })
        };
        let rows = self.fetch(self.sql().content, params![order.id]).await?;
        let items = rows.into_iter().map(read).collect::<Result<Vec<_>>>()?;
        let mut failed = Vec::new();
        for mut row in self.fetch(self.sql().content_items, params![order.id]).await? {
            let (id, state) = (row.parse()?, row.parse::<ItemState>()?);
            if matches!(state, ItemState::Failed | ItemState::DeadLettered) {
                failed.push(id);
            }
        }
        Ok(OrderContent { order: order.clone(), payload, items, failed })
    }

    /// The names of the agents whose results count.
    pub(crate) async fn submitters(&mut self, order: OrderId) -> Result<Vec<String>> {
        let rows = self.fetch(self.sql().submitters, params![order]).await?;
        rows.into_iter().map(|mut row| row.text()).collect()
    }

    /// A version of an order's content; none where nobody has looked at it, or its row is damaged.
    pub(crate) async fn review(
        &mut self,
        order: OrderId,
        version: u32,
    ) -> Result<Option<ReviewRow>> {
        let row = self.fetch_one(self.sql().review, params![order, i64::from(version)]).await?;
        let read = |mut row: Cells| {
            Ok::<_, Error>(ReviewRow {
                content: row.text()?,
                digest: row.text()?,
                results_digest: row.text()?,
                preview: row.opt_text()?,
            })
        };
        let row = row.map(read).transpose()?;
        // A preview that is not that of its digest was not written by us: nobody may see it or approve by
        // it, and the next look at the order makes another.
        Ok(row.filter(|row: &ReviewRow| {
            let intact = row.preview.as_deref().is_none_or(|text| sha256(text) == row.digest);
            if !intact {
                tracing::warn!(%order, version, "a stored preview is damaged, and is made anew");
            }
            intact
        }))
    }

    /// Stores the next version of an order's content. The order must be locked.
    pub(crate) async fn insert_review(
        &mut self,
        order: OrderId,
        version: u32,
        row: &ReviewRow,
    ) -> Result<()> {
        let (version, now) = (i64::from(version), self.now());
        let values = params![
            order,
            version,
            row.content.as_str(),
            row.digest.as_str(),
            row.results_digest.as_str(),
            row.preview.clone(),
            now,
        ];
        self.execute(self.sql().insert_review, values).await?;
        self.execute(self.sql().set_content, params![order, version]).await?;
        Ok(())
    }

    /// Begins a version of the content that nobody has previewed.
    pub(crate) async fn set_content(&mut self, order: OrderId, version: u32) -> Result<()> {
        self.execute(self.sql().set_content, params![order, i64::from(version)]).await?;
        Ok(())
    }

    /// Keeps an approval; false where the reviewer has approved this version before.
    pub(crate) async fn insert_approval(
        &mut self,
        order: OrderId,
        version: u32,
        actor: &Actor,
        roles: &[String],
    ) -> Result<bool> {
        let now = self.now();
        let id = actor.id.clone().unwrap_or_default();
        let kind = actor.actor_type.as_str();
        let values = params![order, i64::from(version), kind, id, json(&roles)?, now];
        Ok(self.execute(self.sql().insert_approval, values).await? == 1)
    }

    pub(crate) async fn approvals(
        &mut self,
        order: OrderId,
        version: u32,
    ) -> Result<Vec<ApprovalRow>> {
        let rows = self.fetch(self.sql().approvals, params![order, i64::from(version)]).await?;
        let read = |mut row: Cells| {
            let actor = Actor { actor_type: row.parse()?, id: row.opt_text()? };
            Ok(ApprovalRow { actor, roles: row.json()?, created_at: row.time()? })
        };
        rows.into_iter().map(read).collect()
    }

    /// Notes which version was approved, and that it is to be applied.
    pub(crate) async fn set_approved(&mut self, order: OrderId, version: u32) -> Result<()> {
        self.execute(self.sql().set_approved, params![order, i64::from(version)]).await?;
        Ok(())
    }

    pub(crate) async fn set_overdue(&mut self, order: OrderId) -> Result<()> {
        let now = self.now();
        self.execute(self.sql().set_overdue, params![order, now]).await?;
        Ok(())
    }

    pub(crate) async fn set_judged(&mut self, order: OrderId) -> Result<()> {
        let now = self.now();
        self.execute(self.sql().set_judged, params![order, now]).await?;
        Ok(())
    }

    pub(crate) async fn put_reworks(&mut self, reworks: &[Rework]) -> Result<()> {
        for some in reworks.chunks(MAX_ROWS) {
            self.execute(self.sql().put_reworks, params![json(&some)?]).await?;
        }
        Ok(())
    }

    /// What reviewers asked of items, where no newer result has come in since.
    pub(crate) async fn reworks(&mut self, items: &[ItemId]) -> Result<HashMap<ItemId, Value>> {
        let rows = self.fetch(self.sql().reworks, params![json(&items)?]).await?;
        rows.into_iter().map(|mut row| Ok((row.parse()?, row.json()?))).collect()
    }

    /// The latest comments on an order and its items, newest first: item, and the comment as JSON.
    pub(crate) async fn comments(
        &mut self,
        order: OrderId,
        limit: i64,
    ) -> Result<Vec<(Option<ItemId>, Value)>> {
        let rows = self.fetch(self.sql().comments, params![order, limit]).await?;
        let read = |mut row: Cells| {
            let item = row.opt_parse()?;
            let by = Actor { actor_type: row.parse()?, id: row.opt_text()? };
            let (text, at) = (row.opt_text()?, row.time()?);
            Ok((item, serde_json::json!({"by": by, "comment": text, "at": at})))
        };
        rows.into_iter().map(read).collect()
    }

    /// Gives the most urgent order of these types to an apply worker, or a certain one; locked.
    pub(crate) async fn pick_apply(
        &mut self,
        types: &[&str],
        only: Option<OrderId>,
    ) -> Result<Option<OrderId>> {
        let now = self.now();
        let row = match only {
            Some(order) => self.fetch_one(self.sql().pick_apply_of, params![order, now]).await?,
            None => self.fetch_one(self.sql().pick_apply, params![json(&types)?, now]).await?,
        };
        row.map(|mut row| row.parse()).transpose()
    }

    pub(crate) async fn claim_apply(
        &mut self,
        order: OrderId,
        worker: &str,
        until: DateTime<Utc>,
    ) -> Result<()> {
        self.execute(self.sql().claim_apply, params![order, worker, until]).await?;
        Ok(())
    }

    /// Extends an apply lease; false where it is another worker's by now, or over.
    pub(crate) async fn extend_apply(
        &mut self,
        order: OrderId,
        fence: u64,
        until: DateTime<Utc>,
    ) -> Result<bool> {
        let values = params![order, i64::try_from(fence).unwrap_or(i64::MAX), until];
        Ok(self.execute(self.sql().extend_apply, values).await? == 1)
    }

    /// Notes that apply was recorded with this fence; the worker has the order for what follows.
    pub(crate) async fn keep_apply(
        &mut self,
        order: OrderId,
        tries: u32,
        fence: u64,
        until: DateTime<Utc>,
    ) -> Result<()> {
        let fence = i64::try_from(fence).unwrap_or(i64::MAX);
        self.execute(self.sql().keep_apply, params![order, i64::from(tries), fence, until]).await?;
        Ok(())
    }

    /// Ends an apply lease. The order must be locked, and its fence compared.
    pub(crate) async fn end_apply(
        &mut self,
        order: OrderId,
        tries: u32,
        after: DateTime<Utc>,
    ) -> Result<()> {
        self.execute(self.sql().end_apply, params![order, i64::from(tries), after]).await?;
        Ok(())
    }

    /// Ends an apply lease from outside; who had it stays known.
    pub(crate) async fn expire_apply(&mut self, order: OrderId) -> Result<()> {
        let now = self.now();
        self.execute(self.sql().expire_apply, params![order, now]).await?;
        Ok(())
    }

    pub(crate) async fn insert_applied(
        &mut self,
        order: OrderId,
        version: u32,
        fence: u64,
        worker: &str,
        diff: &Diff,
    ) -> Result<()> {
        let now = self.now();
        let fence = i64::try_from(fence).unwrap_or(i64::MAX);
        let values = params![order, i64::from(version), fence, worker, json(diff)?, now];
        self.execute(self.sql().insert_applied, values).await?;
        Ok(())
    }

    pub(crate) async fn applied(&mut self, order: OrderId) -> Result<Option<AppliedRow>> {
        let row = self.fetch_one(self.sql().applied, params![order]).await?;
        let read = |mut row: Cells| Ok(AppliedRow { diff: row.json()? });
        row.map(read).transpose()
    }

    /// Orders whose review may be late: since when they wait, and by which settings.
    pub(crate) async fn overdue(
        &mut self,
        before: super::Param,
        from: OrderId,
        limit: i64,
    ) -> Result<Vec<(OrderId, DateTime<Utc>, Result<TypeSettings>)>> {
        let values = vec![before, super::Param::from(from), super::Param::from(limit)];
        let rows = self.fetch(self.sql().overdue, values).await?;
        let read = |mut row: Cells| {
            let id = row.parse()?;
            let settings = row.json();
            Ok((id, row.time()?, settings))
        };
        rows.into_iter().map(read).collect()
    }

    /// Ids that a statement finds behind another one.
    pub(crate) async fn order_ids(
        &mut self,
        sql: &'static str,
        first: super::Param,
        from: OrderId,
        limit: i64,
    ) -> Result<Vec<OrderId>> {
        let values = vec![first, super::Param::from(from), super::Param::from(limit)];
        let rows = self.fetch(sql, values).await?;
        rows.into_iter().map(|mut row| row.parse()).collect()
    }
}
