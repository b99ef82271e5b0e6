//! This process and its clocks, as the rows of the file know them: see
//! [`latchwork_sql::sqlite::boot`].

use std::sync::Arc;

use latchwork_sql::sqlite::boot::{self, ClockId, OtherClock, Stamp};

use crate::{Clock, Moment, SystemClock};

/// This process, as others see it.
pub(super) struct LocalProcess {
    pub(super) clock: Arc<dyn Clock>,
    /// Names this opening of the file: whose waiters they are.
    pub(super) client: i64,
    boot_clock: ClockId,
}

/// One reading of both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReading {
    pub(super) moment: Moment,
    reading: boot::Now,
}

impl LocalProcess {
    pub(super) fn new() -> std::io::Result<Self> {
        let boot_clock = match SystemClock::boot_clock() {
            Ok(clock) => ClockId::new(&clock.boot_id, clock.offset_ns),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => ClockId::UNKNOWN,
            Err(error) => return Err(error),
        };
        Ok(LocalProcess { clock: SystemClock::shared(), client: rand::random(), boot_clock })
    }

    pub(super) fn now(&self) -> ClockReading {
        let (moment, wall) = (self.clock.now(), self.clock.wall().timestamp_micros());
        ClockReading {
            moment,
            reading: boot::Now { clock: self.boot_clock, ns: moment.as_nanos(), wall },
        }
    }
}

impl ClockReading {
    /// Unix time in microseconds.
    pub(super) fn wall(self) -> i64 {
        self.reading.wall
    }

    pub(super) fn stamp(self, moment: Moment) -> Stamp {
        self.reading.stamp(moment.as_nanos())
    }

    pub(super) fn moment(self, stamp: Stamp) -> Result<Moment, OtherClock> {
        self.reading.ns(stamp).map(Moment::from_nanos)
    }

    /// The moment of a wall time, by this reading.
    pub(super) fn of_wall(self, at: i64) -> Moment {
        Moment::from_nanos(self.reading.ns_of_wall(at))
    }
}
