//! The answer to one who asked, told together with those of others.
//!
//! Like a one-shot channel, but the sender gets the receiver's waker: the tasks that one message
//! answers are woken together, after all of them were answered.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::batch::Answer;
use crate::Result;

/// Where the answer is told; dropped without one, the other side learns that none will come.
pub(super) struct Tell(Arc<Mutex<State>>);

/// What was told; none when nobody will.
pub(super) struct Told(Arc<Mutex<State>>);

enum State {
    Open(Option<Waker>),
    Answered(Result<Answer>),
    /// Nobody tells any more.
    Over,
}

pub(super) fn channel() -> (Tell, Told) {
    let state = Arc::new(Mutex::new(State::Open(None)));
    (Tell(state.clone()), Told(state))
}

impl Tell {
    /// Whether anybody still listens.
    pub(super) fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Tells, and gives back who is to be woken.
    pub(super) fn answer(self, answer: Result<Answer>) -> Option<Waker> {
        self.end(State::Answered(answer))
    }

    fn end(&self, end: State) -> Option<Waker> {
        let mut state = self.0.lock();
        match &mut *state {
            State::Open(waker) => {
                let waker = waker.take();
                *state = end;
                waker
            }
            State::Answered(_) | State::Over => None,
        }
    }
}

impl Drop for Tell {
    fn drop(&mut self) {
        if let Some(waker) = self.end(State::Over) {
            waker.wake();
        }
    }
}

impl Future for Told {
    type Output = Option<Result<Answer>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock();
        if let State::Open(waker) = &mut *state {
            match waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Over) {
            State::Answered(answer) => Poll::Ready(Some(answer)),
            State::Open(_) | State::Over => Poll::Ready(None),
        }
    }
}
