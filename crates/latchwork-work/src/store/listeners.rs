//! The trail as listeners read it, and how far named ones have come.

use chrono::{DateTime, Utc};

use super::events::EventRow;
use super::param::json;
use super::{Cells, Param, Session, params};
use crate::{Error, EventType, OrderId, Result};

/// What is wanted of a part of the trail.
pub(crate) struct Range<'a> {
    /// Behind this position.
    pub(crate) after: u64,
    /// Up to this one.
    pub(crate) until: u64,
    pub(crate) order: Option<OrderId>,
    pub(crate) types: &'a [String],
    pub(crate) events: &'a [EventType],
    pub(crate) limit: u32,
}

/// A position as it is stored.
fn place(position: u64) -> i64 {
    i64::try_from(position).unwrap_or(i64::MAX)
}

/// A list for a condition, or nothing where any value will do.
fn list<T: serde::Serialize>(values: &[T]) -> Result<Param> {
    let text = (!values.is_empty()).then(|| json(&values)).transpose()?;
    Ok(text.into())
}

impl Session<'_> {
    /// The position of the last sealed event, and of the first one that is kept behind a position.
    pub(crate) async fn trail(&mut self, after: u64) -> Result<(u64, Option<u64>)> {
        let row = self.fetch_one(self.sql().trail, params![place(after)]).await?;
        let mut row = row.ok_or_else(|| Error::damaged("the sealer's row is missing"))?;
        let sealed = row.number()?;
        let first = row.opt_int()?.map(|first| u64::try_from(first).unwrap_or(0));
        Ok((sealed, first))
    }

    /// Sealed events of a part of the trail, in the order of their positions.
    pub(crate) async fn events_between(&mut self, range: &Range<'_>) -> Result<Vec<EventRow>> {
        let (after, until) = (place(range.after), place(range.until));
        let (events, limit) = (list(range.events)?, i64::from(range.limit));
        if let Some(order) = range.order {
            let values = params![order, after, until, events, limit];
            return self.read_events(self.sql().order_events_between, values).await;
        }
        let values = params![after, until, events, list(range.types)?, limit];
        self.read_events(self.sql().events_between, values).await
    }

    /// The last position that was pruned; 0 where none was.
    pub(crate) async fn pruned_position(&mut self) -> Result<u64> {
        let row = self.fetch_one(self.sql().pruned_position, params![]).await?;
        row.ok_or_else(|| Error::damaged("no position"))?.number()
    }

    /// How far a named listener has come.
    pub(crate) async fn listener(&mut self, name: &str) -> Result<Option<u64>> {
        let row = self.fetch_one(self.sql().listener, params![name]).await?;
        row.map(|mut row| row.number()).transpose()
    }

    /// A named listener has come to a position. It never goes back.
    pub(crate) async fn put_listener(&mut self, name: &str, position: u64) -> Result<()> {
        let now = self.now();
        self.execute(self.sql().put_listener, params![name, place(position), now]).await?;
        Ok(())
    }

    /// All named listeners: name, position, and when it last moved on.
    pub(crate) async fn listeners(&mut self) -> Result<Vec<(String, u64, DateTime<Utc>)>> {
        let rows = self.fetch(self.sql().listeners, params![]).await?;
        let read = |mut row: Cells| Ok((row.text()?, row.number()?, row.time()?));
        rows.into_iter().map(read).collect()
    }

    pub(crate) async fn remove_listener(&mut self, name: &str) -> Result<bool> {
        Ok(self.execute(self.sql().remove_listener, params![name]).await? > 0)
    }
}
