//! The one thread behind a provider: all writes go through it, in the order in which they were
//! asked for, so that no dropped future leaves one half done and a drop needs no runtime (L21).
//!
//! What was asked for while a transaction was under way shares the next one. While somebody
//! waits here, the thread also looks for other processes' changes, for leases that ran out, and
//! says once a second that its waiters are alive.
//!
//! SQLite waits for another writer by sleeping longer and longer, so that a busy process starves the
//! others. Here it sleeps for a short time only, and is asked again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use latchwork_sql::Fault;
use latchwork_sql::sqlite::{BEGIN, BUSY_TIMEOUT, Sqlite, explain, is_busy};
use sqlx::{Connection, SqliteConnection};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use super::boot::Here;
use super::record::Record;
use super::release::Tidy;
use super::schema::{COMMIT, DATA_VERSION, HEARTBEAT, OVER, ROLLBACK, SHORT_TIMEOUT, WAITED};
use super::scripts::Script;
use super::store::{Job, View, edit, prune};
use super::watch::Desk;
use crate::{Key, Moment};

/// How often a change of another process is looked for while somebody waits.
const TICK: Duration = Duration::from_millis(25);
/// How often waiters are said to be alive, and for how long that is believed: longer than a
/// writer waits for another one, lest one outage empties the queue.
const BEAT: Duration = Duration::from_secs(1);
pub(super) const ALIVE: Duration = Duration::from_secs(8);
/// The most that share a transaction.
const BATCH: usize = 64;
/// How many changes are made, and how much time passes, between two looks for what was left behind.
const SWEEP: usize = 256;
const SWEEP_PAUSE: Duration = Duration::from_secs(30);
/// The pause before a failed release is tried again.
const PAUSE: Duration = Duration::from_millis(200);

pub(super) type Failure = latchwork_sql::Error;

/// What the thread is asked for.
pub(super) enum Order {
    Change(Box<dyn Job>),
    Read(Box<dyn FnOnce(Sqlite, Arc<Here>) -> BoxFuture<'static, ()> + Send>),
    /// Told when everything before was tried.
    Tell(oneshot::Sender<()>),
}

pub(super) struct Watcher {
    pub(super) sqlite: Sqlite,
    pub(super) here: Arc<Here>,
    pub(super) orders: UnboundedReceiver<Order>,
    pub(super) connection: Option<SqliteConnection>,
    pub(super) desk: Desk,
    pub(super) later: VecDeque<Box<dyn Job>>,
    pub(super) failed: Moment,
    pub(super) version: i64,
    pub(super) beat: Moment,
    pub(super) ticked: Moment,
    pub(super) made: usize,
    pub(super) swept: Moment,
}

impl Watcher {
    /// Until nobody can ask any more.
    pub(super) async fn run(mut self) {
        self.sweep().await;
        let mut orders = Vec::new();
        loop {
            let pause = match (self.desk.is_empty(), self.later.is_empty()) {
                (false, _) => Some(TICK),
                (true, false) => Some(PAUSE),
                (true, true) => None,
            };
            let got = match pause {
                None => self.orders.recv_many(&mut orders, BATCH).await,
                Some(pause) => {
                    let next = self.orders.recv_many(&mut orders, BATCH);
                    match tokio::time::timeout(pause, next).await {
                        Ok(got) => got,
                        Err(_) => {
                            self.tick().await;
                            continue;
                        }
                    }
                }
            };
            if got == 0 {
                break;
            }
            self.take(&mut orders).await;
            // Orders may come without a pause for as long as they like.
            if self.here.clock.now() >= self.ticked.after(TICK) {
                self.tick().await;
            }
        }
        self.retry().await;
        if let Some(connection) = self.connection.take() {
            let _ = connection.close().await;
        }
        self.sqlite.close().await;
    }

    async fn take(&mut self, orders: &mut Vec<Order>) {
        let mut batch: Vec<Box<dyn Job>> = Vec::new();
        for order in orders.drain(..) {
            match order {
                Order::Change(job) => batch.push(job),
                Order::Read(read) => {
                    // A read sees what was asked for before it.
                    self.change(std::mem::take(&mut batch)).await;
                    tokio::spawn(read(self.sqlite.clone(), self.here.clone()));
                }
                Order::Tell(tell) => {
                    self.change(std::mem::take(&mut batch)).await;
                    let _ = tell.send(());
                }
            }
        }
        self.change(batch).await;
        if self.made >= SWEEP && self.here.clock.now() >= self.swept.after(SWEEP_PAUSE) {
            self.sweep().await;
        }
    }

    /// Makes changes in one transaction; if one of them is at fault, each in its own.
    async fn change(&mut self, mut batch: Vec<Box<dyn Job>>) {
        batch.retain(|job| job.is_wanted());
        if batch.is_empty() {
            return;
        }
        self.made += batch.len();
        match self.patiently(&mut batch).await {
            Ok(views) => self.done(batch, &views),
            // What may pass concerns all of them.
            Err(failure) if failure.fault == Fault::Permanent && batch.len() > 1 => {
                tracing::debug!(%failure, "changes are made one by one");
                for job in batch {
                    let mut alone = vec![job];
                    match self.patiently(&mut alone).await {
                        Ok(views) => self.done(alone, &views),
                        Err(failure) => self.failed(alone, &failure),
                    }
                }
            }
            Err(failure) => self.failed(batch, &failure),
        }
    }

    fn done(&mut self, batch: Vec<Box<dyn Job>>, views: &[View]) {
        for (job, view) in batch.into_iter().zip(views) {
            if let Some((id, notify)) = job.seat() {
                if self.desk.is_empty() {
                    self.beat = self.here.clock.now();
                }
                self.desk.join(job.key(), *id, notify);
            }
            let key = job.key().clone();
            job.finish(None);
            self.desk.see(&key, view);
        }
    }

    fn failed(&mut self, batch: Vec<Box<dyn Job>>, failure: &Failure) {
        for mut job in batch {
            if job.tries_again(failure) {
                self.failed = self.here.clock.now();
                self.later.push_back(job);
            } else {
                job.finish(Some(failure));
            }
        }
    }

    /// A transaction, as soon as other processes let us.
    async fn patiently(&mut self, batch: &mut [Box<dyn Job>]) -> Result<Vec<View>, Failure> {
        let patience = self.here.clock.now().after(BUSY_TIMEOUT);
        loop {
            match self.transaction(batch).await {
                Err(failure) if is_busy(&failure) && self.here.clock.now() < patience => {
                    tokio::time::sleep(Duration::from_micros(rand::random_range(200..2_000))).await;
                }
                done => return done,
            }
        }
    }

    async fn transaction(&mut self, batch: &mut [Box<dyn Job>]) -> Result<Vec<View>, Failure> {
        let here = self.here.clone();
        let connection = self.connection().await?;
        let mut script = Script::default();
        script.put(BEGIN);
        let mut views = Vec::with_capacity(batch.len());
        for job in batch {
            match edit(connection, &mut script, &here, &mut **job).await {
                Ok(view) => views.push(view),
                Err(failure) => return Err(self.undo(failure).await),
            }
        }
        let done = script.put(COMMIT).run(connection).await;
        match done.map_err(explain).and_then(|_| self.sqlite.still_there()) {
            Ok(()) => Ok(views),
            Err(failure) => Err(self.undo(failure).await),
        }
    }

    /// Rolls back what may have begun. A connection of which that is not sure is not used again.
    async fn undo(&mut self, failure: Failure) -> Failure {
        if let Some(mut connection) = self.connection.take() {
            let undone = sqlx::query(ROLLBACK).execute(&mut connection).await;
            let nothing_began = |e: &sqlx::Error| {
                e.as_database_error().is_some_and(|e| e.message().contains("no transaction"))
            };
            if undone.as_ref().err().is_none_or(nothing_began) {
                self.connection = Some(connection);
            }
        }
        failure
    }

    async fn connection(&mut self) -> Result<&mut SqliteConnection, Failure> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(&self.sqlite).await?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Releases that failed for a while.
    async fn retry(&mut self) {
        let again: Vec<_> = self.later.drain(..).collect();
        self.change(again).await;
    }

    /// What is done for those who wait here, and what failed before.
    async fn tick(&mut self) {
        self.ticked = self.here.clock.now();
        if !self.later.is_empty() && self.ticked >= self.failed.after(PAUSE) {
            self.retry().await;
        }
        if self.desk.is_empty() {
            return;
        }
        let beats = self.ticked >= self.beat.after(BEAT);
        if let Err(failure) = self.look(beats).await {
            if is_busy(&failure) && self.ticked < self.beat.after(BUSY_TIMEOUT) {
                return; // the next tick is soon
            }
            // They ask, and are told what is wrong.
            tracing::debug!(%failure, "waiters could not be looked after");
            self.undo(failure).await;
            self.desk.call_all();
            return;
        }
        let due = self.desk.due(self.here.clock.now());
        self.tidy(due).await;
    }

    /// Whether another process changed something for our waiters.
    async fn look(&mut self, beats: bool) -> Result<(), Failure> {
        let here = self.here.clone();
        let connection = self.connection().await?;
        let version = version(connection).await?;
        let mut alive = None;
        if beats {
            let until = here.now();
            let until = until.stamp(until.moment.after(ALIVE));
            let query = sqlx::query(HEARTBEAT).bind(here.client).bind(until.boot);
            let query = query.bind(until.at).bind(until.ns);
            alive = Some(query.execute(&mut *connection).await.map_err(explain)?.rows_affected());
        }
        let changed = version != std::mem::replace(&mut self.version, version);
        if beats {
            self.beat = here.clock.now();
        }
        // Some are no longer in the file: this process was stopped for longer than it was believed.
        if alive.is_some_and(|alive| alive < self.desk.len() as u64) {
            self.desk.call_all();
        } else if changed || beats {
            self.read().await?;
        }
        Ok(())
    }

    async fn read(&mut self) -> Result<(), Failure> {
        let here = self.here.clone();
        let connection = self.connection().await?;
        let query = sqlx::query(WAITED).bind(here.client);
        let rows = query.fetch_all(&mut *connection).await.map_err(explain)?;
        let now = here.now();
        let mut unseen = self.desk.keys();
        for (name, mut rules) in Record::many(rows, now)? {
            let Some(at) = unseen.iter().position(|key| key.as_str() == name) else { continue };
            let key = unseen.swap_remove(at);
            let mut view = View::of(&rules, &here);
            if prune(&mut rules, now) {
                view.due = Moment::default();
            }
            self.desk.see(&key, &view);
        }
        // Nobody of ours waits there any more.
        for key in unseen {
            self.desk.see(&key, &View { queue: Vec::new(), due: Moment::NEVER });
        }
        Ok(())
    }

    /// Removes what the killed have left.
    async fn sweep(&mut self) {
        (self.made, self.swept) = (0, self.here.clock.now());
        let over = self.here.now().wall;
        let Ok(connection) = self.connection().await else { return };
        let keys: Result<Vec<String>, _> =
            sqlx::query_scalar(OVER).bind(over).fetch_all(connection).await;
        let keys = keys.unwrap_or_default().into_iter().flat_map(Key::try_from).collect();
        self.tidy(keys).await;
    }

    async fn tidy(&mut self, keys: Vec<Key>) {
        let jobs = keys.into_iter().map(|key| Box::new(Tidy(key)) as Box<dyn Job>);
        self.change(jobs.collect()).await;
    }
}

/// The connection that writes.
pub(super) async fn connect(sqlite: &Sqlite) -> Result<SqliteConnection, Failure> {
    let mut connection = sqlite.connect().await?;
    sqlx::query(SHORT_TIMEOUT).execute(&mut connection).await.map_err(explain)?;
    Ok(connection)
}

pub(super) async fn version(connection: &mut SqliteConnection) -> Result<i64, Failure> {
    sqlx::query_scalar(DATA_VERSION).fetch_one(connection).await.map_err(explain)
}
