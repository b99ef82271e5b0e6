//! The commands that wait for a message, and how many of them a message needs.
//!
//! With few callers no command waits for others. With many, a message is sent at once if none is in
//! flight, and a second one when a good part of the callers have a command for it; further commands
//! wait for a response. So the server executes one message while the client handles the responses to
//! another, and the cost of a message, which is larger than that of a command, is shared by many.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::response::{PendingCommand, ResponseTarget};
use crate::providers::redis::scripts::{Command, MAX_COMMANDS};

/// How many messages may be in flight with few callers.
const MAX_MESSAGES: usize = 6;

/// How many messages may be in flight with many callers.
const MAX_LARGE_MESSAGES: usize = 2;

/// How many messages may be in flight when one more is to be sent without delay.
pub(super) const MAX_MESSAGES_FOR_FLUSH: usize = 3;

/// How many concurrent commands count as many callers.
const MANY: usize = 8;

/// The part of the callers that must have a command for a second message, so that two messages of
/// about the same size take turns. With a half, one caller would often be missing, and the server
/// idle until the first message is answered.
const SECOND_MESSAGE_PART: (usize, usize) = (2, 5);

#[derive(Default)]
pub(super) struct CommandQueue {
    inner: Mutex<Inner>,
    /// How many commands were enqueued and have no response.
    unanswered: AtomicUsize,
    /// How large `unanswered` was lately.
    recent_concurrency: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    commands: Vec<PendingCommand>,
    /// The batcher's task, which waits for so many commands.
    waiting_task: Option<(usize, Waker)>,
    /// Whether the commands are to be sent without waiting for others.
    flush_now: bool,
    /// Whether no more commands are accepted.
    ended: bool,
}

impl CommandQueue {
    /// Adds a command, and wakes the batcher's task if it waits for it. The command is given back if the
    /// queue has ended.
    pub(super) fn push(&self, pending: PendingCommand) -> Option<PendingCommand> {
        self.push_and(pending, Inner::wake_task)
    }

    /// Adds a command that is not to wait for others. The batcher's task is woken unless the caller
    /// sends the queue itself.
    pub(super) fn push_to_flush(
        &self,
        pending: PendingCommand,
        caller_sends: bool,
    ) -> Option<PendingCommand> {
        self.push_and(pending, |inner| {
            inner.flush_now = true;
            if !caller_sends {
                inner.wake_task();
            }
        })
    }

    fn push_and(
        &self,
        pending: PendingCommand,
        then: impl FnOnce(&mut Inner),
    ) -> Option<PendingCommand> {
        let mut inner = self.inner.lock();
        if inner.ended {
            return Some(pending);
        }
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        inner.commands.push(pending);
        then(&mut inner);
        None
    }

    /// Whether every command that was enqueued has its response.
    pub(super) fn is_answered(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) == 0
    }

    /// So many commands of the queue have their responses.
    pub(super) fn answered(&self, count: usize) {
        self.unanswered.fetch_sub(count, Ordering::Relaxed);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.inner.lock().ended
    }

    /// Accepts no more commands.
    pub(super) fn end(&self) {
        let mut inner = self.inner.lock();
        inner.ended = true;
        let task = inner.waiting_task.take();
        drop(inner);
        if let Some((_, task)) = task {
            task.wake();
        }
    }

    /// Accepts no more commands, and drops those that were not sent.
    pub(super) fn abort(&self) {
        let mut inner = self.inner.lock();
        inner.ended = true;
        let commands = std::mem::take(&mut inner.commands);
        drop(inner);
        drop(commands); // outside of the lock: it runs their handlers
    }

    /// Completes when one more message is to be sent, and with false when none will be.
    pub(super) fn poll_ready(&self, messages: usize, cx: &mut Context<'_>) -> Poll<bool> {
        let threshold = self.batch_threshold(messages);
        let mut inner = self.inner.lock();
        if inner.commands.len() >= threshold || inner.flush_now && messages < MAX_MESSAGES_FOR_FLUSH
        {
            return Poll::Ready(true);
        }
        if inner.ended && inner.commands.is_empty() {
            return Poll::Ready(false);
        }
        inner.waiting_task = Some((threshold, cx.waker().clone()));
        Poll::Pending
    }

    /// How many commands one more message needs.
    fn batch_threshold(&self, messages: usize) -> usize {
        let most = if self.has_many_callers() { MAX_LARGE_MESSAGES } else { MAX_MESSAGES };
        match messages {
            0 => 1,
            messages if messages >= most => usize::MAX,
            _ => {
                let (part, whole) = SECOND_MESSAGE_PART;
                let callers = self.recent_concurrency.load(Ordering::Relaxed);
                (callers * part / whole).clamp(1, MAX_COMMANDS)
            }
        }
    }

    /// Takes out the commands of the next message, without those that nobody wants any more.
    pub(super) fn take_batch(&self) -> (Vec<Command>, Vec<ResponseTarget>) {
        let mut batch = {
            let mut inner = self.inner.lock();
            let count = inner.commands.len().min(MAX_COMMANDS);
            let rest = inner.commands.split_off(count);
            inner.flush_now &= !rest.is_empty();
            std::mem::replace(&mut inner.commands, rest)
        };
        self.update_recent_concurrency();
        let taken = batch.len();
        batch.retain(|pending| pending.target.is_wanted());
        self.answered(taken - batch.len());
        batch.sort_by_key(|pending| pending.command.operation.section());
        batch.into_iter().map(|pending| (pending.command, pending.target)).unzip()
    }

    /// Takes out all commands, since the server does not reply: in later messages they would wait one
    /// timeout after the other. They were not sent.
    pub(super) fn fail_queued(&self) -> Vec<ResponseTarget> {
        let commands = {
            let mut inner = self.inner.lock();
            inner.flush_now = false;
            std::mem::take(&mut inner.commands)
        };
        self.answered(commands.len());
        commands.into_iter().map(|pending| pending.target).collect()
    }

    /// Between two messages nothing is in flight, so the number of callers is remembered, and
    /// decreases slowly.
    fn update_recent_concurrency(&self) {
        let before = self.recent_concurrency.load(Ordering::Relaxed);
        let now = self.unanswered.load(Ordering::Relaxed);
        let decreased = before - before.div_ceil(16);
        self.recent_concurrency.store(now.max(decreased), Ordering::Relaxed);
    }

    pub(super) fn has_many_callers(&self) -> bool {
        self.recent_concurrency.load(Ordering::Relaxed) >= MANY
    }
}

impl Inner {
    /// Wakes the batcher's task if there is what it waits for.
    fn wake_task(&mut self) {
        let (count, flush) = (self.commands.len(), self.flush_now);
        let ready = self.waiting_task.take_if(|(threshold, _)| count >= *threshold || flush);
        if let Some((_, task)) = ready {
            task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;
    use crate::providers::redis::pipeline::response::{ResponseReceiver, channel};
    use crate::providers::redis::scripts::Operation;

    fn pending() -> (PendingCommand, ResponseReceiver) {
        let key = Key::new("key").expect("legal");
        let (sender, receiver) = channel();
        let command = Command::new(Operation::IsHeld, &key, 1);
        (PendingCommand { command, target: ResponseTarget::Task(sender) }, receiver)
    }

    fn push(queue: &CommandQueue, count: usize) -> Vec<ResponseReceiver> {
        let push = |_| {
            let (pending, receiver) = pending();
            assert!(queue.push(pending).is_none());
            receiver
        };
        (0..count).map(push).collect()
    }

    #[test]
    fn with_few_callers_no_command_waits_for_others() {
        let queue = CommandQueue::default();
        let _receivers = push(&queue, 1);
        assert_eq!(queue.take_batch().0.len(), 1);
        let thresholds: Vec<usize> =
            (0..10).map(|messages| queue.batch_threshold(messages)).collect();
        let limit = thresholds.iter().position(|threshold| *threshold == usize::MAX);
        let limit = limit.expect("not all messages are in flight at a time");
        assert!(limit > 1 && thresholds[..limit].iter().all(|threshold| *threshold == 1));
    }

    #[test]
    fn with_many_callers_two_messages_take_turns() {
        let queue = CommandQueue::default();
        let receivers = push(&queue, 64);
        assert!(!queue.is_answered(), "a direct message would overtake them");
        assert_eq!(queue.take_batch().0.len(), receivers.len());
        assert_eq!(queue.batch_threshold(0), 1, "nothing is in flight to wait for");
        let second = queue.batch_threshold(1);
        assert!(second > 64 / 4 && second <= 64 / 2, "{second} is not about a half");
        assert_eq!(queue.batch_threshold(2), usize::MAX, "a third message waits");
    }

    #[test]
    fn many_callers_are_forgotten() {
        let queue = CommandQueue::default();
        drop(push(&queue, MAX_COMMANDS));
        queue.take_batch();
        assert!(queue.has_many_callers());
        for _ in 0..200 {
            drop(push(&queue, 1));
            assert!(queue.take_batch().0.is_empty(), "nobody wants its response");
        }
        assert!(!queue.has_many_callers());
    }

    #[test]
    fn a_message_has_at_most_as_many_commands_as_the_script_can_number() {
        let queue = CommandQueue::default();
        let _receivers = push(&queue, MAX_COMMANDS + 5);
        assert_eq!(queue.take_batch().0.len(), MAX_COMMANDS);
        assert_eq!(queue.take_batch().0.len(), 5);
    }

    #[tokio::test]
    async fn the_callers_of_an_aborted_queue_get_no_response() {
        let queue = CommandQueue::default();
        let receiver = push(&queue, 1).remove(0);
        queue.abort();
        assert!(queue.push(pending().0).is_some(), "nobody would send it");
        assert!(receiver.await.is_none());
    }
}
