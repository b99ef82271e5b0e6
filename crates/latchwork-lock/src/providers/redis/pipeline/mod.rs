//! Pipelines to the server: many commands of this process in one message, in a fixed order.
//!
//! A runtime with several threads has a pipeline of its own, which its own threads drive: waking
//! another thread and being woken by it costs more than everything else. All other callers share a
//! pipeline on the provider's own thread.
//!
//! While hardly anything is in flight, a task sends its command in a message of its own; otherwise
//! the pipeline's [`batcher`] combines commands. The order is kept, so a release never
//! overtakes the request that it follows: a requester that gives up before its command was sent
//! withdraws it. Between pipelines there is no order, so a release must use the pipeline of its
//! request.

mod batcher;
mod message;
mod queue;
pub(super) mod response;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use batcher::Batcher;
use futures::future::BoxFuture;
use message::{DURING, MessageSender};
use response::{PendingCommand, ResponseReceiver, ResponseTarget, channel};
use tokio::runtime::Handle;

use super::connection::{BACKGROUND, Connection};
use super::error;
use super::scripts::Command;
use super::scripts::response::Response;
use crate::Result;
use crate::coordination::runtimes::PerRuntime;

/// The response to a command. Small, since it is part of every caller's future.
///
/// Cancel safety: dropping it withdraws a command that was not sent yet.
pub(super) enum ResponseFuture {
    /// To a message of its own, which this future sends.
    Direct(BoxFuture<'static, Result<Response>>),
    /// To a message that the pipeline sends; and what the command is for.
    Queued(&'static str, ResponseReceiver),
}

impl Future for ResponseFuture {
    type Output = Result<Response>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            ResponseFuture::Direct(response) => response.as_mut().poll(cx),
            ResponseFuture::Queued(during, receiver) => {
                let response = ready!(Pin::new(receiver).poll(cx));
                Poll::Ready(response.unwrap_or_else(|| Err(error::runtime_ended(during))))
            }
        }
    }
}

/// The pipelines of a provider. They end when it is dropped.
pub(super) struct Pipelines {
    /// On the provider's own runtime.
    own: Arc<Pipeline>,
    /// Those of the callers' runtimes.
    others: PerRuntime<Pipeline>,
}

/// One connection, and the commands that are sent on it in order.
pub(super) struct Pipeline(Arc<Batcher>);

impl Pipelines {
    pub(super) fn open(connection: Arc<Connection>, client: Arc<str>) -> Result<Pipelines> {
        let sender = MessageSender::new(connection, client);
        let own = Arc::new(Pipeline::open(BACKGROUND.handle()?, sender));
        Ok(Pipelines { own, others: PerRuntime::default() })
    }

    /// The pipeline of the current runtime, or the provider's own.
    pub(super) fn current(&self) -> Arc<Pipeline> {
        let open = |runtime: &Handle| Pipeline::open(runtime, self.own.0.sender.another());
        let current = self.others.current(open, |pipeline| pipeline.0.has_ended());
        current.unwrap_or_else(|| self.own.clone())
    }

    /// Sends a command on the [current](Self::current) pipeline.
    pub(super) fn send(&self, during: &'static str, command: Command) -> ResponseFuture {
        self.send_on(&self.current(), during, command)
    }

    /// Sends a command on the provider's own pipeline, which no caller's runtime can block.
    pub(super) fn send_from_background(
        &self,
        during: &'static str,
        command: Command,
    ) -> ResponseFuture {
        self.send_on(&self.own, during, command)
    }

    /// Sends a command on a pipeline, which must be the [current](Self::current) one.
    pub(super) fn send_on(
        &self,
        pipeline: &Arc<Pipeline>,
        during: &'static str,
        command: Command,
    ) -> ResponseFuture {
        if !Arc::ptr_eq(pipeline, &self.own)
            && let Some(direct) = pipeline.0.try_send_directly()
        {
            return ResponseFuture::Direct(Box::pin(direct.send(during, command)));
        }
        let (sender, receiver) = channel();
        self.enqueue_on(pipeline, PendingCommand { command, target: ResponseTarget::Task(sender) });
        ResponseFuture::Queued(during, receiver)
    }

    /// Enqueues a command behind everything on a pipeline.
    pub(super) fn enqueue_on(&self, pipeline: &Pipeline, pending: PendingCommand) {
        // Its runtime may be about to end.
        if let Some(pending) = pipeline.0.enqueue(pending) {
            self.send_in_background(pending);
        }
    }

    /// Enqueues a command on a pipeline, which must be the [current](Self::current) one, and sends it
    /// without waiting for others: from here if possible.
    pub(super) fn send_now(&self, pipeline: &Arc<Pipeline>, pending: PendingCommand) {
        if Arc::ptr_eq(pipeline, &self.own) {
            self.send_in_background(pending); // another thread drives it
        } else if let Some(pending) = pipeline.0.send_now(pending) {
            self.send_in_background(pending);
        }
    }

    /// Enqueues a command on the pipeline that outlives every runtime of a caller.
    pub(super) fn send_in_background(&self, pending: PendingCommand) {
        if let Some(pending) = self.own.0.enqueue(pending)
            && let Some(waker) = pending.target.deliver(Err(error::runtime_ended(DURING)))
        {
            waker.wake();
        }
    }
}

impl Pipeline {
    fn open(runtime: &Handle, sender: MessageSender) -> Pipeline {
        let batcher = Arc::new(Batcher::new(sender));
        runtime.spawn(batcher.clone().run());
        Pipeline(batcher)
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.0.end();
    }
}
