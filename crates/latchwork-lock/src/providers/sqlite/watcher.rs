//! The one thread behind a provider: all writes go through it, in the order in which they were
//! asked for, so that no dropped future leaves one half done and neither a drop nor a runtime that
//! ends does (L21).
//!
//! It runs SQLite itself: the driver would do so on one more thread, and to wake a thread and be
//! woken by it costs more than a change that need not be synced.
//!
//! What was asked for while a transaction was under way shares the next one. While somebody
//! waits here, the thread also looks for other processes' changes, for leases that ran out, and
//! says once a second that its waiters are alive.
//!
//! SQLite waits for another writer by sleeping longer and longer, so that a busy process starves the
//! others. Here it sleeps for a short time only, and is asked again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::Duration;

use latchwork_sql::Fault;
use latchwork_sql::sqlite::{BEGIN, BUSY_TIMEOUT, Direct, Sqlite, explain_direct, is_busy};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::boot::Here;
use super::record::run;
use super::schema::{COMMIT, DATA_VERSION, ROLLBACK};
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
/// How long SQLite itself waits for another writer.
const SHORT_TIMEOUT: Duration = Duration::from_millis(10);
/// How long the thread stays awake when one has asked alone, who may well ask again at once: about
/// as long as it takes to fall asleep and be woken. Where several ask, sleep gathers them.
const AWAKE: Duration = Duration::from_micros(50);
/// More than there are different statements.
const STATEMENTS: usize = 32;

pub(super) type Failure = latchwork_sql::Error;
/// What reads, or is told why it cannot.
type Look = Box<dyn FnOnce(Result<&Connection, Failure>, &Here) + Send>;

/// What the thread is asked for.
pub(super) enum Order {
    Change(Box<dyn Job>),
    Read(Look),
    /// Told when everything before was tried.
    Tell(oneshot::Sender<()>),
}

pub(super) struct Watcher {
    pub(super) sqlite: Sqlite,
    pub(super) direct: Direct,
    pub(super) here: Arc<Here>,
    pub(super) orders: Receiver<Order>,
    /// None after a failure, until it is needed again.
    pub(super) connection: Option<Connection>,
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
    pub(super) fn run(mut self) {
        self.sweep();
        let mut orders = Vec::new();
        let mut alone = false;
        loop {
            let soon = if alone { self.soon() } else { None };
            match soon.map_or_else(|| self.next(), Ok) {
                Ok(order) => orders.push(order),
                Err(RecvTimeoutError::Timeout) => {
                    self.tick();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
            orders.extend(self.orders.try_iter().take(BATCH - 1));
            alone = orders.len() == 1;
            self.take(&mut orders);
            // Orders may come without a pause for as long as they like.
            if self.here.clock.now() >= self.ticked.after(TICK) {
                self.tick();
            }
        }
        self.retry();
    }

    /// The next order, if it comes at once.
    fn soon(&self) -> Option<Order> {
        let until = self.here.clock.now().after(AWAKE);
        loop {
            match self.orders.try_recv() {
                Ok(order) => return Some(order),
                Err(TryRecvError::Empty) if self.here.clock.now() < until => thread::yield_now(),
                Err(_) => return None,
            }
        }
    }

    /// The next order, or that it is time for a tick.
    fn next(&self) -> Result<Order, RecvTimeoutError> {
        match (self.desk.is_empty(), self.later.is_empty()) {
            (false, _) => self.orders.recv_timeout(TICK),
            (true, false) => self.orders.recv_timeout(PAUSE),
            (true, true) => self.orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn take(&mut self, orders: &mut Vec<Order>) {
        let mut batch: Vec<Box<dyn Job>> = Vec::new();
        for order in orders.drain(..) {
            match order {
                Order::Change(job) => batch.push(job),
                Order::Read(read) => {
                    // A read sees what was asked for before it.
                    self.change(std::mem::take(&mut batch));
                    let here = self.here.clone();
                    read(self.connection(), &here);
                }
                Order::Tell(tell) => {
                    self.change(std::mem::take(&mut batch));
                    let _ = tell.send(());
                }
            }
        }
        self.change(batch);
        self.sweep_if_due();
    }

    /// Makes changes in one transaction; if one of them is at fault, each in its own.
    pub(super) fn change(&mut self, mut batch: Vec<Box<dyn Job>>) {
        batch.retain(|job| job.is_wanted());
        if batch.is_empty() {
            return;
        }
        self.made += batch.len();
        match self.patiently(&mut batch) {
            Ok(done) => self.done(batch, done),
            // What may pass concerns all of them.
            Err(failure) if failure.fault == Fault::Permanent && batch.len() > 1 => {
                tracing::debug!(%failure, "changes are made one by one");
                for job in batch {
                    let mut alone = vec![job];
                    match self.patiently(&mut alone) {
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
    fn patiently(&mut self, batch: &mut [Box<dyn Job>]) -> Result<Done, Failure> {
        let patience = self.here.clock.now().after(BUSY_TIMEOUT);
        loop {
            match self.transaction(batch) {
                Err(failure) if is_busy(&failure) && self.here.clock.now() < patience => {
                    thread::sleep(Duration::from_micros(rand::random_range(200..2_000)));
                }
                done => return done,
            }
        }
    }

    fn transaction(&mut self, batch: &mut [Box<dyn Job>]) -> Result<Done, Failure> {
        match self.attempt(batch) {
            Ok(done) => Ok(done),
            Err(failure) => Err(self.undo(failure)),
        }
    }

    fn attempt(&mut self, batch: &mut [Box<dyn Job>]) -> Result<Done, Failure> {
        let here = self.here.clone();
        let mut seated = self.desk.seated();
        seated.extend(batch.iter().filter_map(|job| job.seat()).map(|seat| seat.id));
        let connection = self.connection()?;
        run(connection, BEGIN, ())?;
        let mut sheet = Sheet::load(connection, &here, batch, seated)?;
        let views = batch.iter_mut().map(|job| sheet.edit(&here, &mut **job)).collect();
        sheet.save(connection)?;
        run(connection, COMMIT, ())?;
        self.sqlite.still_there()?;
        Ok(Done { views, handed: sheet.handed })
    }

    /// Rolls back what may have begun. A connection of which that is not sure is not used again.
    pub(super) fn undo(&mut self, failure: Failure) -> Failure {
        self.connection =
            self.connection.take().filter(|it| it.is_autocommit() || run(it, ROLLBACK, ()).is_ok());
        failure
    }

    pub(super) fn connection(&mut self) -> Result<&Connection, Failure> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(&self.direct)?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Releases that failed for a while.
    pub(super) fn retry(&mut self) {
        let again: Vec<_> = self.later.drain(..).collect();
        self.change(again);
    }
}

/// The connection that writes.
pub(super) fn connect(direct: &Direct) -> Result<Connection, Failure> {
    let connection = direct.connect()?;
    connection.busy_timeout(SHORT_TIMEOUT).map_err(explain_direct)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

pub(super) fn version(connection: &Connection) -> Result<i64, Failure> {
    let found = connection.prepare_cached(DATA_VERSION);
    found.and_then(|mut it| it.query_row((), |row| row.get(0))).map_err(explain_direct)
}
