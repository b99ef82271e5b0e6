//! The thread that makes all changes of a store.
//!
//! Runs of one process save at the same time, and SQLite has one writer. A transaction for each save
//! would pay for its own pages of the log and, with `synchronous` FULL, for its own sync; and each of
//! its statements would go to a thread of the driver and back. So one thread has a connection of its
//! own, and changes that were requested while a transaction was in progress share the next one.
//!
//! A change is made entirely inside its transaction, and its caller is answered after the commit, so
//! what was answered is as durable as it would be alone. A change that the rules refuse has written
//! nothing and hinders no other. When SQLite itself fails, the transaction is rolled back, and if the
//! failure will not pass, each change is made in a transaction of its own.
//!
//! A change whose caller has gone before it was begun is not made.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use latchwork_lock::{Clock, SystemClock};
use latchwork_sql::Fault;
use latchwork_sql::sqlite::{BEGIN, BUSY_TIMEOUT, Direct, Sqlite, explain_direct, is_busy};
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::error::{self, Failure};
use super::schema::{COMMIT, ROLLBACK};
use crate::{Error, Result};

/// The most changes that share a transaction.
const BATCH: usize = 64;
/// How long SQLite itself waits for another process: it sleeps longer and longer, so that a busy process
/// starves the others. It is asked again instead.
const SHORT_TIMEOUT: Duration = Duration::from_millis(10);
/// More than there are different statements.
const STATEMENTS: usize = 32;

/// Why a change is not made.
pub(super) enum Stop {
    /// The rules or a damaged row refuse this one. It must have written nothing.
    Refused(Error),
    /// SQLite has failed: the transaction is to be rolled back.
    Failed(rusqlite::Error),
}

impl Stop {
    /// A row that cannot be read.
    pub(super) fn unreadable(during: &'static str, error: rusqlite::Error) -> Self {
        Stop::Refused(error::sql(during, explain_direct(error)))
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Refused(error)
    }
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Self {
        Stop::Failed(error)
    }
}

/// Where changes are requested. Dropped, its thread ends after what was requested.
pub(super) struct Writer {
    sqlite: Sqlite,
    direct: Direct,
    thread: Mutex<Thread>,
}

/// The thread starts with the first change: who only reads needs none.
enum Thread {
    NotStarted,
    Running(Sender<Order>),
    Closed,
}

/// A request to the thread.
enum Order {
    Change(Box<dyn Job>),
    /// Ends the thread, and is dropped when its connection is closed.
    Close(oneshot::Sender<()>),
}

/// One change, with its caller.
trait Job: Send {
    fn is_wanted(&self) -> bool;

    /// Makes the change inside a transaction; again, if that was rolled back.
    fn make(&mut self, on: &Connection) -> rusqlite::Result<()>;

    /// Answers, when the transaction is over.
    fn finish(self: Box<Self>, failure: Option<&Failure>);
}

struct Change<T, F> {
    during: &'static str,
    change: F,
    /// What came of it, as long as the transaction stands.
    out: Option<Result<T>>,
    answer: oneshot::Sender<Result<T>>,
}

impl<T, F> Job for Change<T, F>
where
    T: Send,
    F: FnMut(&Connection) -> Result<T, Stop> + Send,
{
    fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }

    fn make(&mut self, on: &Connection) -> rusqlite::Result<()> {
        self.out = Some(match (self.change)(on) {
            Ok(out) => Ok(out),
            Err(Stop::Refused(error)) => Err(error),
            Err(Stop::Failed(error)) => return Err(error),
        });
        Ok(())
    }

    fn finish(self: Box<Self>, failure: Option<&Failure>) {
        let out = match (failure, self.out) {
            (Some(failure), _) => Err(error::shared(self.during, failure)),
            (None, Some(out)) => out,
            (None, None) => Err(error::gone(self.during)),
        };
        // The caller may have gone meanwhile.
        let _ = self.answer.send(out);
    }
}

impl Writer {
    pub(super) fn new(sqlite: Sqlite, direct: Direct) -> Self {
        Writer { sqlite, direct, thread: Mutex::new(Thread::NotStarted) }
    }

    /// Makes a change in a transaction, which it may share with others. The change may be called more
    /// than once, and counts as made when this returns.
    ///
    /// Cancel safety: dropped midway, the change is made as a whole or not at all.
    pub(super) async fn change<T, F>(&self, during: &'static str, change: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> Result<T, Stop> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        self.order(during, Order::Change(Box::new(Change { during, change, out: None, answer })))?;
        answered.await.unwrap_or_else(|_| Err(error::gone(during)))
    }

    /// Ends the thread after what was requested, and closes its connection.
    ///
    /// Cancel safe: it ends in any case.
    pub(super) async fn close(&self) {
        let before = std::mem::replace(&mut *self.thread.lock(), Thread::Closed);
        if let Thread::Running(orders) = before {
            let (closing, closed) = oneshot::channel();
            if orders.send(Order::Close(closing)).is_ok() {
                let _ = closed.await;
            }
        }
    }

    fn order(&self, during: &'static str, order: Order) -> Result<()> {
        let mut thread = self.thread.lock();
        if matches!(*thread, Thread::NotStarted) {
            *thread = Thread::Running(self.start(during)?);
        }
        match &*thread {
            Thread::Running(orders) => orders.send(order).map_err(|_| error::gone(during)),
            Thread::NotStarted | Thread::Closed => {
                Err(error::driver(during, sqlx::Error::PoolClosed))
            }
        }
    }

    fn start(&self, during: &'static str) -> Result<Sender<Order>> {
        let (orders, requested) = channel();
        let worker =
            Worker { sqlite: self.sqlite.clone(), direct: self.direct.clone(), connection: None };
        thread::Builder::new()
            .name("latchwork-contexts".to_owned())
            .spawn(move || worker.run(&requested))
            .map_err(|e| error::driver(during, sqlx::Error::Io(e)))?;
        Ok(orders)
    }
}

/// What the thread has.
struct Worker {
    sqlite: Sqlite,
    direct: Direct,
    /// None before the first change, and after a failure.
    connection: Option<Connection>,
}

impl Worker {
    fn run(mut self, orders: &Receiver<Order>) {
        while let Ok(order) = orders.recv() {
            let mut batch = Vec::new();
            for order in [order].into_iter().chain(orders.try_iter().take(BATCH - 1)) {
                match order {
                    Order::Change(job) => batch.push(job),
                    Order::Close(_closing) => {
                        self.change(batch);
                        // Closed before the caller of `close` goes on.
                        self.connection = None;
                        return;
                    }
                }
            }
            self.change(batch);
        }
    }

    /// Makes changes in one transaction; if one of them is at fault, each in its own.
    fn change(&mut self, mut batch: Vec<Box<dyn Job>>) {
        batch.retain(|job| job.is_wanted());
        match self.retry_while_busy(&mut batch) {
            Ok(()) => finish(batch, None),
            // A temporary failure concerns all of them.
            Err(failure) if failure.fault == Fault::Permanent && batch.len() > 1 => {
                tracing::debug!(%failure, "changes of contexts are made one by one");
                for job in batch {
                    self.change(vec![job]);
                }
            }
            Err(failure) => finish(batch, Some(&failure)),
        }
    }

    /// A transaction, retried while another process writes.
    fn retry_while_busy(&mut self, batch: &mut [Box<dyn Job>]) -> Result<(), Failure> {
        if batch.is_empty() {
            return Ok(());
        }
        let patience = SystemClock.now().after(BUSY_TIMEOUT);
        loop {
            match self.transaction(batch) {
                Err(failure) if is_busy(&failure) && SystemClock.now() < patience => {
                    thread::sleep(Duration::from_micros(rand::random_range(200..2_000)));
                }
                done => return done,
            }
        }
    }

    fn transaction(&mut self, batch: &mut [Box<dyn Job>]) -> Result<(), Failure> {
        self.sqlite.still_there()?;
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(&self.direct)?,
        };
        let done = attempt(&connection, batch).map_err(explain_direct);
        // One that may still be inside a transaction is not used again.
        if done.is_ok() || connection.is_autocommit() || run(&connection, ROLLBACK).is_ok() {
            self.connection = Some(connection);
        }
        done
    }
}

fn attempt(on: &Connection, batch: &mut [Box<dyn Job>]) -> rusqlite::Result<()> {
    run(on, BEGIN)?;
    for job in batch {
        job.make(on)?;
    }
    run(on, COMMIT)
}

fn finish(batch: Vec<Box<dyn Job>>, failure: Option<&Failure>) {
    for job in batch {
        job.finish(failure);
    }
}

fn connect(direct: &Direct) -> Result<Connection, Failure> {
    let connection = direct.connect()?;
    connection.busy_timeout(SHORT_TIMEOUT).map_err(explain_direct)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

fn run(on: &Connection, sql: &str) -> rusqlite::Result<()> {
    on.prepare_cached(sql)?.execute(()).map(|_| ())
}

#[cfg(test)]
mod tests;
