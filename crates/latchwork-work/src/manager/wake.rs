//! Waking checkouts and listeners that wait.
//!
//! Checkouts with the same wishes wait in one group. A notice wakes the first of each group that it
//! concerns; who got something wakes the next, and who found nothing does not: what one did not find,
//! another with the same wishes would not either. So a new item costs one claim, not one for each
//! waiter. A notice can be lost (another process, a cut connection): every waiter also looks by itself
//! every second or two.
//!
//! Listeners wait for one number, which counts the notices of sealed events: each of them reads the
//! trail for itself.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::notify::Notice;
use crate::store::Store;

/// How long a waiter sleeps without a notice.
pub(super) const FALLBACK: Duration = Duration::from_millis(1_500);

/// Marks what apply workers wait for; no order type has such a name.
pub(super) const APPLY: &str = "apply:";

/// What a group of waiters wants: its types (all of them when empty), and everything else as text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wishes {
    pub(super) types: Vec<String>,
    pub(super) rest: String,
}

/// The waiters of this process.
pub(crate) struct Wake {
    waiters: Arc<Waiters>,
    remote: crate::notify::Remote,
}

#[derive(Default)]
pub(crate) struct Waiters {
    groups: Mutex<HashMap<Wishes, Weak<Notify>>>,
    /// Counts the notices of sealed events.
    sealed: watch::Sender<u64>,
}

impl Wake {
    pub(super) fn new(store: &Store) -> Self {
        let waiters = Arc::<Waiters>::default();
        Wake { remote: crate::notify::Remote::new(store, waiters.clone()), waiters }
    }

    /// Something of these types can be leased: tells the waiters here and in other processes.
    pub(super) fn notify(&self, types: Vec<String>) {
        self.waiters.wake_groups(&types);
        self.remote.notify(|notice| notice.types.extend(types));
    }

    /// Events were sealed: tells the listeners here and in other processes.
    pub(super) fn notify_sealed(&self) {
        self.waiters.wake_listeners();
        self.remote.notify(|notice| notice.sealed = true);
    }

    /// Joins a group. The other processes are listened to from now on.
    pub(super) fn group(&self, wishes: &Wishes) -> Arc<Notify> {
        self.remote.listen();
        self.waiters.group(wishes)
    }

    /// Changes with each notice of sealed events. The other processes are listened to from now on.
    pub(super) fn sealed(&self) -> watch::Receiver<u64> {
        self.remote.listen();
        self.waiters.sealed.subscribe()
    }

    /// Ends the connections to other processes.
    pub(super) fn close(&self) {
        self.remote.close();
    }
}

impl Waiters {
    fn group(&self, wishes: &Wishes) -> Arc<Notify> {
        let mut groups = self.groups.lock();
        if let Some(group) = groups.get(wishes).and_then(Weak::upgrade) {
            return group;
        }
        groups.retain(|_, group| group.strong_count() > 0);
        let group = Arc::new(Notify::new());
        groups.insert(wishes.clone(), Arc::downgrade(&group));
        group
    }

    /// Wakes the waiters that a notice of another process concerns.
    pub(crate) fn wake(&self, notice: &Notice) {
        if notice.anything {
            self.wake_groups(&[]);
        } else if !notice.types.is_empty() {
            self.wake_groups(&notice.types.iter().cloned().collect::<Vec<_>>());
        }
        if notice.anything || notice.sealed {
            self.wake_listeners();
        }
    }

    /// Wakes the first waiter of each group that wants one of these types; of all groups where no
    /// type is named.
    fn wake_groups(&self, types: &[String]) {
        for (wishes, group) in self.groups.lock().iter() {
            let wanted = types.is_empty()
                || wishes.types.is_empty() && !types.iter().all(|name| name.starts_with(APPLY))
                || wishes.types.iter().any(|wanted| types.contains(wanted));
            if let (true, Some(group)) = (wanted, group.upgrade()) {
                group.notify_one();
            }
        }
    }

    fn wake_listeners(&self) {
        self.sealed.send_modify(|notices| *notices = notices.wrapping_add(1));
    }
}
