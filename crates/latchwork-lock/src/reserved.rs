//! A lease that may be used before its confirmation has come back (L5).

use std::fmt;
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::{Grant, Moment};

/// A turn that has come: the backend keeps the key for this request for a moment, and the provider
/// is asking it to make a lease of that.
///
/// Between two processes the question would stand between one holder and the next, so the answer is
/// not waited for: until it comes, the reservation itself is what is trusted.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// What it will be when it is confirmed.
    pub grant: Grant,
    /// A moment not after the end of the reservation in the backend: the last one at which this
    /// process knew that it was *not* granted, and the claim window.
    ///
    /// The news of the reservation must be of this very stay in the queue: what was long under way
    /// may tell of one that is over, after which the request has queued again.
    pub until: Moment,
    /// Where the provider tells what became of it.
    pub confirmation: Confirmation,
}

impl Reserved {
    /// Waits for the confirmation: the grant, or none when it was refused.
    ///
    /// Without an end if the provider never tells. Cancel safe: it only looks.
    pub async fn decided(&self) -> Option<Grant> {
        match self.confirmation.decided().await {
            Decision::Confirmed(from) => Some(Grant { trusted_from: Some(from), ..self.grant }),
            Decision::Refused => None,
        }
    }
}

/// What becomes of a [`Reserved`] lease: the provider tells it once, and never if it does not know.
#[derive(Clone, Default)]
pub struct Confirmation(Arc<Told>);

#[derive(Default)]
struct Told {
    decision: OnceLock<Decision>,
    bell: Notify,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Decision {
    /// It is a lease, whose ttl began in the backend not before this moment.
    Confirmed(Moment),
    /// The reservation was over.
    Refused,
}

impl Confirmation {
    /// Of a lease that is yet to be confirmed.
    pub fn new() -> Self {
        Self::default()
    }

    /// It is a lease; its ttl began in the backend after `trusted_from`.
    pub fn confirm(&self, trusted_from: Moment) {
        self.tell(Decision::Confirmed(trusted_from));
    }

    /// It was over, and the key is somebody else's.
    pub fn refuse(&self) {
        self.tell(Decision::Refused);
    }

    pub(crate) fn decision(&self) -> Option<Decision> {
        self.0.decision.get().copied()
    }

    pub(crate) async fn decided(&self) -> Decision {
        loop {
            let told = self.0.bell.notified();
            if let Some(decision) = self.decision() {
                return decision;
            }
            told.await;
        }
    }

    fn tell(&self, decision: Decision) {
        let _ = self.0.decision.set(decision); // what was said first stands
        self.0.bell.notify_waiters();
    }
}

impl fmt::Debug for Confirmation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Confirmation").field(&self.decision()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Poll;
    use std::time::Duration;

    use futures::poll;
    use parking_lot::Mutex;

    use super::*;
    use crate::provider::Proof;
    use crate::{
        AcquireRequest, Acquired, Capabilities, Clock, Fence, Holder, InMemoryLockProvider,
        Inspection, Key, LockProvider, Locks, ManualClock, Page, PageRequest, Refresh, Result,
        Token,
    };

    const TTL: Duration = Duration::from_secs(30);
    const WINDOW: Duration = Duration::from_secs(2);

    /// A provider that grants in memory, and says at first that it is yet to be confirmed.
    struct Unsure {
        inner: InMemoryLockProvider,
        clock: ManualClock,
        /// How long ago it last knew that the key was not ours.
        known: Duration,
        confirmation: Confirmation,
        asked: Arc<Mutex<Vec<&'static str>>>,
    }

    impl LockProvider for Unsure {
        fn name(&self) -> &'static str {
            "unsure"
        }
        fn capabilities(&self) -> Capabilities {
            self.inner.capabilities()
        }
        fn clock(&self) -> Arc<dyn Clock> {
            Arc::new(self.clock.clone())
        }
        async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired> {
            self.asked.lock().push("acquire");
            let Acquired::Granted(grant) = self.inner.acquire(request).await? else {
                unreachable!("nobody else asks");
            };
            if self.asked.lock().len() > 1 {
                return Ok(Acquired::Granted(grant));
            }
            let until = self.clock.now().after(WINDOW.saturating_sub(self.known));
            let confirmation = self.confirmation.clone();
            Ok(Acquired::Reserved(Box::new(Reserved { grant, until, confirmation })))
        }
        async fn renew(&self, proof: Proof<'_>, ttl: Duration) -> Result<bool> {
            self.asked.lock().push("renew");
            self.inner.renew(proof, ttl).await
        }
        async fn release(&self, proof: Proof<'_>) -> Result<bool> {
            self.inner.release(proof).await
        }
        fn release_later(&self, proof: Proof<'_>) {
            self.inner.release_later(proof);
        }
        async fn hand_over(&self, proof: Proof<'_>) -> Result<bool> {
            self.asked.lock().push("hand over");
            self.inner.hand_over(proof).await
        }
        async fn rotate(&self, p: Proof<'_>, fresh: Token, ttl: Duration) -> Result<Option<Grant>> {
            self.inner.rotate(p, fresh, ttl).await
        }
        async fn inspect(&self, key: &Key) -> Result<Inspection> {
            self.inner.inspect(key).await
        }
        async fn list(&self, prefix: &str, page: &PageRequest) -> Result<Page> {
            self.inner.list(prefix, page).await
        }
        async fn break_lock(&self, key: &Key, fence: Option<Fence>) -> Result<Vec<Holder>> {
            self.inner.break_lock(key, fence).await
        }
        async fn close(&self) {}
    }

    struct Stage {
        locks: Locks,
        clock: ManualClock,
        confirmation: Confirmation,
        asked: Arc<Mutex<Vec<&'static str>>>,
    }

    fn stage(known: Duration) -> Stage {
        let clock = ManualClock::new();
        let inner = InMemoryLockProvider::with_clock(Arc::new(clock.clone()));
        let (confirmation, asked) = (Confirmation::new(), Arc::<Mutex<Vec<_>>>::default());
        let locks = Locks::new(Unsure {
            inner,
            clock: clock.clone(),
            known,
            confirmation: confirmation.clone(),
            asked: asked.clone(),
        });
        Stage { locks, clock, confirmation, asked }
    }

    #[tokio::test]
    async fn l05_a_reservation_is_trusted_for_its_window_and_then_no_more() {
        let Stage { locks, clock, .. } = stage(Duration::ZERO);
        let guard = locks.lock("a").ttl(TTL).acquire().await.expect("reserved");
        assert!(guard.is_held() && guard.remaining() < WINDOW, "{:?}", guard.remaining());
        let mut lost = pin!(guard.lost());
        assert!(poll!(&mut lost).is_pending());
        clock.advance(WINDOW);
        assert!(!guard.is_held());
        lost.await;
    }

    #[tokio::test]
    async fn l05_a_confirmed_reservation_is_a_lease_from_the_claim_on() {
        let Stage { locks, clock, confirmation, .. } = stage(Duration::ZERO);
        let guard = locks.lock("a").ttl(TTL).acquire().await.expect("reserved");
        let mut lost = pin!(guard.lost());
        assert!(poll!(&mut lost).is_pending());
        let claimed_at = clock.now();
        clock.advance(Duration::from_secs(1));
        confirmation.confirm(claimed_at);
        assert!(guard.remaining() > TTL / 2 && guard.remaining() < TTL - Duration::from_secs(1));
        clock.advance(Duration::from_secs(10));
        assert!(guard.is_held());
        assert!(poll!(&mut lost).is_pending());
        clock.advance(TTL);
        assert!(!guard.is_held());
        lost.await;
    }

    #[tokio::test]
    async fn l05_a_refused_reservation_is_lost_at_once() {
        let Stage { locks, confirmation, .. } = stage(Duration::ZERO);
        let guard = locks.lock("a").ttl(TTL).acquire().await.expect("reserved");
        let mut lost = pin!(guard.lost());
        assert!(poll!(&mut lost).is_pending());
        confirmation.refuse();
        lost.await;
        assert!(!guard.is_held());
        assert_eq!(guard.refresh().await.expect_err("it is not ours").code(), "lock_lost");
    }

    #[tokio::test]
    async fn l05_what_is_nearly_over_is_confirmed_first() {
        let Stage { locks, clock, confirmation, asked } = stage(Duration::from_millis(1_900));
        let mut asking = pin!(locks.lock("a").ttl(TTL).acquire());
        assert!(poll!(&mut asking).is_pending(), "its last word is too old to begin on");
        confirmation.confirm(clock.now());
        let Poll::Ready(guard) = poll!(&mut asking) else { panic!("it is confirmed") };
        assert!(guard.expect("granted").remaining() > TTL / 2);
        assert_eq!(*asked.lock(), ["acquire"]);
    }

    #[tokio::test]
    async fn l05_a_refused_turn_asks_again() {
        let Stage { locks, confirmation, asked, .. } = stage(Duration::from_millis(1_900));
        let mut asking = pin!(locks.lock("a").ttl(TTL).wait_forever().acquire());
        assert!(poll!(&mut asking).is_pending());
        confirmation.refuse();
        assert!(asking.await.expect("granted at the second time").is_held());
        assert_eq!(asked.lock()[..2], ["acquire", "acquire"]);
    }

    #[tokio::test]
    async fn l08_a_renewal_and_a_hand_over_come_after_the_confirmation() {
        let Stage { locks, clock, confirmation, asked } = stage(Duration::ZERO);
        let guard = locks.lock("a").ttl(TTL).acquire().await.expect("reserved");
        let always = Refresh { ttl: Some(WINDOW), threshold: Some(Duration::ZERO) };
        {
            let mut renewal = pin!(guard.refresh_with(always));
            assert!(poll!(&mut renewal).is_pending());
            assert_eq!(*asked.lock(), ["acquire"]);
            confirmation.confirm(clock.now());
            renewal.await.expect("renewed");
        }
        assert_eq!(*asked.lock(), ["acquire", "renew"]);
        assert!(guard.remaining() < WINDOW, "the confirmation does not outlast what came after it");
        guard.into_lease().await.expect("handed over");
    }

    #[tokio::test]
    async fn l05_a_release_waits_for_nothing() {
        let Stage { locks, asked, .. } = stage(Duration::ZERO);
        let guard = locks.lock("a").ttl(TTL).acquire().await.expect("reserved");
        guard.release().await.expect("it was ours to the end");
        assert_eq!(*asked.lock(), ["acquire"]);
    }
}
