//! Questions that are not answered yet, so that no release overtakes the question before it.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::rules::Id;

/// How many questions of each id are open.
pub(super) struct Unanswered(watch::Sender<HashMap<Id, usize>>);

/// A question that is open as long as this lives.
pub(super) struct Open {
    all: Arc<Unanswered>,
    id: Id,
}

impl Unanswered {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Unanswered(watch::Sender::new(HashMap::new())))
    }

    pub(super) fn open(self: &Arc<Self>, id: Id) -> Open {
        self.0.send_modify(|open| *open.entry(id).or_default() += 1);
        Open { all: self.clone(), id }
    }

    /// Whether a question of this id is open.
    pub(super) fn is_open(&self, id: Id) -> bool {
        self.0.borrow().contains_key(&id)
    }

    /// Ends when no question of this id is open.
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn over(&self, id: Id) {
        // It ends only with this value itself.
        let _ = self.0.subscribe().wait_for(|open| !open.contains_key(&id)).await;
    }
}

impl Drop for Open {
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
    fn it_is_over_with_the_last_of_its_questions() {
        let all = Unanswered::new();
        let (one, other, last) = (all.open(1), all.open(2), all.open(1));
        drop(one);
        assert!(all.over(1).now_or_never().is_none());
        drop(last);
        assert!(all.over(1).now_or_never().is_some());
        assert!(all.over(2).now_or_never().is_none());
        drop(other);
        assert!(all.0.borrow().is_empty(), "nothing is left");
    }
}
