use std::collections::HashMap;
use std::sync::Arc;

use latchwork_lock::FenceGate;
use parking_lot::Mutex;

use crate::application::Result;
use crate::application::ports::{
    CaptureRepository, Changes, Fences, PaymentRepository, TransferRepository, UnitOfWork,
};
use crate::domain::{Capture, IdempotencyKey, Payment, PaymentId, Transfer};

/// Keeps everything in memory, for as long as one clone of it lives.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<Tables>>);

#[derive(Debug, Default)]
struct Tables {
    payments: HashMap<PaymentId, Payment>,
    captures: HashMap<(PaymentId, IdempotencyKey), Capture>,
    transfers: HashMap<(PaymentId, IdempotencyKey), Transfer>,
    /// Behind the same lock as what it guards, so that a check and its write are one step.
    gate: FenceGate,
}

impl MemoryStore {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }
}

impl PaymentRepository for MemoryStore {
    async fn payment(&self, id: PaymentId) -> Result<Option<Payment>> {
        Ok(self.0.lock().payments.get(&id).cloned())
    }
}

impl CaptureRepository for MemoryStore {
    async fn capture_by_key(
        &self,
        payment: PaymentId,
        key: &IdempotencyKey,
    ) -> Result<Option<Capture>> {
        Ok(self.0.lock().captures.get(&(payment, key.clone())).cloned())
    }

    async fn captures_of(&self, payment: PaymentId) -> Result<Vec<Capture>> {
        let tables = self.0.lock();
        Ok(tables.captures.values().filter(|one| one.payment_id == payment).cloned().collect())
    }
}

impl TransferRepository for MemoryStore {
    async fn transfer_by_key(
        &self,
        from: PaymentId,
        key: &IdempotencyKey,
    ) -> Result<Option<Transfer>> {
        Ok(self.0.lock().transfers.get(&(from, key.clone())).cloned())
    }
}

impl UnitOfWork for MemoryStore {
    async fn advance(&self, fences: &Fences) -> Result<()> {
        self.0.lock().check(fences)
    }

    async fn commit(&self, fences: &Fences, changes: Changes) -> Result<()> {
        let mut tables = self.0.lock();
        tables.check(fences)?;
        let Changes { payments, captures, transfers } = changes;
        tables.payments.extend(payments.into_iter().map(|one| (one.id(), one)));
        tables.captures.extend(
            captures.into_iter().map(|one| ((one.payment_id, one.idempotency_key.clone()), one)),
        );
        tables.transfers.extend(
            transfers.into_iter().map(|one| ((one.from, one.idempotency_key.clone()), one)),
        );
        Ok(())
    }
}

impl Tables {
    fn check(&self, fences: &Fences) -> Result<()> {
        for (key, fence) in fences.iter() {
            self.gate.check(key, fence)?;
        }
        Ok(())
    }
}
