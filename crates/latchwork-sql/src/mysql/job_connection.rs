//! A connection for one job, which an outage cannot keep.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Connection, Error, MySql, MySqlConnection, MySqlPool};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use super::error::{is_broken, is_full};

/// How long a job may take. Longer than the `innodb_lock_wait_timeout` of an edit, so that the
/// server's own answer to that comes first; MySQL looks once a second, and answers as much later.
const ANSWER: Duration = Duration::from_secs(6);

/// How long a connection that is in doubt may take for a sign of life.
const PULSE: Duration = Duration::from_secs(1);

/// How many jobs in a row a connection of somebody else's pool may serve: others may wait for it.
const LOAN: u32 = 16;

/// How long it may lie here between two of them.
const REST: Duration = Duration::from_millis(2);

/// Where connections come from: a pool of ours alone, or one that others use too.
///
/// The driver asks for a sign of life whenever a connection goes back into its pool, which is a
/// message for each job. What nobody else wants is therefore kept here between two jobs; and what is
/// lent serves some jobs that follow each other closely.
#[derive(Clone)]
pub struct JobConnections(Arc<Inner>);

struct Inner {
    pool: MySqlPool,
    is_lent: bool,
    /// As many as the pool has connections: a job that has one finds a connection here, or the pool
    /// can give it one.
    turns: Arc<Semaphore>,
    idle: Mutex<Vec<Idle>>,
    /// How often something was put there.
    rests: AtomicU64,
}

/// A connection between two jobs.
struct Idle {
    connection: PoolConnection<MySql>,
    /// How many it has served since it came from the pool.
    jobs: u32,
    /// Tells it from the same one at another time.
    rest: u64,
}

impl JobConnections {
    /// Of a pool that nobody else uses.
    pub fn own(pool: MySqlPool) -> Self {
        Self::of(pool, false)
    }

    /// Of a pool that others use too: each connection goes back when it has served some jobs, or
    /// has none for a moment.
    pub fn lent(pool: MySqlPool) -> Self {
        Self::of(pool, true)
    }

    fn of(pool: MySqlPool, is_lent: bool) -> Self {
        let turns = Arc::new(Semaphore::new(pool.options().get_max_connections() as usize));
        let (idle, rests) = (Mutex::default(), AtomicU64::new(0));
        JobConnections(Arc::new(Inner { pool, is_lent, turns, idle, rests }))
    }

    /// The most connections that there can be.
    pub fn count(&self) -> u32 {
        self.0.pool.options().get_max_connections()
    }

    /// Gives a connection back that has lain here for a while, if it still does.
    async fn end_rest(self, rest: u64) {
        sleep(REST).await;
        let rested = self.0.idle().extract_if(.., |idle| idle.rest == rest).next();
        if let Some(idle) = rested {
            return_to_pool(idle.connection).await;
        }
    }
}

impl Inner {
    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_idle(&self) -> Option<Idle> {
        self.idle().pop()
    }

    /// Whether a connection that has served so many jobs may serve one more of ours.
    fn keeps(&self, jobs: u32) -> bool {
        // Somebody of ours may wait for it, or others can have another one.
        let is_wanted = || self.turns.available_permits() == 0;
        let has_more = || {
            self.pool.num_idle() > 0 || self.pool.size() < self.pool.options().get_max_connections()
        };
        !self.is_lent || (jobs < LOAN && (is_wanted() || has_more()))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        while let Some(Idle { connection, .. }) = self.take_idle() {
            match Handle::try_current() {
                Ok(runtime) if self.is_lent => drop(runtime.spawn(return_to_pool(connection))),
                Ok(runtime) => drop(runtime.spawn(timeout(PULSE, connection.close()))),
                // Nobody is there to say goodbye.
                Err(_) => drop(connection.detach()),
            }
        }
    }
}

/// A connection for one job.
///
/// The driver waits for an answer for ever, also where a network swallows it; and again when the
/// connection is given back, which keeps its place in the pool. So a job is [limited](in_time),
/// and a connection on which an answer is still due is closed and not given back: its owner
/// says when [all was heard](Self::mark_answered). Who closes one looks at the idle ones too, since they
/// go the same way.
pub struct JobConnection {
    connection: Option<PoolConnection<MySql>>,
    connections: JobConnections,
    /// How many it will have served since it came from the pool.
    jobs: u32,
    /// Given up after the connection was.
    _turn: Option<OwnedSemaphorePermit>,
    heard: bool,
}

impl JobConnection {
    /// Takes a connection from the pool, or opens one; the pool limits how long that may take. Where
    /// the server has none left to open, one that is busy may become free in time; the pool itself
    /// would give up at once.
    ///
    /// # Errors
    /// The driver's.
    pub async fn open(connections: &JobConnections) -> sqlx::Result<Self> {
        const PAUSE: Duration = Duration::from_millis(20);
        let (inner, wait) = (&connections.0, connections.0.pool.options().get_acquire_timeout());
        let turn = timeout(wait, inner.turns.clone().acquire_owned()).await;
        let turn = turn.map_err(|_| Error::PoolTimedOut)?.ok();
        let mut left = wait.as_millis() / PAUSE.as_millis();
        let (connection, jobs) = loop {
            if let Some(Idle { connection, jobs, .. }) = inner.take_idle() {
                break (connection, jobs);
            }
            match inner.pool.acquire().await {
                Ok(connection) => break (connection, 0),
                Err(error) if left > 0 && is_full(&error) => left -= 1,
                Err(error) => return Err(error),
            }
            sleep(PAUSE).await;
        };
        let (connection, connections) = (Some(connection), connections.clone());
        Ok(JobConnection {
            connection,
            connections,
            jobs: jobs.saturating_add(1),
            _turn: turn,
            heard: false,
        })
    }

    /// Says that every question was answered, so that others can have the connection. Also after
    /// an error that the server itself told, unless that was its last word.
    pub fn mark_answered<T>(&mut self, answer: &sqlx::Result<T>) {
        self.heard = match answer {
            Ok(_) => true,
            Err(error @ Error::Database(_)) => !is_broken(error),
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
pub fn is_silence(error: &Error) -> bool {
    matches!(error, Error::Io(io) if io.kind() == std::io::ErrorKind::TimedOut)
}

impl Deref for JobConnection {
    type Target = MySqlConnection;

    #[expect(clippy::expect_used, reason = "only the drop takes it")]
    fn deref(&self) -> &MySqlConnection {
        self.connection.as_ref().expect("it is there until the drop")
    }
}

impl DerefMut for JobConnection {
    #[expect(clippy::expect_used, reason = "only the drop takes it")]
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        self.connection.as_mut().expect("it is there until the drop")
    }
}

impl Drop for JobConnection {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let inner = &self.connections.0;
        let runtime = Handle::try_current();
        if self.heard && inner.keeps(self.jobs) && (runtime.is_ok() || !inner.is_lent) {
            let rest = inner.rests.fetch_add(1, Ordering::Relaxed);
            inner.idle().push(Idle { connection, jobs: self.jobs, rest });
            if let Ok(runtime) = runtime
                && inner.is_lent
            {
                runtime.spawn(self.connections.clone().end_rest(rest));
            }
            return;
        }
        let Ok(runtime) = runtime else { return drop(connection.detach()) };
        if self.heard {
            runtime.spawn(return_to_pool(connection));
            return;
        }
        // Without a word of goodbye: nobody may be there to hear it.
        drop(connection.detach());
        let idle = || inner.take_idle().map(|idle| idle.connection);
        while let Some(mut idle) = idle().or_else(|| inner.pool.try_acquire()) {
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
async fn return_to_pool(mut connection: PoolConnection<MySql>) {
    let _ = timeout(ANSWER, connection.return_to_pool()).await;
}
