//! The thread behind it all: one runtime for every provider of this process.
//!
//! Drops happen in any runtime or in none (L21), a connection belongs to the runtime that opened
//! it, and a future that is dropped must not leave a transaction half done. So all work on the
//! database is done here, as tasks that run to their end; but the common requests of a runtime
//! with several threads, which go by a [lane](super::batch) of its own.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use latchwork_sql::postgres::in_time;
use sqlx::Row as _;
use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::runtime::Handle;
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};

use super::error::NAME;
use super::schema;
use super::store::{ALIVE, Store};
use crate::coordination::deferred_release::patiently;
use crate::desk::Standing;
use crate::retry::Backoff;
use crate::rules::Id;
use crate::{Error, Result};

/// How often a process looks at its waiters where notices are heard.
const FALLBACK: Duration = Duration::from_secs(1);

/// How long a lease lies on the desk for a waiter that does not look. With the pause between two
/// looks, that is less than the claim window.
const UNCLAIMED: Duration = Duration::from_millis(800);

/// The shortest tick that is granted where they are not.
const SHORTEST_TICK: Duration = Duration::from_millis(10);

/// How long silence is taken for peace; then the listener calls itself.
const SILENCE: Duration = Duration::from_secs(20);

/// How long its own call may take.
const ECHO: Duration = Duration::from_secs(2);

/// How long until a listener that hears nothing tries again.
const DEAF: Duration = Duration::from_secs(60);

/// Runs a job to its end. Dropping the future does not stop a job that has begun.
pub(super) async fn run<T: Send + 'static>(
    during: &'static str,
    job: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    match runtime()?.spawn(job).await {
        Ok(out) => out,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(Error::unavailable(
                NAME,
                during,
                "the runtime is shutting down",
                Some(Box::new(error)),
            )),
        },
    }
}

/// Where jobs run.
pub(super) fn runtime() -> Result<&'static Handle> {
    static RUNTIME: LazyLock<std::io::Result<Handle>> = LazyLock::new(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new()
            .name("latchwork-postgres".into())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
        Ok(handle)
    });
    RUNTIME.as_ref().map_err(|e| {
        Error::unavailable(NAME, "starting", format!("there is no thread for it ({e})"), None)
    })
}

/// Looks after the waiters of a provider until that is gone.
pub(super) async fn watch(store: Arc<Store>, mut gone: Receiver<()>) {
    let ears = tokio::spawn(listen(store.clone()));
    let mut failing = false;
    loop {
        // First the word, then the look at the seats: who comes after that rings.
        store.desk.idle.store(true, Ordering::Release);
        let tick = match store.desk.tick() {
            None => Duration::MAX,
            Some(_) if store.hears.load(Ordering::Acquire) => FALLBACK,
            // Twice a tick: it is one small statement for all, and others wait behind ours.
            Some(tick) => (tick / 2).clamp(SHORTEST_TICK, FALLBACK),
        };
        if tick != Duration::MAX {
            store.desk.idle.store(false, Ordering::Release);
        }
        tokio::select! {
            _ = gone.changed() => break,
            () = store.desk.bell.notified() => {}
            () = sleep(tick) => {}
        }
        store.desk.idle.store(false, Ordering::Release);
        for (key, id) in store.desk.take_back(store.clock.now(), UNCLAIMED) {
            let store = store.clone();
            tokio::spawn(async move {
                patiently(&*store, &key, id).await;
                store.desk.taken_back(id);
            });
        }
        let asked = store.desk.seated();
        if asked.is_empty() {
            continue;
        }
        match look(&store).await {
            Ok(standings) => {
                failing = false;
                store.desk.update(&standings, &asked, store.clock.now());
            }
            Err(error) => {
                // They will be told at the end of their wait, or it passes before.
                if !std::mem::replace(&mut failing, true) {
                    let error = latchwork_sql::postgres::explain(error);
                    tracing::warn!(%error, "lock waiters cannot look at their places");
                }
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    ears.abort();
}

async fn look(store: &Store) -> sqlx::Result<Vec<Standing<String>>> {
    if store.must_beat() {
        let before = store.clock.now();
        store.tell_server(schema::beat(&store.client, ALIVE.as_micros())).await?;
        store.was_alive_at(before);
    }
    let sent_at = store.clock.now();
    let rows = store.tell_server(schema::look(&store.client)).await?;
    if let Some(row) = rows.first() {
        store.heard_time(row.try_get(4)?, sent_at);
    }
    let mut standings = Vec::with_capacity(rows.len());
    for row in rows {
        let id: String = row.try_get(0)?;
        let Ok(id) = Id::from_str_radix(&id, 16) else { continue };
        let left: Option<i64> = row.try_get(3)?;
        standings.push(Standing {
            id,
            key: row.try_get(1)?,
            granted: row.try_get(2)?,
            left: Duration::from_micros(left.unwrap_or(0).max(0).unsigned_abs()),
        });
    }
    Ok(standings)
}

/// Listens on a connection of its own, and again when that is lost.
async fn listen(store: Arc<Store>) {
    const NO_NOTICES: &str = "lock waiters hear no notices: they look at every tick";
    if !store.has_own_sessions() {
        // Not even tried: the notices would go to whoever has the session then.
        tracing::warn!(reason = "a pooler lends the sessions, as pgbouncer does", "{NO_NOTICES}");
        return;
    }
    let mut backoff = Backoff::first();
    let mut warned = false;
    loop {
        let mut heard_something = false;
        let ended = hear(&store, &mut heard_something).await;
        store.hears.store(false, Ordering::Release);
        store.desk.bell.notify_one();
        if heard_something {
            (backoff, warned) = (Backoff::first(), false);
        }
        let reason = match &ended {
            Ok(()) => "the server does not pass them on".to_owned(),
            Err(error) => error.to_string(),
        };
        if !std::mem::replace(&mut warned, true) {
            tracing::warn!(%reason, "{NO_NOTICES}");
        }
        sleep(if ended.is_ok() { DEAF } else { backoff.pause() }).await;
    }
}

/// One session of listening. An error is a lost connection; a return means that nothing is heard.
async fn hear(store: &Store, heard_something: &mut bool) -> sqlx::Result<()> {
    let options = store.pool.connect_options();
    let own = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(5))
        .connect_lazy_with((*options).clone());
    let mut listener = in_time(async {
        let mut listener = PgListener::connect_with(&own).await?;
        listener.eager_reconnect(false);
        listener.listen(&schema::channel(&store.client)).await?;
        Ok(listener)
    })
    .await?;
    // A session that is not ours alone takes the word LISTEN and never brings a notice: only an
    // echo proves that we hear.
    call(store).await?;
    let mut patience = ECHO;
    loop {
        match timeout(patience, listener.try_recv()).await {
            Ok(Ok(Some(notice))) => {
                if !std::mem::replace(heard_something, true) {
                    store.hears.store(true, Ordering::Release);
                    store.desk.bell.notify_one();
                }
                patience = SILENCE;
                store.hear(notice.payload());
            }
            Ok(Ok(None)) => return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()),
            Ok(Err(error)) => return Err(error),
            Err(_) if patience == SILENCE => {
                call(store).await?;
                patience = ECHO;
            }
            Err(_) if *heard_something => {
                return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
            }
            Err(_) => return Ok(()),
        }
    }
}

async fn call(store: &Store) -> sqlx::Result<()> {
    store.tell_server(schema::notify(&store.client, "echo")).await.map(drop)
}
