//! Waking checkouts that wait.
//!
//! Checkouts with the same wishes wait in one group. A notice wakes the first of each group that it
//! concerns; who got something wakes the next, and who found nothing does not: what one did not find,
//! another with the same wishes would not either. So a new item costs one claim, not one for each
//! waiter. A notice can be lost (another process, a cut connection): every waiter also looks by itself
//! every second or two.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

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
    groups: Arc<Groups>,
    remote: crate::notify::Remote,
}

#[derive(Default)]
pub(crate) struct Groups(Mutex<HashMap<Wishes, Weak<Notify>>>);

impl Wake {
    pub(super) fn new(store: &Store) -> Self {
        let groups = Arc::<Groups>::default();
        Wake { remote: crate::notify::Remote::new(store, groups.clone()), groups }
    }

    /// Something of these types can be leased: tells the waiters here and in other processes.
    pub(super) fn notify(&self, types: Vec<String>) {
        self.groups.wake(&types);
        self.remote.notify(types);
    }

    /// Joins a group. The other processes are listened to from now on.
    pub(super) fn group(&self, wishes: &Wishes) -> Arc<Notify> {
        self.remote.listen();
        self.groups.group(wishes)
    }

    /// Ends the connections to other processes.
    pub(super) fn close(&self) {
        self.remote.close();
    }
}

impl Groups {
    fn group(&self, wishes: &Wishes) -> Arc<Notify> {
        let mut groups = self.0.lock();
        if let Some(group) = groups.get(wishes).and_then(Weak::upgrade) {
            return group;
        }
        groups.retain(|_, group| group.strong_count() > 0);
        let group = Arc::new(Notify::new());
        groups.insert(wishes.clone(), Arc::downgrade(&group));
        group
    }

    /// Wakes the first waiter of each group that wants one of these types; of all groups where no
    /// type is named.
    pub(crate) fn wake(&self, types: &[String]) {
        for (wishes, group) in self.0.lock().iter() {
            let wanted = types.is_empty()
                || wishes.types.is_empty() && !types.iter().all(|name| name.starts_with(APPLY))
                || wishes.types.iter().any(|wanted| types.contains(wanted));
            if let (true, Some(group)) = (wanted, group.upgrade()) {
                group.notify_one();
            }
        }
    }
}
