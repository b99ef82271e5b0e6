//! What the use cases need of the world; the infrastructure provides it.
//!
//! The port of locks is [`latchwork_lock::provider::LockProvider`] itself: the use cases are handed a
//! [`Locks`](latchwork_lock::Locks) over any of its implementations.

mod lock;
mod repositories;
mod time_provider;
mod unit_of_work;

pub use lock::{Fences, lock_key};
pub use repositories::{CaptureRepository, PaymentRepository, TransferRepository};
pub use time_provider::TimeProvider;
pub use unit_of_work::{Changes, UnitOfWork};

/// A place that keeps it all, so that one transaction can. Clones are the same place.
pub trait Store:
    PaymentRepository + CaptureRepository + TransferRepository + UnitOfWork + Clone + 'static
{
}

impl<S> Store for S where
    S: PaymentRepository + CaptureRepository + TransferRepository + UnitOfWork + Clone + 'static
{
}
