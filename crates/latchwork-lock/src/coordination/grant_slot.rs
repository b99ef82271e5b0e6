//! A lease that is ready for a waiter of this process.
//!
//! Where the releasing caller and the next waiter are of one process, that process requests both
//! changes in one step: the next lease begins at once, without a claim. The grant is stored in the
//! waiter's slot. If the waiter does not take it, the process releases the lease as soon as an
//! unclaimed reservation would end.

use std::time::Duration;

use crate::sync::Mutex;
use crate::{Grant, Moment};

/// The slot of one waiter.
#[derive(Default)]
pub struct GrantSlot(Mutex<State>);

#[derive(Default)]
struct State {
    /// The grant, and since when it is here.
    grant: Option<(Grant, Moment)>,
    /// The waiter has sent a request: its answer may be the same lease.
    requesting: bool,
    /// The waiter came too late, and the lease is being released.
    reclaiming: bool,
}

/// What a waiter finds in its slot.
pub enum SlotState {
    /// The lease is its own.
    Granted(Grant),
    /// Nothing: it sends a request.
    Empty,
    /// A request would find the lease that is about to be released.
    Reclaiming,
}

impl GrantSlot {
    /// Stores a grant.
    pub fn put(&self, grant: Grant, now: Moment) {
        self.0.lock().grant = Some((grant, now));
    }

    /// Takes the grant; the waiter sends a request if the slot is empty.
    pub fn take(&self) -> SlotState {
        let mut state = self.0.lock();
        if state.reclaiming {
            return SlotState::Reclaiming;
        }
        state.requesting = state.grant.is_none();
        state.grant.take().map_or(SlotState::Empty, |(grant, _)| SlotState::Granted(grant))
    }

    /// The waiter's request was answered: it waits, and will look here again. Called by the side
    /// that answers, because the waiter itself may be asleep.
    pub fn mark_waiting(&self) {
        self.0.lock().requesting = false;
    }

    /// Removes a grant that has been here for so long; true when its lease is to be released.
    pub fn reclaim(&self, now: Moment, patience: Duration) -> bool {
        let mut state = self.0.lock();
        let old = state.grant.is_some_and(|(_, since)| now.since(since) >= patience);
        let taken = old && !state.requesting;
        if taken {
            *state = State { reclaiming: true, ..State::default() };
        }
        taken
    }

    /// The lease of such a grant has been released: the waiter may send a request.
    pub fn mark_reclaimed(&self) {
        self.0.lock().reclaiming = false;
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::Fence;

    const PATIENCE: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Moment {
        Moment::default().after(Duration::from_secs(seconds))
    }

    #[test]
    fn a_grant_is_taken_by_its_waiter_or_reclaimed() {
        let slot = GrantSlot::default();
        let grant = Grant::first(Fence::new(7));
        slot.mark_waiting();
        slot.put(grant, at(10));
        assert!(!slot.reclaim(at(10), PATIENCE), "too soon");
        assert!(matches!(slot.take(), SlotState::Granted(found) if found == grant));
        assert!(!slot.reclaim(at(20), PATIENCE), "the waiter has it");
        assert!(matches!(slot.take(), SlotState::Empty));

        slot.mark_waiting();
        slot.put(grant, at(20));
        assert!(slot.reclaim(at(21), PATIENCE));
        assert!(matches!(slot.take(), SlotState::Reclaiming), "its lease is about to end");
        slot.mark_reclaimed();
        assert!(matches!(slot.take(), SlotState::Empty));
    }

    #[test]
    fn a_grant_of_a_waiter_that_sends_a_request_is_not_reclaimed() {
        let slot = GrantSlot::default();
        assert!(matches!(slot.take(), SlotState::Empty));
        slot.put(Grant::first(Fence::new(7)), at(10));
        assert!(!slot.reclaim(at(20), PATIENCE));
    }
}
