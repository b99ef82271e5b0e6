//! One file a command.

pub(crate) mod completions;
#[cfg(feature = "sqlite")]
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod flows;
pub(crate) mod lock;
pub(crate) mod locks;
#[cfg(feature = "sqlite")]
pub(crate) mod serve;
#[cfg(feature = "temporal")]
pub(crate) mod temporal;
#[cfg(feature = "sqlite")]
pub(crate) mod tokens;
#[cfg(feature = "sqlite")]
pub(crate) mod types;

use std::future::Future;

use tokio::runtime::Builder;

use crate::exit::Failure;

/// Runs the asynchronous part of a command, on the calling thread alone: more threads would take
/// time to start, and connections of their own. What may be held up by a file system that does not
/// answer, the providers do on threads of theirs.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    run_on(&mut Builder::new_current_thread(), work)
}

/// The same with two threads beside the calling one, for what shows many tasks at work.
pub(crate) fn block_on_threads<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    run_on(Builder::new_multi_thread().worker_threads(2), work)
}

fn run_on<T>(
    runtime: &mut Builder,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let runtime = runtime
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("no runtime could be started: {error}")))?;
    let out = runtime.block_on(work);
    // What hangs in a system call must not keep us from ending.
    runtime.shutdown_background();
    out
}
