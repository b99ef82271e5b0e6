//! Asking, and how a waiter goes on: called by the [thread](super::watcher), it claims what it
//! was given, or queues again when it came too late.

use futures::future::{Either, select};
use tokio::sync::Notify;

use super::boot::Here;
use super::name;
use super::provider::SqliteLockProvider;
use super::record::Asker;
use super::release::Later;
use super::store::{Edit, Terms};
use super::watch::{ALIVE, Seat};
use super::watcher::Order;
use crate::handed::Found;
use crate::reporter::Reporter;
use crate::rules::{Decision, Id, Requester, Rules};
use crate::{AcquireRequest, Acquired, Clock, Holder, Key, Moment, Result, Wait};

/// Asks for a lease and waits as the request says.
pub(super) async fn acquire(
    provider: &SqliteLockProvider,
    request: &AcquireRequest,
) -> Result<Acquired> {
    let clock = &provider.here.clock;
    let deadline = match request.wait {
        Wait::No => Moment::default(),
        Wait::For(span) => clock.now().after(span),
        Wait::Forever => Moment::NEVER,
    };
    let id = name::id(request.token);
    let mut queued = Queued { provider, key: &request.key, id, armed: true };
    let seat = Seat::new(id);
    let mut has_waited = false;
    loop {
        match seat.handed.look() {
            Found::Lease(grant) => {
                queued.armed = false;
                return Ok(Acquired::Granted(grant));
            }
            Found::TooLate => {
                seat.bell.notified().await;
                continue;
            }
            Found::Nothing => {}
        }
        let asked_at = clock.now();
        let wait = asked_at < deadline;
        let question = Question {
            requester: Requester {
                id,
                mode: request.mode,
                owner: request.owner.clone(),
                note: request.note.clone(),
                ttl: request.ttl,
                since: asked_at,
                extra: provider.asker(),
            },
            wait,
            queued_before: has_waited,
        };
        let terms = Terms { needed: false, seat: wait.then(|| seat.clone()) };
        let change = move |rules: &mut Rules<Asker>, edit: &mut Edit<'_>| question.ask(rules, edit);
        let during = "asking for a lease";
        match provider.edit_with(during, &request.key, terms, Answer::look, change).await {
            Ok(Answer { decision: Decision::Granted(mut grant), began, .. }) => {
                queued.armed = false;
                grant.waited |= has_waited;
                // The ttl began in the transaction, which began after this moment.
                grant.trusted_from = (grant.waited && began).then_some(asked_at);
                return Ok(Acquired::Granted(grant));
            }
            Ok(Answer { decision: Decision::Refused, holder, .. }) => {
                queued.armed = false;
                return Ok(Acquired::Taken(holder));
            }
            Ok(Answer { decision: Decision::Queued, .. }) => {
                has_waited = true;
                called_or_over(&seat.bell, &**clock, deadline).await;
            }
            Err(error) => {
                // Whoever asks again with this token keeps its place: no release may overtake it.
                queued.armed = !error.is_temporary();
                return Err(error);
            }
        }
    }
}

async fn called_or_over(notify: &Notify, clock: &dyn Clock, deadline: Moment) {
    let called = std::pin::pin!(notify.notified());
    if deadline == Moment::NEVER {
        return called.await;
    }
    match select(called, clock.sleep_until(deadline)).await {
        Either::Left(_) | Either::Right(_) => {}
    }
}

struct Question {
    requester: Requester<Asker>,
    wait: bool,
    queued_before: bool,
}

struct Answer {
    decision: Decision,
    /// Whether the ttl of the grant began with this very question.
    began: bool,
    holder: Option<Box<Holder>>,
}

impl Question {
    fn ask(&self, rules: &mut Rules<Asker>, edit: &mut Edit<'_>) -> Answer {
        let now = edit.now;
        let mut requester = self.requester.clone();
        requester.extra.alive = now.after(ALIVE);
        let (decision, began) = rules.request_in_turn(
            requester,
            self.wait,
            self.queued_before,
            now,
            &mut edit.fences(),
        );
        Answer { decision, began, holder: None }
    }
}

impl Answer {
    /// Names a holder to whoever was refused.
    fn look(&mut self, rules: &Rules<Asker>, here: &Here) {
        if self.decision == Decision::Refused {
            self.holder = rules.holders.first().map(|held| {
                Box::new(Reporter::new(&*here.clock).holder(held, held.requester.extra.label()))
            });
        }
    }
}

/// A place in the queue, or about to be one. Dropped, it is given back: the thread takes orders in
/// turn, so the release comes after the question.
struct Queued<'a> {
    provider: &'a SqliteLockProvider,
    key: &'a Key,
    id: Id,
    armed: bool,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.provider.order(Order::Change(Box::new(Later::new(self.key.clone(), self.id))));
        }
    }
}
