//! A map behind a lock, and what is due in order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use latchwork_lock::provider::Moment;
use latchwork_lock::{Clock, SystemClock};
use parking_lot::Mutex;
use serde_json::Value;

use crate::store::{
    Beat, Cancelled, Claim, ContextDraft, ContextFilter, ContextPage, ContextPageRequest,
    ContextStore, DueClaim, GiveBack, Proof, RunClaim, SUSPECT, Save, Saved, StoredContext,
};
use crate::{Contexts, Error, Result, TransitionId};

/// A store of contexts in memory. Clones are the same store.
#[derive(Clone)]
pub struct InMemoryContextStore {
    inner: Arc<Inner>,
}

struct Inner {
    rows: Mutex<Rows>,
    clock: Arc<dyn Clock>,
    started: (Moment, DateTime<Utc>),
}

impl Inner {
    /// The wall clock at the start, and what has passed since: a wall clock that is set must not end
    /// a run-lease.
    fn now(&self) -> DateTime<Utc> {
        self.started.1 + self.clock.now().since(self.started.0)
    }
}

#[derive(Default)]
struct Rows {
    by_id: BTreeMap<TransitionId, StoredContext>,
    due: BTreeSet<(String, DateTime<Utc>, TransitionId)>,
}

impl InMemoryContextStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::with_clock(SystemClock::shared())
    }

    /// An empty store whose time a test can move.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let started = (clock.now(), clock.wall());
        InMemoryContextStore { inner: Arc::new(Inner { rows: Mutex::default(), clock, started }) }
    }

    /// One change of one row.
    fn edit<T>(
        &self,
        id: TransitionId,
        change: impl FnOnce(&mut StoredContext, DateTime<Utc>) -> Result<T>,
    ) -> Result<T> {
        let rows = &mut *self.inner.rows.lock();
        let now = self.inner.now();
        let row = rows.by_id.get_mut(&id).ok_or_else(|| Error::context_not_found(id))?;
        let before = row.head.due_at;
        let out = change(row, now)?;
        if before != row.head.due_at {
            let entry = |at| (row.head.machine.clone(), at, id);
            before.map(|at| rows.due.remove(&entry(at)));
            row.head.due_at.map(|at| rows.due.insert(entry(at)));
        }
        Ok(out)
    }
}

impl Rows {
    fn remove(&mut self, id: TransitionId) {
        if let Some(row) = self.by_id.remove(&id)
            && let Some(at) = row.head.due_at
        {
            self.due.remove(&(row.head.machine, at, id));
        }
    }
}

/// That there is no such row, where that is no error.
fn unless_gone<T: Default>(answer: Result<T>) -> Result<T> {
    match answer {
        Err(error) if error.code() == "context_not_found" => Ok(T::default()),
        other => other,
    }
}

impl ContextStore for InMemoryContextStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn separate(&self) -> Result<Option<Contexts>> {
        Ok(None)
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        Ok(self.inner.now())
    }

    async fn create(&self, draft: &ContextDraft, run: Option<&RunClaim>) -> Result<u64> {
        let rows = &mut *self.inner.rows.lock();
        if let Some(row) = rows.by_id.get(&draft.id) {
            let known = row.is_repetition(draft, run);
            return if known { Ok(1) } else { Err(Error::context_exists(draft.id)) };
        }
        let row = StoredContext::create(draft, run, self.inner.now());
        row.head.due_at.map(|at| rows.due.insert((row.head.machine.clone(), at, draft.id)));
        rows.by_id.insert(draft.id, row);
        Ok(1)
    }

    async fn load(&self, id: TransitionId) -> Result<Option<StoredContext>> {
        Ok(self.inner.rows.lock().by_id.get(&id).cloned())
    }

    async fn claim(
        &self,
        id: TransitionId,
        revision: Option<u64>,
        claim: &RunClaim,
    ) -> Result<StoredContext> {
        self.edit(id, |row, now| {
            row.claim(revision, claim, now)?;
            Ok(row.clone())
        })
    }

    async fn claim_due(&self, due: &DueClaim<'_>) -> Result<Vec<StoredContext>> {
        let rows = &mut *self.inner.rows.lock();
        let now = self.inner.now();
        let from = (due.machine.to_owned(), DateTime::<Utc>::MIN_UTC, TransitionId::LEAST);
        let found = rows.due.range(from..);
        let found = found.take_while(|(of, at, _)| of == due.machine && *at <= now);
        let (mut claimed, mut suspects) = (Vec::new(), usize::from(!due.beside_suspect));
        let mut moved = Vec::new();
        for entry in found {
            let Some(row) = rows.by_id.get_mut(&entry.2) else { continue };
            let suspect = row.head.attempts >= SUSPECT;
            if claimed.len() >= due.limit {
                break;
            }
            if suspect && suspects == 0 {
                continue;
            }
            let claim = row.claim_due(due, now);
            if claim == Claim::Left {
                continue;
            }
            let at = row.head.due_at.map(|at| (due.machine.to_owned(), at, entry.2));
            moved.push((entry.clone(), at));
            if claim == Claim::Taken {
                suspects -= usize::from(suspect);
                claimed.push(row.clone());
            }
        }
        for (before, after) in moved {
            rows.due.remove(&before);
            rows.due.extend(after);
        }
        Ok(claimed)
    }

    async fn next_due(&self, machine: &str) -> Result<Option<Duration>> {
        let rows = self.inner.rows.lock();
        let from = (machine.to_owned(), DateTime::<Utc>::MIN_UTC, TransitionId::LEAST);
        let next = rows.due.range(from..).next().filter(|(of, _, _)| of == machine);
        let now = self.inner.now();
        Ok(next.map(|(_, at, _)| (*at - now).to_std().unwrap_or_default()))
    }

    async fn save(&self, save: &Save<'_>) -> Result<Saved> {
        self.edit(save.draft.id, |row, now| row.save(save, now))
    }

    async fn heartbeat(&self, proof: Proof, ttl: Duration) -> Result<Beat> {
        unless_gone(self.edit(proof.id, |row, now| Ok(row.heartbeat(proof.token, ttl, now))))
    }

    async fn release(&self, proof: Proof, how: &GiveBack<'_>) -> Result<bool> {
        unless_gone(self.edit(proof.id, |row, now| Ok(row.release(proof.token, how, now))))
    }

    async fn list(&self, filter: &ContextFilter, page: &ContextPageRequest) -> Result<ContextPage> {
        let rows = self.inner.rows.lock();
        let now = self.inner.now();
        let after = page.after.unwrap_or(TransitionId::LEAST);
        let found = rows.by_id.range(after..).filter(|(id, _)| page.after != Some(**id));
        let found = found.filter(|(_, row)| filter.lets_through(&row.head, now));
        let found = found.take(page.limit + 1).map(|(_, row)| Ok(row.head.summary()));
        Ok(ContextPage::cut(found, page.limit))
    }

    async fn signal(&self, id: TransitionId, name: &str, payload: &Value) -> Result<()> {
        self.edit(id, |row, now| row.signal(name, payload, now))
    }

    async fn cancel(&self, id: TransitionId, reason: &str) -> Result<Cancelled> {
        self.edit(id, |row, now| row.cancel(reason, now))
    }

    async fn wake(&self, id: TransitionId) -> Result<()> {
        self.edit(id, |row, now| row.wake(now))
    }

    async fn retry(&self, id: TransitionId) -> Result<()> {
        self.edit(id, |row, now| row.retry(now))
    }

    async fn release_quarantined(&self, id: TransitionId) -> Result<bool> {
        self.edit(id, |row, now| Ok(row.release_quarantined(now)))
    }

    async fn delete(&self, id: TransitionId) -> Result<bool> {
        let rows = &mut *self.inner.rows.lock();
        let done = rows.by_id.get(&id).is_some_and(|row| row.head.is_removable());
        if done {
            rows.remove(id);
        }
        Ok(done)
    }

    async fn prune(&self, over_for: Duration, limit: usize) -> Result<u64> {
        let rows = &mut *self.inner.rows.lock();
        let now = self.inner.now();
        let old = |row: &StoredContext| {
            (now - row.head.updated_at).to_std().unwrap_or_default() >= over_for
        };
        let done = rows.by_id.values().filter(|row| row.head.is_removable() && old(row));
        let done: Vec<_> = done.map(|row| row.head.id).take(limit).collect();
        for id in &done {
            rows.remove(*id);
        }
        Ok(done.len() as u64)
    }
}

impl Default for InMemoryContextStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for InMemoryContextStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.inner.rows.lock().by_id.len();
        f.debug_struct("InMemoryContextStore").field("contexts", &count).finish_non_exhaustive()
    }
}
