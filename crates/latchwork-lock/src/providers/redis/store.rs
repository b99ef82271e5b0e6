//! Where the truth lives: the operations on a lock, as questions to the server's script.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::batch::{Answer, Job, Lane, Lanes, Member, Question, Reply};
use super::connection::Line;
use super::pump::LARGEST;
use super::record::Asker;
use super::release::{Handing, Releases, Releasing, Unanswered};
use super::scripts::{LOCK, Operation, pattern};
use super::watch::{Desk, Seat};
use super::{error, record, tell};
use crate::coordination::server_clock::ServerClock;
use crate::rules::Id;
use crate::{
    AcquireRequest, Clock, Fence, Grant, Holder, Inspection, Key, Moment, Page, PageRequest, Result,
};

/// How many keys the server looks at in one step of a listing.
const STEP: usize = 500;

pub(super) struct Store {
    pub(super) line: Arc<Line>,
    pub(super) lanes: Lanes,
    pub(super) clock: Arc<dyn Clock>,
    /// Random: names this provider among all that use the server.
    pub(super) client: Arc<str>,
    pub(super) desk: Arc<Desk>,
    server_clock: ServerClock,
}

/// How a request asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    /// Once, without waiting.
    Once,
    /// For the first time, and would wait.
    First,
    /// The same, while others of this process wait already.
    Behind,
    /// Has waited, and goes on.
    Again,
    /// Has waited, and its time is over.
    Last,
}

/// What became of a request.
pub(super) enum Verdict {
    /// It holds; and whether its ttl began with this very question.
    Granted(Grant, bool),
    /// It does not. One who does, where that is known.
    Refused(Option<Box<Holder>>),
    /// It stands in the queue, and how long it is until something ahead runs out.
    Queued(Option<Duration>),
}

/// How those who wait for a key stand.
pub(super) struct Standing {
    /// Until something ahead runs out.
    pub(super) left: Option<Duration>,
    /// `w` waits, `r` may claim, `c` has claimed, `-` is unknown.
    pub(super) states: Vec<u8>,
}

impl Store {
    pub(super) fn new(line: Arc<Line>, clock: Arc<dyn Clock>) -> Result<Self> {
        let client: Arc<str> = format!("{:016x}", rand::random::<u64>()).into();
        let lanes = Lanes::open(line.clone(), client.clone())?;
        Ok(Store {
            line,
            lanes,
            clock,
            client,
            desk: Arc::default(),
            server_clock: ServerClock::default(),
        })
    }

    /// Dropping the future lets a release follow where the one of the caller might come too soon.
    pub(super) async fn ask(
        self: &Arc<Self>,
        releases: &Releases,
        during: &'static str,
        request: &AcquireRequest,
        id: Id,
        how: Asking,
    ) -> Result<Verdict> {
        let unanswered = Unanswered::new(self, releases, &request.key, id);
        let question = self.lanes.ask_on(&unanswered.lane, during, question(request, id, how));
        let answer = question.await;
        unanswered.answered();
        verdict(during, &answer?, &*self.clock)
    }

    /// Asks for one who can but wait, behind others of this process. The seat hears of the answer where
    /// that arrives, and nobody is woken only to learn that it stands in the queue.
    pub(super) fn stand(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        during: &'static str,
        request: &AcquireRequest,
        id: Id,
        seat: &Seat,
    ) {
        let member = question(request, id, Asking::Behind);
        let reply = Reply::Standing(Box::new(seat.standing(self, during)));
        self.lanes.send_on(lane, Job { member, reply });
    }

    /// Whether the lease was held; an error where that got lost.
    ///
    /// Once begun it goes on, also when the future is dropped: the answer may hold the grants of
    /// others.
    pub(super) async fn release(
        self: &Arc<Self>,
        during: &'static str,
        key: &Key,
        id: Id,
    ) -> Result<bool> {
        let asked_at = self.clock.now();
        let member = member(Operation::Release, key, id);
        let question = if self.desk.awaits(key) {
            let (tell, told) = tell::channel();
            let handing = Handing { store: self.clone(), during, key: key.clone(), asked_at, tell };
            let job = Job { member, reply: Reply::Handing(Box::new(handing)) };
            self.lanes.send_on(&self.lanes.here(), job);
            Question::Put(during, told)
        } else {
            self.lanes.ask(during, member)
        };
        let releasing = Releasing::new(self, during, key, asked_at, question);
        let (held, handed_on) = releasing.await?;
        if handed_on {
            // Who was given the key has waited longer than we have.
            tokio::task::yield_now().await;
        }
        Ok(held)
    }

    /// Whether a lease was held, and whether others were given the key, from the answer to its release.
    /// Those of this process whose turn it was have their grants with it.
    pub(super) fn released(
        &self,
        during: &'static str,
        key: &Key,
        asked_at: Moment,
        answer: &Answer,
    ) -> Result<(bool, bool)> {
        let (held, given) = match answer.value.as_sequence() {
            None => (&answer.value, &[][..]),
            Some([held, Value::Int(left), given @ ..]) => {
                if let Some(left) = span(*left) {
                    self.desk.set_due(key, self.clock.now().after(left));
                }
                (held, given)
            }
            Some(_) => return Err(error::unreadable(during)),
        };
        for one in given.chunks(3) {
            let (id, grant) = given_to(one).ok_or_else(|| error::unreadable(during))?;
            self.desk.give(id, grant, asked_at, &*self.clock);
        }
        let held = truth(during, held)?;
        if !held && answer.again {
            return Err(error::lost_answer(during));
        }
        Ok((held, !given.is_empty()))
    }

    pub(super) async fn renew(
        &self,
        during: &'static str,
        key: &Key,
        id: Id,
        ttl: Duration,
    ) -> Result<bool> {
        let ttl = record::millis(ttl);
        let sent_at = self.clock.now();
        let answer =
            self.lanes.ask(during, Member { ttl, ..member(Operation::Renew, key, id) }).await?;
        match answer.value {
            Value::Int(0) => Ok(false),
            Value::Int(server_us) => {
                self.heard_time(server_us, sent_at);
                Ok(true)
            }
            _ => Err(error::unreadable(during)),
        }
    }

    pub(super) async fn is_held(&self, during: &'static str, key: &Key, id: Id) -> Result<bool> {
        let answer = self.lanes.ask(during, member(Operation::IsHeld, key, id)).await?;
        truth(during, &answer.value)
    }

    pub(super) async fn rotate(
        &self,
        during: &'static str,
        key: &Key,
        ids: (Id, Id),
        ttl: Duration,
    ) -> Result<Option<Grant>> {
        let answer = self
            .lanes
            .ask(
                during,
                Member {
                    ttl: record::millis(ttl),
                    option: record::texts(&[ids.1]),
                    ..member(Operation::Rotate, key, ids.0)
                },
            )
            .await?;
        if answer.value == Value::Int(0) {
            return Ok(None);
        }
        let grant = grant(&answer.value).ok_or_else(|| error::unreadable(during))?;
        Ok(Some(grant.0))
    }

    pub(super) async fn break_lock(
        &self,
        during: &'static str,
        key: &Key,
        fence: Option<Fence>,
    ) -> Result<Vec<Holder>> {
        let option = fence.map_or(String::new(), |fence| fence.to_string());
        let answer =
            self.lanes.ask(during, Member { option, ..member(Operation::Break, key, 0) }).await?;
        let pairs = answer.value.as_sequence();
        pairs
            .and_then(|pairs| record::holders(pairs, self.clock.wall()))
            .ok_or_else(|| error::unreadable(during))
    }

    pub(super) async fn inspect(&self, during: &'static str, key: &Key) -> Result<Inspection> {
        let answer = self.lanes.ask(during, member(Operation::Inspect, key, 0)).await?;
        record::inspection(key.as_str(), &answer.value).ok_or_else(|| error::unreadable(during))
    }

    /// Ends what ran out, hands the key on, says that this process lives, and tells how some of
    /// its waiters stand.
    pub(super) async fn poke(
        &self,
        during: &'static str,
        key: &Key,
        ids: &[Id],
    ) -> Result<Standing> {
        let option = record::texts(ids);
        let sent_at = self.clock.now();
        let answer =
            self.lanes.ask(during, Member { option, ..member(Operation::Poke, key, 0) }).await?;
        match answer.value.as_sequence() {
            Some([Value::Int(left), Value::BulkString(states), Value::Int(server_us)])
                if states.len() == ids.len() =>
            {
                self.heard_time(*server_us, sent_at);
                Ok(Standing { left: span(*left), states: states.clone() })
            }
            _ => Err(error::unreadable(during)),
        }
    }

    /// Takes the server's time, in microseconds since 1970, from an answer.
    fn heard_time(&self, server_us: i64, sent_at: Moment) {
        self.server_clock.observe(error::NAME, server_us, sent_at, self.clock.now());
    }

    /// Asks without waiting for the answer.
    pub(super) fn put(&self, operation: Operation, key: &Key, id: Id, reply: Reply) {
        self.lanes.put(Job { member: member(operation, key, id), reply });
    }

    /// The same, on the provider's own lane.
    pub(super) fn put_apart(&self, operation: Operation, key: &Key, id: Id, reply: Reply) {
        self.lanes.put_apart(Job { member: member(operation, key, id), reply });
    }

    /// A page of the keys that begin like this. The server goes through all its keys for it.
    pub(super) async fn list(
        &self,
        during: &'static str,
        prefix: &str,
        page: &PageRequest,
    ) -> Result<Page> {
        let names = self.names(during, prefix, page.after.as_deref()).await?;
        let mut found: Vec<Inspection> = Vec::new();
        let names: Vec<Key> = names.into_iter().filter_map(|n| Key::try_from(n).ok()).collect();
        for some in names.chunks(LARGEST) {
            let looks = some.iter().map(|key| self.inspect(during, key));
            for seen in futures::future::join_all(looks).await {
                let seen = seen?;
                if seen.is_held() || !seen.waiters.is_empty() {
                    found.push(seen);
                }
            }
            // One more than wanted tells whether there is more.
            if found.len() > page.limit {
                break;
            }
        }
        Ok(Page::cut(found, page))
    }

    async fn names(
        &self,
        during: &'static str,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        let pattern = pattern(prefix);
        let mut cursor = String::from("0");
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
            let found = self.line.send(&scan).await.map_err(|e| error::driver(during, e))?;
            let found: (String, Vec<Vec<u8>>) =
                redis::from_redis_value(found).map_err(|_| error::unreadable(during))?;
            for name in found.1.into_iter().filter_map(|name| String::from_utf8(name).ok()) {
                let name = name.strip_prefix(LOCK).filter(|name| name.starts_with(prefix));
                names
                    .extend(name.filter(|name| after.is_none_or(|a| *name > a)).map(str::to_owned));
            }
            cursor = found.0;
            if cursor == "0" {
                return Ok(names);
            }
        }
    }
}

/// A grant, whether its ttl began with this very claim, and how long until something of its key runs
/// out, if others wait.
pub(super) fn claimed(value: &Value) -> (Option<(Grant, bool)>, Option<Duration>) {
    let Some([answer, Value::Int(left)]) = value.as_sequence() else { return (None, None) };
    (grant(answer), span(*left))
}

/// One who was given the key by a release: its id, and its grant.
fn given_to(parts: &[Value]) -> Option<(Id, Grant)> {
    let [Value::BulkString(id), Value::BulkString(fence), Value::BulkString(before)] = parts else {
        return None;
    };
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse::<i64>().ok();
    let grant = handed_on(number(fence)?, number(before)?);
    Some((record::read_id(id)?, grant))
}

/// The grant of one who waited.
fn handed_on(fence: i64, before: i64) -> Grant {
    Grant {
        fence: record::fence(fence),
        previous_fence: (before > 0).then(|| record::fence(before)),
        waited: true,
        trusted_from: None,
    }
}

pub(super) fn member(operation: Operation, key: &Key, id: Id) -> Member {
    Member { key: key.clone(), operation, id, ttl: 0, option: String::new(), asker: None }
}

fn truth(during: &'static str, value: &Value) -> Result<bool> {
    match value {
        Value::Int(number @ (0 | 1)) => Ok(*number == 1),
        _ => Err(error::unreadable(during)),
    }
}

fn span(micros: i64) -> Option<Duration> {
    u64::try_from(micros).ok().map(Duration::from_micros)
}

fn question(request: &AcquireRequest, id: Id, how: Asking) -> Member {
    let (operation, option) = match how {
        Asking::Once => (Operation::First(b'n'), ""),
        Asking::First => (Operation::First(b'w'), ""),
        Asking::Behind => (Operation::First(b'q'), ""),
        Asking::Again => (Operation::Ask, "a"),
        Asking::Last => (Operation::Ask, "l"),
    };
    Member {
        key: request.key.clone(),
        operation,
        id,
        ttl: record::millis(request.ttl),
        option: option.to_owned(),
        asker: Some(Asker::of(request)),
    }
}

/// What an answer to a question says.
pub(super) fn verdict(during: &'static str, answer: &Answer, clock: &dyn Clock) -> Result<Verdict> {
    read_verdict(&answer.value, clock).ok_or_else(|| error::unreadable(during))
}

fn read_verdict(value: &Value, clock: &dyn Clock) -> Option<Verdict> {
    // The short way answers with the bare fence.
    if let Value::Int(fence) = value {
        return Some(Verdict::Granted(Grant::first(record::fence(*fence)), true));
    }
    match value.as_sequence()? {
        [Value::Int(2), Value::Int(left), ..] => Some(Verdict::Queued(span(*left))),
        [Value::Int(0), holder @ ..] => {
            let holder = record::holders(holder, clock.wall())?.pop();
            Some(Verdict::Refused(holder.map(Box::new)))
        }
        _ => grant(value).map(|(grant, began)| Verdict::Granted(grant, began)),
    }
}

fn grant(value: &Value) -> Option<(Grant, bool)> {
    let [
        Value::Int(1),
        Value::Int(fence),
        Value::Int(before),
        Value::Int(waited),
        Value::Int(began),
    ] = value.as_sequence()?
    else {
        return None;
    };
    let grant = Grant { waited: *waited == 1, ..handed_on(*fence, *before) };
    Some((grant, *began == 1))
}
