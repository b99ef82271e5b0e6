//! Asking, and how a waiter goes on: woken at the [desk](super::watch), it claims what is its own,
//! or stands in line again when it came too late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::{self, Wrong};
use super::provider::EtcdLockProvider;
use super::record::{self, Part, State};
use super::release::{CutShort, Releases};
use super::store::{Entered, Party, Store, busy};
use super::watch::{Next, Seat};
use super::watcher;
use crate::{AcquireRequest, Acquired, Fence, Grant, Holder, Mode, Moment, Result, Wait};

const DURING: &str = "asking for a lease";

/// How often a question is put again when others were quicker.
const TRIES: usize = 16;

/// Asks for a lease and waits as the request says.
pub(super) async fn acquire(
    provider: &EtcdLockProvider,
    request: &AcquireRequest,
) -> Result<Acquired> {
    let clock = &provider.store.clock;
    let deadline = match request.wait {
        Wait::No => Moment::default(),
        Wait::For(span) => clock.now().after(span),
        Wait::Forever => Moment::NEVER,
    };
    let party = Arc::new(Party {
        key: request.key.clone(),
        id: record::id(request.token),
        mode: request.mode,
        owner: request.owner.clone(),
        note: request.note.clone(),
        ttl: request.ttl,
    });
    let mut asking =
        Asking { provider, party, wanted: Arc::new(AtomicBool::new(true)), armed: true };
    let waits = clock.now() < deadline;
    if waits {
        // Before it stands in line: what happens until somebody watches is seen only in part.
        provider.watch();
    }
    let mut answer = asking.begin(waits).await;
    let mut has_waited = false;
    loop {
        let seat = match answer {
            Ok(Answer::Granted(mut grant)) => {
                asking.armed = false;
                grant.waited |= has_waited;
                return Ok(Acquired::Granted(grant));
            }
            Ok(Answer::Refused(holder)) => {
                asking.armed = false;
                return Ok(Acquired::Taken(holder));
            }
            Ok(Answer::Waits(seat)) => seat,
            Err(error) => {
                // Whoever asks again with this token keeps its place: no release may overtake it.
                asking.armed = !error.is_temporary();
                return Err(error);
            }
        };
        has_waited = true;
        answer = match seat.next(&**clock, deadline).await {
            Next::Holds(grant) => Ok(Answer::Granted(grant)),
            Next::Claims { created, previous } => {
                let previous_fence = previous.map(record::fence_of);
                asking
                    .step(async move |store, party| {
                        claim(&store, &party, seat, created, previous_fence).await
                    })
                    .await
            }
            Next::Stands => {
                let wanted = asking.wanted.clone();
                asking.step(async move |store, party| stand(&store, &party, &wanted).await).await
            }
            Next::Leaves => asking.leave().await,
        };
    }
}

enum Answer {
    Granted(Grant),
    Refused(Option<Box<Holder>>),
    /// It stands in line.
    Waits(Seat),
}

/// A request that somebody waits for. Dropped, what it got or stands for is given back.
struct Asking<'a> {
    provider: &'a EtcdLockProvider,
    party: Arc<Party>,
    wanted: Arc<AtomicBool>,
    armed: bool,
}

impl Asking<'_> {
    /// The first question.
    async fn begin(&self, waits: bool) -> Result<Answer> {
        let mut seen = None;
        // Where others are known to wait, it is not tried to pass them.
        if self.party.owner.is_none() {
            if waits && self.provider.store.desk.has_queue(&self.party.key) {
                let wanted = self.wanted.clone();
                return self
                    .step(async move |store, party| stand(&store, &party, &wanted).await)
                    .await;
            }
            let took = self.job(async move |store, party| store.take(DURING, &party, waits).await);
            match watcher::run_along(DURING, took).await? {
                Entered::Granted(grant) => return Ok(Answer::Granted(grant)),
                Entered::Not(state) => seen = Some(state),
            }
        }
        let wanted = self.wanted.clone();
        self.step(async move |store, party| begin(&store, &party, &wanted, waits, seen).await).await
    }

    /// One step, which runs to its end also when nobody waits for it any more.
    fn step<T: Send + 'static, F>(
        &self,
        step: impl FnOnce(Arc<Store>, Arc<Party>) -> F + Send + 'static,
    ) -> impl Future<Output = Result<T>> + Send + 'static
    where
        F: Future<Output = Result<T>> + Send,
    {
        watcher::run(DURING, self.job(step))
    }

    /// What it gets, it gives back if nobody waits for it any more.
    fn job<T: Send + 'static, F>(
        &self,
        step: impl FnOnce(Arc<Store>, Arc<Party>) -> F + Send + 'static,
    ) -> impl Future<Output = Result<T>> + Send + 'static
    where
        F: Future<Output = Result<T>> + Send,
    {
        let (store, party) = (self.provider.store.clone(), self.party.clone());
        let wanted = self.wanted.clone();
        async move {
            let cut_short = CutShort::new(&store, &party, &wanted);
            let answer = step(store.clone(), party.clone()).await;
            cut_short.answered();
            if !wanted.load(Ordering::Acquire) {
                // The release that follows an abandoned question may have been there before it.
                store.release(DURING, &party.key, party.id).await?;
            }
            answer
        }
    }

    /// Gives up waiting.
    async fn leave(&self) -> Result<Answer> {
        // First the word, as below: a lease may be under way to it.
        self.wanted.store(false, Ordering::Release);
        let (store, party) = (self.provider.store.clone(), self.party.clone());
        watcher::run(DURING, async move { leave(&store, &party).await }).await
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if self.armed {
            // First the word, then the release: a step that has not seen the one sees the other.
            self.wanted.store(false, Ordering::Release);
            let Party { key, id, .. } = &*self.party;
            Releases::queue(&self.provider.store, key.clone(), *id);
        }
    }
}

/// Enters, takes over, stands in line, or is refused; `seen` is what stood in the way so far.
async fn begin(
    store: &Arc<Store>,
    party: &Arc<Party>,
    wanted: &Arc<AtomicBool>,
    waits: bool,
    mut seen: Option<State>,
) -> Result<Answer> {
    for _ in 0..TRIES {
        let seen = match seen.take() {
            Some(seen) => seen,
            None => match store.take(DURING, party, waits).await? {
                Entered::Granted(grant) => return Ok(Answer::Granted(grant)),
                Entered::Not(seen) => seen,
            },
        };
        // There it finds what it holds, and keeps the place that it has (L17).
        if waits && party.owner.is_none() {
            return stand(store, party, wanted).await;
        }
        // The answer got lost, and the request is asked again (L17).
        if let Some(own) = seen.find(Part::Hold, party.id) {
            return Ok(Answer::Granted(Grant::first(own.fence())));
        }
        if seen.find(Part::Wait, party.id).is_some() {
            if waits {
                return stand(store, party, wanted).await;
            }
            // Whoever asks a last time may be next.
            if let Some(grant) = claim_at_once(store, party).await? {
                return Ok(Answer::Granted(Grant { waited: true, ..grant }));
            }
            return leave(store, party).await;
        }
        if let Some(owner) = &party.owner {
            let own = seen.of_owner(owner).map_err(|what| error::unreadable(DURING, what))?;
            let entered = match own {
                // An upgrade never waits (L7).
                Some(_) if party.mode == Mode::Exclusive && seen.holders().count() > 1 => {
                    let holder = store.in_the_way(DURING, &seen).await;
                    return Ok(Answer::Refused(holder.map(Box::new)));
                }
                Some(old) => Some(store.take_over(DURING, party, old).await?),
                None if seen.waiters().next().is_none() && admits(&seen, party.mode) => {
                    Some(store.join(DURING, party, &seen).await?)
                }
                None => None,
            };
            match entered {
                Some(Entered::Granted(grant)) => {
                    // Of readers nobody knows who was the last before.
                    let writer = own.filter(|old| old.mode == Mode::Exclusive);
                    let previous_fence = writer.map(|old| old.fence());
                    return Ok(Answer::Granted(Grant { previous_fence, ..grant }));
                }
                Some(Entered::Not(_)) => continue, // others were quicker
                None => {}
            }
        }
        if waits {
            return stand(store, party, wanted).await;
        }
        let holder = store.in_the_way(DURING, &seen).await;
        return Ok(Answer::Refused(holder.map(Box::new)));
    }
    Err(busy(DURING))
}

fn admits(seen: &State, mode: Mode) -> bool {
    match mode {
        Mode::Exclusive => seen.holders().next().is_none(),
        Mode::Shared => seen.holders().all(|entry| entry.mode == Mode::Shared),
    }
}

async fn claim_at_once(store: &Arc<Store>, party: &Party) -> Result<Option<Grant>> {
    let seen = store.peek(DURING, &party.key).await?;
    let Some(created) = seen.find(Part::Wait, party.id).map(|ticket| ticket.created) else {
        return Ok(None);
    };
    let mut before = seen.waiters().take_while(|entry| entry.created < created);
    let first = match party.mode {
        Mode::Exclusive => before.next().is_none(),
        Mode::Shared => before.all(|entry| entry.mode == Mode::Shared),
    };
    if !first || !admits(&seen, party.mode) {
        return Ok(None);
    }
    match store.claim(DURING, party, created).await? {
        Entered::Granted(grant) => Ok(Some(grant)),
        Entered::Not(_) => Ok(None),
    }
}

/// Stands in line, at its end or where it stood.
async fn stand(store: &Arc<Store>, party: &Arc<Party>, wanted: &Arc<AtomicBool>) -> Result<Answer> {
    // Whatever it held before is over: it would not stand here else.
    drop(store.leases.let_go(party.id));
    let seat = store.desk.join(party, wanted);
    for _ in 0..TRIES {
        let lease = store.presence.lease().await?;
        // Who hears of everything need not look.
        let look = !store.desk.knows(&party.key);
        match store.queue(DURING, party, lease, look).await {
            Ok((stands_since, seen)) => {
                if let Some(seen) = seen {
                    if let Some(own) = seen.find(Part::Hold, party.id) {
                        return Ok(Answer::Granted(Grant::first(own.fence())));
                    }
                    seat.feed(&seen, store.clock.now());
                }
                seat.stands_since(stands_since);
                return Ok(Answer::Waits(seat));
            }
            Err(Wrong::LeaseGone) => store.presence.forget(lease),
            Err(wrong) => return Err(wrong.error(DURING)),
        }
    }
    Err(Wrong::LeaseGone.error(DURING))
}

/// Claims what the queue has reserved; waits on where that was not true.
async fn claim(
    store: &Arc<Store>,
    party: &Party,
    seat: Seat,
    created: i64,
    previous_fence: Option<Fence>,
) -> Result<Answer> {
    match store.claim(DURING, party, created).await? {
        Entered::Granted(grant) => {
            if party.mode == Mode::Exclusive {
                store.desk.served(&party.key, created);
            }
            Ok(Answer::Granted(Grant { previous_fence, waited: true, ..grant }))
        }
        Entered::Not(seen) => {
            if let Some(own) = seen.find(Part::Hold, party.id) {
                // Granted by a question whose answer was lost: not after this one began.
                return Ok(Answer::Granted(Grant::first(own.fence())));
            }
            seat.feed(&seen, store.clock.now());
            seat.sleeps();
            Ok(Answer::Waits(seat))
        }
    }
}

/// Gives up waiting.
async fn leave(store: &Arc<Store>, party: &Party) -> Result<Answer> {
    store.release(DURING, &party.key, party.id).await?;
    let seen = store.peek(DURING, &party.key).await?;
    let holder = store.in_the_way(DURING, &seen).await;
    Ok(Answer::Refused(holder.map(Box::new)))
}
