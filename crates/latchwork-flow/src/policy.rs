//! How an action is bounded, and how often it is tried (F15, F16).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use latchwork_lock::OnLoss;
use rand::RngExt;

use crate::{Error, ErrorKind};

/// How an action is bounded, and how often it is tried.
#[derive(Clone, Debug, Default)]
pub struct ActionPolicy {
    /// How long one attempt may take; none: as the machine says
    /// ([`action_limit`](crate::StateMachineBuilder::action_limit)). Beyond it the action is dropped
    /// at its next await, and the transition fails with
    /// [`ActionTimedOut`](ErrorKind::ActionTimedOut) unless it is to be tried again.
    ///
    /// An action that blocks its thread cannot be dropped. In a stored transition its run is given
    /// up then: the next process that claims the transition begins the action anew, and nothing that the
    /// blocked one saves later is taken.
    pub time_limit: Option<Duration>,
    /// What happens to it when the lock or the run-lease is lost, or the transition is called off:
    /// by default it is dropped at its next await. [`OnLoss::Finish`] lets it finish; it must then
    /// guard its writes itself, by the [fence](crate::ActionContext::fence).
    pub on_loss: OnLoss,
    /// Whether a failure is made up for.
    pub retry: Retry,
}

/// How often an action is tried before its failure is the transition's, and how long to wait between.
///
/// It is tried again in place: the lock stays held meanwhile, and so does the runner's slot. Where
/// the wait is long, or the failure is none (something is not there yet), let the action answer
/// [`ActionResult::retry_after`](crate::ActionResult::retry_after) instead.
#[derive(Clone)]
pub struct Retry {
    /// So many attempts in all; 1 unless told, which is no retry.
    pub attempts: u32,
    /// The first wait; a second unless told. It doubles each time, and up to half of it is left to
    /// chance.
    pub first: Duration,
    /// The longest wait; a minute unless told.
    pub longest: Duration,
    when: Option<Arc<Suits>>,
}

/// Whether an error is one to try again after.
type Suits = dyn Fn(&Error) -> bool + Send + Sync;

impl Retry {
    /// So many attempts in all.
    pub fn times(attempts: u32) -> Self {
        Retry { attempts, ..Retry::default() }
    }

    /// Waits this long before the second attempt, and up to that long before later ones.
    #[must_use]
    pub fn back_off(self, first: Duration, longest: Duration) -> Self {
        Retry { first, longest, ..self }
    }

    /// Only for these errors: [`ActionFailed`](ErrorKind::ActionFailed), whose source is what the
    /// action said, and [`ActionTimedOut`](ErrorKind::ActionTimedOut). All of them unless told, but
    /// for panics, which are tried again only where this says so.
    #[must_use]
    pub fn when(self, when: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        Retry { when: Some(Arc::new(when)), ..self }
    }

    /// How long to wait before the next attempt, after so many that failed; none: not at all.
    pub(crate) fn after(&self, failed: u32, error: &Error) -> Option<Duration> {
        let suits = match &self.when {
            Some(when) => when(error),
            None => !matches!(error.kind(), ErrorKind::ActionFailed { panicked: true, .. }),
        };
        if failed >= self.attempts || !suits {
            return None;
        }
        let doubled = self.first.saturating_mul(1 << failed.saturating_sub(1).min(16));
        let span = doubled.min(self.longest);
        Some(span.mul_f64(rand::rng().random_range(0.5..=1.0)))
    }
}

impl Default for Retry {
    fn default() -> Self {
        let (first, longest) = (Duration::from_secs(1), Duration::from_secs(60));
        Retry { attempts: 1, first, longest, when: None }
    }
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("attempts", &self.attempts)
            .field("first", &self.first)
            .field("longest", &self.longest)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(panicked: bool) -> Error {
        let (action, reason) = ("a".to_owned(), "why".to_owned());
        ErrorKind::ActionFailed { action, index: 0, reason, panicked, source: None }.into()
    }

    #[test]
    fn waits_grow_to_a_bound_and_end() {
        let second = Duration::from_secs(1);
        assert_eq!(Retry::default().after(1, &failed(false)), None);
        let retry = Retry::times(5).back_off(second, 3 * second);
        for (attempts, most) in [(1, 1), (2, 2), (3, 3), (4, 3)] {
            let wait = retry.after(attempts, &failed(false)).expect("again");
            assert!(second * most / 2 <= wait && wait <= second * most, "{wait:?}");
        }
        assert_eq!(retry.after(5, &failed(false)), None);
        assert_eq!(retry.after(1, &failed(true)), None, "a panic is a fault of the program");
        assert!(retry.clone().when(|_| true).after(1, &failed(true)).is_some());
        assert_eq!(retry.when(|_| false).after(1, &failed(false)), None);
    }
}
