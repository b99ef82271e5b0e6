//! Order types and appliers from the operator's files.
//!
//! Commands stand in files only: a request can name an order type, and the type's file names its applier.

mod command;
mod directory;
mod process;
#[cfg(test)]
mod tests;

pub use command::CommandApplier;
pub use directory::{APPLIERS, appliers_beside, types_of};
