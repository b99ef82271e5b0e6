//! What most programs with locks need: `use latchwork_lock::prelude::*`.
//!
//! Neither `Error` nor `Result` is in it, so that it can stand beside the prelude of the flows and
//! that of any other crate.

#[doc(no_inline)]
pub use crate::{
    Fence, FenceGate, Guard, Held, Key, Lease, LockConfig, LockStrategy, Locks, Mode, OnLoss,
    StaleFence,
};
