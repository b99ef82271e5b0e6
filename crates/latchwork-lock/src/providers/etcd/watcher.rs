//! The thread behind it all: one runtime for every provider of this process.
//!
//! Drops happen in any runtime or in none (L21), a connection belongs to the runtime that opened
//! it, and a future that is dropped must not leave a question half asked. So all work on the
//! server is done here, as tasks that run to their end.

use std::future::Future;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use etcd_client::{EventType, WatchOptions, WatchResponse};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};

use super::connection::{Link, PATIENCE};
use super::error::{self, NAME, Wrong};
use super::lease;
use super::record::Part;
use super::store::{LOOK, Store};
use super::watch::Change;
use crate::retry::Backoff;
use crate::{Clock, Error, Key, Mode, Moment, Result};

/// How often the waiters' lease is renewed.
const PULSE: Duration = Duration::from_secs(1);

/// How long the server keeps the waiters of a process that is dead or stopped, in seconds.
const PRESENCE: u64 = 3;

/// How often those who sleep through their turn are looked for.
const TICK: Duration = Duration::from_millis(500);

/// How often a process looks at the keys that it waits for: what the stream did not tell.
const FALLBACK: Duration = Duration::from_secs(2);

const WAITING: &str = "waiting";

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
            .name("latchwork-etcd".into())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
        Ok(handle)
    });
    RUNTIME.as_ref().map_err(|e| {
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

/// The lease on which all waiters of a process hang.
#[derive(Default)]
pub(super) struct Presence {
    /// Which, and when it was surely alive last.
    current: Mutex<Option<(i64, Moment)>>,
    making: tokio::sync::Mutex<()>,
}

impl Presence {
    /// One that lives, as far as is known.
    pub(super) async fn lease(&self, link: &Arc<Link>, clock: &dyn Clock) -> Result<i64> {
        if let Some(lease) = self.known(clock) {
            return Ok(lease);
        }
        let _one_at_a_time = self.making.lock().await;
        if let Some(lease) = self.known(clock) {
            return Ok(lease);
        }
        // Others may hang on the old one: it is left only when it is dead.
        let current = *self.current.lock();
        if let Some((lease, _)) = current
            && self.renew(link, clock, lease).await.map_err(|wrong| wrong.error(WAITING))?
        {
            return Ok(lease);
        }
        let before = clock.now();
        let made = lease::grant(link, clock, WAITING, PRESENCE).await;
        let made = made.map_err(|wrong| wrong.error(WAITING))?;
        made.keep(); // when nobody renews it, it ends by itself
        *self.current.lock() = Some((made.id, before));
        Ok(made.id)
    }

    fn known(&self, clock: &dyn Clock) -> Option<i64> {
        let (lease, alive) = (*self.current.lock())?;
        // Not up to its very end: who hangs on it would lose its place with it.
        (clock.now().since(alive) < PULSE * 3 / 2).then_some(lease)
    }

    /// The server does not know it.
    pub(super) fn forget(&self, gone: i64) {
        let mut current = self.current.lock();
        if current.is_some_and(|(lease, _)| lease == gone) {
            *current = None;
        }
    }

    /// Starts its time anew; false when it is dead.
    async fn renew(&self, link: &Link, clock: &dyn Clock, lease: i64) -> Result<bool, Wrong> {
        let before = clock.now();
        let asked = link.ask_again(WAITING, move |member| async move {
            // The driver has only words for a lease that is gone.
            match member.lease.clone().keep_alive(lease).await {
                Ok(_) => Ok(true),
                Err(etcd_client::Error::LeaseKeepAliveError(_)) => Ok(false),
                Err(error) => Err(error),
            }
        });
        let (alive, _) = asked.await?;
        if !alive {
            self.forget(lease);
        } else if let Some((_, known)) =
            self.current.lock().as_mut().filter(|(current, _)| *current == lease)
        {
            *known = before;
        }
        Ok(alive)
    }
}

/// Keeps the waiters alive.
async fn pulse(store: &Store) {
    loop {
        store.desk.until_busy().await;
        let current = *store.presence.current.lock();
        if let Some((lease, _)) = current
            && let Err(wrong) = store.presence.renew(&store.link, &*store.clock, lease).await
        {
            tracing::debug!(error = %wrong.error(WAITING), "the waiters' lease was not renewed");
        }
        sleep(PULSE).await;
    }
}

/// Takes those out of the queue who sleep through their turn.
async fn tick(store: &Store) {
    loop {
        store.desk.until_busy().await;
        sleep(TICK).await;
        for (key, id) in store.desk.tick(store.clock.now()) {
            if let Err(error) = store.leave(WAITING, &key, id).await {
                tracing::debug!(%key, %error, "a waiter that sleeps was not taken out");
            }
        }
    }
}

/// Looks at all keys that are waited for.
async fn look(store: &Store) {
    loop {
        store.desk.until_busy().await;
        sleep(FALLBACK).await;
        let mut news = false;
        for keys in store.desk.keys().chunks(LOOK) {
            match look_at(store, keys).await {
                Ok(differs) => news |= differs,
                Err(wrong) => {
                    tracing::debug!(error = %wrong.error(WAITING), "no look at what is waited for");
                }
            }
        }
        if !store.desk.has_heard() && news {
            tracing::debug!("the watch has not told what a look found: it is begun anew");
            store.desk.deaf.notify_one();
        }
    }
}

async fn look_at(store: &Store, keys: &[Key]) -> Result<bool, Wrong> {
    let states = store.look(WAITING, keys).await?;
    let now = store.clock.now();
    let news = keys.iter().zip(&states).map(|(key, seen)| store.desk.feed(key, seen, now));
    Ok(news.fold(false, |any, news| any | news))
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
                if let Err(wrong) = look_at(&store, &[key]).await {
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
