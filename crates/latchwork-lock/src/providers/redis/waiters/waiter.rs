//! One waiter of this process: what it waits for, and what has become of it.

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::providers::redis::error;
use crate::providers::redis::scripts::response::AcquireResponse;
use crate::rules::{CLAIM_WINDOW, Id};
use crate::{Fence, Grant, Key, Moment, Result};

/// A waiter, as the rest of the provider sees it.
pub(crate) struct LocalWaiter {
    pub(crate) key: Key,
    pub(crate) id: Id,
    state: Mutex<State>,
    pub(super) woken: Notify,
}

struct State {
    phase: Phase,
    /// The fence of the last grant that was returned, or is being returned. The response to a request
    /// of its task may be the same grant.
    returned: Option<Fence>,
    /// Whether its request to join the queue is in flight. That request is repeated if the connection
    /// is lost, so its waiter must not leave before the response, or what it is granted then would
    /// not be released.
    request_in_flight: bool,
    /// Whether its task has something to do as soon as there is a response.
    wants_response: bool,
    /// Whether its task is gone.
    abandoned: bool,
}

enum Phase {
    /// It is in the queue, or its request is in flight.
    Waiting,
    /// A claim for it is in flight.
    Claiming,
    /// It was granted the key then, and its task has not taken it yet.
    Granted(Grant, Moment),
    /// The grant with this fence is being returned, since its task did not take it in time.
    Returning(Fence),
    /// It must ask the server where it is.
    Unknown,
    /// Its request was answered, and it is not in the queue.
    Answered(Result<AcquireResponse>),
}

/// Why a waiter stops waiting.
pub(crate) enum WakeReason {
    Granted(Grant),
    /// It must ask the server where it is, or its time is over.
    AskAgain,
    /// Its request to join the queue was answered otherwise.
    Answered(Result<AcquireResponse>),
    /// Its time is over while its grant is being returned: it must release, and not ask again.
    GiveUp,
}

/// What a waiter does next.
pub(super) enum NextStep {
    Wake(WakeReason),
    /// Waits until it is woken, also when its time is over.
    WaitForResponse,
    /// Waits until it is woken or its time is over.
    Wait,
}

impl LocalWaiter {
    pub(super) fn new(key: Key, id: Id) -> Self {
        let state = State {
            phase: Phase::Waiting,
            returned: None,
            request_in_flight: false,
            wants_response: false,
            abandoned: false,
        };
        LocalWaiter { key, id, state: Mutex::new(state), woken: Notify::new() }
    }

    /// What its task does next; `over` if its time is over.
    pub(super) fn next_step(&self, over: bool) -> NextStep {
        let mut state = self.state.lock();
        if state.request_in_flight {
            if matches!(state.phase, Phase::Waiting) && !over {
                return NextStep::Wait;
            }
            state.wants_response = true;
            return NextStep::WaitForResponse;
        }
        let (next, step) = match std::mem::replace(&mut state.phase, Phase::Unknown) {
            Phase::Granted(grant, _) => {
                (Phase::Unknown, NextStep::Wake(WakeReason::Granted(grant)))
            }
            Phase::Answered(response) => {
                (Phase::Unknown, NextStep::Wake(WakeReason::Answered(response)))
            }
            Phase::Unknown => (Phase::Waiting, NextStep::Wake(WakeReason::AskAgain)),
            phase @ Phase::Returning(_) if over => (phase, NextStep::Wake(WakeReason::GiveUp)),
            phase @ Phase::Returning(_) => (phase, NextStep::Wait),
            phase if over => (phase, NextStep::Wake(WakeReason::AskAgain)),
            phase => (phase, NextStep::Wait),
        };
        state.phase = next;
        step
    }

    /// Whether its task still waits.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.state.lock().abandoned
    }

    /// Its task is gone.
    pub(crate) fn abandon(&self) {
        self.state.lock().abandoned = true;
    }

    /// A request to join the queue is sent for it.
    pub(super) fn request_started(&self) {
        self.state.lock().request_in_flight = true;
    }

    /// That request was answered, and did not put it into the queue.
    pub(crate) fn answer(&self, response: Result<AcquireResponse>) {
        let mut state = self.state.lock();
        if let Phase::Waiting = state.phase {
            state.phase = Phase::Answered(response);
            self.woken.notify_one();
        }
    }

    /// That request is over, answered or not.
    pub(crate) fn request_finished(&self, answered: bool, during: &'static str) {
        if !answered {
            self.answer(Err(error::runtime_ended(during)));
        }
        let mut state = self.state.lock();
        state.request_in_flight = false;
        if std::mem::take(&mut state.wants_response) {
            self.woken.notify_one();
        }
    }

    /// Starts a claim, unless there is something else to do.
    pub(super) fn start_claim(&self) -> bool {
        let mut state = self.state.lock();
        let waiting = matches!(state.phase, Phase::Waiting);
        if waiting {
            state.phase = Phase::Claiming;
        }
        waiting
    }

    /// It was granted the key.
    pub(crate) fn deliver_grant(&self, grant: Grant, now: Moment) {
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Returning(_)) {
            state.phase = Phase::Granted(grant, now);
            self.woken.notify_one();
        }
    }

    /// Its task takes the grant that a request of its own was answered with. False if that grant was
    /// delivered here, too, and is returned: then it must not be used.
    pub(super) fn take_grant(&self, fence: Fence) -> bool {
        let mut state = self.state.lock();
        let usable = state.returned.is_none_or(|returned| returned < fence);
        if usable {
            state.phase = Phase::Unknown; // from now on it is not returned
        }
        usable
    }

    /// Makes it ask the server where it is.
    pub(crate) fn ask_again(&self) {
        let mut state = self.state.lock();
        if let Phase::Waiting | Phase::Claiming | Phase::Unknown = state.phase {
            state.phase = Phase::Unknown;
            self.woken.notify_one();
        }
    }

    /// The fence of a grant that its task has not taken in time, and that is to be returned. Until it
    /// [is](Self::grant_returned), the task makes no request: that would find a grant that is about to
    /// end.
    pub(super) fn reclaim_unclaimed(&self, now: Moment) -> Option<Fence> {
        let mut state = self.state.lock();
        match &state.phase {
            // Others wait behind it.
            Phase::Granted(grant, since) if now.since(*since) >= CLAIM_WINDOW / 2 => {
                let fence = grant.fence;
                (state.phase, state.returned) = (Phase::Returning(fence), Some(fence));
                Some(fence)
            }
            Phase::Returning(fence) => Some(*fence),
            _ => None,
        }
    }

    /// The grant was returned.
    pub(crate) fn grant_returned(&self) {
        let mut state = self.state.lock();
        if let Phase::Returning(_) = state.phase {
            state.phase = Phase::Unknown;
            self.woken.notify_one();
        }
    }
}
