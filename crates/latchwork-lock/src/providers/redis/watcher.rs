//! The thread behind it all: one runtime for every provider of this process.
//!
//! Drops happen in any runtime or in none (L21), and a connection belongs to the runtime that
//! opened it. So what must outlive the caller's runtime is done here, and all talk of those who
//! have none with several threads.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures::StreamExt;
use redis::{RedisError, RedisResult};
use tokio::runtime::Handle;
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};

use super::error::NAME;
use super::release::Releases;
use super::store::Store;
use super::{error, scripts};
use crate::retry::Backoff;
use crate::rules::Id;
use crate::{Error, Key, Moment, Result};

/// How often a process looks at its waiters, in case that a notice was lost. The server counts it as
/// alive for several of these.
const FALLBACK: Duration = Duration::from_secs(1);

/// How long silence is taken for peace; then the listener asks.
const SILENCE: Duration = Duration::from_secs(5);

/// How long it may take to be answered.
const ECHO: Duration = Duration::from_secs(3);

const LOOKING: &str = "looking after those who wait";

/// Runs a job to its end. Dropping the future does not stop a job that has begun.
pub(super) async fn run<T: Send + 'static>(
    during: &'static str,
    job: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    match runtime()?.spawn(job).await {
        Ok(out) => out,
        Err(failure) => match failure.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(error::gone(during)),
        },
    }
}

/// Where jobs run.
pub(super) fn runtime() -> Result<&'static Handle> {
    static RUNTIME: LazyLock<std::io::Result<Handle>> = LazyLock::new(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new()
            .name("latchwork-redis".into())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
        Ok(handle)
    });
    RUNTIME.as_ref().map_err(|e| {
        Error::unavailable(NAME, "starting", format!("there is no thread for it ({e})"), None)
    })
}

/// Looks after the waiters of a provider until that is gone.
pub(super) async fn watch(store: Arc<Store>, releases: Arc<Releases>, mut gone: Receiver<()>) {
    let ears = tokio::spawn(listen(store.clone()));
    let mut look_at = store.clock.now().after(FALLBACK);
    loop {
        let next = store.desk.alarm(look_at);
        let alarm = async {
            if next == Moment::NEVER {
                std::future::pending::<()>().await;
            }
            sleep(next.since(store.clock.now())).await;
        };
        tokio::select! {
            _ = gone.changed() => break,
            () = store.desk.bell.notified() => {}
            () = alarm => {}
        }
        let now = store.clock.now();
        if store.desk.missed.swap(false, Ordering::AcqRel) || now >= look_at {
            look_at = now.after(FALLBACK);
            if store.desk.is_empty() {
                continue;
            }
            store.desk.give_back(&store, &releases);
            let waiting = store.desk.waiting();
            let looks = waiting.iter().map(|(key, ids)| look(&store, key, ids));
            futures::future::join_all(looks).await;
        } else {
            let due = store.desk.take_due(now);
            futures::future::join_all(due.iter().map(|key| look(&store, key, &[]))).await;
        }
    }
    ears.abort();
}

/// Looks at one key: ends what ran out there, and finds what was missed.
async fn look(store: &Arc<Store>, key: &Key, ids: &[Id]) {
    match store.poke(LOOKING, key, ids).await {
        Ok(standing) => {
            store.desk.update(ids, &standing.states, store);
            if let Some(left) = standing.left {
                store.desk.set_due(key, store.clock.now().after(left));
            }
        }
        // They will be told at the end of their wait, or it passes before.
        Err(error) => tracing::debug!(%key, %error, "a lock was not looked after: it will be soon"),
    }
}

/// Listens on a connection of its own, and again when that is lost.
async fn listen(store: Arc<Store>) {
    let mut backoff = Backoff::first();
    let mut warned = false;
    loop {
        let mut heard = false;
        let Err(failure) = hear(&store, &mut heard).await;
        if heard {
            (backoff, warned) = (Backoff::first(), false);
        }
        if !std::mem::replace(&mut warned, true) {
            let error = error::driver("listening", failure);
            tracing::warn!(%error, "lock waiters hear no notices: they look once a second");
        }
        sleep(backoff.pause()).await;
    }
}

/// One session of listening, to its end.
async fn hear(store: &Arc<Store>, heard: &mut bool) -> RedisResult<std::convert::Infallible> {
    let (mut ask, mut notices) = in_time(store.line.client.get_async_pubsub()).await?.split();
    in_time(ask.subscribe(scripts::channel(&store.client))).await?;
    *heard = true;
    // What was said before we listened.
    store.desk.missed.store(true, Ordering::Release);
    store.desk.bell.notify_one();
    loop {
        match timeout(SILENCE, notices.next()).await {
            Ok(Some(notice)) => {
                if let Ok(notice) = std::str::from_utf8(notice.get_payload_bytes()) {
                    store.desk.hear(notice, store);
                }
            }
            Ok(None) => return Err(broken(std::io::ErrorKind::BrokenPipe)),
            Err(_) => in_time(ask.ping::<redis::Value>()).await.map(drop)?,
        }
    }
}

async fn in_time<T>(job: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    timeout(ECHO, job).await.unwrap_or_else(|_| Err(broken(std::io::ErrorKind::TimedOut)))
}

fn broken(kind: std::io::ErrorKind) -> RedisError {
    std::io::Error::from(kind).into()
}
