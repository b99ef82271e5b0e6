//! Connections that are kept for the next message.
//!
//! To give a connection back to its pool costs a round trip, so one that was just used stays here for
//! a moment.

use std::sync::Arc;
use std::time::Duration;

use latchwork_sql::postgres::JobConnection;
use parking_lot::Mutex;
use sqlx::postgres::PgPool;
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::{Clock, Moment};

/// How long a connection is kept.
const LINGER: Duration = Duration::from_millis(20);

/// The smallest pool of which connections are kept.
pub(super) const ROOMY: u32 = 8;

/// A pool, and the connections of it that are kept.
pub(super) struct Connections {
    pool: PgPool,
    clock: Arc<dyn Clock>,
    /// Where the pool's connections live; none when nothing is kept.
    runtime: Option<Handle>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// And since when. The one that was used last is used next: the server's side of it is warm.
    connections: Vec<(JobConnection, Moment)>,
    /// Whether a task gives them back.
    is_evicting: bool,
}

impl Connections {
    pub(super) fn new(pool: PgPool, clock: Arc<dyn Clock>, keep_on: Option<Handle>) -> Self {
        Connections { pool, clock, runtime: keep_on, kept: Mutex::default() }
    }

    pub(super) async fn open(&self) -> sqlx::Result<JobConnection> {
        let kept = self.kept.lock().connections.pop();
        match kept {
            Some((connection, _)) => Ok(connection),
            None => JobConnection::open(&self.pool).await,
        }
    }

    pub(super) fn keep(self: &Arc<Self>, connection: JobConnection) {
        let Some(runtime) = &self.runtime else { return };
        let mut kept = self.kept.lock();
        kept.connections.push((connection, self.clock.now()));
        if !std::mem::replace(&mut kept.is_evicting, true) {
            let this = self.clone();
            runtime.spawn(async move {
                while this.has_kept() {
                    sleep(LINGER).await;
                    this.evict_idle();
                }
            });
        }
    }

    fn has_kept(&self) -> bool {
        let mut kept = self.kept.lock();
        kept.is_evicting = !kept.connections.is_empty();
        kept.is_evicting
    }

    /// Gives back what was not used for a while.
    fn evict_idle(&self) {
        let now = self.clock.now();
        let mut kept = self.kept.lock();
        let is_idle = |(_, since): &&(JobConnection, Moment)| now.since(*since) >= LINGER;
        let idle = kept.connections.iter().take_while(is_idle).count();
        let idle: Vec<_> = kept.connections.drain(..idle).collect();
        drop(kept);
        drop(idle);
    }
}
