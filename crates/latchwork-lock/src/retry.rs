//! Pauses between tries: doubling, and jittered so that clients of one outage do not come back
//! together.

use std::time::Duration;

use rand::RngExt;

pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    const LONGEST: Duration = Duration::from_secs(2);

    pub(crate) fn new(first: Duration) -> Self {
        Backoff { next: first.clamp(Duration::from_millis(1), Self::LONGEST) }
    }

    /// The pauses of a question that got no answer.
    pub(crate) fn first() -> Self {
        Self::new(Duration::from_millis(50))
    }

    /// Between half and the whole of a span that doubles each time.
    pub(crate) fn pause(&mut self) -> Duration {
        let span = self.next;
        self.next = (span * 2).min(Self::LONGEST);
        span.mul_f64(rand::rng().random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        let mut backoff = Backoff::new(Duration::from_millis(50));
        let pauses: Vec<_> = (0..12).map(|_| backoff.pause()).collect();
        assert!(pauses[0] >= Duration::from_millis(25) && pauses[0] <= Duration::from_millis(50));
        assert!(pauses[11] >= Duration::from_secs(1) && pauses[11] <= Duration::from_secs(2));
    }
}
