//! The time in a file that outlives reboots.
//!
//! Every deadline is stored twice: on the boot clock, with the name of that clock, and on the wall
//! clock. Within one boot the boot clock decides, which no administrator and no time server moves;
//! after a reboot only the wall clock is left.
//!
//! The processes of a time namespace read a boot clock of their own, so the clock's name says both
//! the boot and the namespace's offset. What was written by another clock of this very boot cannot
//! be judged and is refused: the wall clock may have been set since.

use std::time::Duration;

use sha2::{Digest, Sha256};

/// Names the boot clock that a process reads, as a column holds it.
///
/// The upper half is the boot and the lower half the offset of the time namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockId(pub i64);

impl ClockId {
    /// Where the system does not tell: the wall clock decides always.
    pub const UNKNOWN: ClockId = ClockId(0);

    /// The clock of a boot (`/proc/sys/kernel/random/boot_id`) in a time namespace with this offset;
    /// zero is that of the initial one.
    pub fn new(boot_id: &str, offset_ns: i64) -> Self {
        let boot = number(boot_id.trim().as_bytes());
        let namespace = if offset_ns == 0 { 0 } else { number(&offset_ns.to_be_bytes()) };
        ClockId(boot ^ (namespace & LOWER))
    }

    fn is_of_boot_of(self, other: ClockId) -> bool {
        self.0 & !LOWER == other.0 & !LOWER
    }
}

const LOWER: i64 = 0xFFFF_FFFF;

fn number(text: &[u8]) -> i64 {
    let hash = Sha256::digest(text);
    hash.iter().take(8).fold(0, |number, byte| number << 8 | i64::from(*byte))
}

/// One reading of both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Which boot clock.
    pub clock: ClockId,
    /// The boot clock, in nanoseconds.
    pub ns: u64,
    /// Unix time in microseconds.
    pub wall: i64,
}

/// A moment as it is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stamp {
    /// The boot clock that it was written by.
    pub clock: ClockId,
    /// Unix time in microseconds.
    pub at: i64,
    /// The boot clock, in nanoseconds.
    pub ns: i64,
}

/// A moment was written in this boot by a clock that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it was written in another time namespace, whose boot clock is not that of this process; let \
     all processes that use the file run in one time namespace"
)]
pub struct OtherClock;

impl Now {
    /// A moment of the boot clock, to be stored.
    pub fn stamp(self, ns: u64) -> Stamp {
        let ahead = micros(Duration::from_nanos(ns.saturating_sub(self.ns)));
        let behind = micros(Duration::from_nanos(self.ns.saturating_sub(ns)));
        Stamp {
            clock: self.clock,
            at: self.wall.saturating_add(ahead).saturating_sub(behind),
            ns: i64::try_from(ns).unwrap_or(i64::MAX),
        }
    }

    /// A stored moment on our boot clock.
    ///
    /// # Errors
    /// [`OtherClock`] when it is of this boot and of another time namespace.
    pub fn ns(self, stamp: Stamp) -> Result<u64, OtherClock> {
        if self.clock == ClockId::UNKNOWN || !stamp.clock.is_of_boot_of(self.clock) {
            return Ok(self.ns_of_wall(stamp.at));
        }
        (stamp.clock == self.clock).then(|| stamp.ns.unsigned_abs()).ok_or(OtherClock)
    }

    /// The moment of a wall time on our boot clock, by this reading.
    pub fn ns_of_wall(self, at: i64) -> u64 {
        let nanos = i128::from(self.ns) + (i128::from(at) - i128::from(self.wall)) * 1_000;
        u64::try_from(nanos.max(0)).unwrap_or(u64::MAX)
    }
}

/// A span as it is stored. Rounded up: a lease may last a moment longer than its holder thinks, never
/// shorter.
pub fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "b5d3a2f0-0d0a-4c4f-9a3c-1f0e7a6b5c4d";
    const SECOND: u64 = 1_000_000_000;

    fn now() -> Now {
        Now { clock: ClockId::new(BOOT, 0), ns: 5 * SECOND, wall: 1_000_000_000 }
    }

    #[test]
    fn within_a_boot_the_wall_clock_may_jump() {
        let stamp = now().stamp(35 * SECOND);
        let jumped = Now { wall: now().wall + 3_600_000_000, ..now() };
        assert_eq!(jumped.ns(stamp), Ok(35 * SECOND));
    }

    #[test]
    fn after_a_reboot_the_wall_clock_decides() {
        let stamp = now().stamp(35 * SECOND);
        let clock = ClockId::new("another boot", 0);
        let later = Now { clock, ns: SECOND, wall: now().wall + 10_000_000 };
        assert_eq!(later.ns(stamp), Ok(21 * SECOND));
        let over = Now { wall: now().wall + 31_000_000, ..later };
        assert!(over.ns(stamp).is_ok_and(|ns| ns <= over.ns));
        let unknown = Now { clock: ClockId::UNKNOWN, ..now() };
        assert_eq!(unknown.ns(Stamp { clock: ClockId::UNKNOWN, ..stamp }), now().ns(stamp));
    }

    #[test]
    fn another_time_namespace_of_this_boot_is_refused() {
        let offset =
            |seconds: i64| Now { clock: ClockId::new(BOOT, seconds * 1_000_000_000), ..now() };
        let stamp = now().stamp(35 * SECOND);
        assert_eq!(offset(100_000).ns(stamp), Err(OtherClock));
        assert_eq!(offset(-1).ns(offset(1).stamp(SECOND)), Err(OtherClock));
        assert_eq!(now().ns(offset(1).stamp(SECOND)), Err(OtherClock));
        assert_eq!(offset(1).ns(offset(1).stamp(SECOND)), Ok(SECOND));
    }

    /// Rows of earlier versions are of the initial time namespace.
    #[test]
    fn the_name_of_a_clock_never_changes() {
        // printf %s ID | sha256sum: the first eight bytes.
        assert_eq!(ClockId::new(&format!("{BOOT}\n"), 0), ClockId::new(BOOT, 0));
        assert_eq!(ClockId::new("boot", 0).0, 0x4509_beb0_ab40_1d71_u64.cast_signed());
    }
}
