//! The thread that makes all changes of a provider, in the order in which they were requested. So no
//! dropped future and no runtime that ends leaves a change half done (L21).
//!
//! It calls SQLite itself: the driver would do so on another thread, and switching threads costs more
//! than a change that need not be synced.
//!
//! Changes that were requested while a transaction was in progress share the next one. While there are
//! waiters in this process, the thread also looks for changes of other processes and for expired
//! leases, and stores once a second that its waiters are alive: see [`notify`](super::notify).
//!
//! SQLite waits for another writer by sleeping longer and longer, so that a busy process starves the
//! others. Here it sleeps for a short time only, and is called again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::Duration;

use latchwork_sql::Fault;
use latchwork_sql::sqlite::{BEGIN, BUSY_TIMEOUT, Direct, Sqlite, explain_direct, is_busy};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::boot::LocalProcess;
use super::error::Failure;
use super::jobs::Job;
use super::record::run;
use super::schema::{COMMIT, DATA_VERSION, ROLLBACK};
use super::store::{KeySet, View};
use crate::coordination::waiters::WaiterRegistry;
use crate::rules::Id;
use crate::{Grant, Key, Moment};

/// How often changes of other processes are looked for while there are waiters: often, because a look
/// is one `PRAGMA data_version`, and a hand-over between processes takes half of this on average.
pub(super) const TICK: Duration = Duration::from_millis(5);
/// The same where a waiter of this process is the next in a queue. One process of a queue is.
const NEXT_TICK: Duration = Duration::from_millis(1);
/// The most changes that share a transaction.
const BATCH: usize = 64;
/// The pause before a failed release is tried again.
pub(super) const PAUSE: Duration = Duration::from_millis(200);
/// How long SQLite itself waits for another writer.
const SHORT_TIMEOUT: Duration = Duration::from_millis(10);
/// How long the thread stays awake after a lone request, because its caller may well send the next one
/// at once: about as long as it takes to fall asleep and be woken. With several callers, sleep
/// gathers their requests.
const AWAKE: Duration = Duration::from_micros(50);
/// More than there are different statements.
const STATEMENTS: usize = 32;

/// A read, which is told if there is no connection.
type Look = Box<dyn FnOnce(Result<&Connection, Failure>, &LocalProcess) + Send>;

/// A request to the thread.
pub(super) enum Order {
    Change(Box<dyn Job>),
    Read(Look),
    /// Answered when everything before was tried.
    Tell(oneshot::Sender<()>),
}

pub(super) struct Writer {
    pub(super) sqlite: Sqlite,
    pub(super) direct: Direct,
    pub(super) here: Arc<LocalProcess>,
    pub(super) orders: Receiver<Order>,
    /// None after a failure, until it is needed again.
    pub(super) connection: Option<Connection>,
    pub(super) waiters: Arc<WaiterRegistry>,
    /// The keys that have waiters in this process.
    pub(super) waited: HashMap<Key, Waited>,
    /// Places that outlive their calls, and until when; while a call waits, they are its own.
    pub(super) kept: HashMap<Id, (Key, Moment)>,
    /// Releases to be tried again, and since when.
    pub(super) later: VecDeque<Box<dyn Job>>,
    pub(super) failed: Moment,
    /// The data version seen last.
    pub(super) version: i64,
    /// When the last heartbeat was stored, and the last tick was.
    pub(super) beat: Moment,
    pub(super) ticked: Moment,
    /// How many changes were made since the last sweep, and when that was.
    pub(super) made: usize,
    pub(super) swept: Moment,
}

/// A key that has waiters in this process.
pub(super) struct Waited {
    /// When something of it expires.
    pub(super) due: Moment,
    /// Whether one of ours is the next in the queue.
    is_next: bool,
}

/// What a transaction has done.
struct Done {
    /// How the key of each change stands after it.
    views: Vec<View>,
    /// Leases that waiters of this process have now.
    granted: Vec<(Id, Grant)>,
}

impl Writer {
    /// Runs until all senders are dropped.
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
            // Orders may come without a pause.
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
        match (self.waited.is_empty(), self.later.is_empty() && self.kept.is_empty()) {
            (false, _) => self.orders.recv_timeout(self.interval()),
            (true, false) => self.orders.recv_timeout(PAUSE),
            (true, true) => self.orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn interval(&self) -> Duration {
        if self.waited.values().any(|it| it.is_next) { NEXT_TICK } else { TICK }
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
        match self.retry_while_busy(&mut batch) {
            Ok(done) => self.done(batch, done),
            // A temporary failure concerns all of them.
            Err(failure) if failure.fault == Fault::Permanent && batch.len() > 1 => {
                tracing::debug!(%failure, "changes are made one by one");
                for job in batch {
                    let mut alone = vec![job];
                    match self.retry_while_busy(&mut alone) {
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
        for (job, view) in batch.iter().zip(&done.views) {
            let is_granted = |id: &Id| done.granted.iter().any(|(granted, _)| granted == id);
            let queued = |id: &Id| view.queue.contains(id) || is_granted(id);
            if let Some(id) = job.waiter().filter(queued) {
                if self.waited.is_empty() {
                    self.beat = now;
                }
                self.waiters.mark_queued(id);
                if let Some(span) = job.keep_for() {
                    self.kept.insert(id, (job.key().clone(), now.after(span)));
                }
                let waited = Waited { due: Moment::NEVER, is_next: false };
                self.waited.entry(job.key().clone()).or_insert(waited);
            }
        }
        for (id, grant) in done.granted {
            self.waiters.deliver_grant(id, grant, now);
        }
        for (job, view) in batch.into_iter().zip(&done.views) {
            let key = job.key().clone();
            job.finish(None);
            self.see(&key, view);
        }
    }

    /// Wakes the waiters of this process that are no longer queued for the key.
    pub(super) fn see(&mut self, key: &Key, view: &View) {
        if let Some(waited) = self.waited.get_mut(key) {
            waited.due = view.due;
            waited.is_next = view.queue.first().is_some_and(|id| self.waiters.is_registered(*id));
            self.waiters.wake_unqueued(key, &view.queue);
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

    /// A transaction, retried while another process writes.
    fn retry_while_busy(&mut self, batch: &mut [Box<dyn Job>]) -> Result<Done, Failure> {
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
        let (here, waiters) = (self.here.clone(), self.waiters.clone());
        let connection = self.connection()?;
        run(connection, BEGIN, ())?;
        let names: Vec<&Key> = batch.iter().map(|job| job.key()).collect();
        let mut keys = KeySet::load(connection, &here, &names)?;
        let mut views = Vec::with_capacity(batch.len());
        for job in batch {
            let key = job.key().clone();
            let rules = keys.edit(&here, &waiters, &key, |rules, edit| job.change(rules, edit));
            job.settled(rules, &here);
            views.push(View::of(rules, &here));
        }
        keys.save(connection)?;
        run(connection, COMMIT, ())?;
        self.sqlite.still_there()?;
        Ok(Done { views, granted: keys.granted })
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
