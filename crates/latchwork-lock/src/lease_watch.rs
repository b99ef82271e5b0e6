//! A look at a lease for those who do not have its guard.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{Clock, Fence, Held, Moment, SystemClock};

/// A look at a lease that somebody else guards: whether it can be trusted, and for how long.
///
/// Made by [`Guard::watch`](crate::Guard::watch). Of a lease that is not renewed by itself it knows
/// what was known when it was made: a renewal by hand since then does not reach it.
#[derive(Clone)]
pub struct LeaseWatch(Kind);

#[derive(Clone)]
enum Kind {
    /// One that is renewed beside its guard.
    Shared(Arc<Held>),
    /// Of the system's clock no pointer is kept: counting it for each lease, cores would fight over
    /// one counter.
    Until { clock: Option<Arc<dyn Clock>>, until: Moment, fence: Fence },
}

impl LeaseWatch {
    pub(crate) fn shared(held: Arc<Held>) -> Self {
        LeaseWatch(Kind::Shared(held))
    }

    pub(crate) fn until(clock: &Arc<dyn Clock>, until: Moment, fence: Fence) -> Self {
        let clock = if SystemClock::is(clock) { None } else { Some(clock.clone()) };
        LeaseWatch(Kind::Until { clock, until, fence })
    }

    /// Whether the lease can be trusted now.
    pub fn is_held(&self) -> bool {
        match &self.0 {
            Kind::Shared(held) => held.is_held(),
            Kind::Until { clock, until, .. } => now(clock) < *until,
        }
    }

    /// For how long it can be trusted, unless it is renewed.
    pub fn remaining(&self) -> Duration {
        match &self.0 {
            Kind::Shared(held) => held.remaining(),
            Kind::Until { clock, until, .. } => until.since(now(clock)),
        }
    }

    /// Its fence.
    pub fn fence(&self) -> Fence {
        match &self.0 {
            Kind::Shared(held) => held.fence(),
            Kind::Until { fence, .. } => *fence,
        }
    }

    /// Ends when the lease can no longer be trusted.
    ///
    /// Cancel safe: it only looks.
    pub async fn lost(&self) {
        match &self.0 {
            Kind::Shared(held) => held.lost().await,
            Kind::Until { clock: Some(clock), until, .. } => clock.sleep_until(*until).await,
            Kind::Until { clock: None, until, .. } => SystemClock.sleep_until(*until).await,
        }
    }
}

fn now(clock: &Option<Arc<dyn Clock>>) -> Moment {
    clock.as_ref().map_or_else(|| SystemClock.now(), |clock| clock.now())
}

impl fmt::Debug for LeaseWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseWatch").field("remaining", &self.remaining()).finish()
    }
}
