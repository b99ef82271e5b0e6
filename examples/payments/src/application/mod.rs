//! What can be asked for: the use cases, and the ports that they need.

pub mod blocking;
pub mod ports;

mod authorize_payment;
mod capture_payment;
mod create_payment;
mod error;
mod service;
mod transfer_amount;

pub use authorize_payment::{AuthorizePayment, Decision};
pub use capture_payment::{CapturePayment, CapturePaymentRequest, CapturePaymentResponse};
pub use create_payment::CreatePayment;
pub use error::{Error, Result};
pub use service::Service;
pub use transfer_amount::{TransferAmount, TransferAmountRequest, TransferAmountResponse};
