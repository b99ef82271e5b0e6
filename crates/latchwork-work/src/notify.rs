//! Notices between processes: that something can be leased, or that events were sealed.
//!
//! Nothing rests on them but how soon a waiter wakes. A notice is sent after the commit, by a task of
//! its own, and notices that come close together are sent as one: inside a transaction PostgreSQL's
//! NOTIFY takes one lock for the whole server at the commit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::manager::Waiters;
use crate::store::Store;

/// What other processes are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notice {
    /// Something of these types can be leased.
    pub(crate) types: BTreeSet<String>,
    /// Events were sealed.
    pub(crate) sealed: bool,
    /// Anything may have happened: notices may have been lost.
    pub(crate) anything: bool,
}

impl Notice {
    /// That anything may have happened.
    pub(crate) fn anything() -> Self {
        Notice { anything: true, ..Notice::default() }
    }

    fn is_empty(&self) -> bool {
        *self == Notice::default()
    }
}

/// How long notices are collected.
const COALESCE: Duration = Duration::from_millis(5);

/// The other processes.
pub(crate) struct Remote {
    shared: Arc<Shared>,
    tasks: Mutex<Tasks>,
}

#[derive(Default)]
struct Tasks {
    sender: Option<JoinHandle<()>>,
    listener: Option<JoinHandle<()>>,
    closed: bool,
}

struct Shared {
    store: Store,
    waiters: Arc<Waiters>,
    pending: Mutex<Notice>,
    wake: Notify,
}

impl Remote {
    pub(crate) fn new(store: &Store, waiters: Arc<Waiters>) -> Self {
        let (store, pending, wake) = (store.clone(), Mutex::default(), Notify::new());
        let shared = Shared { store, waiters, pending, wake };
        Remote { shared: Arc::new(shared), tasks: Mutex::default() }
    }

    /// Tells the other processes, soon.
    pub(crate) fn notify(&self, add: impl FnOnce(&mut Notice)) {
        if !self.shared.store.has_notices() {
            return;
        }
        add(&mut self.shared.pending.lock());
        self.shared.wake.notify_one();
        let mut tasks = self.tasks.lock();
        if tasks.closed || tasks.sender.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        tasks.sender = Some(runtime.spawn(send(self.shared.clone())));
    }

    /// Listens to the other processes, if nobody does yet.
    pub(crate) fn listen(&self) {
        let mut tasks = self.tasks.lock();
        if tasks.closed || tasks.listener.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let shared = self.shared.clone();
        tasks.listener = Some(runtime.spawn(async move {
            shared.store.listen(|notice| shared.waiters.wake(&notice)).await;
        }));
    }

    pub(crate) fn close(&self) {
        let mut tasks = self.tasks.lock();
        tasks.closed = true;
        for task in [tasks.sender.take(), tasks.listener.take()].into_iter().flatten() {
            task.abort();
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.close();
    }
}

async fn send(shared: Arc<Shared>) {
    loop {
        shared.wake.notified().await;
        tokio::time::sleep(COALESCE).await;
        let notice = std::mem::take(&mut *shared.pending.lock());
        if notice.is_empty() {
            continue;
        }
        if let Err(error) = shared.store.send_notice(&notice).await {
            tracing::debug!(%error, "notice not sent; waiters of other processes poll");
        }
    }
}
