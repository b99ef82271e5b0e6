//! Where orders are kept: one transaction at a time, the same operations over every database.
//!
//! A database brings its [`Statements`] and a session that runs them; everything else is written
//! once, here and in the files beside.

mod edit;
mod events;
mod items;
mod keys;
mod leases;
mod limits;
mod listeners;
mod orders;
mod param;
mod parts;
mod query;
mod ready;
mod review;
pub(crate) mod rows;
mod session;
mod statements;
mod waits;

use chrono::{DateTime, Utc};

use crate::Result;
use crate::notify::Notice;

pub(crate) use edit::{ItemEdit, Note, OrderEdit};
pub(crate) use events::EventRow;
pub(crate) use items::{NewItem, ResultRow};
pub(crate) use keys::{Begun, IdempotencyKey, Taken};
pub(crate) use leases::{LeaseRow, NewLease};
pub(crate) use limits::{AGENT, LANE, LimitKey, LimitRow, TYPE};
pub(crate) use listeners::Range;
pub(crate) use orders::{has_to_follow, progress_row};
pub(crate) use param::{Cell, Cells, Param, json, params};
pub(crate) use query::{Listings, Select};
pub(crate) use ready::{Pick, PickFrom};
pub(crate) use review::{ApprovalRow, ReviewRow, ReviewState, Rework};
pub(crate) use session::{Connection, Session};
pub(crate) use statements::Statements;
pub(crate) use waits::{Wait, Waiting};

/// So many rows go in one message: a server has a few seconds to answer each, however many items an
/// order has.
pub(crate) const MAX_ROWS: usize = 1_000;

/// A database with orders.
#[derive(Clone)]
pub(crate) enum Store {
    #[cfg(feature = "sqlite")]
    Sqlite(Box<crate::stores::sqlite::SqliteStore>),
    #[cfg(feature = "postgres")]
    Postgres(crate::stores::postgres::PostgresStore),
}

impl Store {
    /// A transaction that may write.
    pub(crate) async fn begin(&self) -> Result<Session<'static>> {
        match self {
            #[cfg(feature = "sqlite")]
            Store::Sqlite(store) => store.begin().await.map(Connection::Sqlite).map(Session::new),
            #[cfg(feature = "postgres")]
            Store::Postgres(store) => {
                store.begin().await.map(Connection::Postgres).map(Session::new)
            }
        }
    }

    /// A transaction that changes a few rows and waits for nothing else.
    pub(crate) async fn begin_short(&self) -> Result<Session<'static>> {
        match self {
            #[cfg(feature = "sqlite")]
            Store::Sqlite(store) => {
                store.begin_short().await.map(Connection::Sqlite).map(Session::new)
            }
            #[cfg(feature = "postgres")]
            Store::Postgres(_) => self.begin().await,
        }
    }

    /// A transaction that reads one snapshot.
    pub(crate) async fn begin_read(&self) -> Result<Session<'static>> {
        match self {
            #[cfg(feature = "sqlite")]
            Store::Sqlite(store) => {
                store.begin_read().await.map(Connection::Sqlite).map(Session::new)
            }
            #[cfg(feature = "postgres")]
            Store::Postgres(store) => {
                store.begin_read().await.map(Connection::Postgres).map(Session::new)
            }
        }
    }
}

impl Store {
    /// One statement that reads a few rows, as a transaction by itself where the database can do that.
    pub(crate) async fn fetch_once(
        &self,
        sql: impl Fn(&Statements) -> &'static str,
        params: Vec<Param>,
    ) -> Result<Vec<Cells>> {
        #[cfg(feature = "sqlite")]
        if let Store::Sqlite(store) = self {
            return store.fetch_few(sql(store.statements()), params);
        }
        #[cfg(feature = "postgres")]
        if let Store::Postgres(store) = self
            && store.has_scripts()
        {
            return store.once(sql(store.statements()), params).await;
        }
        let mut session = self.begin_read().await?;
        let found = session.fetch(sql(session.sql()), params).await;
        let _ = session.rollback().await;
        found
    }
}

impl Store {
    /// The time for a statement that reads by itself; none where the database says it.
    fn time_of_reads(&self) -> Option<i64> {
        match self {
            #[cfg(feature = "sqlite")]
            Store::Sqlite(store) => Some(store.now().timestamp_micros()),
            #[cfg(feature = "postgres")]
            Store::Postgres(_) => None,
        }
    }
}

/// A stored time.
pub(crate) fn micros_to_time(micros: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_micros(micros)
}

/// A span as it is stored.
pub(crate) fn span(span: std::time::Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

impl Store {
    /// Whether other processes are told by messages.
    pub(crate) fn has_notices(&self) -> bool {
        match self {
            #[cfg(feature = "sqlite")]
            Store::Sqlite(_) => false,
            #[cfg(feature = "postgres")]
            Store::Postgres(_) => true,
        }
    }

    pub(crate) async fn send_notice(&self, notice: &Notice) -> Result<()> {
        match self {
            #[cfg(feature = "sqlite")]
            Store::Sqlite(_) => {
                let _ = notice;
                Ok(())
            }
            #[cfg(feature = "postgres")]
            Store::Postgres(store) => store.send_notice(notice).await,
        }
    }

    /// Calls back for each notice of another process, for ever.
    pub(crate) async fn listen(&self, heard: impl Fn(Notice) + Send) {
        match self {
            #[cfg(feature = "sqlite")]
            Store::Sqlite(store) => store.listen(heard).await,
            #[cfg(feature = "postgres")]
            Store::Postgres(store) => store.listen(heard).await,
        }
    }
}
