//! A runtime on a thread of its own, for the work that must not depend on the caller's runtime.
//!
//! Drops happen in any runtime or in none (L21), a connection belongs to the runtime that opened it,
//! and a future that is dropped must not leave a transaction half done. Such work runs here, as
//! tasks that run to their end.

use std::future::Future;
use std::io;
use std::sync::OnceLock;

use tokio::runtime::{Builder, Handle};

use crate::{Error, Result};

/// One runtime with one thread, shared by all instances of a provider in this process.
///
/// Meant to be a `static`. The thread starts with the first use and lives as long as the process.
///
/// ```
/// # use latchwork_lock::coordination::background::Background;
/// static BACKGROUND: Background = Background::new("example");
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> latchwork_lock::Result<()> {
/// let sum = BACKGROUND.run("adding", async { Ok(1 + 2) }).await?;
/// # assert_eq!(sum, 3); Ok(()) }
/// ```
#[derive(Debug)]
pub struct Background {
    name: &'static str,
    handle: OnceLock<io::Result<Handle>>,
}

impl Background {
    /// `name` is the provider's name, as its errors have it; the thread is `latchwork-<name>`.
    pub const fn new(name: &'static str) -> Self {
        Background { name, handle: OnceLock::new() }
    }

    /// The runtime's handle.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the thread could not be started.
    pub fn handle(&self) -> Result<&Handle> {
        self.handle.get_or_init(|| start(self.name)).as_ref().map_err(|error| {
            let reason = format!("its background thread could not be started ({error})");
            Error::unavailable(self.name, "starting", reason, None)
        })
    }

    /// Runs a job to its end and returns its result. A panic of the job is the caller's.
    ///
    /// Dropping the future does not stop a job that has begun.
    ///
    /// # Errors
    /// The job's own, and [`Unavailable`](crate::ErrorKind::Unavailable) when there is no thread to
    /// run it.
    pub async fn run<T: Send + 'static>(
        &self,
        during: &'static str,
        job: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let error = match self.handle()?.spawn(job).await {
            Ok(result) => return result,
            Err(error) => error,
        };
        match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => {
                let source = Some(Box::new(error) as _);
                Err(Error::unavailable(self.name, during, "the runtime is shutting down", source))
            }
        }
    }
}

fn start(name: &str) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name(format!("latchwork-{name}"))
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    static BACKGROUND: Background = Background::new("test");

    #[test]
    fn a_job_runs_to_its_end_although_its_future_is_dropped() {
        let (send, receive) = std::sync::mpsc::channel();
        let (begin, begun) = tokio::sync::oneshot::channel::<()>();
        let job = async move {
            let _ = begun.await;
            let name = std::thread::current().name().map(str::to_owned);
            let _ = send.send(name);
            Ok(())
        };
        let mut running = Box::pin(BACKGROUND.run("testing", job));
        assert!(futures::FutureExt::now_or_never(running.as_mut()).is_none());
        drop(running);
        begin.send(()).expect("the job waits for it");
        let thread = receive.recv_timeout(std::time::Duration::from_secs(30));
        assert_eq!(thread.expect("the job ends").as_deref(), Some("latchwork-test"));
    }

    #[tokio::test]
    #[should_panic(expected = "of the job")]
    async fn a_panic_of_a_job_reaches_its_caller() {
        let job = async { if true { panic!("of the job") } else { Ok(()) } };
        let _ = BACKGROUND.run("testing", job).await;
    }
}
