//! By which key a payment is locked, and what of the lock goes with each write.

use latchwork_lock::{Fence, Held};

use crate::domain::PaymentId;

/// The key of a payment's lock: canonical, stable and free of chance, since it is made of nothing
/// but the id in its one form.
pub fn lock_key(id: PaymentId) -> String {
    format!("payment:{id}")
}

/// The leases under which something is written, each by its key and its fence.
#[derive(Clone, Debug)]
pub struct Fences(Vec<(String, Fence)>);

impl Fences {
    /// Those of one lease or of several.
    pub fn of<'a>(leases: impl IntoIterator<Item = &'a Held>) -> Self {
        Fences(leases.into_iter().map(|held| (held.key().to_owned(), held.fence())).collect())
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Fence)> {
        self.0.iter().map(|(key, fence)| (key.as_str(), *fence))
    }
}
