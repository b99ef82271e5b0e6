//! What time it is.

use chrono::{DateTime, Utc};

/// Tells the time.
///
/// Ask it *inside* the critical section: a time from before the wait for the lock may be as old as
/// the wait was long, and a closed window would look open.
pub trait TimeProvider: Send + Sync + 'static {
    /// What time it is now.
    fn now(&self) -> DateTime<Utc>;
}
