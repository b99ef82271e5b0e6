//! Operations that are shared out among tasks.
#![expect(clippy::expect_used, reason = "a bench whose parts do not come about is none")]

use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// A runtime of two threads, as many as the cores of the smallest machine that this is run on.
pub fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime")
}

/// Lets a number of tasks do a number of operations together; `work` gives what one of them does
/// when it is told how often.
pub fn tasks<F: Future<Output = ()> + Send + 'static>(
    runtime: &Runtime,
    count: u64,
    operations: u64,
    work: impl Fn(u64, u64) -> F,
) {
    let each = operations.div_ceil(count);
    let mut set = JoinSet::new();
    for task in 0..count {
        set.spawn_on(work(task, each), runtime.handle());
    }
    runtime.block_on(set.join_all());
}
