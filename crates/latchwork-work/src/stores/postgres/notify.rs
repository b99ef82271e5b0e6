//! Notices by NOTIFY and LISTEN.

use std::time::Duration;

use sqlx::postgres::PgListener;

use super::error;
use super::store::PostgresStore;
use crate::Result;
use crate::notify::Notice;

/// That something can be leased; its types, separated by commas.
const CHANNEL: &str = "latchwork_work";

/// That events were sealed.
const SEALED: &str = "latchwork_work_sealed";

/// A notice has room for 8,000 bytes; one with more types says that anything may have come.
const MAX_PAYLOAD: usize = 7_000;

/// How long until a lost connection is opened again.
const PAUSE: Duration = Duration::from_secs(1);

impl PostgresStore {
    /// Tells all listening processes.
    pub(crate) async fn send_notice(&self, notice: &Notice) -> Result<()> {
        let types: Vec<_> = notice.types.iter().map(String::as_str).collect();
        let payload = types.join(",");
        let payload = if payload.len() > MAX_PAYLOAD { "" } else { payload.as_str() };
        let mut session = self.begin().await?;
        for (told, channel, payload) in
            [(!types.is_empty(), CHANNEL, payload), (notice.sealed, SEALED, "")]
        {
            if told {
                let values = crate::store::params![channel, payload];
                session.fetch("SELECT pg_notify($1, $2)::text", values).await?;
            }
        }
        session.commit().await
    }

    /// Calls back for each notice, for ever. Behind a pooler there are none.
    pub(crate) async fn listen(&self, heard: impl Fn(Notice) + Send) {
        if self.lends_sessions {
            return std::future::pending().await;
        }
        loop {
            if let Err(error) = self.listen_once(&heard).await {
                tracing::warn!(%error, "LISTEN connection lost; waiters poll meanwhile");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn listen_once(&self, heard: &(impl Fn(Notice) + Send)) -> Result<()> {
        let mut listener = PgListener::connect_with(&self.pool).await.map_err(error::driver)?;
        listener.listen_all([CHANNEL, SEALED]).await.map_err(error::driver)?;
        // What came while nobody listened.
        heard(Notice::anything());
        loop {
            let told = listener.recv().await.map_err(error::driver)?;
            let types = told.payload().split(',').filter(|name| !name.is_empty());
            heard(match told.channel() {
                SEALED => Notice { sealed: true, ..Notice::default() },
                _ if told.payload().is_empty() => Notice::anything(),
                _ => Notice { types: types.map(str::to_owned).collect(), ..Notice::default() },
            });
        }
    }
}
