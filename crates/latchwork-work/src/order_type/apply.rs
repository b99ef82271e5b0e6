//! One run of apply, as the type's own code sees it.

use crate::OrderId;

/// One run of apply: what it is known by elsewhere, and the store's transaction where the type asked
/// for it.
///
/// A run may be the second one of its order, after a worker that died. Send
/// [`idempotency_key`](Self::idempotency_key) with every effect outside, so that it happens once there,
/// and the [`fence`](Self::fence), so that a worker that was only slow cannot undo what came after it:
/// a [`FenceGate`](latchwork_lock::FenceGate) of the user's own database refuses a lower one.
#[derive(Debug)]
pub struct ApplyStep {
    order: OrderId,
    fence: u64,
    attempt: u32,
    worker: String,
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    session: Option<crate::store::Session<'static>>,
}

impl ApplyStep {
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn new(order: OrderId, fence: u64, attempt: u32, worker: &str) -> Self {
        ApplyStep { order, fence, attempt, worker: worker.to_owned(), session: None }
    }

    /// With the store's own transaction.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn with_session(mut self, session: crate::store::Session<'static>) -> Self {
        self.session = Some(session);
        self
    }

    /// Gives the transaction back, to be ended.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn take_session(&mut self) -> Option<crate::store::Session<'static>> {
        self.session.take()
    }

    /// The same in every run of this order: the order's id.
    pub fn idempotency_key(&self) -> String {
        self.order.to_string()
    }

    /// Higher than in every run of this order before.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Which run this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The worker's name.
    pub fn worker(&self) -> &str {
        &self.worker
    }

    /// The store's transaction, of a type with
    /// [`in_transaction`](super::ApplySettings::in_transaction) in an SQLite database. What is written
    /// there happens if and only if apply is recorded. Do not end the transaction.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(&mut self) -> Option<&mut sqlx::SqliteConnection> {
        self.session.as_mut()?.sqlite()
    }

    /// The same in a PostgreSQL database.
    #[cfg(feature = "postgres")]
    pub fn postgres(&mut self) -> Option<&mut sqlx::PgConnection> {
        self.session.as_mut()?.postgres()
    }
}
