//! File edits block, so they leave the runtime's own threads.

use super::error::NAME;
use crate::{Error, Result};

/// Runs a blocking job. Dropping the future does not stop a job that has begun.
pub(super) async fn run<T: Send + 'static>(
    during: &'static str,
    job: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(job).await {
        Ok(out) => out,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(Error::unavailable(
                NAME,
                during,
                "the runtime is shutting down",
                Some(Box::new(error)),
            )),
        },
    }
}
