//! A connection of a pool for one job, which an outage cannot keep.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{Connection, Postgres};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::is_broken;

/// How long a job may take. Longer than the `lock_timeout` of an edit, so that the server's own
/// answer to that comes first.
const ANSWER: Duration = Duration::from_secs(6);

/// How long a connection that is in doubt may take for a sign of life.
const PULSE: Duration = Duration::from_secs(1);

/// A connection of a pool for one job.
///
/// The driver waits for an answer for ever, also where a network swallows it; and again when the
/// connection is given back, which keeps its place in the pool. So a job is [limited](in_time),
/// and a connection on which an answer is still due is closed and not given back: its owner
/// says when [all was heard](Self::mark_answered). Who closes one looks at the idle ones too, since they
/// go the same way.
pub struct JobConnection {
    connection: Option<PoolConnection<Postgres>>,
    pool: PgPool,
    heard: bool,
}

impl JobConnection {
    /// Takes a connection from the pool, or opens one; the pool limits how long that may take.
    ///
    /// # Errors
    /// The driver's.
    pub async fn open(pool: &PgPool) -> sqlx::Result<Self> {
        let connection = Some(pool.acquire().await?);
        Ok(JobConnection { connection, pool: pool.clone(), heard: false })
    }

    /// Gives the connection back and waits until others can have it. A drop gives it back later, and who asks
    /// in between is given another one.
    pub async fn return_to_pool(mut self) {
        if self.heard
            && let Some(connection) = self.connection.take()
        {
            return_to_pool(connection).await;
        }
    }

    /// Says that something is asked, on a line that may have served before.
    pub fn mark_pending(&mut self) {
        self.heard = false;
    }

    /// Says that every question was answered, so that others can have the connection. Also after
    /// an error that the server itself told, unless that was its last word.
    pub fn mark_answered<T>(&mut self, answer: &sqlx::Result<T>) {
        self.heard = match answer {
            Ok(_) => true,
            Err(error @ sqlx::Error::Database(_)) => !is_broken(error),
            Err(_) => false,
        };
    }
}

/// Limits a job on a [`JobConnection`].
///
/// # Errors
/// The job's own, or that nobody answered in time.
pub async fn in_time<T>(job: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
    timeout(ANSWER, job).await.map_err(late)?
}

/// Whether nobody answered in time.
pub fn is_silence(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(io) if io.kind() == std::io::ErrorKind::TimedOut)
}

impl Deref for JobConnection {
    type Target = PgConnection;

    #[expect(clippy::expect_used, reason = "only the drop takes it")]
    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect("it is there until the drop")
    }
}

impl DerefMut for JobConnection {
    #[expect(clippy::expect_used, reason = "only the drop takes it")]
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect("it is there until the drop")
    }
}

impl Drop for JobConnection {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let Ok(runtime) = Handle::try_current() else {
            // Nobody could give it back.
            drop(connection.detach());
            return;
        };
        if self.heard {
            runtime.spawn(return_to_pool(connection));
            return;
        }
        // Without a word of goodbye: nobody may be there to hear it.
        drop(connection.detach());
        while let Some(mut idle) = self.pool.try_acquire() {
            runtime.spawn(async move {
                match timeout(PULSE, idle.ping()).await {
                    Ok(Ok(())) => return_to_pool(idle).await,
                    _ => drop(idle.detach()),
                }
            });
        }
    }
}

/// What the pool does itself, with a limit.
async fn return_to_pool(mut connection: PoolConnection<Postgres>) {
    let _ = timeout(ANSWER, connection.return_to_pool()).await;
}
