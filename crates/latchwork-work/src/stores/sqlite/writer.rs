//! The write transaction that operations of one process share.
//!
//! A commit waits for the disk, and costs more than all statements of an operation. So operations that
//! come while another one has the connection go into its transaction: each stands in a savepoint of its
//! own, which alone is undone if it fails, and hands the connection to the next one. The last of them,
//! or the [`MOST`]th, commits for all, and only then are they answered: each has happened, or, where the
//! commit failed, none of them has. One that is refused waits for that too if others were before it: what
//! it was refused for may be what they did.
//!
//! Statements run on the thread of the caller, where one takes some microseconds, and the driver's own
//! thread would cost more than that; so this is for operations on a few rows. Commits run on a thread
//! that may block. Who changes much, or lends the connection to others, takes its turn
//! [alone](Writer::alone) and uses the driver's writer.
//!
//! An operation waits in two places only, for its turn and for the commit, and keeps the turn in neither.
//! A turn may still be given to a future that nobody polls (`select!` runs another branch): who waits
//! behind it takes it back after [`PATIENCE`], and that future stands in line again.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use latchwork_sql::sqlite::{BEGIN, BUSY_TIMEOUT, Direct, explain_direct, is_busy};
use latchwork_sql::{Error as SqlError, Fault};
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::error;
use crate::{ErrorKind, Result};

/// So many operations share a commit at most: other processes wait for the file meanwhile.
const MOST: usize = 64;

/// How long until a file that another process writes is tried again.
const PAUSE: Duration = Duration::from_millis(1);

/// How long a turn may lie with a future that nobody polls.
const PATIENCE: Duration = Duration::from_secs(1);

/// So many times [`PATIENCE`] a turn is waited for.
const LONGEST: usize = 30;

/// Statements that stay prepared.
const STATEMENTS: usize = 128;

/// Who may write in this process, one after another.
pub(super) struct Writer {
    direct: Direct,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// Nobody has the turn.
    idle: Option<Box<Shared>>,
    waiting: VecDeque<Waiting>,
    /// Who was given the turn last.
    given: Weak<TurnSlot>,
    closed: bool,
}

struct Waiting {
    alone: bool,
    slot: Arc<TurnSlot>,
}

/// Where the turn is put for one that waits. If that one has gone, the turn goes on when this is dropped.
#[derive(Default)]
struct TurnSlot {
    turn: Mutex<Option<Turn>>,
    came: Notify,
}

/// The connection, and who waits for its commit.
#[derive(Default)]
struct Shared {
    /// Behind a mutex that is never locked: a session is shared between threads by reference.
    connection: Option<Mutex<Connection>>,
    is_open: bool,
    done: Vec<oneshot::Sender<Committed>>,
}

type Committed = std::result::Result<(), CommitFailed>;

/// Why a commit failed, told to everybody whose operation it undid.
#[derive(Clone)]
struct CommitFailed {
    fault: Fault,
    message: String,
}

/// The right to write. Dropped, it goes to the next one, after what stands in an open savepoint is
/// undone and what else is done is committed, if nobody goes on with it.
pub(super) struct Turn {
    shared: Option<Box<Shared>>,
    writer: Arc<Writer>,
    in_savepoint: bool,
}

impl Writer {
    pub(super) fn new(direct: Direct) -> Arc<Self> {
        let queue = Queue { idle: Some(Box::default()), ..Queue::default() };
        Arc::new(Writer { direct, queue: Mutex::new(queue) })
    }

    /// The turn of one operation, inside a savepoint of the shared transaction.
    pub(super) async fn begin(self: &Arc<Self>) -> Result<Turn> {
        let mut tries = BUSY_TIMEOUT.as_millis() / PAUSE.as_millis();
        loop {
            let mut turn = self.turn(false).await?;
            match turn.open() {
                Ok(()) => return Ok(turn),
                Err(error) if is_busy(&error) && tries > 0 => tries -= 1,
                Err(error) => return Err(error::sql(error)),
            }
            drop(turn); // nobody waits for it while we wait for another process
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The turn of somebody who writes through another connection.
    pub(super) async fn alone(self: &Arc<Self>) -> Result<Turn> {
        self.turn(true).await
    }

    async fn turn(self: &Arc<Self>, alone: bool) -> Result<Turn> {
        let mut waited = 0;
        loop {
            let slot = {
                let mut queue = self.queue.lock();
                if queue.closed {
                    return Err(closed());
                }
                if let Some(shared) = queue.idle.take() {
                    return Ok(Turn::new(shared, self));
                }
                let slot = Arc::new(TurnSlot::default());
                queue.waiting.push_back(Waiting { alone, slot: slot.clone() });
                slot
            };
            loop {
                let given = self.given();
                if timeout(PATIENCE, slot.came.notified()).await.is_ok() {
                    break;
                }
                waited += 1;
                if waited >= LONGEST {
                    let message = "another operation of this process keeps the writer; does the apply of \
                        an order, in the store's transaction, wait for an operation of the same store?";
                    return Err(error::sql(SqlError::temporary(message, None)));
                }
                self.reclaim_turn(&given);
            }
            let turn = slot.turn.lock().take();
            if let Some(turn) = turn {
                return Ok(turn);
            }
            // It was taken back, or the writer was closed.
        }
    }

    fn given(&self) -> Weak<TurnSlot> {
        self.queue.lock().given.clone()
    }

    /// Takes the turn from one that was given it a while ago and has not been polled since.
    fn reclaim_turn(&self, given: &Weak<TurnSlot>) {
        if !given.ptr_eq(&self.given()) {
            return;
        }
        let turn = given.upgrade().and_then(|slot| slot.turn.lock().take());
        drop(turn); // to the next one
    }

    /// Hands the turn to the next one, or commits.
    fn pass_on(self: &Arc<Self>, mut shared: Box<Shared>) {
        let next = {
            let mut queue = self.queue.lock();
            let is_gone = |next: &Waiting| Arc::strong_count(&next.slot) == 1;
            while queue.waiting.front().is_some_and(is_gone) {
                queue.waiting.pop_front();
            }
            let may_join = queue.waiting.front().is_some_and(|next| !next.alone);
            if shared.is_open && !(may_join && shared.done.len() < MOST) {
                None
            } else if let Some(next) = queue.waiting.pop_front() {
                queue.given = Arc::downgrade(&next.slot);
                Some(next.slot)
            } else {
                if queue.closed {
                    shared.connection = None;
                }
                queue.idle = Some(shared);
                return;
            }
        };
        if let Some(slot) = next {
            *slot.turn.lock() = Some(Turn::new(shared, self));
            slot.came.notify_one();
            return;
        }
        let commit = Commit(Some((shared, self.clone())));
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(commit))),
            Err(_) => drop(commit),
        }
    }

    /// Ends the connection as soon as nobody uses it.
    pub(super) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        for waiting in queue.waiting.drain(..) {
            waiting.slot.came.notify_one();
        }
        if let Some(idle) = &mut queue.idle {
            idle.connection = None;
        }
    }
}

impl Turn {
    fn new(shared: Box<Shared>, writer: &Arc<Writer>) -> Self {
        Turn { shared: Some(shared), writer: writer.clone(), in_savepoint: false }
    }

    #[expect(clippy::expect_used, reason = "it is taken only when the turn ends")]
    fn shared(&mut self) -> &mut Shared {
        self.shared.as_mut().expect("the turn has not ended")
    }

    #[expect(clippy::expect_used, reason = "`open` has opened it")]
    pub(super) fn connection(&mut self) -> &Connection {
        self.shared().connection.as_mut().expect("a connection").get_mut()
    }

    fn run(&mut self, sql: &str) -> std::result::Result<(), SqlError> {
        self.connection().execute_batch(sql).map_err(explain_direct)
    }

    /// Begins the shared transaction, unless it is open, and a savepoint in it.
    fn open(&mut self) -> std::result::Result<(), SqlError> {
        if self.shared().connection.is_none() {
            let connection = self.writer.direct.connect()?;
            connection.set_prepared_statement_cache_capacity(STATEMENTS);
            self.shared().connection = Some(Mutex::new(connection));
        }
        if !self.shared().is_open {
            self.run(BEGIN)?;
            self.shared().is_open = true;
        }
        self.run("SAVEPOINT operation")?;
        self.in_savepoint = true;
        Ok(())
    }

    /// Keeps what the operation did, and waits until it is committed. Dropped meanwhile, it is committed
    /// all the same.
    pub(super) async fn commit(mut self) -> Result<()> {
        self.run("RELEASE operation").map_err(error::sql)?;
        self.in_savepoint = false;
        self.committed().await
    }

    /// Undoes what the operation did. An error means that what it has seen of others was undone, too.
    pub(super) async fn undo(mut self) -> Result<()> {
        self.undo_savepoint();
        if self.shared().done.is_empty() {
            return Ok(()); // it has seen what is committed, and nothing else
        }
        self.committed().await
    }

    /// Passes the turn on, and waits for the commit of what is done until now.
    async fn committed(mut self) -> Result<()> {
        let (done, mut committed) = oneshot::channel();
        self.shared().done.push(done);
        let writer = self.writer.clone();
        drop(self);
        let committed = loop {
            let given = writer.given();
            match timeout(PATIENCE, &mut committed).await {
                Ok(committed) => break committed,
                Err(_) => writer.reclaim_turn(&given),
            }
        };
        match committed {
            Ok(Ok(())) => Ok(()),
            Ok(Err(CommitFailed { fault, message })) => Err(error::sql(match fault {
                Fault::Temporary => SqlError::temporary(message, None),
                Fault::Permanent => SqlError::permanent(message, None),
            })),
            Err(_) => Err(closed()),
        }
    }

    fn undo_savepoint(&mut self) {
        if !std::mem::take(&mut self.in_savepoint)
            || self.run("ROLLBACK TO operation; RELEASE operation").is_ok()
        {
            return;
        }
        // SQLite has undone the whole transaction by itself, and nobody of it may be told otherwise.
        let failed = CommitFailed {
            fault: Fault::Temporary,
            message: "the transaction was undone by another operation's failure".to_owned(),
        };
        let shared = self.shared();
        shared.is_open = false;
        shared.connection = None; // rolls back what may be left
        for done in shared.done.drain(..) {
            let _ = done.send(Err(failed.clone()));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.shared.is_none() {
            return;
        }
        self.undo_savepoint();
        if let Some(shared) = self.shared.take() {
            self.writer.clone().pass_on(shared);
        }
    }
}

/// A commit that is done when it is dropped, also when the thread that should do it never begins.
struct Commit(Option<(Box<Shared>, Arc<Writer>)>);

impl Drop for Commit {
    fn drop(&mut self) {
        let Some((mut shared, writer)) = self.0.take() else { return };
        let committed = match &mut shared.connection {
            Some(connection) => {
                connection.get_mut().execute_batch("COMMIT").map_err(explain_direct)
            }
            None => Ok(()),
        };
        shared.is_open = false;
        let answer = committed.map_err(|error| {
            // Nothing of it may stay: the next transaction begins on a new connection.
            shared.connection = None;
            CommitFailed { fault: error.fault, message: error.message }
        });
        for done in shared.done.drain(..) {
            let _ = done.send(answer.clone());
        }
        writer.pass_on(shared);
    }
}

pub(super) fn closed() -> crate::Error {
    let (store, message) = (error::NAME, "the manager was closed".to_owned());
    ErrorKind::StoreUnavailable { store, message, source: None }.into()
}

#[cfg(test)]
mod tests {
    use latchwork_sql::sqlite::{Options, Sqlite};

    use super::*;

    struct File {
        _directory: tempfile::TempDir,
        writer: Arc<Writer>,
        reader: Connection,
    }

    impl File {
        async fn new() -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            let sqlite = Sqlite::open(&Options::at(directory.path().join("a.db"))).await;
            let direct = sqlite.expect("opened").direct().await.expect("a file");
            let reader = direct.connect().expect("connected");
            reader.execute_batch("CREATE TABLE latchwork_t (name TEXT)").expect("a table");
            File { _directory: directory, writer: Writer::new(direct), reader }
        }

        async fn begin(&self, name: &str) -> Turn {
            let mut turn = self.writer.begin().await.expect("its turn");
            insert(&mut turn, name);
            turn
        }

        /// What another connection sees.
        fn names(&self) -> Vec<String> {
            let mut all =
                self.reader.prepare("SELECT name FROM latchwork_t ORDER BY rowid").expect("legal");
            let rows = all.query_map([], |row| row.get(0)).expect("rows");
            rows.map(|name| name.expect("a name")).collect()
        }
    }

    fn insert(turn: &mut Turn, name: &str) {
        turn.connection().execute("INSERT INTO latchwork_t VALUES (?)", [name]).expect("inserted");
    }

    /// Somebody waits for the turn, and has it as soon as it is there.
    fn next(file: &File, name: &'static str) -> tokio::task::JoinHandle<Turn> {
        let writer = file.writer.clone();
        tokio::spawn(async move {
            let mut turn = writer.begin().await.expect("its turn");
            insert(&mut turn, name);
            turn
        })
    }

    async fn until_waiting(file: &File, count: usize) {
        while file.writer.queue.lock().waiting.len() < count {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn operations_that_come_together_share_a_commit_and_fail_alone() {
        let file = File::new().await;
        let first = file.begin("first").await;
        let (second, third) = (next(&file, "second"), next(&file, "third"));
        until_waiting(&file, 2).await;
        let mut first = tokio::spawn(first.commit());
        let second = second.await.expect("no panic");
        assert!(futures::poll!(&mut first).is_pending(), "another one goes on with it");
        assert_eq!(file.names(), Vec::<String>::new(), "nothing is committed yet");
        drop(second); // it failed
        let third = third.await.expect("no panic");
        assert!(futures::poll!(&mut first).is_pending());
        third.commit().await.expect("committed");
        first.await.expect("no panic").expect("committed");
        assert_eq!(file.names(), ["first", "third"]);
    }

    #[tokio::test]
    async fn a_commit_does_not_depend_on_those_who_came_later() {
        let file = File::new().await;
        let first = file.begin("first").await;
        let gone = next(&file, "gone");
        until_waiting(&file, 1).await;
        gone.abort();
        let _ = gone.await;
        first.commit().await.expect("committed");
        assert_eq!(file.names(), ["first"]);
        // The next one has its turn, and leaves in the middle of its operation.
        let second = file.begin("second").await;
        let third = next(&file, "third");
        until_waiting(&file, 1).await;
        let second = tokio::spawn(second.commit());
        drop(third.await.expect("no panic"));
        second.await.expect("no panic").expect("committed");
        assert_eq!(file.names(), ["first", "second"]);
    }

    /// As in a `select!` that runs another branch, which itself needs the writer.
    #[tokio::test]
    async fn a_turn_that_nobody_polls_is_taken_back() {
        let file = File::new().await;
        let first = file.begin("first").await;
        let mut unpolled = std::pin::pin!(file.begin("unpolled"));
        assert!(futures::poll!(&mut unpolled).is_pending());
        first.commit().await.expect("committed");
        assert_eq!(file.names(), ["first"], "it does not wait for a future that nobody polls");
        let second = file.begin("second").await;
        assert!(futures::poll!(&mut unpolled).is_pending(), "it stands in line again");
        let third = next(&file, "third");
        until_waiting(&file, 2).await;
        let second = tokio::spawn(second.commit());
        let third = third.await.expect("it is given the turn that nobody polls");
        third.commit().await.expect("committed");
        second.await.expect("no panic").expect("committed");
        unpolled.await.commit().await.expect("committed, at last");
        assert_eq!(file.names(), ["first", "second", "third", "unpolled"]);
    }

    #[tokio::test]
    async fn who_writes_alone_waits_for_the_commit() {
        let file = File::new().await;
        let first = file.begin("first").await;
        let writer = file.writer.clone();
        let alone = tokio::spawn(async move { writer.alone().await.expect("its turn") });
        until_waiting(&file, 1).await;
        first.commit().await.expect("committed");
        let alone = alone.await.expect("no panic");
        assert_eq!(file.names(), ["first"]);
        let second = next(&file, "second");
        until_waiting(&file, 1).await;
        file.reader
            .execute_batch("BEGIN IMMEDIATE; INSERT INTO latchwork_t VALUES ('alone'); COMMIT")
            .expect("free");
        drop(alone);
        second.await.expect("no panic").commit().await.expect("committed");
        assert_eq!(file.names(), ["first", "alone", "second"]);
    }

    #[tokio::test]
    async fn a_transaction_that_sqlite_ends_by_itself_fails_for_all_of_it() {
        let file = File::new().await;
        file.reader
            .execute_batch(
                "CREATE TRIGGER latchwork_end BEFORE INSERT ON latchwork_t WHEN NEW.name = 'end' \
                 BEGIN SELECT RAISE(ROLLBACK, 'as when the disk is full'); END",
            )
            .expect("a trigger");
        let first = file.begin("first").await;
        let second = next(&file, "second");
        until_waiting(&file, 1).await;
        let first = tokio::spawn(first.commit());
        let mut second = second.await.expect("no panic");
        second
            .connection()
            .execute("INSERT INTO latchwork_t VALUES ('end')", [])
            .expect_err("ended");
        second.commit().await.expect_err("nothing of it is left");
        first.await.expect("no panic").expect_err("nor of what was before it");
        assert_eq!(file.names(), Vec::<String>::new());
        file.begin("third").await.commit().await.expect("the next one is not concerned");
        assert_eq!(file.names(), ["third"]);
    }

    #[tokio::test]
    async fn a_commit_that_fails_is_told_to_all_of_it() {
        let file = File::new().await;
        file.reader
            .execute_batch(
                "CREATE TABLE latchwork_p (id INTEGER PRIMARY KEY); \
             CREATE TABLE latchwork_c (id INTEGER REFERENCES latchwork_p (id) DEFERRABLE INITIALLY DEFERRED)",
            )
            .expect("tables");
        // Refused at the commit, and not before.
        let mut first = file.begin("first").await;
        first
            .connection()
            .execute_batch(
                "ROLLBACK; PRAGMA foreign_keys = ON; BEGIN IMMEDIATE; SAVEPOINT operation",
            )
            .expect("anew");
        insert(&mut first, "first");
        let second = next(&file, "second");
        until_waiting(&file, 1).await;
        let first = tokio::spawn(first.commit());
        let mut second = second.await.expect("no panic");
        second.connection().execute_batch("INSERT INTO latchwork_c VALUES (1)").expect("deferred");
        let refused = next(&file, "refused");
        until_waiting(&file, 1).await;
        let second = tokio::spawn(second.commit());
        let refused = refused.await.expect("no panic");
        refused.undo().await.expect_err("what it was refused for never happened");
        second.await.expect("no panic").expect_err("no such parent");
        first.await.expect("no panic").expect_err("it was undone with it");
        assert_eq!(file.names(), Vec::<String>::new());
        file.begin("third").await.commit().await.expect("the next one is not concerned");
        assert_eq!(file.names(), ["third"]);
    }
}
