//! The stores: one folder each.

pub(crate) mod memory;
