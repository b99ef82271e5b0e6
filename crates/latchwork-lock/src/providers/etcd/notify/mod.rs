//! Tells the waiters of this process what happens to their keys: one watch stream, with one watch
//! for each key that is waited for.

mod orphaned_waiters;
mod poll;
mod upkeep;

use std::sync::{Arc, OnceLock};

use etcd_client::{EventType, WatchOptions, WatchResponse};
use poll::{poll, poll_key};
use tokio::sync::watch::{Receiver, Sender};
use tokio::time::{sleep, timeout};
use upkeep::{expire_overdue, keep_session_alive};

use super::background::BACKGROUND;
use super::cluster::REQUEST_TIMEOUT;
use super::error::{self, NAME, RequestError};
use super::session::RENEW_INTERVAL;
use super::store::Store;
use super::waiters::EntryChange;
use crate::retry::Backoff;
use crate::{Error, Result};

const DURING: &str = "waiting";

/// Serves the waiters of a provider, from the first one on and until it is dropped.
#[derive(Default)]
pub(super) struct Notifier(OnceLock<Sender<()>>);

impl Notifier {
    pub(super) fn start(&self, store: &Arc<Store>) {
        self.0.get_or_init(|| {
            let stop = Sender::new(());
            if let Ok(runtime) = BACKGROUND.handle() {
                runtime.spawn(serve(store.clone(), stop.subscribe()));
            }
            stop
        });
    }
}

/// Runs until the notifier is dropped.
async fn serve(store: Arc<Store>, mut stop: Receiver<()>) {
    let all = async {
        futures::join!(
            watch(&store),
            keep_session_alive(&store),
            expire_overdue(&store),
            poll(&store)
        )
    };
    tokio::select! {
        _ = stop.changed() => {}
        _ = all => {}
    }
}

/// Follows one stream, and a new one when that is lost.
async fn watch(store: &Arc<Store>) {
    let mut backoff = Backoff::first();
    let mut warned = false;
    loop {
        store.waiters.until_busy().await;
        let mut received = false;
        let ended = follow_stream(store, &mut received).await;
        store.waiters.reset_watches();
        if received {
            (backoff, warned) = (Backoff::first(), false);
        }
        if let Err(error) = ended {
            if !std::mem::replace(&mut warned, true) {
                tracing::warn!(%error, "etcd watch stream lost; polling every two seconds");
            }
            sleep(backoff.pause()).await;
        }
    }
}

/// Follows one stream until it is lost or nobody waits.
async fn follow_stream(store: &Arc<Store>, received: &mut bool) -> Result<()> {
    let Some((first, key)) = store.waiters.next_watch() else {
        // All keys are watched, or there are none yet.
        store.waiters.keys_changed.notified().await;
        return Ok(());
    };
    let member = store.cluster.member(DURING).await.map_err(|error| error.into_error(DURING))?;
    let mut client = member.watch.clone();
    let opening = client.watch(store.names.key_prefix(key.as_str()), Some(options(first)));
    let opened = match timeout(REQUEST_TIMEOUT, opening).await {
        Ok(opened) => opened.map_err(|e| error::driver(DURING, e)),
        Err(_) => Err(RequestError::timed_out(DURING, REQUEST_TIMEOUT).into_error(DURING)),
    };
    let opened = opened.inspect_err(|_| store.cluster.mark_failed(&member))?;
    let (mut sender, mut stream) = opened.split();
    let lost = |e| {
        store.cluster.mark_failed(&member);
        error::driver(DURING, e)
    };
    let ended = |reason: &str| Error::unavailable(NAME, DURING, reason.to_owned(), None);
    loop {
        while let Some((watch, key)) = store.waiters.next_watch() {
            let prefix = store.names.key_prefix(key.as_str());
            sender.watch(prefix, Some(options(watch))).await.map_err(lost)?;
        }
        while let Some(watch) = store.waiters.next_unneeded_watch() {
            sender.cancel(watch).await.map_err(lost)?;
        }
        if store.waiters.is_idle() {
            return Ok(());
        }
        tokio::select! {
            message = stream.message() => {
                let message = message.map_err(lost)?;
                let message = message.ok_or_else(|| ended("the server ended the watch"))?;
                *received = true;
                on_message(store, &message);
            }
            () = store.waiters.keys_changed.notified() => {}
            () = store.waiters.stream_stalled.notified() => {
                store.cluster.mark_failed(&member);
                return Err(ended("the watch was silent"));
            }
            () = sleep(RENEW_INTERVAL) => {
                if !store.cluster.is_current(&member) {
                    return Err(ended("another member is asked now"));
                }
            }
        }
    }
}

/// Without a start revision: a watch that starts in the past is brought up to date only ten times a
/// second, and cannot start before a compaction. A read finds what happened before.
fn options(watch: i64) -> WatchOptions {
    WatchOptions::new().with_prefix().with_watch_id(watch)
}

fn on_message(store: &Arc<Store>, message: &WatchResponse) {
    let watch = message.watch_id();
    if message.canceled() {
        // By a compaction, or because the user may not read there.
        let (compacted, reason) = (message.compact_revision(), message.cancel_reason());
        tracing::debug!(compacted, reason, "the server canceled a watch");
        let store = store.clone();
        tokio::spawn(async move {
            // Not at once: what was rejected may be rejected again.
            sleep(Backoff::first().pause()).await;
            store.waiters.on_watch_canceled(watch);
        });
        return;
    }
    if message.created() {
        let revision = message.header().map_or(0, |header| header.revision());
        if let Some(key) = store.waiters.on_watch_created(watch, revision) {
            let store = store.clone();
            tokio::spawn(async move { poll_key(&store, key).await });
        }
        return;
    }
    let changes: Vec<EntryChange> = message
        .events()
        .iter()
        .filter_map(|event| {
            let kv = event.kv()?;
            let (_, part, mode, id) = store.names.parse(kv.key())?;
            let created = (event.event_type() == EventType::Put).then(|| kv.create_revision());
            Some(EntryChange { revision: kv.mod_revision(), part, mode, id, created })
        })
        .collect();
    store.waiters.on_changes(watch, &changes, store.clock.now());
}
