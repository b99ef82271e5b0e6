//! One change of a key inside a transaction: load its rows, let the rules decide, write what
//! differs.

use std::sync::Arc;

use latchwork_sql::sqlite::{Sqlite, explain};
use sqlx::SqliteConnection;
use tokio::sync::{Notify, oneshot};

use super::boot::{Here, Now};
use super::error;
use super::name::shard;
use super::record::{Asker, Record};
use super::schema::{LOAD, PAGE, PEEK};
use super::scripts::Script;
use super::watcher::Failure;
use crate::rules::{Id, Reporter, Rules};
use crate::{Fence, Key, Moment, Page, PageRequest, Result};

/// What a change may use: the time, read inside the transaction, and fences.
pub(super) struct Edit<'a> {
    pub(super) now: Moment,
    next: &'a mut dyn FnMut() -> Fence,
}

impl Edit<'_> {
    pub(super) fn fences(&mut self) -> impl FnMut() -> Fence {
        || (self.next)()
    }
}

/// A change that somebody asked for. It may be made twice, when its first transaction failed for
/// another one's fault.
pub(super) trait Job: Send {
    fn key(&self) -> &Key;
    /// False when nobody waits for the answer and the change is not needed without.
    fn is_wanted(&self) -> bool;
    /// Where to call whoever asks, should it have to queue.
    fn seat(&self) -> Option<&(Id, Arc<Notify>)>;
    fn change(&mut self, rules: &mut Rules<Asker>, edit: &mut Edit<'_>);
    /// Called after the change that was made last, with how the key stands.
    fn settled(&mut self, rules: &Rules<Asker>, here: &Here);
    /// Whether to try once more after this failure.
    fn tries_again(&mut self, error: &Failure) -> bool;
    /// Tells the answer.
    fn finish(self: Box<Self>, failed: Option<&Failure>);
}

/// The usual job: a closure, and where its answer goes.
pub(super) struct Task<T, F> {
    pub(super) during: &'static str,
    pub(super) key: Key,
    pub(super) change: F,
    /// Sees the key after those were let in who could be.
    pub(super) look: fn(&mut T, &Rules<Asker>, &Here),
    pub(super) out: Option<T>,
    pub(super) reply: oneshot::Sender<Result<T>>,
    pub(super) needed: bool,
    pub(super) seat: Option<(Id, Arc<Notify>)>,
}

impl<T, F> Job for Task<T, F>
where
    T: Send,
    F: FnMut(&mut Rules<Asker>, &mut Edit<'_>) -> T + Send,
{
    fn key(&self) -> &Key {
        &self.key
    }

    fn is_wanted(&self) -> bool {
        self.needed || !self.reply.is_closed()
    }

    fn seat(&self) -> Option<&(Id, Arc<Notify>)> {
        self.seat.as_ref()
    }

    fn change(&mut self, rules: &mut Rules<Asker>, edit: &mut Edit<'_>) {
        self.out = Some((self.change)(rules, edit));
    }

    fn settled(&mut self, rules: &Rules<Asker>, here: &Here) {
        if let Some(out) = &mut self.out {
            (self.look)(out, rules, here);
        }
    }

    fn tries_again(&mut self, _: &Failure) -> bool {
        false
    }

    fn finish(self: Box<Self>, failed: Option<&Failure>) {
        let answer = match (failed, self.out) {
            (None, Some(out)) => Ok(out),
            (Some(failed), _) => Err(error::of(self.during, failed)),
            (None, None) => Err(error::gone(self.during)),
        };
        let _ = self.reply.send(answer);
    }
}

/// How a key stands after a change, for those who wait for it here.
pub(super) struct View {
    pub(super) queue: Vec<Id>,
    /// When something of another process or a lease ends by itself.
    pub(super) due: Moment,
}

impl View {
    pub(super) fn of(rules: &Rules<Asker>, here: &Here) -> Self {
        let others = rules.queue.iter().filter(|w| w.extra.client != here.client);
        let alive = others.map(|w| w.extra.alive).min().unwrap_or(Moment::NEVER);
        View {
            queue: rules.queue.iter().map(|w| w.id).collect(),
            due: rules.next_expiry().min(alive),
        }
    }
}

/// Makes one change. The script holds what the transaction has still to do, and again after it:
/// so a change costs one way to the connection, and the last one another.
pub(super) async fn edit(
    connection: &mut SqliteConnection,
    script: &mut Script,
    here: &Here,
    job: &mut dyn Job,
) -> Result<View, Failure> {
    let key = job.key().clone();
    let shard = shard(key.as_str());
    script.put(LOAD).bind(key.as_str()).bind(key.as_str()).bind(shard);
    let rows = script.run(connection).await.map_err(explain)?;
    let now = here.now();
    let mut record = Record::of(&rows, now)?;
    let mut rules = std::mem::take(&mut record.rules);
    prune(&mut rules, now);
    let mut next = || record.next_fence(now);
    let mut edit = Edit { now: now.moment, next: &mut next };
    job.change(&mut rules, &mut edit);
    rules.admit(now.moment, &mut edit.fences(), |_| {});
    job.settled(&rules, here);
    let view = View::of(&rules, here);
    record.rules = rules;
    record.save(script, key.as_str(), shard, now);
    Ok(view)
}

/// The rules of a key without a change, and whether one is due.
pub(super) async fn peek(
    readers: &sqlx::SqlitePool,
    here: &Here,
    key: &Key,
) -> Result<(Rules<Asker>, bool), Failure> {
    let rows = sqlx::query(PEEK).bind(key.as_str()).fetch_all(readers).await.map_err(explain)?;
    let now = here.now();
    let mut rules = Record::of(&rows, now)?.rules;
    let due = prune(&mut rules, now);
    Ok((rules, due))
}

/// Ends what ran out and what belongs to the dead; true when there was something.
pub(super) fn prune(rules: &mut Rules<Asker>, now: Now) -> bool {
    let before = rules.queue.len();
    rules.queue.retain(|w| w.extra.alive > now.moment);
    rules.expire(now.moment) || before != rules.queue.len()
}

/// One page, and keys of which nothing is left but rows.
pub(super) async fn list(
    sqlite: Sqlite,
    here: Arc<Here>,
    prefix: String,
    page: PageRequest,
) -> Result<(Page, Vec<Key>), Failure> {
    const STEP: i64 = 256;
    let mut after = page.after.clone().unwrap_or_default();
    let (mut found, mut over) = (Vec::new(), Vec::new());
    loop {
        let query = sqlx::query(PAGE).bind(&*prefix).bind(&*after).bind(STEP);
        let rows = query.fetch_all(sqlite.readers()).await.map_err(explain)?;
        let (now, report) = (here.now(), Reporter::new(&*here.clock));
        let keys = Record::many(rows, now)?;
        let more = keys.len() as i64 == STEP;
        for (key, mut rules) in keys {
            after.clone_from(&key);
            if !key.starts_with(&prefix) {
                return Ok((Page::cut(found, &page), over));
            }
            prune(&mut rules, now);
            if !rules.is_empty() {
                found.push(report.inspection(&key, &rules, Asker::label));
            } else {
                over.extend(Key::try_from(key));
            }
        }
        if !more || found.len() > page.limit {
            return Ok((Page::cut(found, &page), over));
        }
    }
}
