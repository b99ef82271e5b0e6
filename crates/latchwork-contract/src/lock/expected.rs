//! What each provider must declare, decided before the provider was written.
//!
//! A provider may not declare a hard thing away: this list is what the matrix follows from, and
//! a test of every provider says that it declares exactly this.

use std::time::Duration;

use latchwork_lock::{Capabilities, Capability};

/// What is expected of one provider.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// The provider's name.
    pub name: &'static str,
    /// What it need not declare; all else it must.
    pub without: &'static [Capability],
    /// The most that it may declare as lateness of expiry (L2).
    pub granularity: Duration,
}

use Capability::{
    Break, CrossProcess, Durability, Exclusion, Expiry, Fairness, HandOver, Inspect, List,
    Notification, TakeOver, Tokens,
};

/// The providers, in the order of the documentation.
pub const PROVIDERS: [Expected; 9] = [
    Expected {
        name: "memory",
        without: &[CrossProcess, Durability],
        granularity: Duration::from_millis(50),
    },
    // It grants everything: operations that cannot go wrong then, and that it keeps nothing.
    Expected {
        name: "noop",
        without: &[
            TakeOver,
            HandOver,
            Inspect,
            List,
            Break,
            Exclusion,
            Expiry,
            Tokens,
            Fairness,
            Notification,
            CrossProcess,
            Durability,
        ],
        granularity: Duration::ZERO,
    },
    // A lease is counted on the boot clock, so a restart of the machine ends it.
    Expected { name: "file", without: &[Durability], granularity: Duration::from_millis(100) },
    // Another process learns of a release by a tick.
    Expected { name: "sqlite", without: &[Notification], granularity: Duration::from_millis(500) },
    Expected { name: "postgres", without: &[], granularity: Duration::from_millis(500) },
    Expected { name: "mysql", without: &[Notification], granularity: Duration::from_millis(500) },
    // A restart without persistence forgets who holds what; fences grow all the same.
    Expected { name: "redis", without: &[Durability], granularity: Duration::from_millis(500) },
    // Its leases count in seconds, are swept twice a second, and a leader change extends them.
    Expected { name: "etcd", without: &[], granularity: Duration::from_secs(3) },
    // Who waits looks by queries. An untuned server's timers are up to a second late.
    Expected { name: "temporal", without: &[Notification], granularity: Duration::from_secs(2) },
];

/// The longest claim window that any provider may declare (L5).
const LONGEST_CLAIM_WINDOW: Duration = Duration::from_secs(2);

/// The latest that any provider may let a lease end after its ttl (L2): what etcd needs, which counts in
/// seconds.
const LONGEST_GRANULARITY: Duration = Duration::from_secs(3);

/// What is expected of the provider with this name, if it is one of ours.
pub(super) fn of(name: &str) -> Option<&'static Expected> {
    PROVIDERS.iter().find(|expected| expected.name == name)
}

impl Expected {
    /// The capabilities that it must declare.
    pub fn capabilities(&self) -> Capabilities {
        Capability::ALL
            .into_iter()
            .filter(|capability| !self.without.contains(capability))
            .fold(Capabilities::NONE, Capabilities::with)
    }

    /// Compares with what a provider declares.
    ///
    /// # Panics
    /// When that is less, or more.
    pub fn check(&self, name: &str, declared: Capabilities) {
        let expected: Vec<_> = self.capabilities().iter().collect();
        let found: Vec<_> = declared.iter().collect();
        assert_eq!(name, self.name, "the provider's name");
        assert_eq!(found, expected, "{name} must declare what is expected of it, and only that");
        assert!(
            declared.granularity() <= self.granularity,
            "{name} declares a granularity of {:?}, and {:?} is expected at most",
            declared.granularity(),
            self.granularity,
        );
        check_figures(name, declared);
    }
}

/// Checks what holds for every provider, ours or a stranger's.
///
/// # Panics
/// When a figure is out of its bounds.
pub(super) fn check_figures(name: &str, declared: Capabilities) {
    assert!(
        declared.claim_window() <= LONGEST_CLAIM_WINDOW,
        "{name} declares a claim window of {:?}, and {LONGEST_CLAIM_WINDOW:?} is the longest",
        declared.claim_window(),
    );
    assert!(
        declared.granularity() <= LONGEST_GRANULARITY,
        "{name} declares a granularity of {:?}, and {LONGEST_GRANULARITY:?} is the longest",
        declared.granularity(),
    );
    let waits_in_line = declared.has(Capability::Wait) && declared.has(Fairness);
    assert!(
        !waits_in_line || !declared.claim_window().is_zero(),
        "{name} hands off to waiters, so it must declare a claim window",
    );
}
