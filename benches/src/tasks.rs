//! Operations that are shared out among tasks.

use tokio::runtime::Runtime;
use tokio::task::JoinSet;

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
