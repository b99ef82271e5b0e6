//! Asking, and how a waiter goes on: called at the [desk](super::watch), it has what was claimed for
//! it, or asks again where it stands.

use super::provider::RedisLockProvider;
use super::record;
use super::store::{Asking, Verdict};
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
                Verdict::Queued(..) => Acquired::Taken(None),
            });
        }
        Wait::For(span) => store.clock.now().after(span),
        Wait::Forever => Moment::NEVER,
    };
    let (seat, behind) = store.desk.join(&request.key, id, request.ttl);
    let mut how = if behind { Asking::Behind } else { Asking::First };
    loop {
        let asked_at = store.clock.now();
        match store.ask(releases, DURING, request, id, how).await? {
            Verdict::Granted(mut grant, began) => {
                grant.waited |= matches!(how, Asking::Again | Asking::Last);
                // The ttl began in the server, after this moment.
                grant.trusted_from = (grant.waited && began).then_some(asked_at);
                return Ok(Acquired::Granted(grant));
            }
            Verdict::Refused(holder) => return Ok(Acquired::Taken(holder)),
            Verdict::Queued(left, stay) => {
                let now = store.clock.now();
                seat.queued(left.map_or(Moment::NEVER, |left| now.after(left)), stay, asked_at);
                provider.watch();
                if let Some(acquired) = seat.called(&*store.clock, deadline).await {
                    return Ok(acquired);
                }
                let over = store.clock.now() >= deadline;
                how = if over { Asking::Last } else { Asking::Again };
            }
        }
    }
}
