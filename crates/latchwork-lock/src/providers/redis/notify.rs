//! Serves the waiters of this process: the server's notifications, and a regular refresh.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use redis::{RedisError, RedisResult};
use tokio::sync::watch::{Receiver, Sender};
use tokio::time::{sleep, timeout};

use super::connection::BACKGROUND;
use super::store::Store;
use super::waiters::UnclaimedGrant;
use super::{error, scripts};
use crate::retry::Backoff;
use crate::rules::Id;
use crate::{Key, Moment};

/// How often a process refreshes its waiters, in case a notification was lost. The server counts it as
/// alive for several of these.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// After which silence the subscriber sends a ping.
const PING_AFTER: Duration = Duration::from_secs(5);

/// How long the answer to a ping or a subscription may take.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

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
    tokio::select! {
        _ = stop.changed() => {}
        () = async { futures::join!(subscribe(&store), refresh(&store)); } => {}
    }
}

/// Refreshes all waiters once a second, and a key when its next lease expires.
async fn refresh(store: &Arc<Store>) {
    let mut refresh_at = store.clock.now().after(REFRESH_INTERVAL);
    loop {
        let wake_at = store.waiters.next_wake(refresh_at);
        let due = async {
            if wake_at == Moment::NEVER {
                std::future::pending::<()>().await;
            }
            sleep(wake_at.since(store.clock.now())).await;
        };
        tokio::select! {
            () = store.waiters.changed.notified() => {}
            () = due => {}
        }
        let now = store.clock.now();
        if store.waiters.take_missed_notifications() || now >= refresh_at {
            refresh_at = now.after(REFRESH_INTERVAL);
            if store.waiters.is_empty() {
                continue;
            }
            let unclaimed = store.waiters.reclaim_unclaimed(now);
            let waiting = store.waiters.waiting_ids();
            let returns = join_all(unclaimed.iter().map(|grant| return_grant(store, grant)));
            let refreshes = join_all(waiting.iter().map(|(key, ids)| refresh_key(store, key, ids)));
            futures::join!(returns, refreshes);
        } else {
            let expired = store.waiters.take_expired(now);
            join_all(expired.iter().map(|key| refresh_key(store, key, &[]))).await;
        }
    }
}

/// Refreshes one key, and applies the statuses of its waiters.
async fn refresh_key(store: &Arc<Store>, key: &Key, ids: &[Id]) {
    match store.refresh_key(DURING, key, ids).await {
        Ok(found) => {
            for waiter in store.waiters.apply_statuses(ids, &found.statuses) {
                store.claim(waiter);
            }
            if let Some(left) = found.expires_in {
                store.waiters.set_expiry(key, store.clock.now().after(left));
            }
        }
        Err(error) => tracing::debug!(%key, %error, "a key was not refreshed; trying again soon"),
    }
}

async fn return_grant(store: &Arc<Store>, unclaimed: &UnclaimedGrant) {
    if let Err(error) = store.return_grant(DURING, unclaimed).await {
        let key = &unclaimed.waiter.key;
        tracing::debug!(%key, %error, "an unclaimed grant was not returned; trying again soon");
    }
}

/// Receives notifications on a connection of its own, and on a new one when that is lost.
async fn subscribe(store: &Arc<Store>) {
    let mut backoff = Backoff::first();
    let mut warned = false;
    loop {
        let mut subscribed = false;
        let Err(failure) = receive(store, &mut subscribed).await;
        if subscribed {
            (backoff, warned) = (Backoff::first(), false);
        }
        if !std::mem::replace(&mut warned, true) {
            let error = error::driver("subscribing", failure);
            tracing::warn!(%error, "Redis pub/sub connection lost; polling every second");
        }
        sleep(backoff.pause()).await;
    }
}

/// Receives notifications until the connection is lost.
async fn receive(
    store: &Arc<Store>,
    subscribed: &mut bool,
) -> RedisResult<std::convert::Infallible> {
    let client = store.connection.client();
    let connecting = client.get_async_pubsub();
    let (mut sink, mut notifications) = in_time(connecting).await?.split();
    in_time(sink.subscribe(scripts::channel(&store.client))).await?;
    *subscribed = true;
    // Those before the subscription.
    store.waiters.mark_missed_notifications();
    loop {
        match timeout(PING_AFTER, notifications.next()).await {
            Ok(Some(message)) => {
                if let Ok(text) = std::str::from_utf8(message.get_payload_bytes())
                    && let Some(waiter) = store.waiters.on_notification(text, store.clock.now())
                {
                    store.claim(waiter);
                }
            }
            Ok(None) => return Err(io_error(std::io::ErrorKind::BrokenPipe)),
            Err(_) => in_time(sink.ping::<redis::Value>()).await.map(drop)?,
        }
    }
}

async fn in_time<T>(request: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let result = timeout(RESPONSE_TIMEOUT, request).await;
    result.unwrap_or_else(|_| Err(io_error(std::io::ErrorKind::TimedOut)))
}

fn io_error(kind: std::io::ErrorKind) -> RedisError {
    std::io::Error::from(kind).into()
}
