//! Asking, and how a waiter goes on: woken by the [watch](super::watch), it claims what it was
//! given, or queues again when it came too late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::process::Asker;
use super::provider::FileLockProvider;
use super::store::Store;
use super::{blocking, name, sweep};
use crate::reporter::Reporter;
use crate::rules::{Decision, Requester};
use crate::{AcquireRequest, Acquired, Holder, Key, Moment, Result, Wait};

/// Asks for a lease and waits as the request says.
pub(super) async fn acquire(
    provider: &FileLockProvider,
    request: &AcquireRequest,
) -> Result<Acquired> {
    sweep::count(&provider.store);
    let clock = &provider.store.clock;
    let deadline = match request.wait {
        Wait::No => Moment::default(),
        Wait::For(span) => clock.now().after(span),
        Wait::Forever => Moment::NEVER,
    };
    let id = name::id(request.token);
    let mut queued = Queued { provider, key: &request.key, id, asked: Asked::new(), armed: true };
    let mut seat = None;
    loop {
        let asked_at = clock.now();
        let question = Question {
            key: request.key.clone(),
            requester: Requester {
                id,
                mode: request.mode,
                owner: request.owner.clone(),
                note: request.note.clone(),
                ttl: request.ttl,
                since: asked_at,
                extra: provider.store.here.asker(deadline),
            },
            wait: asked_at < deadline,
            queued_before: seat.is_some(),
            wanted: queued.asked.watcher(),
        };
        let store = provider.store.clone();
        let answer = blocking::run("asking for a lease", move || question.ask(&store)).await;
        match answer {
            Ok(Answer { decision: Decision::Granted(mut grant), began, .. }) => {
                queued.armed = false;
                grant.waited |= seat.is_some();
                // The ttl began in the edit, which began after this moment.
                grant.trusted_from = (grant.waited && began).then_some(asked_at);
                return Ok(Acquired::Granted(grant));
            }
            Ok(Answer { decision: Decision::Refused, holder, .. }) => {
                queued.armed = false;
                return Ok(Acquired::Taken(holder));
            }
            Ok(Answer { decision: Decision::Queued, .. }) => {
                let seat = seat.get_or_insert_with(|| provider.watch.join(&request.key, id));
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
    key: Key,
    requester: Requester<Asker>,
    wait: bool,
    queued_before: bool,
    wanted: Wanted,
}

struct Answer {
    decision: Decision,
    /// Whether the ttl of the grant began with this very question.
    began: bool,
    holder: Option<Box<Holder>>,
}

impl Question {
    fn ask(self, store: &Store) -> Result<Answer> {
        let Question { key, requester, wait, queued_before, wanted } = self;
        let ((decision, began), rules) = store.edit(&key, |rules, edit| {
            // Under the lock: the release that follows an abandoned question comes after this.
            if !wanted.is_wanted() {
                return (Decision::Refused, false);
            }
            let now = edit.now;
            rules.request_in_turn(requester, wait, queued_before, now, &mut edit.fences())
        })?;
        let holder = match decision {
            Decision::Refused => rules.holders.first().map(|held| {
                let report = Reporter::new(&*store.clock);
                Box::new(report.holder(held, held.requester.extra.label()))
            }),
            _ => None,
        };
        Ok(Answer { decision, began, holder })
    }
}

/// A question under way. Its blocking part cannot be stopped from outside, so it looks here
/// whether anybody still wants to know; dropped, nobody does.
pub(super) struct Asked(Arc<AtomicBool>);

/// The other end of [`Asked`].
pub(super) struct Wanted(Arc<AtomicBool>);

impl Asked {
    pub(super) fn new() -> Self {
        Asked(Arc::new(AtomicBool::new(true)))
    }

    pub(super) fn watcher(&self) -> Wanted {
        Wanted(self.0.clone())
    }
}

impl Wanted {
    pub(super) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A place in the queue, or about to be one. Dropped, it is given back.
struct Queued<'a> {
    provider: &'a FileLockProvider,
    key: &'a Key,
    id: crate::rules::Id,
    asked: Asked,
    armed: bool,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if self.armed {
            // First the word, then the release: an edit that has not seen the one sees the other.
            self.asked.0.store(false, Ordering::Release);
            self.provider.releases.queue(&self.provider.store, self.key.clone(), self.id);
        }
    }
}
