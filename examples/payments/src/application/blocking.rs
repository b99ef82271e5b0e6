//! The same for threads: what must be alone is a scope, and it waits until its turn comes.
//!
//! Do not call it inside an async task: it blocks the thread that other tasks need.

use std::sync::Arc;

use latchwork_lock::OnLoss;
use latchwork_lock::blocking::Locks;
use tokio::runtime::Runtime;

use super::ports::{Fences, Store, TimeProvider, lock_key};
use super::{
    CapturePaymentRequest, CapturePaymentResponse, Error, Result, TransferAmountRequest,
    TransferAmountResponse,
};

/// [`CapturePayment`](super::CapturePayment) for threads.
#[derive(Clone)]
pub struct CapturePayment<S> {
    locks: Locks,
    inner: super::CapturePayment<S>,
    runtime: Arc<Runtime>,
}

impl<S: Store> CapturePayment<S> {
    /// The use case over these ports.
    ///
    /// # Errors
    /// When the runtime that the store needs cannot be made.
    pub fn new(locks: Locks, time: Arc<dyn TimeProvider>, store: S) -> Result<Self> {
        let inner = super::CapturePayment::new(locks.as_async().clone(), time, store);
        Ok(CapturePayment { locks, inner, runtime: runtime()? })
    }

    /// Captures a payment, or tells again that it was. It waits without limit.
    ///
    /// # Errors
    /// As for the async form.
    pub fn execute(&self, request: CapturePaymentRequest) -> Result<CapturePaymentResponse> {
        let lock = self.locks.lock(lock_key(request.payment_id)).on_loss(OnLoss::Finish);
        lock.run(|held| self.runtime.block_on(self.inner.alone(Fences::of([held]), request)))?
    }
}

/// [`TransferAmount`](super::TransferAmount) for threads.
#[derive(Clone)]
pub struct TransferAmount<S> {
    locks: Locks,
    inner: super::TransferAmount<S>,
    runtime: Arc<Runtime>,
}

impl<S: Store> TransferAmount<S> {
    /// The use case over these ports.
    ///
    /// # Errors
    /// When the runtime that the store needs cannot be made.
    pub fn new(locks: Locks, time: Arc<dyn TimeProvider>, store: S) -> Result<Self> {
        let inner = super::TransferAmount::new(locks.as_async().clone(), time, store);
        Ok(TransferAmount { locks, inner, runtime: runtime()? })
    }

    /// Transfers, or tells again that it was done. It waits without limit.
    ///
    /// # Errors
    /// As for the async form.
    pub fn execute(&self, request: TransferAmountRequest) -> Result<TransferAmountResponse> {
        let guards = self.locks.lock_all(request.lock_keys()?).wait_forever().acquire()?;
        let fences = Fences::of(guards.iter().map(|guard| &**guard));
        let out = self.runtime.block_on(self.inner.alone(fences, request));
        for guard in guards.into_iter().rev() {
            // Whatever it says of the lease, the fence has decided.
            let _ = guard.release();
        }
        out
    }
}

/// With a thread of its own: a connection goes back to its pool in a task, which nobody would run
/// while no request is at work.
fn runtime() -> Result<Arc<Runtime>> {
    let made = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    made.map(Arc::new).map_err(|error| Error::Store {
        during: "starting a runtime",
        reason: error.to_string(),
        temporary: true,
        source: Some(error.into()),
    })
}
