//! Latchwork over HTTP: a router that a Rust program can mount, and a server for it.
//!
//! ```no_run
//! # async fn example(work: latchwork_work::WorkManager) -> Result<(), latchwork_server::ServeError> {
//! use latchwork_server::{App, Shutdown, Settings, router, serve};
//!
//! let shutdown = Shutdown::new();
//! let app = App::new(work, Settings::default(), &shutdown);
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8420").await?;
//! serve(listener, router(app), &shutdown).await
//! # }
//! ```
//!
//! There are no tokens yet, so every caller may do everything: [`serve`] listens on loopback only, and
//! [`router`] refuses requests that a web page could have sent.

#[allow(dead_code, reason = "locks and flows ask for the rest of it")]
mod access;
mod app;
#[allow(dead_code, reason = "locks and flows ask for the rest of it")]
mod caller;
mod convert;
mod error;
mod extract;
mod local_only;
mod page;
mod request_id;
mod routes;
#[allow(dead_code, reason = "locks and flows ask for the rest of it")]
mod scope;
mod serve;

pub use app::{App, Settings, Shutdown};
pub use routes::{openapi, router};
pub use serve::{ServeError, serve};
