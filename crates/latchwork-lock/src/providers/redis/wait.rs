//! Asking, and how a waiter goes on: called at the [desk](super::watch), it has what was claimed for
//! it, or asks again where it stands.

use super::provider::RedisLockProvider;
use super::record;
use super::release::Unanswered;
use super::store::{Asking, Store, Verdict};
use super::watch::Called;
use crate::{AcquireRequest, Acquired, Moment, Result, Wait};

const DURING: &str = "asking for a lease";

/// Asks for a lease and waits as the request says. Who drops the future lets a release follow.
pub(super) async fn acquire(
    provider: &RedisLockProvider,
    request: &AcquireRequest,
) -> Result<Acquired> {
    let (store, releases) = (&provider.store, &*provider.releases);
    let id = record::id(request.token);
    let deadline = match request.wait {
        Wait::No => {
            return Ok(match store.ask(releases, DURING, request, id, Asking::Once).await? {
                Verdict::Granted(grant, _) => Acquired::Granted(grant),
                Verdict::Refused(holder) => Acquired::Taken(holder),
                Verdict::Queued(_) => Acquired::Taken(None),
            });
        }
        Wait::For(span) => store.clock.now().after(span),
        Wait::Forever => Moment::NEVER,
    };
    // The seat goes first: while its waiter is there, the question is sent again.
    let mut unanswered = None;
    let (seat, behind) = store.desk.join(&request.key, id);
    let mut how = if behind { Asking::Behind } else { Asking::First };
    loop {
        let asked_at = store.clock.now();
        let verdict = if how == Asking::Behind {
            let asked = unanswered.insert(Unanswered::new(store, releases, &request.key, id));
            store.stand(&asked.lane, DURING, request, id, &seat);
            provider.watch();
            let called = seat.called(&*store.clock, deadline).await;
            if let Some(asked) = unanswered.take() {
                asked.answered();
            }
            match called {
                Called::Told(verdict) => verdict?,
                Called::Holds(grant) => return Ok(Acquired::Granted(grant)),
                Called::Asks => {
                    how = next(store, deadline);
                    continue;
                }
            }
        } else {
            store.ask(releases, DURING, request, id, how).await?
        };
        match verdict {
            Verdict::Granted(mut grant, began) => {
                grant.waited |= matches!(how, Asking::Again | Asking::Last);
                // The ttl began in the server, after this moment.
                grant.trusted_from = (grant.waited && began).then_some(asked_at);
                return Ok(Acquired::Granted(grant));
            }
            Verdict::Refused(holder) => return Ok(Acquired::Taken(holder)),
            Verdict::Queued(left) => {
                seat.queued(left, &*store.clock);
                provider.watch();
                match seat.called(&*store.clock, deadline).await {
                    Called::Holds(grant) => return Ok(Acquired::Granted(grant)),
                    Called::Asks | Called::Told(_) => how = next(store, deadline),
                }
            }
        }
    }
}

/// How one asks who has waited.
fn next(store: &Store, deadline: Moment) -> Asking {
    if store.clock.now() >= deadline { Asking::Last } else { Asking::Again }
}
