//! The operations that wait for a message to share, for one runtime's connection.

use std::collections::{HashSet, VecDeque};

use etcd_client::{TxnOp, TxnOpResponse};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{Key, Moment};

/// How many messages may be in flight before further operations wait: while the server executes
/// one, the next is prepared.
pub(super) const MAX_IN_FLIGHT: usize = 2;

/// The most operations in a message. A server accepts 128 by default, and counts those of the
/// largest inner transaction, too.
const MAX_BATCH: usize = 64;

/// Messages in flight, and operations that wait for one.
pub(super) struct BatchQueue {
    inner: Mutex<Inner>,
}

struct Inner {
    messages_in_flight: usize,
    waiting: VecDeque<PendingOp>,
    /// The keys of the waiting operations.
    keys: HashSet<Key>,
    /// The number of the last operation that came to wait.
    last_number: u64,
    /// The most operations that the server accepts.
    max_batch: usize,
}

/// An operation that waits to be sent.
pub(super) struct PendingOp {
    number: u64,
    key: Key,
    operation: TxnOp,
    /// A grant must be sent by then, and only while its caller waits for it. Other operations are
    /// sent in any case.
    send_by: Option<Moment>,
    reply: oneshot::Sender<OpResult>,
}

/// What became of an operation that waited.
pub(super) enum OpResult {
    /// It was executed, at this revision.
    Done(TxnOpResponse, i64),
    /// It may have been executed.
    Unknown,
    /// It was not executed: the caller must send it in a message of its own.
    NotSent,
}

/// How a new operation is to be sent.
pub(super) enum Admission {
    /// At once. It counts as a message in flight.
    InFlight,
    /// At once, without being counted.
    Direct,
    /// With others; its number, and where the result arrives.
    Queued(u64, oneshot::Receiver<OpResult>),
}

impl Default for BatchQueue {
    fn default() -> Self {
        BatchQueue {
            inner: Mutex::new(Inner {
                messages_in_flight: 0,
                waiting: VecDeque::new(),
                keys: HashSet::new(),
                last_number: 0,
                max_batch: MAX_BATCH,
            }),
        }
    }
}

impl BatchQueue {
    /// Decides how an operation is sent.
    pub(super) fn admit(
        &self,
        key: &Key,
        send_by: Option<Moment>,
        operation: impl FnOnce() -> TxnOp,
    ) -> Admission {
        let mut inner = self.inner.lock();
        if inner.messages_in_flight < MAX_IN_FLIGHT {
            inner.messages_in_flight += 1;
            return Admission::InFlight;
        }
        if inner.max_batch == 1 || !inner.keys.insert(key.clone()) {
            return Admission::Direct;
        }
        let (reply, result) = oneshot::channel();
        inner.last_number += 1;
        let (number, key) = (inner.last_number, key.clone());
        inner.waiting.push_back(PendingOp { number, key, operation: operation(), send_by, reply });
        Admission::Queued(number, result)
    }

    /// Takes out the operations of the next message.
    pub(super) fn take_batch(&self) -> Vec<PendingOp> {
        let mut inner = self.inner.lock();
        let count = inner.waiting.len().min(inner.max_batch);
        let batch: Vec<PendingOp> = inner.waiting.drain(..count).collect();
        for pending in &batch {
            inner.keys.remove(&pending.key);
        }
        batch
    }

    /// Takes back a waiting operation; false if it was sent.
    pub(super) fn withdraw(&self, number: u64) -> bool {
        let mut inner = self.inner.lock();
        let Some(index) = inner.waiting.iter().position(|pending| pending.number == number) else {
            return false;
        };
        if let Some(pending) = inner.waiting.remove(index) {
            inner.keys.remove(&pending.key);
        }
        true
    }

    /// A message was answered. True if operations wait: then the caller keeps the slot to send them.
    pub(super) fn finish_message(&self) -> bool {
        let mut inner = self.inner.lock();
        if inner.waiting.is_empty() {
            inner.messages_in_flight -= 1;
            return false;
        }
        true
    }

    /// The task that sends the batches was stopped: the callers see that their channels close.
    pub(super) fn abort(&self) {
        let mut inner = self.inner.lock();
        inner.keys.clear();
        inner.messages_in_flight -= 1;
        let waiting = std::mem::take(&mut inner.waiting);
        drop(inner);
        drop(waiting);
    }

    /// The server accepts too few operations at a time: nothing shares a message any more.
    pub(super) fn disable(&self) {
        self.inner.lock().max_batch = 1;
    }

    #[cfg(test)]
    pub(super) fn fill(&self) {
        self.inner.lock().messages_in_flight = MAX_IN_FLIGHT;
    }
}

/// The operations of a batch that may still be sent, and where their results go.
pub(super) fn retain_wanted(
    batch: Vec<PendingOp>,
    now: Moment,
) -> (Vec<TxnOp>, Vec<oneshot::Sender<OpResult>>) {
    let (mut operations, mut replies) = (Vec::with_capacity(batch.len()), Vec::new());
    for PendingOp { operation, send_by, reply, .. } in batch {
        if send_by.is_some() && reply.is_closed() {
            continue;
        }
        if send_by.is_some_and(|send_by| now > send_by) {
            let _ = reply.send(OpResult::NotSent);
        } else {
            operations.push(operation);
            replies.push(reply);
        }
    }
    (operations, replies)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Queues an operation on a queue whose slots are taken.
    fn put(queue: &BatchQueue, key: &str) -> u64 {
        let key = Key::new(key).expect("legal");
        match queue.admit(&key, None, || TxnOp::delete(key.as_str(), None)) {
            Admission::Queued(number, _) => number,
            _ => panic!("it was not queued"),
        }
    }

    #[test]
    fn late_and_abandoned_grants_are_not_sent_and_releases_are() {
        let (now, earlier) = (Moment::default().after(Duration::from_secs(9)), Moment::default());
        let pending = |name: &str, send_by| {
            let (reply, result) = oneshot::channel();
            let key = Key::new(name).expect("legal");
            let operation = TxnOp::delete(name, None);
            (PendingOp { number: 1, key, operation, send_by, reply }, result)
        };
        let (in_time, _waits) = pending("in time", Some(now));
        let (late, mut result) = pending("late", Some(earlier));
        let (release, _waits_too) = pending("release", None);
        let (abandoned, _) = pending("abandoned", Some(now));
        let (abandoned_release, _) = pending("abandoned release", None);
        let all = vec![in_time, late, abandoned, release, abandoned_release];
        let (operations, replies) = retain_wanted(all, now);
        let sent = format!("{operations:?}");
        let sent: Vec<_> = ["in time", "late", "abandoned", "release", "abandoned release"]
            .into_iter()
            .filter(|name| sent.contains(&format!("{:?}", name.as_bytes())))
            .collect();
        assert_eq!(sent, ["in time", "release", "abandoned release"]);
        assert_eq!((operations.len(), replies.len()), (3, 3));
        assert!(matches!(result.try_recv(), Ok(OpResult::NotSent)));
    }

    #[test]
    fn an_operation_that_was_not_sent_can_be_withdrawn() {
        let queue = BatchQueue::default();
        queue.fill();
        let (one, two) = (put(&queue, "one"), put(&queue, "two"));
        assert!(queue.withdraw(one));
        assert!(!queue.withdraw(one), "it is gone");
        let again = put(&queue, "one");
        let sent: Vec<u64> = queue.take_batch().iter().map(|pending| pending.number).collect();
        assert_eq!(sent, [two, again]);
        let later = put(&queue, "one");
        assert!(!queue.withdraw(again), "it was sent; the other one of this key is not withdrawn");
        assert!(queue.withdraw(later));
        assert!(queue.take_batch().is_empty());
    }

    #[test]
    fn a_message_has_one_operation_of_a_key() {
        let queue = BatchQueue::default();
        queue.fill();
        put(&queue, "key");
        let key = Key::new("key").expect("legal");
        let second = queue.admit(&key, None, || TxnOp::delete("key", None));
        assert!(matches!(second, Admission::Direct));
    }
}
