//! How the waiters of this process learn of changes that other processes made: by LISTEN, and by
//! reading where a notification may be lost or cannot be had.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use latchwork_sql::postgres::in_time;
use sqlx::Row as _;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::record::{self, ALIVE};
use super::store::{BACKGROUND, Store};
use super::{error, schema};
use crate::coordination::deferred_release::release_with_retry;
use crate::coordination::polling::StatusSource;
use crate::coordination::waiters::{WaiterRegistry, WaiterStatus};
use crate::retry::Backoff;
use crate::rules::Id;
use crate::{Clock, Key, Result};

const DURING: &str = "reading the queue positions";

/// The pause between two reads where notifications arrive.
const FALLBACK: Duration = Duration::from_secs(1);

/// The shortest one where they do not.
const SHORTEST: Duration = Duration::from_millis(10);

/// After so long without a notification the listener notifies itself.
const SILENCE: Duration = Duration::from_secs(20);

/// How long its own notification may take.
const ECHO: Duration = Duration::from_secs(2);

/// So many echoes may be missing before the session is given up.
const DOUBTS: u32 = 5;

/// The pause before the server is asked to end a session, and how often it is asked in an outage.
const END_PAUSE: Duration = Duration::from_millis(200);
const END_TRIES: u32 = 20;

/// The pause before a listener that gets no notifications tries again.
const DEAF: Duration = Duration::from_secs(60);

/// Listens, and reads the statuses of the waiters of this process.
pub(super) struct Notifier {
    store: Arc<Store>,
    listener: JoinHandle<()>,
}

impl Notifier {
    /// Must be called in the provider's own runtime.
    pub(super) fn start(store: Arc<Store>) -> Self {
        Notifier { listener: tokio::spawn(listen(store.clone())), store }
    }

    async fn statuses(&self) -> sqlx::Result<Vec<WaiterStatus<String>>> {
        let store = &self.store;
        let now = store.clock.now();
        if store.heartbeat.is_due(now) {
            store.execute_raw(schema::beat(&store.client, ALIVE.as_micros())).await?;
            store.heartbeat.sent(now);
        }
        let sent_at = store.clock.now();
        let rows = store.execute_raw(schema::waiter_statuses(&store.client)).await?;
        if let Some(row) = rows.first() {
            store.observe_time(row.try_get(4)?, sent_at);
        }
        let mut statuses = Vec::with_capacity(rows.len());
        for row in rows {
            let Some(id) = record::id_from_hex(row.try_get(0)?) else { continue };
            let left: Option<i64> = row.try_get(3)?;
            statuses.push(WaiterStatus {
                id,
                key: row.try_get(1)?,
                granted: row.try_get(2)?,
                left: Duration::from_micros(left.unwrap_or(0).max(0).unsigned_abs()),
            });
        }
        Ok(statuses)
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl StatusSource for Notifier {
    type Key = String;

    fn waiters(&self) -> &Arc<WaiterRegistry> {
        &self.store.waiters
    }

    fn clock(&self) -> &dyn Clock {
        &*self.store.clock
    }

    fn pause(&self, interval: Duration) -> Duration {
        if self.store.is_notified.load(Ordering::Acquire) {
            return FALLBACK;
        }
        // Twice in an interval: it is one small statement for all, and others wait behind ours.
        (interval / 2).clamp(SHORTEST, FALLBACK)
    }

    async fn read(&mut self) -> Result<Vec<WaiterStatus<String>>> {
        self.statuses().await.map_err(|e| error::driver(DURING, e))
    }

    fn release_unclaimed(&self, key: Key, id: Id) -> impl Future<Output = ()> + Send + 'static {
        let store = self.store.clone();
        async move { release_with_retry(&*store, &key, id).await }
    }
}

/// Listens on a connection of its own, and again when that is lost.
async fn listen(store: Arc<Store>) {
    const NO_NOTIFICATIONS: &str = "PostgreSQL notifications do not arrive; lock waiters poll";
    if !store.has_own_sessions() {
        // Not even tried: notifications would go to another user of the session.
        tracing::warn!(
            reason = "a pooler such as pgbouncer shares the sessions",
            "{NO_NOTIFICATIONS}"
        );
        return;
    }
    let mut backoff = Backoff::first();
    let mut warned = false;
    loop {
        let mut was_notified = false;
        let ended = receive(&store, &mut was_notified).await;
        store.is_notified.store(false, Ordering::Release);
        store.waiters.wake_poller();
        if was_notified {
            (backoff, warned) = (Backoff::first(), false);
        }
        let reason = match &ended {
            Ok(()) => "the server does not pass them on".to_owned(),
            Err(error) => error.to_string(),
        };
        if !std::mem::replace(&mut warned, true) {
            tracing::warn!(%reason, "{NO_NOTIFICATIONS}");
        }
        sleep(if ended.is_ok() { DEAF } else { backoff.pause() }).await;
    }
}

/// One session of listening. An error is a lost connection; a return means that notifications do not
/// arrive.
async fn receive(store: &Arc<Store>, was_notified: &mut bool) -> sqlx::Result<()> {
    let session = ListenSession::new(store);
    let options = PgConnectOptions::clone(&store.pool.connect_options());
    let own = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(5))
        .connect_lazy_with(session.mark(options));
    let mut listener = in_time(async {
        let mut listener = PgListener::connect_with(&own).await?;
        listener.eager_reconnect(false);
        // It idles by its nature, and each time it is ended notifications are lost.
        sqlx::raw_sql(schema::NO_IDLE_TIMEOUT).execute(&mut listener).await?;
        listener.listen(&schema::channel(&store.client)).await?;
        Ok(listener)
    })
    .await?;
    // A session that is not ours alone accepts LISTEN and never delivers a notification: only one of
    // our own proves that they arrive.
    let mut doubts = 0;
    let mut patience = send_echo(store).await;
    loop {
        match timeout(patience, listener.try_recv()).await {
            Ok(Ok(Some(notice))) => {
                (*was_notified, doubts, patience) = (true, 0, SILENCE);
                if !store.is_notified.swap(true, Ordering::AcqRel) {
                    store.waiters.wake_poller();
                }
                store.on_notification(notice.payload());
            }
            Ok(Ok(None)) => return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                // After a silence the first echo is no doubt yet.
                doubts += u32::from(patience != SILENCE);
                if doubts > 0 && store.is_notified.swap(false, Ordering::AcqRel) {
                    store.waiters.wake_poller();
                }
                if doubts == DOUBTS {
                    let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
                    return if *was_notified { Err(late.into()) } else { Ok(()) };
                }
                patience = send_echo(store).await;
            }
        }
    }
}

/// Marks a session that listens. Dropped, it has the server end that session.
///
/// To drop a `PgListener` sends UNLISTEN and waits for the answer. After an outage that lost messages
/// the answer never comes, and the connection would stay open for as long as the process lives.
struct ListenSession {
    store: Arc<Store>,
    mark: String,
}

impl ListenSession {
    fn new(store: &Arc<Store>) -> Self {
        let mark = format!("{:016x}", rand::random::<u64>());
        ListenSession { store: store.clone(), mark }
    }

    /// The application's name as it is, and the mark behind it; the server cuts names at 63 bytes.
    fn mark(&self, options: PgConnectOptions) -> PgConnectOptions {
        let name = options.get_application_name().unwrap_or("latchwork");
        let name: String = name.chars().filter(char::is_ascii).take(40).collect();
        options.application_name(&format!("{name} {}", self.mark))
    }
}

impl Drop for ListenSession {
    fn drop(&mut self) {
        let Ok(runtime) = BACKGROUND.handle() else { return };
        let (store, sql) = (self.store.clone(), schema::end_listener(&self.mark));
        runtime.spawn(async move {
            for _ in 0..END_TRIES {
                // Most often UNLISTEN was answered by then, and there is nothing left to end.
                sleep(END_PAUSE).await;
                if store.execute_raw(sql.clone()).await.is_ok() {
                    return;
                }
            }
        });
    }
}

/// Sends a notification to this process, and says how long to wait for it. One that could not be sent
/// is a doubt, too, and no reason to drop the session.
async fn send_echo(store: &Store) -> Duration {
    if notify_self(store).await.is_err() {
        sleep(SHORTEST).await;
    }
    ECHO
}

async fn notify_self(store: &Store) -> sqlx::Result<()> {
    store.execute_raw(schema::notify(&store.client, "echo")).await.map(drop)
}
