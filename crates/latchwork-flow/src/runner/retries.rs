//! Pauses between tries: doubling, and jittered so that those who failed together do not come back
//! together.

use std::collections::HashMap;
use std::time::Duration;

use rand::RngExt;

use crate::TransitionId;

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);

/// So many transitions are remembered; the rest begins anew.
const MOST: usize = 10_000;

/// Between half and the whole of a span that doubles with each try.
pub(super) fn pause(first: Duration, tries: u32) -> Duration {
    let span = first.saturating_mul(1_u32.checked_shl(tries).unwrap_or(u32::MAX)).min(LONGEST);
    jittered(span, 0.5)
}

/// A span of which up to this part is left to chance.
pub(super) fn jittered(span: Duration, part: f64) -> Duration {
    span.mul_f64(1.0 - part * rand::rng().random_range(0.0..=1.0))
}

/// How often each transition could not go on, as far as this runner knows.
pub(super) struct Retries {
    first: Duration,
    tries: HashMap<TransitionId, u32>,
}

impl Retries {
    pub(super) fn new(first: Duration) -> Self {
        Retries { first, tries: HashMap::new() }
    }

    /// How long to leave it alone, should it not go on now.
    pub(super) fn pause(&self, id: TransitionId) -> Duration {
        pause(self.first, self.tries.get(&id).copied().unwrap_or(0))
    }

    pub(super) fn failed(&mut self, id: TransitionId) {
        if self.tries.len() >= MOST {
            self.tries.clear();
        }
        *self.tries.entry(id).or_default() += 1;
    }

    pub(super) fn went_on(&mut self, id: TransitionId) {
        self.tries.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_begin_anew() {
        let at = chrono::DateTime::from_timestamp(1_767_225_600, 0).expect("in range");
        let (id, second) = (TransitionId::new(at), Duration::from_secs(1));
        let mut retries = Retries::new(second);
        for tries in 0..40 {
            let pause = retries.pause(id);
            let most = Duration::from_secs(1 << tries.min(6)).min(LONGEST);
            assert!(most / 2 <= pause && pause <= most, "{pause:?} after {tries}");
            retries.failed(id);
        }
        retries.went_on(id);
        assert!(retries.pause(id) <= second);
    }
}
