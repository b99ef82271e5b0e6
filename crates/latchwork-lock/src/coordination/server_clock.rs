//! Detects that a server's clock was set.
//!
//! Where the server's wall clock judges leases, a step of it ends or prolongs all of them. A client
//! cannot prevent that, but it can log it. Each answer that carries the server's time is compared
//! with this machine's boot clock, which cannot be set. The server read its clock after the request
//! was sent and before the answer came, so the offset between the clocks is known as a range. Two
//! ranges that do not overlap mean that one of the clocks has moved. A clock that is slewed moves
//! slowly, so the known range widens with time.

use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;

use crate::Moment;

/// The smallest step that is logged, in microseconds. Trust ends up to a second before the lease, so
/// a smaller step can hardly do harm.
const SMALLEST_US: i128 = 1_000_000;

/// How fast two clocks may drift apart: 1 in this many. NTP slews by 1 in 2,000 at the most.
const DRIFT: i128 = 1_000;

/// What is known of a server's clock.
#[derive(Default)]
pub(crate) struct ServerClock(Mutex<Option<Offset>>);

/// How far the server's wall clock is ahead of the boot clock, in microseconds, at a moment.
#[derive(Clone, Copy)]
struct Offset {
    least: i128,
    most: i128,
    at: Moment,
}

/// How far the server's clock has moved relative to ours, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step(i128);

impl ServerClock {
    /// Takes an answer's server time, in microseconds since 1970, which the server read between
    /// `sent` and `now`. A step since the last answer is logged, once.
    pub(crate) fn observe(
        &self,
        provider: &'static str,
        server_us: i64,
        sent: Moment,
        now: Moment,
    ) {
        if let Some(step) = self.step(server_us, sent, now) {
            tracing::warn!(
                provider,
                %step,
                "the server's clock was set, or this machine stood still: leases that began before \
                 end that much early or late"
            );
        }
    }

    fn step(&self, server_us: i64, sent: Moment, now: Moment) -> Option<Step> {
        let ahead_of = |ours: Moment| i128::from(server_us) - i128::from(ours.as_nanos() / 1_000);
        let seen = Offset { least: ahead_of(now), most: ahead_of(sent), at: now };
        let mut known = self.0.lock();
        let Some(before) = known.map(|known| known.drifted(now)) else {
            *known = Some(seen);
            return None;
        };
        let (forward, back) = (seen.least - before.most, before.least - seen.most);
        *known = Some(if forward > 0 || back > 0 { seen } else { before.narrowed(seen) });
        match () {
            () if forward >= SMALLEST_US => Some(Step(forward)),
            () if back >= SMALLEST_US => Some(Step(-back)),
            () => None,
        }
    }
}

impl Offset {
    fn drifted(self, now: Moment) -> Self {
        let elapsed = i128::try_from(now.since(self.at).as_micros()).unwrap_or(i128::MAX);
        let drift = elapsed / DRIFT;
        Offset { least: self.least - drift, most: self.most + drift, at: now }
    }

    /// What both ranges allow.
    fn narrowed(self, other: Self) -> Self {
        let (least, most) = (self.least.max(other.least), self.most.min(other.most));
        Offset { least, most, at: other.at }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { '-' } else { '+' };
        let span =
            u64::try_from(self.0.unsigned_abs()).map_or(Duration::MAX, Duration::from_micros);
        write!(f, "{sign}{span:.1?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How far the server's clock is ahead of the boot clock, in seconds.
    const AHEAD: i64 = 1_700_000_000;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    /// An answer that took from one moment to another, in milliseconds; the server read its clock in
    /// the middle, and that had been set by so many milliseconds.
    fn answer(clock: &ServerClock, sent: u64, came: u64, set_ms: i64) -> Option<i128> {
        let middle = i64::try_from(u64::midpoint(sent, came)).expect("small");
        let server_us = AHEAD * 1_000_000 + (middle + set_ms) * 1_000;
        clock.step(server_us, at(sent), at(came)).map(|step| step.0)
    }

    #[test]
    fn a_clock_that_is_not_set_is_not_logged() {
        let clock = ServerClock::default();
        // Quick and slow answers, and some that come out of order.
        for (sent, came) in [(0, 1), (10, 5_000), (5_000, 5_001), (4_000, 6_000), (60_000, 60_002)]
        {
            assert_eq!(answer(&clock, sent, came, 0), None, "{sent} to {came}");
        }
    }

    #[test]
    fn a_step_is_told_once_with_its_size() {
        for set_ms in [60_000, -60_000, 1_100, -1_100] {
            let clock = ServerClock::default();
            assert_eq!(answer(&clock, 0, 0, 0), None);
            let step = answer(&clock, 1_000, 1_000, set_ms).expect("a step");
            let error = step - i128::from(set_ms) * 1_000;
            assert!(error.abs() <= 2_000, "{step} for {set_ms}");
            assert_eq!(answer(&clock, 2_000, 2_000, set_ms), None, "told once");
            assert!(answer(&clock, 3_000, 3_000, 0).is_some(), "and told when it is set back");
        }
    }

    #[test]
    fn a_slow_answer_proves_less_and_hides_nothing() {
        let clock = ServerClock::default();
        assert_eq!(answer(&clock, 0, 2, 0), None);
        // The clock may have been read at any time within ten seconds.
        assert_eq!(answer(&clock, 1_000, 11_000, 3_000), None);
        assert!(answer(&clock, 12_000, 12_002, 3_000).is_some());
    }

    #[test]
    fn a_clock_that_is_slewed_is_not_logged() {
        let clock = ServerClock::default();
        // By 1 in 2,000 over a day: 43 seconds in all.
        for minute in 0..1_440_u64 {
            let now = minute * 60_000;
            let slewed = i64::try_from(now / 2_000).expect("small");
            assert_eq!(answer(&clock, now, now + 1, slewed), None, "minute {minute}");
        }
    }

    #[test]
    fn a_step_reads_well() {
        assert_eq!(Step(60_000_000).to_string(), "+60.0s");
        assert_eq!(Step(-1_500_000).to_string(), "-1.5s");
    }
}
