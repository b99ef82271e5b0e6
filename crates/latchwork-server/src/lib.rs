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
//! Without [`Tokens`] every caller may do everything: [`serve`] listens on loopback only then, and
//! [`router`] refuses requests that a web page could have sent.

mod access;
mod app;
mod applier;
mod caller;
mod convert;
mod convert_flow;
mod duties;
mod error;
mod explain;
mod extract;
mod layer_errors;
mod local_only;
mod lock_calls;
mod metrics;
mod once;
mod page;
mod request_id;
mod role;
mod routes;
mod scope;
mod serve;
mod serve_error;
mod stores;
mod tls;
mod tokens;
mod write_timeout;

pub use app::{App, Settings, Shutdown};
pub use applier::{APPLIERS, CommandApplier, appliers_beside, types_of};
pub use duties::Duties;
pub use metrics::{Metrics, MetricsInstalled};
pub use role::{Role, UnknownRole};
pub use routes::{openapi, router};
pub use serve::{ServeOptions, serve, serve_with};
pub use serve_error::ServeError;
pub use tls::Tls;
pub use tokens::{NewToken, Secret, Token, TokenError, Tokens};
