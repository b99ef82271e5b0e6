//! Notices by NOTIFY and LISTEN.

use std::time::Duration;

use sqlx::postgres::PgListener;

use super::error;
use super::store::PostgresStore;
use crate::Result;

const CHANNEL: &str = "latchwork_work";

/// A notice has room for 8,000 bytes; one with more types says that anything may have come.
const MAX_PAYLOAD: usize = 7_000;

/// How long until a lost connection is opened again.
const PAUSE: Duration = Duration::from_secs(1);

impl PostgresStore {
    /// Tells all listening processes that something of these types can be leased.
    pub(crate) async fn send_notice(&self, types: &[String]) -> Result<()> {
        let payload = types.join(",");
        let payload = if payload.len() > MAX_PAYLOAD { "" } else { payload.as_str() };
        let mut session = self.begin().await?;
        let values = crate::store::params![CHANNEL, payload];
        session.fetch("SELECT pg_notify($1, $2)::text", values).await?;
        session.commit().await
    }

    /// Calls back for each notice, for ever. Behind a pooler there are none.
    pub(crate) async fn listen(&self, heard: impl Fn(Vec<String>) + Send) {
        if self.lends_sessions {
            return std::future::pending().await;
        }
        loop {
            if let Err(error) = self.listen_once(&heard).await {
                tracing::warn!(%error, "LISTEN connection lost; waiting agents poll meanwhile");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn listen_once(&self, heard: &(impl Fn(Vec<String>) + Send)) -> Result<()> {
        let mut listener = PgListener::connect_with(&self.pool).await.map_err(error::driver)?;
        listener.listen(CHANNEL).await.map_err(error::driver)?;
        // What came while nobody listened.
        heard(Vec::new());
        loop {
            let notice = listener.recv().await.map_err(error::driver)?;
            let types = notice.payload().split(',').filter(|name| !name.is_empty());
            heard(types.map(str::to_owned).collect());
        }
    }
}
