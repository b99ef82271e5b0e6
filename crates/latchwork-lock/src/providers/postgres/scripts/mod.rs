//! The requests that are one function call in the server: see the [schema](super::schema).

mod acquire;
mod release;

pub(super) use acquire::{AcquireCall, AcquireReply};
pub(super) use release::{ReleaseCall, release_together};
