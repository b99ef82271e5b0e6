//! A lease that lies ready for a waiter of this process.
//!
//! Where the one who releases and the next in line are of one process, that process asks for both
//! in one step: the next lease begins at once, without a claim. It is put here, and if its waiter
//! does not look for it, the process gives it back as soon as an unclaimed reservation would end.

use parking_lot::Mutex;
use std::time::Duration;

use crate::{Grant, Moment};

/// What lies ready for one waiter.
#[derive(Default)]
pub(crate) struct Handed(Mutex<State>);

#[derive(Default)]
struct State {
    /// The lease, and since when it lies here.
    grant: Option<(Grant, Moment)>,
    /// Whether the waiter is asking: it may be told of the lease in another way.
    asking: bool,
    /// Whether the waiter came too late, and the lease is being given back.
    going_back: bool,
}

/// What a waiter finds.
pub(crate) enum Found {
    Lease(Grant),
    /// Nothing: it goes and asks.
    Nothing,
    /// To ask now would find the lease that is about to end.
    TooLate,
}

impl Handed {
    pub(crate) fn put(&self, grant: Grant, now: Moment) {
        self.0.lock().grant = Some((grant, now));
    }

    /// The waiter looks, and asks if there is nothing.
    pub(crate) fn look(&self) -> Found {
        let mut state = self.0.lock();
        if state.going_back {
            return Found::TooLate;
        }
        state.asking = state.grant.is_none();
        state.grant.take().map_or(Found::Nothing, |(grant, _)| Found::Lease(grant))
    }

    /// The waiter's question was answered: it waits, and will look again. Said by whoever answers,
    /// since the waiter itself may sleep.
    pub(crate) fn waits(&self) {
        self.0.lock().asking = false;
    }

    /// Takes a lease back that has lain here for so long; true when it is to be released.
    pub(crate) fn take_back(&self, now: Moment, patience: Duration) -> bool {
        let mut state = self.0.lock();
        let old = state.grant.is_some_and(|(_, since)| now.since(since) >= patience);
        let taken = old && !state.asking;
        if taken {
            *state = State { going_back: true, ..State::default() };
        }
        taken
    }

    /// Such a lease has been released: its waiter may ask anew.
    pub(crate) fn gone_back(&self) {
        self.0.lock().going_back = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fence;

    const PATIENCE: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Moment {
        Moment::default().after(Duration::from_secs(seconds))
    }

    #[test]
    fn a_lease_is_taken_once_by_its_waiter_or_by_time() {
        let handed = Handed::default();
        let grant = Grant::first(Fence::new(7));
        handed.waits();
        handed.put(grant, at(10));
        assert!(!handed.take_back(at(10), PATIENCE), "too soon");
        assert!(matches!(handed.look(), Found::Lease(found) if found == grant));
        assert!(!handed.take_back(at(20), PATIENCE), "it is the waiter's");
        assert!(matches!(handed.look(), Found::Nothing));

        handed.waits();
        handed.put(grant, at(20));
        assert!(handed.take_back(at(21), PATIENCE));
        assert!(matches!(handed.look(), Found::TooLate), "it would ask for what is about to end");
        handed.gone_back();
        assert!(matches!(handed.look(), Found::Nothing));
    }

    #[test]
    fn who_asks_may_have_been_told_in_another_way() {
        let handed = Handed::default();
        assert!(matches!(handed.look(), Found::Nothing));
        handed.put(Grant::first(Fence::new(7)), at(10));
        assert!(!handed.take_back(at(20), PATIENCE));
    }
}
