//! Requests of one runtime that share a message.
//!
//! Nobody waits for company: while hardly anything is under way, whoever asks sends its own message.
//! What comes while more is under way goes out together as soon as one of those messages is back, as
//! one transaction with a transaction for each in it. The server does nearly the same for it as for
//! a single one.
//!
//! It compares everything before it changes anything, also of the inner transactions. So of one key
//! there is one member in a message: of two, both would find the key free. A key has entries under
//! its own name only, so members of different keys do not see each other. They share a revision,
//! and with it a fence, which is a promise to each key alone.
//!
//! One member of whom the server wants nothing to know (whose lease is gone, whose name it may not
//! touch) spoils the message for all, and nothing is done: then each asks by itself. Of a message
//! whose answer was lost each member is told just that, and does what it would do about its own.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Txn, TxnOp, TxnOpResponse};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::connection::{Lane, Link};
use super::error::Wrong;
use super::store::revision;
use crate::{Clock, Key, Moment};

/// How many messages may be under way before what comes is held together: while the server works on
/// one, the next is made.
const UNDER_WAY: usize = 2;

/// The most members of a message. A server takes 128 operations unless it was told otherwise, and
/// counts those of the largest inner transaction, too.
const LARGEST: usize = 64;

/// How long one waits for a message before it asks by itself: behind a server that is silent it
/// would otherwise be some rounds until the last is told.
const HELD_UP: Duration = Duration::from_secs(2);

const DURING: &str = "asking for several";

/// What is under way on one lane, and what waits to be.
pub(super) struct Batch {
    inner: Mutex<Inner>,
    /// The most members that the server takes.
    most: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    /// How many messages.
    under_way: usize,
    waiting: VecDeque<Job>,
    /// Of those who wait.
    keys: HashSet<Key>,
    /// How many have come to wait so far.
    came: u64,
}

struct Job {
    number: u64,
    key: Key,
    operation: TxnOp,
    /// Until when it may be sent, where it is for somebody who may have gone; else it is sent anyway.
    by: Option<Moment>,
    tell: oneshot::Sender<Told>,
}

/// What became of one who waited for a message to share.
enum Told {
    Answered(TxnOpResponse, i64),
    /// Perhaps it was heard.
    Lost,
    /// Nothing was done: it must ask by itself.
    Apart,
}

/// How an operation goes.
pub(super) enum Way {
    /// It went with others, and this is what was done at which revision.
    Together(TxnOpResponse, i64),
    /// The same, and nobody knows what was done.
    Lost,
    /// By itself. The place is given up when the answer is there.
    Alone(Option<Place>),
}

impl Default for Batch {
    fn default() -> Self {
        Batch { inner: Mutex::default(), most: AtomicUsize::new(LARGEST) }
    }
}

impl Link {
    /// Puts an operation on one key to the server, in a message that it shares where many ask, and
    /// that is sent by then, where that is said.
    ///
    /// Dropped before it was sent, one with such a time is not asked: the release that follows might
    /// overtake it. All else goes on.
    pub(super) async fn share(
        self: &Arc<Self>,
        clock: &Arc<dyn Clock>,
        key: &Key,
        by: Option<Moment>,
        operation: impl FnOnce() -> TxnOp,
    ) -> Way {
        let lane = self.lane();
        let (number, mut told) = {
            let mut inner = lane.batch.inner.lock();
            if inner.under_way < UNDER_WAY {
                inner.under_way += 1;
                drop(inner);
                return Way::Alone(Some(Place::new(self, &lane, clock, false)));
            }
            let shares = lane.batch.most.load(Ordering::Relaxed) > 1;
            if !shares || !inner.keys.insert(key.clone()) {
                return Way::Alone(None);
            }
            let (tell, told) = oneshot::channel();
            inner.came += 1;
            let (number, key) = (inner.came, key.clone());
            inner.waiting.push_back(Job { number, key, operation: operation(), by, tell });
            (number, told)
        };
        let told = match timeout(HELD_UP, &mut told).await {
            Ok(told) => told,
            Err(_) if lane.batch.withdraw(number) => return Way::Alone(None),
            Err(_) => told.await,
        };
        match told {
            Ok(Told::Answered(done, revision)) => Way::Together(done, revision),
            Ok(Told::Apart) => Way::Alone(None),
            // Nobody is left who could tell.
            Ok(Told::Lost) | Err(_) => Way::Lost,
        }
    }
}

impl Batch {
    /// Those who go with the next message.
    fn next(&self) -> Vec<Job> {
        let most = self.most.load(Ordering::Relaxed);
        let mut inner = self.inner.lock();
        let go = inner.waiting.len().min(most);
        let jobs: Vec<Job> = inner.waiting.drain(..go).collect();
        for job in &jobs {
            inner.keys.remove(&job.key);
        }
        jobs
    }

    /// Takes back one who waits; false when it was sent.
    fn withdraw(&self, number: u64) -> bool {
        let mut inner = self.inner.lock();
        let Some(place) = inner.waiting.iter().position(|job| job.number == number) else {
            return false;
        };
        if let Some(job) = inner.waiting.remove(place) {
            inner.keys.remove(&job.key);
        }
        true
    }
}

/// A message that is under way. When it is back, those who wait go.
pub(super) struct Place {
    link: Arc<Link>,
    lane: Arc<Lane>,
    clock: Arc<dyn Clock>,
    /// Whether it carries those who wait already.
    carries: bool,
}

impl Place {
    fn new(link: &Arc<Link>, lane: &Arc<Lane>, clock: &Arc<dyn Clock>, carries: bool) -> Self {
        Place { link: link.clone(), lane: lane.clone(), clock: clock.clone(), carries }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = self.lane.batch.inner.lock();
        if self.carries {
            // Cut short, by the end of the runtime or a panic: they are told by the silence.
            inner.keys.clear();
            inner.under_way -= 1;
            let waiting = std::mem::take(&mut inner.waiting);
            drop(inner);
            drop(waiting);
        } else if inner.waiting.is_empty() {
            inner.under_way -= 1;
        } else {
            drop(inner);
            let place = Place::new(&self.link, &self.lane, &self.clock, true);
            self.lane.runtime.spawn(carry(place));
        }
    }
}

/// Carries those who wait, message by message, until nobody does.
async fn carry(mut place: Place) {
    loop {
        let jobs = place.lane.batch.next();
        if jobs.is_empty() {
            break;
        }
        send(&place, jobs).await;
        // Those who were answered together ask again together: let them all come.
        tokio::task::yield_now().await;
    }
    place.carries = false;
}

/// Sends one message and tells its members.
async fn send(place: &Place, jobs: Vec<Job>) {
    let (operations, asked) = still_wanted(jobs, place.clock.now());
    if asked.is_empty() {
        return;
    }
    let txn = Txn::new().and_then(operations);
    let answer = place.link.ask(DURING, |member| async move { member.kv.clone().txn(txn).await });
    match answer.await {
        Ok(answer) => {
            let revision = revision(&answer);
            let mut done = answer.op_responses().into_iter();
            for tell in asked {
                let told = done.next().map_or(Told::Lost, |done| Told::Answered(done, revision));
                let _ = tell.send(told);
            }
        }
        Err(Wrong::Lost(error)) => {
            tracing::debug!(%error, "the answer to a message of several was lost");
            asked.into_iter().for_each(|tell| drop(tell.send(Told::Lost)));
        }
        Err(wrong) => {
            if wrong.is_too_many() {
                tracing::debug!("the server takes few operations at a time: each asks by itself");
                place.lane.batch.most.store(1, Ordering::Relaxed);
            }
            asked.into_iter().for_each(|tell| drop(tell.send(Told::Apart)));
        }
    }
}

/// What may be sent now, and who waits for it.
fn still_wanted(jobs: Vec<Job>, now: Moment) -> (Vec<TxnOp>, Vec<oneshot::Sender<Told>>) {
    let (mut operations, mut asked) = (Vec::with_capacity(jobs.len()), Vec::new());
    for Job { operation, by, tell, .. } in jobs {
        if by.is_some() && tell.is_closed() {
            continue;
        }
        if by.is_some_and(|by| now > by) {
            let _ = tell.send(Told::Apart);
        } else {
            operations.push(operation);
            asked.push(tell);
        }
    }
    (operations, asked)
}

#[cfg(test)]
mod tests {
    use super::super::config::Address;
    use super::*;
    use crate::SystemClock;

    fn put(batch: &Batch, key: &str) -> u64 {
        let key = Key::new(key).expect("legal");
        let mut inner = batch.inner.lock();
        assert!(inner.keys.insert(key.clone()), "once in a message");
        inner.came += 1;
        let (number, operation) = (inner.came, TxnOp::delete(key.as_str(), None));
        let tell = oneshot::channel().0;
        inner.waiting.push_back(Job { number, key, operation, by: None, tell });
        number
    }

    /// Of a crowd for whom it is too late, who have gone, or neither: who is sent, and what they are
    /// told that are not.
    #[test]
    fn what_is_too_late_or_has_gone_is_not_sent_unless_it_must_be() {
        let (now, sooner) = (Moment::default().after(Duration::from_secs(9)), Moment::default());
        let job = |name: &str, by| {
            let (tell, told) = oneshot::channel();
            let key = Key::new(name).expect("legal");
            (Job { number: 1, key, operation: TxnOp::delete(name, None), by, tell }, told)
        };
        let (in_time, _here) = job("in time", Some(now));
        let (late, mut told) = job("late", Some(sooner));
        let (release, _here_too) = job("release", None);
        let (gone, _) = job("gone", Some(now));
        let (release_of_one_gone, _) = job("release of one gone", None);
        let all = vec![in_time, late, gone, release, release_of_one_gone];
        let (operations, asked) = still_wanted(all, now);
        let sent = format!("{operations:?}");
        let sent: Vec<_> = ["in time", "late", "gone", "release", "release of one gone"]
            .into_iter()
            .filter(|name| sent.contains(&format!("{:?}", name.as_bytes())))
            .collect();
        assert_eq!(sent, ["in time", "release", "release of one gone"]);
        assert_eq!((operations.len(), asked.len()), (3, 3));
        assert!(matches!(told.try_recv(), Ok(Told::Apart)), "it asks by itself");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_message_that_does_not_go() {
        let link = Arc::new(Link::own(Address::parse("etcd://nowhere").expect("legal")));
        let (lane, clock) = (link.lane(), SystemClock::shared());
        let key = Key::new("key").expect("legal");
        // Of these no answer ever comes.
        lane.batch.inner.lock().under_way = UNDER_WAY;
        for by in [None, Some(Moment::NEVER)] {
            let way = link.share(&clock, &key, by, || TxnOp::delete("name", None));
            let way = timeout(HELD_UP * 2, way).await.expect("not for long");
            assert!(matches!(way, Way::Alone(None)), "it asks by itself");
            assert!(lane.batch.next().is_empty(), "it is not sent besides");
        }
    }

    #[test]
    fn one_who_was_not_sent_can_be_taken_back() {
        let batch = Batch::default();
        let (one, two) = (put(&batch, "one"), put(&batch, "two"));
        assert!(batch.withdraw(one));
        assert!(!batch.withdraw(one), "once");
        let again = put(&batch, "one");
        let sent: Vec<u64> = batch.next().iter().map(|job| job.number).collect();
        assert_eq!(sent, [two, again]);
        let later = put(&batch, "one");
        assert!(!batch.withdraw(again), "it was sent, and its namesake is another's");
        assert!(batch.withdraw(later));
        assert!(batch.next().is_empty());
    }
}
