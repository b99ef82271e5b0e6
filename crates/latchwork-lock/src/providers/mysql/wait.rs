//! Asking, and how a waiter goes on: woken at the [desk](crate::desk), it finds a lease
//! there, claims what it was given, or queues again when it came too late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::provider::MySqlLockProvider;
use super::record::{self, Asker};
use super::release::release;
use super::store::{BACKGROUND, Store, Taken};
use crate::rules::{Decision, Id, Requester};
use crate::{AcquireRequest, Acquired, Grant, Holder, Key, Moment, Result, Wait};

const DURING: &str = "asking for a lease";

/// Asks for a lease and waits as the request says.
pub(super) async fn acquire(
    provider: &MySqlLockProvider,
    request: &AcquireRequest,
) -> Result<Acquired> {
    let clock = &provider.store.clock;
    provider.releases.room(&**clock).await;
    let deadline = match request.wait {
        Wait::No => Moment::default(),
        Wait::For(span) => clock.now().after(span),
        Wait::Forever => Moment::NEVER,
    };
    let id = record::id(request.token);
    let wanted = Arc::new(AtomicBool::new(true));
    let mut queued = Queued { provider, key: &request.key, id, wanted, armed: true };
    let seat = provider.store.desk.join(request, id);
    let mut has_waited = false;
    loop {
        if let Some(grant) = seat.handed().await {
            queued.armed = false;
            return Ok(Acquired::Granted(grant));
        }
        let asked_at = clock.now();
        let question = Question {
            request: request.clone(),
            id,
            patience: deadline.since(asked_at),
            queued_before: has_waited,
            wanted: queued.wanted.clone(),
        };
        let store = provider.store.clone();
        let answer = BACKGROUND.run(DURING, async move { question.ask(&store).await }).await;
        match answer {
            Ok(Answer { decision: Decision::Granted(mut grant), began, .. }) => {
                queued.armed = false;
                grant.waited |= has_waited;
                // The ttl began in the edit, which began after this moment.
                grant.trusted_from = (grant.waited && began).then_some(asked_at);
                return Ok(Acquired::Granted(grant));
            }
            Ok(Answer { decision: Decision::Refused, holder, .. }) => {
                queued.armed = false;
                return Ok(Acquired::Taken(holder));
            }
            Ok(Answer { decision: Decision::Queued, due_in, .. }) => {
                has_waited = true;
                seat.set_due(due_in.map_or(Moment::NEVER, |left| clock.now().after(left)));
                provider.watch();
                seat.changed(&**clock, deadline).await;
            }
            Err(error) => {
                // Whoever asks again with this token keeps its place: no release may overtake it.
                queued.armed = !error.is_temporary();
                return Err(error);
            }
        }
    }
}

struct Question {
    request: AcquireRequest,
    id: Id,
    /// How long it would wait yet.
    patience: Duration,
    queued_before: bool,
    wanted: Arc<AtomicBool>,
}

struct Answer {
    decision: Decision,
    /// Whether the ttl of the grant began with this very question.
    began: bool,
    holder: Option<Box<Holder>>,
    /// For the first in line: how long until something ahead runs out.
    due_in: Option<Duration>,
}

impl Question {
    async fn ask(self, store: &Store) -> Result<Answer> {
        let id = self.id;
        if !self.queued_before
            && let Some(answer) = self.ask_shortly(store).await?
        {
            return Ok(answer);
        }
        let wait = !self.patience.is_zero();
        let ((decision, began), rules, now) = store
            .edit(DURING, &self.request.key, |rules, edit| {
                // Under the lock: the release that follows an abandoned question comes after this,
                // or came before it, and before what the short way may have done.
                if !self.wanted.load(Ordering::Acquire) {
                    rules.release(id);
                    rules.leave(id);
                    return (Decision::Refused, false);
                }
                let now = edit.now;
                let place = rules.queue.iter().find(|w| w.id == id).map(|w| w.extra.clone());
                // Who stands there already stays as it was, and costs no write.
                let requester = self.requester(store, now, place);
                rules.request_in_turn(requester, wait, self.queued_before, now, &mut edit.fences())
            })
            .await?;
        let holder = match decision {
            Decision::Refused => rules.holders.first().map(|held| {
                Box::new(record::reporter(now).holder(held, held.requester.extra.label()))
            }),
            _ => None,
        };
        if decision == Decision::Queued {
            store.desk.queued(id);
        }
        let is_first = rules.queue.front().is_some_and(|first| first.id == id);
        let due_in = is_first.then(|| rules.next_expiry().since(now));
        Ok(Answer { decision, began, holder, due_in })
    }

    /// Tries the short ways, which most requests can go; none where the rules must decide.
    async fn ask_shortly(&self, store: &Store) -> Result<Option<Answer>> {
        if !self.wanted.load(Ordering::Acquire) {
            return Ok(None);
        }
        let (key, owner) = (&self.request.key, &self.request.owner);
        let requester = self.requester(store, Moment::default(), None);
        let taken = if store.desk.waits_for(key) {
            Taken::ByWriter // most likely
        } else {
            store.take(DURING, key, &requester).await?
        };
        let patience = (self.request.wait != Wait::Forever).then_some(self.patience);
        let (decision, due_in) = match taken {
            Taken::Granted(fence) => (Decision::Granted(Grant::first(fence)), None),
            // Who has an owner may be that holder.
            Taken::ByWriter if owner.is_none() && !self.patience.is_zero() => {
                let Some(due_in) = store.enqueue(DURING, key, &requester, patience).await? else {
                    return Ok(None);
                };
                store.desk.queued(self.id);
                (Decision::Queued, due_in)
            }
            _ => return Ok(None),
        };
        if !self.wanted.load(Ordering::Acquire) {
            // The release that follows an abandoned question may have been there before it.
            release(store, key, self.id).await?;
        }
        Ok(Some(Answer { decision, began: true, holder: None, due_in }))
    }

    fn requester(&self, store: &Store, now: Moment, place: Option<Asker>) -> Requester<Asker> {
        let until = now.after(self.patience);
        Requester {
            id: self.id,
            mode: self.request.mode,
            owner: self.request.owner.clone(),
            note: self.request.note.clone(),
            ttl: self.request.ttl,
            since: now,
            extra: place.unwrap_or_else(|| Asker::new(&store.process, store.client, until)),
        }
    }
}

/// A place in the queue, or about to be one. Dropped, it is given back.
struct Queued<'a> {
    provider: &'a MySqlLockProvider,
    key: &'a Key,
    id: Id,
    wanted: Arc<AtomicBool>,
    armed: bool,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if self.armed {
            // First the word, then the release: an edit that has not seen the one sees the other.
            self.wanted.store(false, Ordering::Release);
            self.provider.releases.defer(self.key.clone(), self.id);
        }
    }
}
