//! Opening databases the right way, once for all layers of Latchwork.
//!
//! Internal: the layers above do not each write it again. Pools and pragmas, TLS with rustls, one
//! migration runner that only adds and may be started by many at once, and errors told apart into
//! temporary and permanent. Each database has a folder of its own, and only there is SQL.

mod error;
mod migration;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod tls;

pub use error::{Error, Fault, Result};
pub use migration::Migration;
