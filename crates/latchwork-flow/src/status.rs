//! Where a transition stands.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a transition stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// Nothing has happened yet.
    Pending,
    /// It has begun, and a process is at it or was when it died.
    Running,
    /// An action asked to go on later; the lock stays held.
    Paused,
    /// All actions are through, or a gate said that there was nothing left to do.
    Completed,
    /// A gate denied it, or an action ended it.
    Stopped,
    /// A gate or action failed or panicked.
    Failed,
    /// The lock was taken, and the strategy was to skip then.
    Skipped,
    /// Somebody called it off.
    Cancelled,
    /// It was claimed too often without getting on, and is left alone until somebody
    /// [releases](crate::Contexts::release_quarantined) or cancels it. Only listings say so.
    Quarantined,
}

impl Status {
    /// All of them.
    pub const ALL: [Status; 9] = [
        Status::Pending,
        Status::Running,
        Status::Paused,
        Status::Completed,
        Status::Stopped,
        Status::Failed,
        Status::Skipped,
        Status::Cancelled,
        Status::Quarantined,
    ];

    /// Whether nothing more will happen.
    pub const fn is_over(self) -> bool {
        !matches!(self, Status::Pending | Status::Running | Status::Paused | Status::Quarantined)
    }

    /// The word in the stored form, in listings and in a store's column.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Running => "running",
            Status::Paused => "paused",
            Status::Completed => "completed",
            Status::Stopped => "stopped",
            Status::Failed => "failed",
            Status::Skipped => "skipped",
            Status::Cancelled => "cancelled",
            Status::Quarantined => "quarantined",
        }
    }

    /// The status of a name.
    pub fn of_name(name: &str) -> Option<Status> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_stored_word() {
        for status in Status::ALL {
            let stored = serde_json::to_value(status).expect("it serialises");
            assert_eq!(stored, status.name());
            assert_eq!(Status::of_name(status.name()), Some(status));
        }
        assert_eq!(Status::of_name("lost"), None);
    }
}
