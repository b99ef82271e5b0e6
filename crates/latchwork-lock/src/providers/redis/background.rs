//! The runtime that all Redis providers of a process share.
//!
//! Guards are dropped in any runtime or in none (L21), and a connection belongs to the runtime that
//! opened it. So everything that must outlive the caller's runtime runs here, and so do the requests
//! of callers without a runtime of several threads.

use std::future::Future;
use std::sync::LazyLock;

use tokio::runtime::Handle;

use super::error::{self, NAME};
use crate::{Error, Result};

/// Runs a job to completion.
///
/// Cancel safety: dropping the future does not stop a job that has started.
pub(super) async fn run<T: Send + 'static>(
    during: &'static str,
    job: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    match runtime()?.spawn(job).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(error::runtime_ended(during)),
        },
    }
}

pub(super) fn runtime() -> Result<&'static Handle> {
    static RUNTIME: LazyLock<std::io::Result<Handle>> = LazyLock::new(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new()
            .name("latchwork-redis".into())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
        Ok(handle)
    });
    RUNTIME.as_ref().map_err(|e| {
        Error::unavailable(NAME, "starting", format!("there is no thread for it ({e})"), None)
    })
}
