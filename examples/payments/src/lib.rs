//! Payments: a small service in which a payment is captured once, however often it is requested.
//!
//! Three layers, and each knows only those before it:
//!
//! - [`domain`]: what a payment is. States and moves are one table; values are checked when made.
//! - [`application`]: what can be asked for. The use cases, and the ports that they need.
//! - [`infrastructure`]: where it is kept. Stores in memory and in SQLite, and the clock.
//!
//! The order inside [`CapturePayment`](application::CapturePayment) is the point of the example:
//! the lock first, then the time, then what is known of the request, then the payment, and at last
//! one transaction that the fence of the lock lets pass or refuses.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> latchwork_payments::application::Result<()> {
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use latchwork_lock::{Locks, SystemClock};
//! use latchwork_payments::application::*;
//! use latchwork_payments::domain::*;
//! use latchwork_payments::infrastructure::MemoryStore;
//!
//! let service = Service::new(
//!     Locks::connect("memory:").await?,
//!     Arc::new(SystemClock),
//!     MemoryStore::new(),
//! );
//! let payment_id = PaymentId::random();
//! let amount = Amount::from_cents(12_000)?;
//! service.create.execute(payment_id, amount, Currency::parse("EUR")?).await?;
//! let capture_window = Duration::from_secs(3_600);
//! service.authorize.execute(payment_id, Decision::Approved { capture_window }).await?;
//!
//! let idempotency_key = IdempotencyKey::parse("order-7/capture")?;
//! let request = CapturePaymentRequest { payment_id, idempotency_key, amount };
//! let first = service.capture.execute(request.clone()).await?;
//! let again = service.capture.execute(request).await?;
//! assert!(!first.replayed && again.replayed && first.capture == again.capture);
//! # Ok(()) }
//! ```

pub mod application;
pub mod domain;
pub mod infrastructure;
