//! One file a command.

pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod lock;
pub(crate) mod locks;

use std::future::Future;

use crate::exit::Failure;

/// Runs the asynchronous part of a command.
///
/// Always on the calling thread, with two workers beside it: one may be held up by a file system
/// that does not answer, and the clock must tick on.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("no threads could be started: {error}")))?;
    let out = runtime.block_on(work);
    // What hangs in a system call must not keep us from ending.
    runtime.shutdown_background();
    out
}
