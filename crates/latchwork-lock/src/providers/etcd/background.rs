//! Where requests run: on the caller's runtime, or on the one runtime that all etcd providers of a
//! process share.
//!
//! Guards are dropped in any runtime or in none (L21), a connection belongs to the runtime that
//! opened it, and a dropped future must not leave a request half done. So every request is a job
//! that runs to completion: on the caller's runtime if that has several threads, and otherwise
//! on the [background runtime](BACKGROUND), together with what serves several callers.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::error::NAME;
use crate::coordination::background::Background;
use crate::{Error, Result};

/// The runtime that all etcd providers of this process share. One thread: most requests run on their
/// caller's runtime, and need the other cores.
pub(super) static BACKGROUND: Background = Background::new(NAME);

/// Runs a job to completion.
///
/// Cancel safety: dropping the future does not stop a job that has started. Only the end of the
/// caller's runtime does.
pub(super) fn run_to_completion<T: Send + 'static>(
    during: &'static str,
    job: impl Future<Output = Result<T>> + Send + 'static,
) -> impl Future<Output = Result<T>> + Send + 'static {
    // Boxed at once: a request is some kilobytes, and would be moved several times.
    let job = job.boxed();
    async move {
        match caller_runtime() {
            Some(caller) => match caller.spawn(job).await {
                Ok(result) => result,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(error) => {
                        let (reason, source) = ("the runtime is shutting down", Box::new(error));
                        Err(Error::unavailable(NAME, during, reason, Some(source)))
                    }
                },
            },
            None => BACKGROUND.run(during, job).await,
        }
    }
}

/// Runs a job to completion, polled by its caller, which saves two wake-ups. Only for jobs that
/// nobody else waits for: if the caller is not polled, neither is the job.
///
/// Cancel safety: a dropped job is spawned and goes on.
pub(super) fn run_inline<T: Send + 'static>(
    during: &'static str,
    job: impl Future<Output = Result<T>> + Send + 'static,
) -> impl Future<Output = Result<T>> + Send + 'static {
    let job = job.boxed();
    async move {
        match caller_runtime() {
            Some(runtime) => InlineJob { runtime, job: Some(job) }.await,
            None => BACKGROUND.run(during, job).await,
        }
    }
}

/// A job that its caller polls, and that is spawned if it is dropped before its end.
struct InlineJob<T: Send + 'static> {
    runtime: Handle,
    job: Option<BoxFuture<'static, Result<T>>>,
}

impl<T: Send + 'static> Future for InlineJob<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Taken out, so that a job that panics is not spawned by `drop`.
        let Some(mut job) = self.job.take() else { return Poll::Pending };
        // The caller's future may have moved to a thread without a runtime.
        let entered = self.runtime.enter();
        let polled = job.as_mut().poll(context);
        drop(entered);
        if polled.is_pending() {
            self.job = Some(job);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for InlineJob<T> {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            self.runtime.spawn(job);
        }
    }
}

/// The caller's runtime, if it has several threads. On a single thread, a caller that blocks would
/// stop the connection, and with it the requests of others.
fn caller_runtime() -> Option<Handle> {
    let current = Handle::try_current().ok()?;
    (current.runtime_flavor() == RuntimeFlavor::MultiThread).then_some(current)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_dropped_job_runs_to_completion() {
        let (answer, asked) = oneshot::channel::<()>();
        let (finish, finished) = oneshot::channel();
        let mut job = Box::pin(run_inline("testing", async move {
            let answered = asked.await;
            let _ = finish.send(());
            answered.map_err(|e| Error::unavailable(NAME, "testing", e.to_string(), None))
        }));
        assert!(futures::poll!(&mut job).is_pending());
        drop(job);
        answer.send(()).expect("the job is alive");
        finished.await.expect("the job ends");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_job_that_panics_is_not_started_again() {
        let started = Arc::new(AtomicUsize::new(0));
        let count = started.clone();
        let job = tokio::spawn(run_inline("testing", async move {
            count.fetch_add(1, Ordering::Relaxed);
            panic!("as it should");
            #[allow(unreachable_code, reason = "the future needs a type")]
            Ok(())
        }));
        assert!(job.await.is_err_and(|error| error.is_panic()));
        assert_eq!(started.load(Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&started), 1, "the job was dropped");
    }
}
