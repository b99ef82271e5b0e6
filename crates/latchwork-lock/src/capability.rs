//! What a provider declares about itself: data, never found out by trying.

use std::time::Duration;

/// One thing that a provider can do or promises.
///
/// An *operation* that a provider does not declare answers
/// [`NotSupported`](crate::ErrorKind::NotSupported). A *guarantee* that it does not
/// declare is listed as "not promised", and the contract suite does not test it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Capability {
    /// Operation: shared (reader) leases.
    Shared,
    /// Operation: waiting for a taken key.
    Wait,
    /// Operation: renewing a lease.
    Renew,
    /// Operation: handing a lease to another process (L13).
    HandOver,
    /// Operation: `inspect` and `exists` (L11).
    Inspect,
    /// Operation: `list` (L11).
    List,
    /// Operation: `break_lock` (L12).
    Break,
    /// Guarantee: leases exclude each other (L1).
    Exclusion,
    /// Guarantee: a lease that is not renewed ends (L2).
    Expiry,
    /// Guarantee: naming the owner that holds a key takes its lease over (L7). Not an operation,
    /// because any request may name an owner.
    TakeOver,
    /// Guarantee: only the token's holder can renew or release (L3).
    Tokens,
    /// Guarantee: first come, first served, and writers do not starve (L5, L6).
    Fairness,
    /// Guarantee: a waiter is woken by a notification, not by a tick.
    Notification,
    /// Guarantee: separate processes see the same locks.
    CrossProcess,
    /// Guarantee: held leases outlive a restart of the backend.
    Durability,
    /// Guarantee: nothing remains of a key that nobody uses (L16).
    Bounded,
}

impl Capability {
    /// Every capability, in the order of the documentation.
    pub const ALL: [Capability; 16] = [
        Capability::Shared,
        Capability::Wait,
        Capability::Renew,
        Capability::HandOver,
        Capability::Inspect,
        Capability::List,
        Capability::Break,
        Capability::Exclusion,
        Capability::Expiry,
        Capability::TakeOver,
        Capability::Tokens,
        Capability::Fairness,
        Capability::Notification,
        Capability::CrossProcess,
        Capability::Durability,
        Capability::Bounded,
    ];

    /// Whether this is an operation; else it is a guarantee.
    pub const fn is_operation(self) -> bool {
        (self as u32) < (Capability::Exclusion as u32)
    }

    /// The name used in tables and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Capability::Shared => "shared leases",
            Capability::Wait => "waiting",
            Capability::Renew => "renewal",
            Capability::TakeOver => "take-over by owner",
            Capability::HandOver => "hand-over",
            Capability::Inspect => "inspect",
            Capability::List => "list",
            Capability::Break => "break",
            Capability::Exclusion => "exclusion",
            Capability::Expiry => "expiry",
            Capability::Tokens => "only the holder",
            Capability::Fairness => "fair waiting",
            Capability::Notification => "notification",
            Capability::CrossProcess => "across processes",
            Capability::Durability => "survives a restart",
            Capability::Bounded => "bounded",
        }
    }
}

/// The set of a provider's capabilities, with the figures that go with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    set: u32,
    granularity: Duration,
    claim_window: Duration,
    keeps_places: bool,
}

impl Capabilities {
    /// Nothing at all; add with [`with`](Self::with).
    pub const NONE: Capabilities = Capabilities {
        set: 0,
        granularity: Duration::ZERO,
        claim_window: Duration::ZERO,
        keeps_places: false,
    };

    /// The capabilities of a list.
    pub const fn of(list: &[Capability]) -> Self {
        let mut set = 0;
        let mut i = 0;
        while i < list.len() {
            set |= 1 << list[i] as u32;
            i += 1;
        }
        Capabilities { set, ..Self::NONE }
    }

    /// How long after its ttl a lease may still be held against others (L2): three seconds at most.
    #[must_use]
    pub const fn with_granularity(self, granularity: Duration) -> Self {
        Capabilities { granularity, ..self }
    }

    /// How long a hand-off waits for a waiter that no longer answers (L5): two seconds at most.
    #[must_use]
    pub const fn with_claim_window(self, claim_window: Duration) -> Self {
        Capabilities { claim_window, ..self }
    }

    /// A request can keep its place in the queue beyond its call
    /// ([`AcquireRequest::keep`](crate::AcquireRequest::keep)).
    #[must_use]
    pub const fn with_kept_places(self) -> Self {
        Capabilities { keeps_places: true, ..self }
    }

    /// Adds one capability.
    #[must_use]
    pub const fn with(self, capability: Capability) -> Self {
        Capabilities { set: self.set | 1 << capability as u32, ..self }
    }

    /// Whether the capability is declared.
    pub const fn has(self, capability: Capability) -> bool {
        self.set & (1 << capability as u32) != 0
    }

    /// The declared lateness of expiry.
    pub const fn granularity(self) -> Duration {
        self.granularity
    }

    /// The declared claim window, two seconds at most.
    pub const fn claim_window(self) -> Duration {
        self.claim_window
    }

    /// Whether a request can keep its place in the queue beyond its call.
    pub const fn keeps_places(self) -> bool {
        self.keeps_places
    }

    /// What is declared, in the order of [`Capability::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Capability> {
        Capability::ALL.into_iter().filter(move |c| self.has(*c))
    }
}
