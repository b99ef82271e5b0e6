//! The time in a file that outlives reboots.
//!
//! Every deadline is stored twice: on the boot clock, with the boot it is of, and on the wall
//! clock. Within one boot the boot clock decides, which no administrator and no time server moves;
//! after a reboot only the wall clock is left.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::{Clock, Moment, SystemClock};

/// This process, as others see it.
pub(super) struct Here {
    pub(super) clock: Arc<dyn Clock>,
    /// Names this opening of the file: whose waiters they are.
    pub(super) client: i64,
    /// Zero where the system does not tell; then the wall clock decides always.
    boot: i64,
}

/// One reading of both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) moment: Moment,
    /// Unix time in microseconds.
    pub(super) wall: i64,
    pub(super) boot: i64,
}

/// A moment as it is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stamp {
    pub(super) boot: i64,
    pub(super) at: i64,
    pub(super) ns: i64,
}

impl Here {
    pub(super) fn new() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_or(0, |id| number(id.trim().as_bytes()));
        Here { clock: SystemClock::shared(), client: rand::random(), boot }
    }

    pub(super) fn now(&self) -> Now {
        Now {
            moment: self.clock.now(),
            wall: self.clock.wall().timestamp_micros(),
            boot: self.boot,
        }
    }
}

fn number(text: &[u8]) -> i64 {
    let hash = Sha256::digest(text);
    hash.iter().take(8).fold(0, |number, byte| number << 8 | i64::from(*byte))
}

impl Now {
    pub(super) fn stamp(self, moment: Moment) -> Stamp {
        let ahead = micros(moment.since(self.moment));
        let behind = micros(self.moment.since(moment));
        Stamp {
            boot: self.boot,
            at: self.wall.saturating_add(ahead).saturating_sub(behind),
            ns: i64::try_from(moment.as_nanos()).unwrap_or(i64::MAX),
        }
    }

    pub(super) fn moment(self, stamp: Stamp) -> Moment {
        if stamp.boot == self.boot && self.boot != 0 {
            return Moment::from_nanos(stamp.ns.unsigned_abs());
        }
        self.of_wall(stamp.at)
    }

    /// The moment of a wall time, by this reading.
    pub(super) fn of_wall(self, at: i64) -> Moment {
        let nanos =
            i128::from(self.moment.as_nanos()) + (i128::from(at) - i128::from(self.wall)) * 1_000;
        Moment::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }
}

pub(super) fn micros(span: std::time::Duration) -> i64 {
    // Rounded up: a lease may last a moment longer than its holder thinks, never shorter.
    i64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const NOW: Now =
        Now { moment: Moment::from_nanos(5_000_000_000), wall: 1_000_000_000, boot: 7 };

    #[test]
    fn within_a_boot_the_wall_clock_may_jump() {
        let stamp = NOW.stamp(NOW.moment.after(Duration::from_secs(30)));
        let jumped = Now { wall: NOW.wall + 3_600_000_000, ..NOW };
        assert_eq!(jumped.moment(stamp), NOW.moment.after(Duration::from_secs(30)));
    }

    #[test]
    fn after_a_reboot_the_wall_clock_decides() {
        let stamp = NOW.stamp(NOW.moment.after(Duration::from_secs(30)));
        let later =
            Now { moment: Moment::from_nanos(1_000_000_000), wall: NOW.wall + 10_000_000, boot: 8 };
        assert_eq!(later.moment(stamp), later.moment.after(Duration::from_secs(20)));
        let over = Now { wall: NOW.wall + 31_000_000, ..later };
        assert!(over.moment(stamp) <= over.moment);
        let unknown = Now { boot: 0, ..NOW };
        assert_eq!(unknown.moment(Stamp { boot: 0, ..stamp }), NOW.moment(stamp));
    }
}
