//! The thread behind it all: one runtime for every provider of this process, beside the callers' own.
//!
//! Drops happen in any runtime or in none (L21), a connection belongs to the runtime that opened
//! it, and a future that is dropped must not leave a question half asked. So all work on the
//! server is done by jobs that run to their end: on the caller's runtime where that has several
//! threads, and else here, together with what serves several callers.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use etcd_client::{EventType, WatchOptions, WatchResponse};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::runtime::{Handle, Runtime, RuntimeFlavor};
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};

use super::connection::PATIENCE;
use super::error::{self, NAME, Wrong};
use super::ghosts::Ghosts;
use super::inspect::LOOK;
use super::presence::PULSE;
use super::record::Part;
use super::store::{Party, Store};
use super::view::Change;
use crate::retry::Backoff;
use crate::{Error, Key, Mode, Result};

/// How often those who sleep through their turn are looked for.
const TICK: Duration = Duration::from_millis(500);

/// How often a process looks at the keys that it waits for: what the stream did not tell.
const FALLBACK: Duration = Duration::from_secs(2);

const WAITING: &str = "waiting";

/// Runs a job to its end. Dropping the future does not stop a job that has begun; only the end of
/// the caller's runtime does.
pub(super) fn run<T: Send + 'static>(
    during: &'static str,
    job: impl Future<Output = Result<T>> + Send + 'static,
) -> impl Future<Output = Result<T>> + Send + 'static {
    // Into a box at once: a question is some kilobytes, and would be moved at every turn.
    let job = job.boxed();
    async move {
        match here() {
            Some(here) => run_on(&here, during, job).await,
            None => run_on(runtime()?, during, job).await,
        }
    }
}

/// The same, at the pace of whoever waits for it, which saves two wake-ups. For what nobody else
/// waits for: a task that sleeps sleeps through its answer, too.
pub(super) fn run_along<T: Send + 'static>(
    during: &'static str,
    job: impl Future<Output = Result<T>> + Send + 'static,
) -> impl Future<Output = Result<T>> + Send + 'static {
    let job = job.boxed();
    async move {
        match here() {
            Some(runtime) => Along { runtime, job: Some(job) }.await,
            None => run_on(runtime()?, during, job).await,
        }
    }
}

/// The same, for what must not end with the caller's runtime, nor wait for it.
pub(super) async fn run_apart<T: Send + 'static>(
    during: &'static str,
    job: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    run_on(runtime()?, during, job.boxed()).await
}

async fn run_on<T: Send + 'static>(
    runtime: &Handle,
    during: &'static str,
    job: BoxFuture<'static, Result<T>>,
) -> Result<T> {
    match runtime.spawn(job).await {
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

/// A job that goes on by itself when it is dropped before its end.
struct Along<T: Send + 'static> {
    runtime: Handle,
    job: Option<BoxFuture<'static, Result<T>>>,
}

impl<T: Send + 'static> Future for Along<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Taken out, so that one that panics is not begun again.
        let Some(mut job) = self.job.take() else { return Poll::Pending };
        // Whoever waits may have moved to where there is no runtime.
        let inside = self.runtime.enter();
        let polled = job.as_mut().poll(context);
        drop(inside);
        if polled.is_pending() {
            self.job = Some(job);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Along<T> {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            self.runtime.spawn(job);
        }
    }
}

/// The caller's runtime. With one thread only, whoever blocks it would stop the connection, and with
/// it what others wait for; so such a runtime has none.
fn here() -> Option<Handle> {
    let here = Handle::try_current().ok()?;
    (here.runtime_flavor() == RuntimeFlavor::MultiThread).then_some(here)
}

/// Our own.
pub(super) fn runtime() -> Result<&'static Handle> {
    static RUNTIME: LazyLock<std::io::Result<Runtime>> = LazyLock::new(|| {
        // One thread: most callers ask on their own, and a second one would only take their cores.
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("latchwork-etcd")
            .enable_all()
            .build()
    });
    RUNTIME.as_ref().map(Runtime::handle).map_err(|e| {
        Error::unavailable(NAME, "starting", format!("there is no thread for it ({e})"), None)
    })
}

/// Looks after the waiters of a provider until that is gone.
pub(super) async fn watch(store: Arc<Store>, mut gone: Receiver<()>) {
    let all = async { futures::join!(listen(&store), pulse(&store), tick(&store), look(&store)) };
    tokio::select! {
        _ = gone.changed() => {}
        _ = all => {}
    }
}

/// Keeps the waiters alive.
async fn pulse(store: &Store) {
    loop {
        store.desk.until_busy().await;
        if let Err(wrong) = store.presence.beat().await {
            tracing::debug!(error = %wrong.error(WAITING), "the waiters' lease was not renewed");
        }
        sleep(PULSE).await;
    }
}

/// Takes those out of the queue who sleep through their turn, and back what they sleep through.
async fn tick(store: &Store) {
    loop {
        store.desk.until_busy().await;
        sleep(TICK).await;
        let late = store.desk.tick(store.clock.now());
        for call in late.first {
            let Party { key, id, .. } = &*call.party;
            if let Err(error) = store.leave(WAITING, key, *id).await {
                tracing::debug!(%key, %error, "a waiter that sleeps was not taken out");
            }
        }
        for (fence, call) in late.holders {
            let Party { key, id, .. } = &*call.party;
            match store.give_back(WAITING, key, *id, fence).await {
                Ok(()) => call.gone_back(),
                Err(error) => tracing::debug!(%key, %error, "a lease was not given back"),
            }
        }
    }
}

/// Looks at all keys that are waited for.
async fn look(store: &Store) {
    let mut before = Ghosts::default();
    let mut at_once = LOOK;
    loop {
        store.desk.until_busy().await;
        sleep(FALLBACK).await;
        let mut news = false;
        let mut ghosts = Ghosts::default();
        for keys in store.desk.keys().chunks(at_once) {
            match look_at(store, keys, &mut ghosts).await {
                Ok(differs) => news |= differs,
                Err(wrong) => {
                    if wrong.is_too_many() {
                        at_once = (keys.len() / 2).max(1); // from the next look on
                    }
                    tracing::debug!(error = %wrong.error(WAITING), "no look at what is waited for");
                }
            }
        }
        if !store.desk.has_heard() && news {
            tracing::debug!("the watch has not told what a look found: it is begun anew");
            store.desk.deaf.notify_one();
        }
        ghosts.lay(&before, store).await;
        before = ghosts;
    }
}

async fn look_at(store: &Store, keys: &[Key], ghosts: &mut Ghosts) -> Result<bool, Wrong> {
    let states = store.look(WAITING, keys).await?;
    let now = store.clock.now();
    let mut news = false;
    for (key, seen) in keys.iter().zip(&states) {
        news |= store.desk.feed(key, seen, now);
        ghosts.find(store, key, seen);
    }
    Ok(news)
}

/// Listens on one stream, and on a new one when that is lost.
async fn listen(store: &Arc<Store>) {
    let mut backoff = Backoff::first();
    let mut warned = false;
    loop {
        store.desk.until_busy().await;
        let mut heard = false;
        let ended = hear(store, &mut heard).await;
        store.desk.lose_watches();
        if heard {
            (backoff, warned) = (Backoff::first(), false);
        }
        if let Err(error) = ended {
            if !std::mem::replace(&mut warned, true) {
                tracing::warn!(%error, "lock waiters hear nothing for now: they look themselves");
            }
            sleep(backoff.pause()).await;
        }
    }
}

/// One stream, until it is lost or nobody waits.
async fn hear(store: &Arc<Store>, heard: &mut bool) -> Result<()> {
    let Some((first, key)) = store.desk.next_watch() else {
        // Everything is watched, or nothing is there yet.
        store.desk.news.notified().await;
        return Ok(());
    };
    let member = store.link.member(WAITING).await.map_err(|wrong| wrong.error(WAITING))?;
    let mut opener = member.watch.clone();
    let opening = opener.watch(store.names.all(key.as_str()), Some(options(first)));
    let opened = match timeout(PATIENCE, opening).await {
        Ok(opened) => opened.map_err(|e| error::driver(WAITING, e)),
        Err(_) => Err(Wrong::silence(WAITING, PATIENCE).error(WAITING)),
    };
    let (mut sender, mut stream) = opened.inspect_err(|_| store.link.failed(&member))?.split();
    let lost = |e| {
        store.link.failed(&member);
        error::driver(WAITING, e)
    };
    loop {
        while let Some((watch, key)) = store.desk.next_watch() {
            let begun = sender.watch(store.names.all(key.as_str()), Some(options(watch))).await;
            begun.map_err(lost)?;
        }
        while let Some(watch) = store.desk.next_over() {
            sender.cancel(watch).await.map_err(lost)?;
        }
        if store.desk.is_idle() {
            return Ok(());
        }
        tokio::select! {
            message = stream.message() => {
                let message = message.map_err(lost)?;
                let message = message.ok_or_else(|| {
                    Error::unavailable(NAME, WAITING, "the server ended the watch", None)
                })?;
                *heard = true;
                tell(store, &message);
            }
            () = store.desk.news.notified() => {}
            () = store.desk.deaf.notified() => {
                store.link.failed(&member);
                return Err(Error::unavailable(NAME, WAITING, "the watch was silent", None));
            }
            () = sleep(PULSE) => {
                if !store.link.is_current(&member) {
                    return Err(Error::unavailable(NAME, WAITING, "another member is asked now", None));
                }
            }
        }
    }
}

/// Without a revision to begin at: a watch that begins in the past is brought up to date only ten
/// times a second, and none can begin before a compaction. What lies between, a look finds.
fn options(watch: i64) -> WatchOptions {
    WatchOptions::new().with_prefix().with_watch_id(watch)
}

fn tell(store: &Arc<Store>, message: &WatchResponse) {
    let watch = message.watch_id();
    if message.canceled() {
        // A compaction overtook it, or we may not read there.
        let (compacted, reason) = (message.compact_revision(), message.cancel_reason());
        tracing::debug!(compacted, reason, "a watch was ended by the server");
        let store = store.clone();
        tokio::spawn(async move {
            // Not at once: what was refused will be again.
            sleep(Backoff::first().pause()).await;
            store.desk.ended(watch);
        });
        return;
    }
    if message.created() {
        let revision = message.header().map_or(0, |header| header.revision());
        if let Some(key) = store.desk.began(watch, revision) {
            let store = store.clone();
            tokio::spawn(async move {
                if let Err(wrong) = look_at(&store, &[key], &mut Ghosts::default()).await {
                    tracing::debug!(error = %wrong.error(WAITING), "no look at a key");
                }
            });
        }
        return;
    }
    let changes: Vec<Change> = message
        .events()
        .iter()
        .filter_map(|event| {
            let kv = event.kv()?;
            let (_, part, mode, id): (_, Part, Mode, _) = store.names.parse(kv.key())?;
            let created = (event.event_type() == EventType::Put).then(|| kv.create_revision());
            Some(Change { revision: kv.mod_revision(), part, mode, id, created })
        })
        .collect();
    store.desk.hear(watch, &changes, store.clock.now());
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_job_that_nobody_waits_for_goes_on() {
        let (answer, asked) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        let mut job = Box::pin(run_along("testing", async move {
            let answered = asked.await;
            let _ = tell.send(());
            answered.map_err(|e| Error::unavailable(NAME, "testing", e.to_string(), None))
        }));
        assert!(futures::poll!(&mut job).is_pending());
        drop(job);
        answer.send(()).expect("it goes on");
        told.await.expect("to its end");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_job_that_panics_is_not_begun_again() {
        let begun = Arc::new(AtomicUsize::new(0));
        let count = begun.clone();
        let job = tokio::spawn(run_along("testing", async move {
            count.fetch_add(1, Ordering::Relaxed);
            panic!("as it should");
            #[allow(unreachable_code, reason = "it must have a type")]
            Ok(())
        }));
        assert!(job.await.is_err_and(|error| error.is_panic()));
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&begun), 1, "nothing of it is left");
    }
}
