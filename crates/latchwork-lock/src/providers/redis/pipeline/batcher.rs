//! Sends the commands of a pipeline, in messages that share the cost of a round trip.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;

use super::message::MessageSender;
use super::queue::{CommandQueue, MAX_MESSAGES_FOR_FLUSH};
use super::response::{PendingCommand, ResponseTarget};
use crate::Result;
use crate::providers::redis::error;
use crate::providers::redis::scripts::Command;
use crate::providers::redis::scripts::response::Response;

/// How many commands may be in flight when a task sends its command by itself.
const MAX_DIRECT: usize = 4;

type Messages = FuturesUnordered<BoxFuture<'static, ()>>;

pub(super) struct Batcher {
    pub(super) sender: MessageSender,
    queue: CommandQueue,
    /// The messages in flight that the batcher's task drives.
    messages: Mutex<Messages>,
    /// Wakes the batcher's task.
    task: OnceLock<Waker>,
    /// How many commands are in flight.
    in_flight: AtomicUsize,
}

impl Batcher {
    pub(super) fn new(sender: MessageSender) -> Self {
        Batcher {
            sender,
            queue: CommandQueue::default(),
            messages: Mutex::default(),
            task: OnceLock::new(),
            in_flight: AtomicUsize::new(0),
        }
    }

    /// Enqueues a command. It is given back if the batcher has ended.
    pub(super) fn enqueue(&self, pending: PendingCommand) -> Option<PendingCommand> {
        self.queue.push(pending)
    }

    /// Enqueues a command that is not to wait for others, and sends it from here if possible: waking
    /// the batcher's task first would put one more task between a release and the next grant. Must be
    /// called on the runtime of the batcher's task.
    pub(super) fn send_now(self: &Arc<Self>, pending: PendingCommand) -> Option<PendingCommand> {
        let Some(task) = self.task.get() else { return self.enqueue(pending) };
        // If the batcher's task has them locked, it checks the queue afterwards.
        let messages = self.messages.try_lock();
        let messages = messages.filter(|messages| messages.len() < MAX_MESSAGES_FOR_FLUSH);
        if let Some(pending) = self.queue.push_to_flush(pending, messages.is_some()) {
            return Some(pending);
        }
        let mut messages = messages?;
        self.send_batch(&mut messages);
        let count = messages.len();
        poll_all(&mut messages, &mut Context::from_waker(task));
        if messages.len() < count {
            // The task may wait for fewer messages in flight.
            task.wake_by_ref();
        }
        None
    }

    /// Permission to send a message directly, if hardly anything is in flight. Not while a command that
    /// was enqueued has no response: the message could overtake it, and a release must not overtake
    /// its request.
    pub(super) fn try_send_directly(self: &Arc<Self>) -> Option<InFlight> {
        let quiet = self.queue.is_answered()
            && self.in_flight.load(Ordering::Relaxed) < MAX_DIRECT
            && !self.queue.has_many_callers();
        quiet.then(|| InFlight::new(self, 1))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.queue.has_ended()
    }

    /// Accepts no more commands. Those in the queue are still sent.
    pub(super) fn end(&self) {
        self.queue.end();
    }

    /// The batcher's task: sends what is enqueued, until it is ended.
    pub(super) async fn run(self: Arc<Self>) {
        let _fail_on_drop = FailOnDrop(&self);
        loop {
            let ready = poll_fn(|cx| {
                self.task.get_or_init(|| cx.waker().clone());
                let mut messages = self.messages.lock();
                poll_all(&mut messages, cx);
                self.queue.poll_ready(messages.len(), cx)
            });
            if !ready.await {
                break;
            }
            // Callers that were answered together send their next commands together: let all of
            // them run first.
            if self.queue.has_many_callers() && self.messages.lock().is_empty() {
                tokio::task::yield_now().await;
            }
            self.send_batch(&mut self.messages.lock());
        }
        poll_fn(|cx| {
            let mut messages = self.messages.lock();
            poll_all(&mut messages, cx);
            if messages.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Makes a message of the queue. It is sent when it is polled.
    fn send_batch(self: &Arc<Self>, messages: &mut Messages) {
        let (commands, targets) = self.queue.take_batch();
        if !commands.is_empty() {
            messages.push(Box::pin(send(self.clone(), commands, targets)));
        }
    }
}

fn poll_all(messages: &mut Messages, cx: &mut Context<'_>) {
    while let Poll::Ready(Some(())) = messages.poll_next_unpin(cx) {}
}

/// Sends one message and delivers the responses.
async fn send(batcher: Arc<Batcher>, mut commands: Vec<Command>, mut targets: Vec<ResponseTarget>) {
    let count = commands.len();
    let _in_flight = InFlight::new(&batcher, count);
    // A requester that has given up has sent a release, which a repeated request could follow.
    let retain_wanted = |commands: &mut Vec<Command>| {
        let all = std::mem::take(commands).into_iter().zip(std::mem::take(&mut targets));
        (*commands, targets) = all.filter(|(_, target)| target.is_wanted()).unzip();
    };
    let responses = batcher.sender.send(&mut commands, retain_wanted).await;
    batcher.queue.answered(count);
    // Wake only when all have their responses: the tasks run together, and so do their next commands.
    let wakers: Vec<Waker> = match responses {
        Ok(responses) => {
            let delivered = targets.into_iter().zip(responses);
            delivered.filter_map(|(target, response)| target.deliver(response)).collect()
        }
        Err(failure) => {
            if failure.is_timeout() {
                targets.append(&mut batcher.queue.fail_queued());
            }
            let failed = |target: ResponseTarget| target.deliver(Err(failure.to_error()));
            targets.into_iter().filter_map(failed).collect()
        }
    };
    wakers.into_iter().for_each(Waker::wake);
}

/// Commands that are in flight for as long as this exists.
pub(super) struct InFlight(Arc<Batcher>, usize);

impl InFlight {
    fn new(batcher: &Arc<Batcher>, commands: usize) -> Self {
        batcher.in_flight.fetch_add(commands, Ordering::Relaxed);
        InFlight(batcher.clone(), commands)
    }

    /// Sends a message with one command.
    pub(super) async fn send(self, during: &'static str, command: Command) -> Result<Response> {
        let mut responses = self.0.sender.send(&mut vec![command], |_| ()).await;
        let response = responses.as_mut().map_err(|failure| failure.to_error())?.pop();
        response.unwrap_or_else(|| Err(error::unreadable(during)))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Drops all commands when the batcher's task ends, also with its runtime, so that their callers
/// learn that there will be no response.
struct FailOnDrop<'a>(&'a Batcher);

impl Drop for FailOnDrop<'_> {
    fn drop(&mut self) {
        self.0.queue.abort();
        let messages = std::mem::take(&mut *self.0.messages.lock());
        drop(messages);
    }
}

#[cfg(test)]
mod tests {
    use redis::Client;

    use super::*;
    use crate::Key;
    use crate::providers::redis::connection::Connection;
    use crate::providers::redis::pipeline::response::{ResponseReceiver, channel};
    use crate::providers::redis::scripts::Operation;

    fn pending() -> (PendingCommand, ResponseReceiver) {
        let key = Key::new("key").expect("legal");
        let (sender, receiver) = channel();
        let command = Command::new(Operation::IsHeld, &key, 1);
        (PendingCommand { command, target: ResponseTarget::Task(sender) }, receiver)
    }

    #[tokio::test]
    async fn a_flushed_command_is_sent_by_its_caller_and_answered_by_the_task() {
        let client = Client::open("redis://127.0.0.1:1").expect("an address");
        let connection = Arc::new(Connection::new(client, None, None));
        let batcher = Arc::new(Batcher::new(MessageSender::new(connection, "client".into())));
        let (first, _receiver) = pending();
        assert!(batcher.send_now(first).is_none());
        assert_eq!(batcher.queue.take_batch().0.len(), 1, "no task would handle the response yet");
        tokio::spawn(batcher.clone().run());
        tokio::task::yield_now().await;
        let (second, receiver) = pending();
        assert!(batcher.send_now(second).is_none());
        assert!(batcher.queue.take_batch().0.is_empty(), "it was sent");
        assert_eq!(batcher.messages.lock().len(), 1);
        assert!(receiver.await.expect("a response").is_err(), "there is no server");
        batcher.end();
        assert!(batcher.send_now(pending().0).is_some(), "no task would handle the response");
    }
}
