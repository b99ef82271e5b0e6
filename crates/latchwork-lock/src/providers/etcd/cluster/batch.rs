//! Operations of one runtime that share a message.
//!
//! Nothing is delayed to find company: while hardly anything is in flight, every operation is sent
//! at once in a message of its own. What comes while more is in flight is sent together as soon as
//! one of those messages is answered, as one transaction with an inner transaction for each
//! operation. The server does nearly the same work for it as for a single one.
//!
//! etcd evaluates all comparisons, also those of inner transactions, before it changes anything. So
//! a message contains at most one operation of a key: two would both find the key free. Entries of
//! different keys have different names, so their operations do not see each other. They share a
//! revision, and with it a fence, which need only grow for each key by itself.
//!
//! One operation that the server rejects (its lease is gone, or its name is forbidden) fails the
//! message for all, and nothing is changed: then each is sent by itself. If the answer to a message
//! is lost, each of its callers is told so, and handles it as if the message had been its own.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Txn, TxnOp, TxnOpResponse};
use tokio::time::timeout;

use super::batch_queue::{Admission, OpResult, PendingOp, retain_wanted};
use super::{Cluster, RuntimeConnection};
use crate::providers::etcd::error::RequestError;
use crate::providers::etcd::record::txn_revision;
use crate::{Clock, Key, Moment};

/// How long an operation waits for a message before it is sent by itself. Behind a server that does
/// not answer, the last one would otherwise wait for several timeouts.
const MAX_QUEUE_TIME: Duration = Duration::from_secs(2);

const DURING: &str = "asking for several";

/// How an operation was sent.
pub(crate) enum SendOutcome {
    /// With others; its result, and the revision of its execution.
    Batched(TxnOpResponse, i64),
    /// With others, and the answer was lost.
    Unknown,
    /// Not yet: the caller sends it, and drops the slot when it is answered.
    Direct(Option<BatchSlot>),
}

impl Cluster {
    /// Sends an operation on one key in a message with others if many are in flight, and otherwise
    /// leaves it to the caller to send it.
    ///
    /// Cancel safety: an operation with a time `send_by` is not sent any more when the future is
    /// dropped, since the release that follows might overtake it. Others are sent in any case.
    pub(crate) async fn enqueue_op(
        self: &Arc<Self>,
        clock: &Arc<dyn Clock>,
        key: &Key,
        send_by: Option<Moment>,
        operation: impl FnOnce() -> TxnOp,
    ) -> SendOutcome {
        let connection = self.connection();
        let (number, mut result) = match connection.batches.admit(key, send_by, operation) {
            Admission::InFlight => {
                return SendOutcome::Direct(Some(BatchSlot::new(self, &connection, clock, false)));
            }
            Admission::Direct => return SendOutcome::Direct(None),
            Admission::Queued(number, result) => (number, result),
        };
        let result = match timeout(MAX_QUEUE_TIME, &mut result).await {
            Ok(result) => result,
            Err(_) if connection.batches.withdraw(number) => return SendOutcome::Direct(None),
            Err(_) => result.await,
        };
        match result {
            Ok(OpResult::Done(response, revision)) => SendOutcome::Batched(response, revision),
            Ok(OpResult::NotSent) => SendOutcome::Direct(None),
            // A closed channel: the sending task was stopped.
            Ok(OpResult::Unknown) | Err(_) => SendOutcome::Unknown,
        }
    }
}

/// A message in flight. When it is answered, the waiting operations are sent.
pub(crate) struct BatchSlot {
    cluster: Arc<Cluster>,
    connection: Arc<RuntimeConnection>,
    clock: Arc<dyn Clock>,
    /// Whether it belongs to the task that sends batches.
    sends_batches: bool,
}

impl BatchSlot {
    fn new(
        cluster: &Arc<Cluster>,
        connection: &Arc<RuntimeConnection>,
        clock: &Arc<dyn Clock>,
        sends_batches: bool,
    ) -> Self {
        let (cluster, connection) = (cluster.clone(), connection.clone());
        BatchSlot { cluster, connection, clock: clock.clone(), sends_batches }
    }
}

impl Drop for BatchSlot {
    fn drop(&mut self) {
        if self.sends_batches {
            // Stopped by the end of the runtime, or by a panic.
            self.connection.batches.abort();
        } else if self.connection.batches.finish_message() {
            let slot = BatchSlot::new(&self.cluster, &self.connection, &self.clock, true);
            self.connection.runtime.spawn(send_batches(slot));
        }
    }
}

/// Sends the waiting operations, message by message, until none waits.
async fn send_batches(mut slot: BatchSlot) {
    loop {
        let batch = slot.connection.batches.take_batch();
        if batch.is_empty() {
            break;
        }
        send(&slot, batch).await;
        // Callers that were answered together ask again together: let all of them come.
        tokio::task::yield_now().await;
    }
    slot.sends_batches = false;
}

/// Sends one message and distributes its answer.
async fn send(slot: &BatchSlot, batch: Vec<PendingOp>) {
    let (operations, replies) = retain_wanted(batch, slot.clock.now());
    if replies.is_empty() {
        return;
    }
    let txn = Txn::new().and_then(operations);
    let sent =
        slot.cluster.request(DURING, |member| async move { member.kv.clone().txn(txn).await });
    match sent.await {
        Ok(answer) => {
            let revision = txn_revision(&answer);
            let mut responses = answer.op_responses().into_iter();
            for reply in replies {
                let response = responses.next();
                let done = response.map(|response| OpResult::Done(response, revision));
                let _ = reply.send(done.unwrap_or(OpResult::Unknown));
            }
        }
        Err(RequestError::Unknown(error)) => {
            tracing::debug!(%error, "the answer to a batch was lost");
            replies.into_iter().for_each(|reply| drop(reply.send(OpResult::Unknown)));
        }
        Err(error) => {
            if error.is_too_many_operations() {
                tracing::debug!("the server accepts few operations at a time: batching is off");
                slot.connection.batches.disable();
            }
            replies.into_iter().for_each(|reply| drop(reply.send(OpResult::NotSent)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SystemClock;
    use crate::providers::etcd::config::Address;

    #[tokio::test(start_paused = true)]
    async fn an_operation_does_not_wait_for_ever_for_a_message() {
        let cluster = Arc::new(Cluster::own(Address::parse("etcd://nowhere").expect("legal")));
        let (connection, clock) = (cluster.connection(), SystemClock::shared());
        let key = Key::new("key").expect("legal");
        // Messages that are never answered.
        connection.batches.fill();
        for send_by in [None, Some(Moment::NEVER)] {
            let sent = cluster.enqueue_op(&clock, &key, send_by, || TxnOp::delete("name", None));
            let sent = timeout(MAX_QUEUE_TIME * 2, sent).await.expect("not for long");
            assert!(matches!(sent, SendOutcome::Direct(None)), "the caller sends it");
            assert!(connection.batches.take_batch().is_empty(), "it is not sent twice");
        }
    }
}
