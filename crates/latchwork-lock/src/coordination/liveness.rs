//! Which waiters are passed over at a hand-off because their process seems to be dead (L5).
//!
//! A process that waits says about once a second that it is alive, and that is believed for some
//! seconds. Without more than that, every waiter of a process that was killed would have the key
//! reserved for a claim window of its own until the belief ends.
//!
//! So a reservation that ran out unclaimed counts against its process: if that has given no sign of
//! life since the reservation began, it is *doubted*, and the belief ends at once, in the backend,
//! for all of its waiters. Waiters of a process that is not believed to be alive are passed over.
//! They keep their places for a while, so that a process which only stood still goes on where it was
//! with its next sign of life; after that they are removed.
//!
//! A process that gives signs of life is never doubted, whatever one of its tasks does. A process
//! always believes in itself: that it asks is a sign of life.

use std::collections::BTreeMap;
use std::time::Duration;

#[cfg(any(feature = "postgres", feature = "mysql"))]
use parking_lot::Mutex;

use crate::Moment;
use crate::rules::{CLAIM_WINDOW, HolderState, Requester, Rules};

/// How long the waiters of a process that is not believed to be alive keep their places.
const KEPT: Duration = Duration::from_secs(6);

/// When this process last said that it is alive, by its own clock.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) struct Heartbeat {
    /// For how long the backend believes it.
    belief: Duration,
    /// The shortest time between two heartbeats of a process that waits.
    interval: Duration,
    alive_until: Mutex<Moment>,
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
impl Heartbeat {
    pub(crate) fn new(belief: Duration, interval: Duration) -> Self {
        Heartbeat { belief, interval, alive_until: Mutex::new(Moment::default()) }
    }

    /// Whether the backend will believe for a while yet that this process is alive.
    pub(crate) fn is_alive(&self, now: Moment) -> bool {
        self.alive_until.lock().since(now) > self.belief / 2
    }

    /// Whether it is time for the next heartbeat: there must be one in any claim window, or the
    /// process is doubted when one of its tasks does not take its grant.
    pub(crate) fn is_due(&self, now: Moment) -> bool {
        self.alive_until.lock().since(now) <= self.belief - self.interval
    }

    /// The backend has stored a heartbeat that was sent after this moment.
    pub(crate) fn sent(&self, moment: Moment) {
        *self.alive_until.lock() = moment.after(self.belief);
    }
}

/// What a backend remembers of a waiter's process.
pub(crate) trait Session {
    type Client: Clone + Ord;

    /// Which process.
    fn client(&self) -> &Self::Client;

    /// Until when it is believed to be alive.
    fn alive(&self) -> Moment;
}

/// Those who are not in the queue of a key although they are stored there.
pub(crate) struct Absent<X: Session> {
    /// Passed over. They stay stored as they are.
    pub(crate) silent: Vec<Box<Requester<X>>>,
    /// Processes that are doubted from now on, and until when they were believed to be alive. To be
    /// stored, unless such a process has given a sign of life since.
    pub(crate) doubted: BTreeMap<X::Client, Moment>,
}

impl<X: Session> Rules<X> {
    /// Ends the leases that ran out, and takes those out of the queue whose process seems to be
    /// dead, but none of `own`. `belief` is for how long a sign of life is believed.
    pub(crate) fn set_absent_aside(
        &mut self,
        own: &X::Client,
        belief: Duration,
        now: Moment,
    ) -> Absent<X> {
        let is_missed = |held: &&HolderState<X>| !held.claimed && held.expires <= now;
        let missed: Vec<&HolderState<X>> = self.holders.iter().filter(is_missed).collect();
        let mut doubted = BTreeMap::new();
        for session in self.queue.iter().map(|waiting| &waiting.extra) {
            // Not heard of since the reservation began.
            let is_unheard = |held: &&HolderState<X>| {
                let window = held.requester.ttl.min(CLAIM_WINDOW);
                held.requester.extra.client() == session.client()
                    && session.alive().after(window) <= held.expires.after(belief)
            };
            if session.client() != own && session.alive() > now && missed.iter().any(is_unheard) {
                doubted.insert(session.client().clone(), session.alive());
            }
        }
        let mut silent = Vec::new();
        for waiting in std::mem::take(&mut self.queue) {
            let session = &waiting.extra;
            if session.alive().after(KEPT) <= now {
                continue;
            }
            let is_believed = session.alive() > now && !doubted.contains_key(session.client());
            if is_believed || session.client() == own {
                self.queue.push_back(waiting);
            } else {
                silent.push(waiting);
            }
        }
        self.expire(now);
        Absent { silent, doubted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Decision, Id};
    use crate::{Fence, Mode};

    const BELIEF: Duration = Duration::from_secs(6);
    const OURS: u8 = 0;

    #[derive(Clone, Debug)]
    struct Process(u8, Moment);

    impl Session for Process {
        type Client = u8;

        fn client(&self) -> &u8 {
            &self.0
        }

        fn alive(&self) -> Moment {
            self.1
        }
    }

    fn at(millis: u64) -> Moment {
        Moment::default().after(Duration::from_millis(100_000 + millis))
    }

    /// A key whose holder releases it at 0, with three waiters of the processes 1, 1 and 2, of which
    /// the first was heard of at this time.
    fn handed_on(heard: Moment) -> Rules<Process> {
        let mut fence = 0;
        let mut next = || {
            fence += 1;
            Fence::new(fence)
        };
        let mut rules = Rules::default();
        for (id, client, heard) in [(1, 0, at(0)), (2, 1, heard), (3, 1, heard), (4, 2, at(1_900))]
        {
            let requester = Requester {
                id,
                mode: Mode::Exclusive,
                owner: None,
                note: None,
                ttl: Duration::from_secs(30),
                since: at(0),
                extra: Process(client, heard.after(BELIEF)),
            };
            assert_eq!(
                rules.request(requester, true, at(0), &mut next) == Decision::Queued,
                id > 1
            );
        }
        rules.release(1).expect("held");
        rules.admit(at(0), &mut next, |_| {});
        rules
    }

    fn queue(rules: &Rules<Process>) -> Vec<Id> {
        rules.queue.iter().map(|waiting| waiting.id).collect()
    }

    #[test]
    fn a_process_that_misses_its_turn_and_is_not_heard_is_passed_over() {
        let mut rules = handed_on(at(0));
        let absent = rules.set_absent_aside(&OURS, BELIEF, at(2_000));
        assert_eq!(queue(&rules), [4]);
        assert_eq!(absent.doubted.into_iter().collect::<Vec<_>>(), [(1, at(6_000))]);
        assert_eq!(absent.silent.iter().map(|waiting| waiting.id).collect::<Vec<_>>(), [3]);
        assert!(rules.holders.is_empty(), "the reservation has run out");
    }

    #[test]
    fn a_process_that_is_heard_of_keeps_the_turns_of_its_waiters() {
        let mut rules = handed_on(at(1));
        let absent = rules.set_absent_aside(&OURS, BELIEF, at(2_000));
        assert_eq!(queue(&rules), [3, 4]);
        assert!(absent.doubted.is_empty() && absent.silent.is_empty());
    }

    #[test]
    fn nobody_is_doubted_before_its_claim_window_ends() {
        let mut rules = handed_on(at(0));
        let absent = rules.set_absent_aside(&OURS, BELIEF, at(1_999));
        assert_eq!(queue(&rules), [3, 4]);
        assert!(absent.doubted.is_empty() && absent.silent.is_empty());
    }

    #[test]
    fn a_process_never_doubts_itself() {
        let mut rules = handed_on(at(0));
        let absent = rules.set_absent_aside(&1, BELIEF, at(7_000));
        assert_eq!(queue(&rules), [3, 4]);
        assert!(absent.doubted.is_empty() && absent.silent.is_empty());
    }

    #[test]
    fn a_silent_process_keeps_its_places_for_a_while() {
        for (now, is_kept) in [(6_000, true), (11_999, true), (12_000, false)] {
            let mut rules = handed_on(at(0));
            let absent = rules.set_absent_aside(&OURS, BELIEF, at(now));
            assert_eq!(absent.silent.iter().any(|waiting| waiting.id == 3), is_kept, "at {now}");
        }
    }
}
