//! How a waiter of this process is woken: it signs in here, and the [watcher](super::watcher) calls.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::{Either, select};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::Notify;

use super::store::Store;
use super::watcher;
use crate::rules::Id;
use crate::{Clock, Key, Moment};

/// Without notices of changes, keys are looked at this often.
pub(super) const UNWATCHED_TICK: Duration = Duration::from_millis(100);

/// Ends its thread when it is dropped.
pub(super) struct Watch {
    store: Arc<Store>,
    /// None: it could not be started, and waiters look by themselves.
    desk: OnceLock<Option<Arc<Desk>>>,
}

/// Where waiters sign in.
pub(super) struct Desk {
    pub(super) bell: OwnedFd,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) seats: HashMap<Key, Vec<(Id, Arc<Notify>)>>,
    /// Keys that somebody has just signed in for.
    pub(super) fresh: Vec<Key>,
    pub(super) closed: bool,
}

/// A waiter's place at the watch.
pub(super) struct Seat {
    desk: Option<Arc<Desk>>,
    key: Key,
    notify: Arc<Notify>,
}

impl Watch {
    pub(super) fn new(store: Arc<Store>) -> Self {
        Watch { store, desk: OnceLock::new() }
    }

    /// Signs a waiter in. Its key is looked at once right away, so that nothing that happened
    /// between its question and this is missed.
    pub(super) fn join(&self, key: &Key, id: Id) -> Seat {
        let desk = self.desk.get_or_init(|| match Desk::start(&self.store) {
            Ok(desk) => Some(desk),
            Err(error) => {
                tracing::warn!(%error, "no watch for lock waiters: they look by themselves");
                None
            }
        });
        let notify = Arc::new(Notify::new());
        if let Some(desk) = desk {
            let mut state = desk.state.lock();
            state.seats.entry(key.clone()).or_default().push((id, notify.clone()));
            state.fresh.push(key.clone());
            drop(state);
            desk.ring();
        }
        Seat { desk: desk.clone(), key: key.clone(), notify }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(Some(desk)) = self.desk.get() {
            desk.state.lock().closed = true;
            desk.ring();
        }
    }
}

impl Seat {
    /// Ends when the waiter's place may have changed, at the latest at the deadline.
    pub(super) async fn changed(&self, clock: &dyn Clock, deadline: Moment) {
        let until = match self.desk {
            Some(_) => deadline,
            None => deadline.min(clock.now().after(UNWATCHED_TICK)),
        };
        let told = std::pin::pin!(self.notify.notified());
        if until == Moment::NEVER {
            return told.await;
        }
        match select(told, clock.sleep_until(until)).await {
            Either::Left(_) | Either::Right(_) => {}
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(desk) = &self.desk else { return };
        let mut state = desk.state.lock();
        if let Some(seats) = state.seats.get_mut(&self.key) {
            seats.retain(|(_, notify)| !Arc::ptr_eq(notify, &self.notify));
            if seats.is_empty() {
                state.seats.remove(&self.key);
            }
        }
    }
}

impl Desk {
    fn start(store: &Arc<Store>) -> std::io::Result<Arc<Self>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let desk = Arc::new(Desk { bell, state: Mutex::default() });
        watcher::start(desk.clone(), store.clone())?;
        Ok(desk)
    }

    fn ring(&self) {
        // It fails only when it has been rung 2^64 times and not been heard.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}
