//! When a failed or expired item is tried again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Back-off between the attempts of an item: doubled each time, bounded, with jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// How often an item is tried before it fails for good.
    pub max_attempts: u16,
    /// The pause after the first attempt.
    pub backoff: Duration,
    /// The longest pause.
    pub max_backoff: Duration,
    /// Up to this much is added at random, so that what failed together does not come back together.
    pub jitter: Duration,
}

impl Default for RetryPolicy {
    /// Three attempts; 60 s, doubled up to an hour; up to 20 s of jitter.
    fn default() -> Self {
        RetryPolicy {
            max_attempts: 3,
            backoff: Duration::from_secs(60),
            max_backoff: Duration::from_secs(3_600),
            jitter: Duration::from_secs(20),
        }
    }
}

impl RetryPolicy {
    /// The pause after so many attempts, with `random` in 0..1 for the jitter.
    pub fn pause(&self, attempts: u16, random: f64) -> Duration {
        let doublings = u32::from(attempts.saturating_sub(1)).min(31);
        let pause = self.backoff.saturating_mul(1 << doublings).min(self.max_backoff);
        pause.saturating_add(self.jitter.mul_f64(random.clamp(0.0, 1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w05_pauses_double_up_to_a_bound() {
        let policy = RetryPolicy::default();
        let seconds = |attempts| policy.pause(attempts, 0.0).as_secs();
        assert_eq!([1, 2, 3, 7, 60, u16::MAX].map(seconds), [60, 120, 240, 3_600, 3_600, 3_600]);
        assert_eq!(policy.pause(0, 0.0), policy.pause(1, 0.0));
        assert_eq!(policy.pause(1, 0.5).as_secs(), 70);
        assert_eq!(policy.pause(1, f64::NAN.max(1.0)).as_secs(), 80);
    }
}
