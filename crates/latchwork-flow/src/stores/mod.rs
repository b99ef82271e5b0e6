//! The stores: one folder each.

#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod columns;
pub(crate) mod memory;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
