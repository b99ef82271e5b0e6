//! The clocks of the lock layer tell the time here too: the system's, and one for tests.

use chrono::{DateTime, Utc};
use latchwork_lock::{Clock, ManualClock, SystemClock};

use crate::application::ports::TimeProvider;

impl TimeProvider for SystemClock {
    fn now(&self) -> DateTime<Utc> {
        self.wall()
    }
}

impl TimeProvider for ManualClock {
    fn now(&self) -> DateTime<Utc> {
        self.wall()
    }
}
