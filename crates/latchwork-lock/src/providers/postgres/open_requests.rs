//! Requests that are not answered yet, so that no release overtakes the request before it.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::rules::Id;

/// How many requests of each id are open.
pub(super) struct OpenRequests(watch::Sender<HashMap<Id, usize>>);

/// A request that is open as long as this lives.
pub(super) struct OpenRequest {
    all: Arc<OpenRequests>,
    id: Id,
}

impl OpenRequests {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(OpenRequests(watch::Sender::new(HashMap::new())))
    }

    pub(super) fn open(self: &Arc<Self>, id: Id) -> OpenRequest {
        self.0.send_modify(|open| *open.entry(id).or_default() += 1);
        OpenRequest { all: self.clone(), id }
    }

    /// Whether a request of this id is open.
    pub(super) fn is_open(&self, id: Id) -> bool {
        self.0.borrow().contains_key(&id)
    }

    /// Ends when no request of this id is open.
    ///
    /// Cancel safe.
    pub(super) async fn closed(&self, id: Id) {
        // The channel ends only with this value.
        let _ = self.0.subscribe().wait_for(|open| !open.contains_key(&id)).await;
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.all.0.send_modify(|open| {
            if let Some(count) = open.get_mut(&self.id) {
                *count -= 1;
                if *count == 0 {
                    open.remove(&self.id);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn an_id_is_closed_with_the_last_of_its_requests() {
        let all = OpenRequests::new();
        let (one, other, last) = (all.open(1), all.open(2), all.open(1));
        drop(one);
        assert!(all.closed(1).now_or_never().is_none());
        drop(last);
        assert!(all.closed(1).now_or_never().is_some());
        assert!(all.closed(2).now_or_never().is_none());
        drop(other);
        assert!(all.0.borrow().is_empty(), "nothing is left");
    }
}
