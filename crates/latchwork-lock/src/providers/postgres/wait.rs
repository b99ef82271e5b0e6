//! Asking, and how a waiter goes on: woken at the [desk](crate::desk), it claims what it was
//! given, or queues again when it came too late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::provider::PostgresLockProvider;
use super::record::{self, Asker};
use super::release;
use super::scripts::{Ask, Asked};
use super::store::{BACKGROUND, Store};
use crate::rules::{Decision, Id, Requester};
use crate::{AcquireRequest, Acquired, Holder, Key, Moment, Result, Wait};

const DURING: &str = "asking for a lease";

/// Asks for a lease and waits as the request says.
pub(super) async fn acquire(
    provider: &PostgresLockProvider,
    request: &AcquireRequest,
) -> Result<Acquired> {
    let clock = &provider.store.clock;
    provider.lanes.releases.room(&**clock).await;
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
        match question.put(provider).await {
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
    async fn put(self, provider: &PostgresLockProvider) -> Result<Answer> {
        // Who asks a last time after waiting must be let in only if it is still known.
        if (!self.queued_before || !self.patience.is_zero())
            && let Some(answer) = self.ask_shortly(provider).await?
        {
            return Ok(answer);
        }
        let store = provider.store.clone();
        let open = store.unanswered.open(self.id);
        BACKGROUND
            .run(DURING, async move {
                let answer = self.ask(&store).await;
                drop(open);
                answer
            })
            .await
    }

    /// Tries the short way, which most requests can go; none where the rules must decide.
    async fn ask_shortly(&self, provider: &PostgresLockProvider) -> Result<Option<Answer>> {
        let patience = (self.request.wait != Wait::Forever).then_some(self.patience);
        let open = provider.store.unanswered.open(self.id);
        let ask = Ask::new(&self.request, self.id, patience, self.queued_before, open);
        // Whether a lost question was heard, the rules will see by its id.
        let asked = provider.lanes.ask(ask).await?.unwrap_or(None);
        Ok(asked.map(|asked| match asked {
            Asked::Granted(grant) => Answer::of(Decision::Granted(grant)),
            Asked::Queued(due_in) => Answer { due_in, ..Answer::of(Decision::Queued) },
            Asked::Refused(holder) => Answer { holder, ..Answer::of(Decision::Refused) },
        }))
    }

    async fn ask(self, store: &Store) -> Result<Answer> {
        let Question { request, id, patience, queued_before, wanted } = self;
        let wait = !patience.is_zero();
        let ((decision, began), rules, now) = store
            .edit(DURING, &request.key, |rules, edit| {
                // Under the lock: the release that follows an abandoned question comes after this.
                if !wanted.load(Ordering::Acquire) {
                    return (Decision::Refused, false);
                }
                let now = edit.now;
                let place = rules.queue.iter().find(|w| w.id == id).map(|w| w.extra.clone());
                let until = now.after(patience);
                let requester = Requester {
                    id,
                    mode: request.mode,
                    owner: request.owner,
                    note: request.note,
                    ttl: request.ttl,
                    since: now,
                    // Who stands there already stays as it was, and costs no write.
                    extra: place
                        .unwrap_or_else(|| Asker::new(&store.process, &store.client, until)),
                };
                rules.request_in_turn(requester, wait, queued_before, now, &mut edit.fences())
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
}

impl Answer {
    /// Of the short way: what it grants begins with it.
    fn of(decision: Decision) -> Self {
        Answer { decision, began: true, holder: None, due_in: None }
    }
}

/// A place in the queue, or about to be one. Dropped, it is given back.
struct Queued<'a> {
    provider: &'a PostgresLockProvider,
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
            release::later(&self.provider.lanes, self.key.clone(), self.id);
        }
    }
}
