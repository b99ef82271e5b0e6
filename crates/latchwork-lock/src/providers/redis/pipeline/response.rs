//! Where the response to a command goes: to a task that waits for it, or to a handler.
//!
//! A task waits on a one-shot channel whose sender gets the receiver's waker instead of calling it.
//! So the tasks whose commands shared a message are woken together, after all of them have their
//! responses.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::Result;
use crate::providers::redis::scripts::Command;
use crate::providers::redis::scripts::response::Response;

/// Handles the response to a command where it arrives, without a task that waits for it.
pub(crate) trait ResponseHandler: Send {
    /// Whether the command must still be sent.
    fn is_wanted(&self) -> bool {
        true
    }

    /// Handles the response. The caller wakes the returned waker, together with those of others.
    /// Dropped without a response, a handler knows that its pipeline has ended with its runtime.
    fn handle(self: Box<Self>, response: Result<Response>) -> Option<Waker>;
}

/// Where a response goes.
pub(crate) enum ResponseTarget {
    Task(ResponseSender),
    Handler(Box<dyn ResponseHandler>),
}

impl ResponseTarget {
    pub(super) fn is_wanted(&self) -> bool {
        match self {
            ResponseTarget::Task(sender) => sender.is_wanted(),
            ResponseTarget::Handler(handler) => handler.is_wanted(),
        }
    }

    #[must_use]
    pub(super) fn deliver(self, response: Result<Response>) -> Option<Waker> {
        match self {
            ResponseTarget::Task(sender) => sender.send(response),
            ResponseTarget::Handler(handler) => handler.handle(response),
        }
    }
}

/// A command that has no response yet.
pub(crate) struct PendingCommand {
    pub(crate) command: Command,
    pub(crate) target: ResponseTarget,
}

impl PendingCommand {
    pub(crate) fn new(command: Command, handler: impl ResponseHandler + 'static) -> Self {
        PendingCommand { command, target: ResponseTarget::Handler(Box::new(handler)) }
    }
}

/// Sends one response. If it is dropped, the receiver learns that there will be none.
pub(crate) struct ResponseSender(Arc<Mutex<State>>);

/// Receives the response; `None` if there will be none.
pub(crate) struct ResponseReceiver(Arc<Mutex<State>>);

enum State {
    Open(Option<Waker>),
    Sent(Result<Response>),
    Closed,
}

pub(crate) fn channel() -> (ResponseSender, ResponseReceiver) {
    let state = Arc::new(Mutex::new(State::Open(None)));
    (ResponseSender(state.clone()), ResponseReceiver(state))
}

impl ResponseSender {
    /// Whether the receiver still exists.
    pub(crate) fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Sends the response. The caller must wake the returned waker.
    #[must_use]
    pub(crate) fn send(self, response: Result<Response>) -> Option<Waker> {
        self.close(State::Sent(response))
    }

    fn close(&self, end: State) -> Option<Waker> {
        let mut state = self.0.lock();
        match &mut *state {
            State::Open(waker) => {
                let waker = waker.take();
                *state = end;
                waker
            }
            State::Sent(_) | State::Closed => None,
        }
    }
}

impl Drop for ResponseSender {
    fn drop(&mut self) {
        if let Some(waker) = self.close(State::Closed) {
            waker.wake();
        }
    }
}

impl Future for ResponseReceiver {
    type Output = Option<Result<Response>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock();
        if let State::Open(waker) = &mut *state {
            match waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Closed) {
            State::Sent(response) => Poll::Ready(Some(response)),
            State::Open(_) | State::Closed => Poll::Ready(None),
        }
    }
}
