//! A server, workers on task queues of their own, and names that nobody else uses.

use std::time::Duration;

use latchwork_lock::{LockConfig, Locks};
use latchwork_temporal::{TemporalConfig, TemporalLockProvider, run_worker};
use libtest_mimic::{Failed, Trial};
use temporalio_client::Client;
use tokio::sync::oneshot;

/// The server of `scripts/services`; none where it does not run.
pub(crate) fn server() -> Option<String> {
    std::env::var("LATCHWORK_TEST_TEMPORAL").ok().filter(|server| !server.is_empty())
}

pub(crate) const MISSING: &str = "no server; `scripts/services up temporal` starts one";

/// How long anything may take that should happen soon, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// A name that is used once.
pub(crate) fn fresh(name: &str) -> String {
    format!("{name}-{:08x}", rand::random::<u32>())
}

/// The settings for a task queue of the server.
pub(crate) fn config(task_queue: &str) -> TemporalConfig {
    config_at(&server().expect("a server"), task_queue)
}

pub(crate) fn config_at(server: &str, task_queue: &str) -> TemporalConfig {
    let mut config = TemporalConfig::new(format!("http://{server}"));
    task_queue.clone_into(&mut config.task_queue);
    // Long for a test, and short for a server that has seen many.
    config.idle_timeout = Duration::from_secs(90);
    config
}

/// A worker in a thread of its own, which is told to stop when this is dropped.
pub(crate) struct Host {
    stop: Option<oneshot::Sender<()>>,
}

impl Host {
    /// Runs mutexes on a task queue.
    pub(crate) fn start(config: &TemporalConfig) -> Self {
        let (config, task_queue) = (config.clone(), config.task_queue.clone());
        Self::run(async move |stop| {
            let client = config.connect().await.expect("the server is there");
            run_worker(client, &task_queue, async {
                let _ = stop.await;
            })
            .await
            .expect("the worker runs until it is stopped");
        })
    }

    /// Runs anything that is not `Send` in a thread with a runtime.
    pub(crate) fn run<F: Future<Output = ()>>(
        worker: impl FnOnce(oneshot::Receiver<()>) -> F + Send + 'static,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(worker(stopped));
            runtime.shutdown_timeout(Duration::from_secs(1));
        });
        Host { stop: Some(stop) }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

/// A connection as another process would have it. Its leases outlast what a busy machine dawdles away.
pub(crate) async fn open(config: &TemporalConfig) -> Locks {
    let provider = TemporalLockProvider::open(config.clone()).await.expect("the server is there");
    let ttl = Duration::from_secs(600);
    Locks::new(provider).with_defaults(LockConfig { ttl, ..LockConfig::default() })
}

/// The same, once a worker answers on the task queue: on a busy machine it takes a while to start.
pub(crate) async fn open_ready(config: &TemporalConfig) -> Locks {
    wait_for_worker(config).await;
    open(config).await
}

/// Waits until a worker answers on the task queue.
pub(crate) async fn wait_for_worker(config: &TemporalConfig) {
    let provider = TemporalLockProvider::open(config.clone()).await.expect("the server is there");
    provider.ready(&fresh("first"), SOON * 2).await.expect("the worker starts");
}

/// A client of the server's own calls.
pub(crate) async fn client(config: &TemporalConfig) -> Client {
    config.connect().await.expect("the server is there")
}

/// A named test on the server. Without one it is skipped, and fails where `CI` is set.
pub(crate) fn trial<F: Future<Output = ()>>(
    name: &str,
    test: impl FnOnce() -> F + Send + 'static,
) -> Trial {
    let missing = server().is_none();
    let in_ci = std::env::var_os("CI").is_some();
    Trial::test(name, move || {
        if missing {
            return Err(Failed::from(MISSING));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let limit = Duration::from_secs(120);
            tokio::time::timeout(limit, test()).await.expect("the test ends in time");
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        Ok(())
    })
    .with_ignored_flag(missing && !in_ci)
}

/// Looks until the condition holds.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let look = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    };
    assert!(tokio::time::timeout(SOON, look).await.is_ok(), "not within {SOON:?}: {what}");
}
