//! A store that does something between the check and the save of a capture or a transfer.

use std::future::Future;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use latchwork_payments::application::Result;
use latchwork_payments::application::ports::{
    CaptureRepository, Changes, Fences, PaymentRepository, Store, TransferRepository, UnitOfWork,
};
use latchwork_payments::domain::{Capture, IdempotencyKey, Payment, PaymentId, Transfer};

#[derive(Clone)]
pub(crate) struct Hooked<S> {
    inner: S,
    before_save: Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
}

impl<S: Store> Hooked<S> {
    pub(crate) fn new<F>(inner: S, hook: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Hooked { inner, before_save: Arc::new(move || hook().boxed()) }
    }
}

impl<S: Store> PaymentRepository for Hooked<S> {
    async fn payment(&self, id: PaymentId) -> Result<Option<Payment>> {
        self.inner.payment(id).await
    }
}

impl<S: Store> CaptureRepository for Hooked<S> {
    async fn capture_by_key(
        &self,
        payment: PaymentId,
        key: &IdempotencyKey,
    ) -> Result<Option<Capture>> {
        self.inner.capture_by_key(payment, key).await
    }

    async fn captures_of(&self, payment: PaymentId) -> Result<Vec<Capture>> {
        self.inner.captures_of(payment).await
    }
}

impl<S: Store> TransferRepository for Hooked<S> {
    async fn transfer_by_key(
        &self,
        from: PaymentId,
        key: &IdempotencyKey,
    ) -> Result<Option<Transfer>> {
        self.inner.transfer_by_key(from, key).await
    }
}

impl<S: Store> UnitOfWork for Hooked<S> {
    async fn advance(&self, fences: &Fences) -> Result<()> {
        self.inner.advance(fences).await
    }

    async fn commit(&self, fences: &Fences, changes: Changes) -> Result<()> {
        if !(changes.captures.is_empty() && changes.transfers.is_empty()) {
            (self.before_save)().await;
        }
        self.inner.commit(fences, changes).await
    }
}
