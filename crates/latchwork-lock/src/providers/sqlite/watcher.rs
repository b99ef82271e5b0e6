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
use super::schema::{COMMIT, DATA_VERSION, ROLLBACK, SHORT_TIMEOUT};
use super::scripts::Script;
use super::store::{Job, Sheet, View};
use super::watch::Desk;
use crate::rules::Id;
use crate::{Grant, Key, Moment};

/// How often a change of another process is looked for while somebody waits.
pub(super) const TICK: Duration = Duration::from_millis(25);
/// The most that share a transaction.
const BATCH: usize = 64;
/// The pause before a failed release is tried again.
pub(super) const PAUSE: Duration = Duration::from_millis(200);

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
    /// None after a failure, until it is needed again.
    pub(super) connection: Option<SqliteConnection>,
    pub(super) desk: Desk,
    /// Releases to be tried again, and since when.
    pub(super) later: VecDeque<Box<dyn Job>>,
    pub(super) failed: Moment,
    /// The data version seen last.
    pub(super) version: i64,
    /// When the waiters were last said to be alive, and looked after.
    pub(super) beat: Moment,
    pub(super) ticked: Moment,
    /// How many changes were made since the last look for what was left behind, and when that was.
    pub(super) made: usize,
    pub(super) swept: Moment,
}

/// What a transaction has done.
struct Done {
    /// How the key of each change stands after it.
    views: Vec<View>,
    /// Leases that waiters of this process have now.
    handed: Vec<(Key, Id, Grant)>,
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
        self.sweep_if_due().await;
    }

    /// Makes changes in one transaction; if one of them is at fault, each in its own.
    pub(super) async fn change(&mut self, mut batch: Vec<Box<dyn Job>>) {
        batch.retain(|job| job.is_wanted());
        if batch.is_empty() {
            return;
        }
        self.made += batch.len();
        match self.patiently(&mut batch).await {
            Ok(done) => self.done(batch, done),
            // What may pass concerns all of them.
            Err(failure) if failure.fault == Fault::Permanent && batch.len() > 1 => {
                tracing::debug!(%failure, "changes are made one by one");
                for job in batch {
                    let mut alone = vec![job];
                    match self.patiently(&mut alone).await {
                        Ok(done) => self.done(alone, done),
                        Err(failure) => self.failed(alone, &failure),
                    }
                }
            }
            Err(failure) => self.failed(batch, &failure),
        }
    }

    fn done(&mut self, batch: Vec<Box<dyn Job>>, done: Done) {
        let now = self.here.clock.now();
        let mut handed = done.handed;
        handed.retain(|(key, id, grant)| !self.desk.hand(key, *id, *grant, now));
        for (job, view) in batch.into_iter().zip(&done.views) {
            let key = job.key().clone();
            if let Some(seat) = job.seat() {
                if self.desk.is_empty() {
                    self.beat = now;
                }
                self.desk.join(&key, seat);
                if view.queue.contains(&seat.id) {
                    seat.handed.waits();
                }
                // It came and was let in within this very transaction.
                for (_, id, grant) in handed.iter().filter(|(_, id, _)| *id == seat.id) {
                    self.desk.hand(&key, *id, *grant, now);
                }
            }
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
    async fn patiently(&mut self, batch: &mut [Box<dyn Job>]) -> Result<Done, Failure> {
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

    async fn transaction(&mut self, batch: &mut [Box<dyn Job>]) -> Result<Done, Failure> {
        if let [job] = batch
            && !self.desk.waits_for(job.key())
            && let Some(done) = self.shortly(&mut **job).await?
        {
            return Ok(done);
        }
        let here = self.here.clone();
        let mut seated = self.desk.seated();
        seated.extend(batch.iter().filter_map(|job| job.seat()).map(|seat| seat.id));
        let connection = self.connection().await?;
        let mut script = Script::default();
        script.put(BEGIN);
        let mut sheet = match Sheet::load(connection, &mut script, &here, batch, seated).await {
            Ok(sheet) => sheet,
            Err(failure) => return Err(self.undo(failure).await),
        };
        let views = batch.iter_mut().map(|job| sheet.edit(&here, &mut **job)).collect();
        sheet.save(&mut script);
        let done = script.put(COMMIT).run(connection).await;
        match done.map_err(explain).and_then(|_| self.sqlite.still_there()) {
            Ok(()) => Ok(Done { views, handed: sheet.handed }),
            Err(failure) => Err(self.undo(failure).await),
        }
    }

    /// One change that comes alone, in one way to the connection if nobody else uses its key; else
    /// nothing was done.
    async fn shortly(&mut self, job: &mut dyn Job) -> Result<Option<Done>, Failure> {
        let here = self.here.clone();
        let now = here.now();
        let connection = self.connection().await?;
        let mut script = Script::default();
        script.put(BEGIN);
        let Some(short) = job.short() else { return Ok(None) };
        short.put(&mut script, job.key().as_str(), now);
        let done = script.put(COMMIT).run(connection).await.map_err(explain);
        let rows = match done.and_then(|rows| self.sqlite.still_there().map(|()| rows)) {
            Ok(rows) => rows,
            Err(failure) => return Err(self.undo(failure).await),
        };
        let [row] = &*rows else { return Ok(None) };
        let mut sheet = short.before(job.key().as_str(), row, now)?;
        let views = vec![sheet.edit(&here, job)];
        Ok(Some(Done { views, handed: Vec::new() }))
    }

    /// Rolls back what may have begun. A connection of which that is not sure is not used again.
    pub(super) async fn undo(&mut self, failure: Failure) -> Failure {
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

    pub(super) async fn connection(&mut self) -> Result<&mut SqliteConnection, Failure> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(&self.sqlite).await?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Releases that failed for a while.
    pub(super) async fn retry(&mut self) {
        let again: Vec<_> = self.later.drain(..).collect();
        self.change(again).await;
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
