//! Events for another task.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use super::Observer;
use crate::{Event, EventRecord, State};

/// Sends each event through a channel to another task, which may be slow, or gone.
///
/// The transition never waits for it: what does not fit is left out and [counted](Self::dropped);
/// a gap in the sequence shows where.
#[derive(Clone, Debug)]
pub struct ChannelObserver {
    sender: mpsc::Sender<EventRecord>,
    dropped: Arc<AtomicU64>,
}

impl ChannelObserver {
    /// An observer, and where its events come out. At most so many wait at a time.
    pub fn new(capacity: usize) -> (Self, mpsc::Receiver<EventRecord>) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        (ChannelObserver { sender, dropped: Arc::default() }, receiver)
    }

    /// How many events found no room, or nobody.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl<S: State> Observer<S> for ChannelObserver {
    fn observe(&self, event: &Event<'_, S>) {
        // Room first: an event that is left out should cost nothing.
        match self.sender.try_reserve() {
            Ok(place) => place.send(event.to_record()),
            Err(_) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
