//! What a case leaves behind on a server is removed when the case ends.

use std::sync::Mutex;

use futures::future::BoxFuture;

/// Runs a future when it is dropped, also when the case has failed.
///
/// A case that needs a whole database keeps one of these in its backend
/// ([`TestBackend::keep`](crate::lock::TestBackend::keep)), so that runs do not fill the disk of the
/// server.
///
/// The mutex only makes it `Sync`, which the future need not be.
pub struct Cleanup(Mutex<Option<BoxFuture<'static, ()>>>);

impl Cleanup {
    /// The future is run once, on a thread and a runtime of its own. A panic in it is ignored: what
    /// is left on the server is no fault of the case.
    pub fn new(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Cleanup(Mutex::new(Some(Box::pin(work))))
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let Some(work) = self.0.get_mut().ok().and_then(Option::take) else { return };
        // A runtime cannot block on a future within another, and the case's own may be ending.
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            if let Ok(runtime) = runtime {
                runtime.block_on(work);
            }
        });
        let _ = thread.join();
    }
}
