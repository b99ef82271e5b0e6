//! Requests of one process that share a message to the backend.
//!
//! A request that comes while others are in flight waits for one of them to return, and then goes
//! together with all that have come meanwhile. So a message carries more the busier it is, and no
//! request waits for company.
//!
//! Every request is answered or [recovered](BatchHandler::recover), also when the runtime of the
//! workers ends in the middle of a message.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, oneshot};

use crate::sync::atomic::{AtomicUsize, Ordering};

/// What carries a batch to the backend.
pub trait BatchHandler: Send + Sync + 'static {
    /// A request.
    type Item: Send + 'static;
    /// The answer to one.
    type Answer: Send + 'static;
    /// What a message needs, such as a connection, or why there is none.
    type Resource: Send;

    /// Gets what a message needs. Requests that come meanwhile join the batch.
    fn prepare(&self) -> impl Future<Output = Self::Resource> + Send;

    /// Whether a message can be sent with it. If not, all requests that have come fail together.
    fn is_usable(&self, resource: &Self::Resource) -> bool;

    /// Sends a batch, which may be empty, and answers all of its requests.
    fn send(
        &self,
        resource: Self::Resource,
        batch: &mut Batch<Self>,
    ) -> impl Future<Output = ()> + Send;

    /// Whether a request whose caller has gone need not be sent.
    fn is_cancellable(&self, item: &Self::Item) -> bool;

    /// Takes over a request whose worker was dropped with its runtime; `was_sent` when its message
    /// may have reached the backend.
    fn recover(&self, request: BatchedRequest<Self>, was_sent: bool);
}

/// A request, and where its answer goes.
pub struct BatchedRequest<H: BatchHandler + ?Sized> {
    /// The request.
    pub item: H::Item,
    /// Its caller.
    pub reply: oneshot::Sender<H::Answer>,
}

/// The requests of one message.
pub struct Batch<H: BatchHandler + ?Sized> {
    requests: Vec<BatchedRequest<H>>,
    is_sent: bool,
    handler: Arc<H>,
}

impl<H: BatchHandler + ?Sized> Batch<H> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none: all callers have gone.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Orders the requests; those with the same key stay in the order in which they came.
    pub fn sort_by_key<K: Ord>(&mut self, key: impl Fn(&H::Item) -> K) {
        self.requests.sort_by_key(|request| key(&request.item));
    }

    /// The requests.
    pub fn items(&self) -> impl Iterator<Item = &H::Item> {
        self.requests.iter().map(|request| &request.item)
    }

    /// From now on, until [`drain`](Self::drain), the message may have reached the backend.
    pub fn mark_sent(&mut self) {
        self.is_sent = true;
    }

    /// Takes the requests out, to answer them.
    pub fn drain(&mut self) -> impl Iterator<Item = BatchedRequest<H>> + '_ {
        self.is_sent = false;
        self.requests.drain(..)
    }

    fn drop_cancelled(&mut self) {
        let handler = &self.handler;
        self.requests.retain(|it| !(it.reply.is_closed() && handler.is_cancellable(&it.item)));
    }
}

impl<H: BatchHandler + ?Sized> Drop for Batch<H> {
    fn drop(&mut self) {
        for request in std::mem::take(&mut self.requests) {
            self.handler.recover(request, self.is_sent);
        }
    }
}

/// How many messages are in flight; clones count together.
#[derive(Clone, Default)]
pub struct InFlight(Arc<AtomicUsize>);

struct Permit(InFlight);

impl InFlight {
    fn begin(&self) -> Permit {
        self.0.fetch_add(1, Ordering::Relaxed);
        Permit(self.clone())
    }

    /// If nothing else is in flight.
    fn begin_alone(&self) -> Option<Permit> {
        let alone = self.0.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
        alone.is_ok().then(|| Permit(self.clone()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        (self.0).0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where requests are submitted. Dropped, its workers end after what was submitted.
pub struct Batcher<H: BatchHandler> {
    queue: UnboundedSender<BatchedRequest<H>>,
    handler: Arc<H>,
    in_flight: InFlight,
}

impl<H: BatchHandler> Batcher<H> {
    /// A batcher, and its workers: each carries one message at a time, with at most `max_batch`
    /// requests. They must be spawned.
    pub fn new(
        handler: Arc<H>,
        in_flight: InFlight,
        workers: usize,
        max_batch: usize,
    ) -> (Self, Vec<BoxFuture<'static, ()>>) {
        let (queue, requests) = unbounded_channel();
        let receiver = Arc::new(Mutex::new(Receiver { requests, handler: handler.clone() }));
        let worker =
            Worker { handler: handler.clone(), in_flight: in_flight.clone(), receiver, max_batch };
        let workers = (0..workers).map(|_| Box::pin(worker.clone().run()) as _).collect();
        (Batcher { queue, handler, in_flight }, workers)
    }

    /// Whether the workers have ended, with their runtime.
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Submits a request. The receiver fails when a worker panicked.
    ///
    /// # Errors
    /// The request itself, when the workers have ended.
    pub fn submit(&self, item: H::Item) -> Result<oneshot::Receiver<H::Answer>, H::Item> {
        let (reply, answer) = oneshot::channel();
        self.queue.send(BatchedRequest { item, reply }).map_err(|back| back.0.item)?;
        Ok(answer)
    }

    /// Sends a request at once in the caller's own task, if nothing is in flight: to hand it to a
    /// worker and be woken by that would cost more than all else here.
    ///
    /// # Errors
    /// The request itself, when something is in flight.
    pub fn try_send_inline(
        &self,
        runtime: &Handle,
        item: H::Item,
    ) -> Result<InlineSend<H::Answer>, H::Item> {
        // So at most one connection is in the hands of a caller that may not poll it for long.
        let Some(permit) = self.in_flight.begin_alone() else { return Err(item) };
        let (reply, answer) = oneshot::channel();
        let handler = self.handler.clone();
        let requests = vec![BatchedRequest { item, reply }];
        let mut batch = Batch { requests, is_sent: false, handler: handler.clone() };
        let sending = async move {
            let _permit = permit;
            let resource = handler.prepare().await;
            batch.drop_cancelled();
            handler.send(resource, &mut batch).await;
        };
        Ok(InlineSend { sending: Some(Box::pin(sending)), answer, runtime: runtime.clone() })
    }
}

/// A message that its caller drives. Dropped, it goes on as a task of the runtime.
pub struct InlineSend<A> {
    sending: Option<BoxFuture<'static, ()>>,
    answer: oneshot::Receiver<A>,
    runtime: Handle,
}

impl<A> Future for InlineSend<A> {
    type Output = Option<A>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<A>> {
        if let Some(sending) = &mut self.sending
            && sending.as_mut().poll(cx).is_ready()
        {
            self.sending = None;
        }
        Poll::Ready(ready!(Pin::new(&mut self.answer).poll(cx)).ok())
    }
}

impl<A> Drop for InlineSend<A> {
    fn drop(&mut self) {
        if let Some(sending) = self.sending.take() {
            self.runtime.spawn(sending);
        }
    }
}

/// What is submitted and not yet in a batch.
struct Receiver<H: BatchHandler> {
    requests: UnboundedReceiver<BatchedRequest<H>>,
    handler: Arc<H>,
}

impl<H: BatchHandler> Drop for Receiver<H> {
    fn drop(&mut self) {
        self.requests.close();
        while let Ok(request) = self.requests.try_recv() {
            self.handler.recover(request, false);
        }
    }
}

struct Worker<H: BatchHandler> {
    handler: Arc<H>,
    in_flight: InFlight,
    receiver: Arc<Mutex<Receiver<H>>>,
    max_batch: usize,
}

impl<H: BatchHandler> Clone for Worker<H> {
    fn clone(&self) -> Self {
        let Worker { handler, in_flight, receiver, max_batch } = self;
        let (handler, in_flight) = (handler.clone(), in_flight.clone());
        Worker { handler, in_flight, receiver: receiver.clone(), max_batch: *max_batch }
    }
}

impl<H: BatchHandler> Worker<H> {
    /// Carries messages, one at a time, until there is no sender any more.
    async fn run(self) {
        let Worker { handler, in_flight, receiver, max_batch } = self;
        let mut batch = Batch { requests: Vec::new(), is_sent: false, handler: handler.clone() };
        loop {
            let mut waiting = receiver.lock().await;
            let taken = waiting.requests.recv_many(&mut batch.requests, max_batch).await;
            drop(waiting);
            if taken == 0 {
                return;
            }
            let _permit = in_flight.begin();
            let resource = handler.prepare().await;
            // If another worker has the receiver, it waits because there are no requests.
            if let Ok(mut waiting) = receiver.try_lock() {
                let most = if handler.is_usable(&resource) { max_batch } else { usize::MAX };
                while batch.requests.len() < most
                    && let Ok(request) = waiting.requests.try_recv()
                {
                    batch.requests.push(request);
                }
            }
            batch.drop_cancelled();
            handler.send(resource, &mut batch).await;
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use parking_lot::Mutex as SyncMutex;

    /// Answers with twice the item; sends only while the gate is open.
    #[derive(Default)]
    struct Doubler {
        gate: tokio::sync::Mutex<()>,
        batches: SyncMutex<Vec<Vec<u32>>>,
        recovered: SyncMutex<Vec<(u32, bool)>>,
    }

    impl BatchHandler for Doubler {
        type Item = u32;
        type Answer = u32;
        type Resource = ();

        async fn prepare(&self) {}

        fn is_usable(&self, (): &()) -> bool {
            true
        }

        async fn send(&self, (): (), batch: &mut Batch<Self>) {
            batch.mark_sent();
            let _open = self.gate.lock().await;
            self.batches.lock().push(batch.items().copied().collect());
            for request in batch.drain() {
                let _ = request.reply.send(2 * request.item);
            }
        }

        fn is_cancellable(&self, item: &u32) -> bool {
            item % 2 == 1
        }

        fn recover(&self, request: BatchedRequest<Self>, was_sent: bool) {
            self.recovered.lock().push((request.item, was_sent));
        }
    }

    #[tokio::test]
    async fn requests_that_come_while_a_message_is_in_flight_go_together() {
        let handler = Arc::new(Doubler::default());
        let (batcher, workers) = Batcher::new(handler.clone(), InFlight::default(), 1, 3);
        let workers: Vec<_> = workers.into_iter().map(tokio::spawn).collect();
        let shut = handler.gate.lock().await;
        let first = batcher.submit(1).expect("open");
        tokio::task::yield_now().await; // it is in flight
        let rest: Vec<_> = (2..=6).map(|item| batcher.submit(item).expect("open")).collect();
        drop(batcher.submit(7).expect("open")); // its caller goes, and it need not be sent
        drop(batcher.submit(8).expect("open")); // this one must be
        drop(shut);
        assert_eq!(first.await, Ok(2));
        for (item, answer) in (2..=6).zip(rest) {
            assert_eq!(answer.await, Ok(2 * item));
        }
        drop(batcher);
        for worker in workers {
            worker.await.expect("ends");
        }
        assert_eq!(*handler.batches.lock(), [vec![1], vec![2, 3, 4], vec![5, 6], vec![8]]);
    }

    #[tokio::test]
    async fn a_lone_request_is_sent_by_its_caller_and_goes_on_without_it() {
        let handler = Arc::new(Doubler::default());
        let (batcher, _workers) = Batcher::new(handler.clone(), InFlight::default(), 0, 3);
        let here = Handle::current();
        let sending = batcher.try_send_inline(&here, 4).expect("nothing is in flight");
        assert_eq!(sending.await, Some(8));

        let shut = handler.gate.lock().await;
        let mut sending = batcher.try_send_inline(&here, 6).expect("nothing is in flight");
        assert!(futures::poll!(&mut sending).is_pending());
        assert_eq!(batcher.try_send_inline(&here, 8).err(), Some(8), "one is in flight");
        drop(sending);
        drop(shut);
        let sent = async {
            while handler.batches.lock().len() < 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), sent).await.expect("it goes on");
        assert_eq!(*handler.batches.lock(), [[4], [6]]);
    }

    #[test]
    fn requests_that_a_runtime_leaves_behind_are_recovered() {
        let handler = Arc::new(Doubler::default());
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (batcher, workers) = Batcher::new(handler.clone(), InFlight::default(), 1, 3);
        let gate = handler.clone();
        let shut = gate.gate.try_lock().expect("free");
        runtime.block_on(async {
            workers.into_iter().for_each(|worker| drop(tokio::spawn(worker)));
            drop(batcher.submit(2).expect("open"));
            for _ in 0..1_000 {
                tokio::task::yield_now().await; // until the worker has taken it
            }
            assert_eq!(batcher.in_flight.0.load(Ordering::Relaxed), 1);
            drop(batcher.submit(4).expect("open"));
        });
        drop(runtime);
        drop(shut);
        assert_eq!(*handler.recovered.lock(), [(2, true), (4, false)]);
        assert!(batcher.is_closed());
        assert_eq!(batcher.submit(6).expect_err("closed"), 6);
    }
}
