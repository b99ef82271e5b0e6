//! A kind of request that can share a message, and how such messages are sent.

use std::sync::Arc;
use std::time::Duration;

use latchwork_sql::postgres::{JobConnection, in_time, is_broken, is_unheard};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::connections::Connections;
use super::error;
use super::store::{BACKGROUND, Store, is_held_up};
use crate::coordination::batcher::{Batch, BatchHandler, BatchedRequest};
use crate::{Error, Result};

/// How long after it was sent a message is surely done: longer than it waits for a key.
const DONE: Duration = Duration::from_millis(500);

/// One kind of request.
pub(super) trait Message: Sized + Send + Sync + 'static {
    type Answer: Send + 'static;
    /// What waiters are to be told after it.
    type News: Send;
    const DURING: &'static str;

    /// The number of its key's advisory lock.
    fn lock_number(&self) -> i64;

    /// Sends all of them, and answers each in turn; none where the rules must decide.
    fn send(
        messages: &[&Self],
        store: &Store,
        on: &mut PgConnection,
    ) -> impl Future<Output = sqlx::Result<Answered<Self>>> + Send;

    /// Wakes the waiters of this process; returns the statements that notify other processes.
    fn notify(news: Self::News, store: &Store) -> String;

    /// Whether its caller may send it.
    fn may_send_inline(&self, store: &Store) -> bool;

    /// Whether it need not be sent when its caller has gone.
    fn is_cancellable(&self) -> bool;

    /// Its caller went before the answer came.
    fn answered_in_vain(self, answer: Self::Answer, store: &Arc<Store>);

    /// Its runtime has ended before it was answered, and perhaps after it was sent.
    fn recover(
        self,
        reply: Reply<Self>,
        store: &Store,
        was_sent: bool,
    ) -> impl Future<Output = ()> + Send;
}

/// An answer for each member of a message, and what waiters are to be told.
pub(super) type Answered<M> = (Vec<Option<<M as Message>::Answer>>, <M as Message>::News);

pub(super) type Reply<M> = oneshot::Sender<Result<BatchOutcome<<M as Message>::Answer>>>;

/// What became of a request.
pub(super) enum BatchOutcome<T> {
    Done(T),
    /// Nothing was done: the rules must decide.
    UseRules,
    /// The connection died, perhaps long before: whether the server got the request is not known.
    AnswerLost(Error),
}

/// Sends the messages of one kind, over the connections of one runtime.
pub(super) struct Sender<M> {
    store: Arc<Store>,
    connections: Arc<Connections>,
    kind: std::marker::PhantomData<fn(M)>,
}

impl<M: Message> Sender<M> {
    pub(super) fn new(store: Arc<Store>, connections: Arc<Connections>) -> Self {
        Sender { store, connections, kind: std::marker::PhantomData }
    }

    /// Sends one message and answers its members. The connection is kept if it is still good.
    async fn deliver(&self, mut connection: JobConnection, batch: &mut Batch<Self>) {
        let messages: Vec<&M> = batch.items().collect();
        connection.mark_pending();
        let sending = in_time(M::send(&messages, &self.store, &mut connection));
        let sent = sending.await;
        connection.mark_answered(&sent);
        let (answers, news) = match sent {
            Ok(answered) => answered,
            Err(error) => return self.fail(batch, error),
        };
        for (BatchedRequest { item, reply }, answer) in batch.drain().zip(answers) {
            let outcome = answer.map_or(BatchOutcome::UseRules, BatchOutcome::Done);
            if let Err(Ok(BatchOutcome::Done(answer))) = reply.send(Ok(outcome)) {
                item.answered_in_vain(answer, &self.store);
            }
        }
        // After the answers, so that the next holder runs first and its own release is not held up
        // by the request that often follows this one; and after the commit, because NOTIFY makes
        // all committers of the database wait for each other.
        let notifications = M::notify(news, &self.store);
        if !notifications.is_empty() {
            connection.mark_pending();
            let sql = sqlx::raw_sql(AssertSqlSafe(notifications));
            let told = in_time(sql.execute(&mut *connection)).await;
            connection.mark_answered(&told);
            if let Err(error) = told {
                tracing::debug!(%error, "a waiter was not notified; it finds its grant by polling");
                return;
            }
        }
        self.connections.keep(connection);
    }

    fn fail(&self, batch: &mut Batch<Self>, error: sqlx::Error) {
        let broken = is_broken(&error);
        let of_one = matches!(error, sqlx::Error::Database(_)) && batch.len() > 1 && !broken;
        if self.store.learns_from(&error) || of_one || is_held_up(&error) || is_unheard(&error) {
            // Nothing was done, perhaps because of one of them: alone, each learns what is wrong.
            for request in batch.drain() {
                let _ = request.reply.send(Ok(BatchOutcome::UseRules));
            }
            return;
        }
        let error = latchwork_sql::postgres::explain(error);
        for request in batch.drain() {
            let error = error::shared(M::DURING, &error);
            let lost = if broken { Ok(BatchOutcome::AnswerLost(error)) } else { Err(error) };
            let _ = request.reply.send(lost);
        }
    }
}

impl<M: Message> BatchHandler for Sender<M> {
    type Item = M;
    type Answer = Result<BatchOutcome<M::Answer>>;
    type Resource = sqlx::Result<JobConnection>;

    async fn prepare(&self) -> sqlx::Result<JobConnection> {
        self.connections.open().await
    }

    fn is_usable(&self, connection: &sqlx::Result<JobConnection>) -> bool {
        connection.is_ok()
    }

    async fn send(&self, connection: sqlx::Result<JobConnection>, batch: &mut Batch<Self>) {
        batch.sort_by_key(M::lock_number);
        match connection {
            Ok(connection) if batch.is_empty() => self.connections.keep(connection),
            Ok(connection) => {
                batch.mark_sent();
                self.deliver(connection, batch).await;
            }
            Err(error) => self.fail(batch, error),
        }
    }

    fn is_cancellable(&self, message: &M) -> bool {
        message.is_cancellable()
    }

    fn recover(&self, request: BatchedRequest<Self>, was_sent: bool) {
        let Ok(runtime) = BACKGROUND.handle() else { return };
        let (store, BatchedRequest { item, reply }) = (self.store.clone(), request);
        runtime.spawn(async move {
            if was_sent {
                sleep(DONE).await;
            }
            item.recover(reply, &store, was_sent).await;
        });
    }
}
