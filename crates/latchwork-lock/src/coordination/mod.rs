//! What several providers need to coordinate the callers of a process with a shared backend.

pub(crate) mod liveness;
