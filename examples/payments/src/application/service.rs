//! The use cases together.

use std::sync::Arc;

use latchwork_lock::Locks;

use super::ports::{Store, TimeProvider};
use super::{AuthorizePayment, CapturePayment, CreatePayment, TransferAmount};

/// All use cases over the same ports.
#[derive(Clone)]
pub struct Service<S> {
    /// Creates pending payments.
    pub create: CreatePayment<S>,
    /// Records what the bank said.
    pub authorize: AuthorizePayment<S>,
    /// Takes the money.
    pub capture: CapturePayment<S>,
    /// Moves what is authorized.
    pub transfer: TransferAmount<S>,
}

impl<S: Store> Service<S> {
    /// All of them over these ports. How long a request waits for its turn is in the locks'
    /// [defaults](Locks::with_defaults).
    pub fn new(locks: Locks, time: Arc<dyn TimeProvider>, store: S) -> Self {
        Service {
            create: CreatePayment::new(locks.clone(), store.clone()),
            authorize: AuthorizePayment::new(locks.clone(), time.clone(), store.clone()),
            capture: CapturePayment::new(locks.clone(), time.clone(), store.clone()),
            transfer: TransferAmount::new(locks, time, store),
        }
    }
}
