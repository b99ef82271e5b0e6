//! The Temporal provider beside the least that the same server can do: two signals with a reply each, to the
//! same kind of workflow on the same worker. Once on a server that is tuned for short waits, and once on one
//! with its settings as they come.
//!
//! `scripts/services up temporal`, then `cargo bench -p latchwork-benches --features temporal --bench temporal`,
//! takes some minutes. Goals are printed and not asserted: a busy machine is no fault of the code.
#![expect(clippy::expect_used, reason = "a bench of locks that are not granted is none")]
#![allow(missing_docs, reason = "the macros make constants of the methods")]

use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use latchwork_benches::{Contender, Goal, Scale, Table, missing, race, runtime};
use latchwork_lock::Locks;
use latchwork_lock::provider::Token;
use latchwork_temporal::{
    HasMutexInbox, Mutex, MutexInbox, MutexOptions, MutexReply, REPLY_SIGNAL, TemporalConfig,
    TemporalLockProvider, register, workflow_id,
};
use temporalio_client::{
    Client, UntypedQuery, UntypedSignal, WorkflowDescribeOptions, WorkflowGetResultOptions,
    WorkflowHandle, WorkflowQueryOptions, WorkflowSignalOptions, WorkflowStartOptions,
};
use temporalio_common::UntypedWorkflow;
use temporalio_common::data_converters::RawValue;
use temporalio_common::protos::temporal::api::common::v1::Payload;
use temporalio_macros::{workflow, workflow_methods};
use temporalio_sdk::{
    ApplicationFailure, SyncWorkflowContext, Worker, WorkerOptions, WorkflowContext, WorkflowResult,
};
use tokio::runtime::Runtime;

const TTL: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let mut scale = Scale::from_args();
    scale.rounds = scale.rounds.min(9); // a server has its own pace, and a round takes longer
    let Ok(server) = std::env::var("LATCHWORK_TEST_TEMPORAL") else {
        return missing("temporal", "no server: `scripts/services up temporal` starts one");
    };
    let runtime = runtime();
    let tuned = Server::open(&runtime, &server);
    let mut table = Table::new("Lock and unlock on Temporal's development server, tuned");
    lock_and_unlock(scale, &runtime, &tuned, &mut table);
    history(scale, &runtime, &tuned, &mut table);
    table.print(scale);
    drop(tuned);
    if let Some(process) = Untuned::start() {
        let untuned = Server::open(&runtime, &process.address);
        let mut table = Table::new("The same with the server's default settings, in memory");
        lock_and_unlock(scale, &runtime, &untuned, &mut table);
        table.print(scale);
    }
    ExitCode::SUCCESS
}

/// A server with its settings as they come, which is killed in the end.
struct Untuned {
    process: Child,
    address: String,
}

impl Untuned {
    /// None where its program is not named.
    fn start() -> Option<Self> {
        let program = std::env::var("LATCHWORK_TEST_TEMPORAL_BIN").ok()?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let mut command = Command::new(program);
        command.args(["server", "start-dev", "--headless", "--ip", "127.0.0.1", "--log-level"]);
        command.args(["never", "--port", &port.to_string()]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("it starts");
        Some(Untuned { process, address: format!("127.0.0.1:{port}") })
    }
}

impl Drop for Untuned {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A worker, and both ways to call what it runs.
struct Server {
    locks: Locks,
    client: Client,
    /// Of a mutex that is only asked whether it works.
    bare: String,
    task_queue: String,
}

/// A workflow that locks and unlocks one resource again and again.
#[workflow]
#[derive(Default)]
pub struct LockLoop {
    inbox: MutexInbox,
}

#[workflow_methods]
impl LockLoop {
    #[run]
    pub async fn run(
        ctx: &mut WorkflowContext<Self>,
        (resource, count): (String, u64),
    ) -> WorkflowResult<()> {
        let failed = |error: latchwork_temporal::Error| ApplicationFailure::new(error);
        let options = MutexOptions::resource(resource).task_queue(ctx.task_queue());
        let mutex = Mutex::new(ctx, options).await.map_err(failed)?;
        for _ in 0..count {
            mutex.on_acquire(ctx, async |_| {}).await.map_err(failed)?;
        }
        Ok(())
    }

    #[signal(name = REPLY_SIGNAL)]
    pub fn mutex_reply(&mut self, _ctx: &mut SyncWorkflowContext<Self>, reply: MutexReply) {
        self.inbox.deliver(reply);
    }
}

impl HasMutexInbox for LockLoop {
    fn mutex_inbox(&self) -> &MutexInbox {
        &self.inbox
    }
}

impl Server {
    fn open(runtime: &Runtime, server: &str) -> Self {
        let mut config = TemporalConfig::new(format!("http://{server}"));
        config.task_queue = format!("bench-{:x}", Token::random().expose());
        // One history: continuing as new would hide what a lock costs of it.
        config.operations_per_run = Some(u64::MAX);
        let hosted = config.clone();
        // A server that has just been started needs a moment.
        let mut tries = 0;
        while runtime.block_on(TemporalLockProvider::open(config.clone())).is_err() && tries < 300 {
            std::thread::sleep(Duration::from_millis(100));
            tries += 1;
        }
        std::thread::spawn(move || {
            latchwork_benches::runtime().block_on(async move {
                let client = hosted.connect().await.expect("the server is there");
                let runtime = temporalio_sdk::Runtime::from_current_tokio(Default::default());
                let mut options = WorkerOptions::new(&hosted.task_queue).build();
                register(&mut options).expect("registered once");
                options.register_workflow::<LockLoop>().expect("registered once");
                let worker = Worker::new(&runtime.expect("a runtime"), client, options);
                worker.expect("a worker").run().await.expect("it runs until the bench ends");
            });
        });
        runtime.block_on(async {
            let provider = TemporalLockProvider::open(config.clone()).await.expect("a server");
            let resource = format!("bare-{:x}", Token::random().expose());
            provider.ready(&resource, Duration::from_secs(30)).await.expect("it answers");
            let client = config.connect().await.expect("the server is there");
            let bare = workflow_id(&format!("lock/{resource}"));
            let task_queue = config.task_queue;
            Server { locks: Locks::new(provider), client, bare, task_queue }
        })
    }

    fn handle(&self, id: &str) -> WorkflowHandle<Client, UntypedWorkflow> {
        self.client.get_workflow_handle(id)
    }

    /// A signal, and a query that sees it.
    async fn signal_with_reply(&self) {
        let id = format!("{:032x}", Token::random().expose());
        let data = format!(r#"{{"version":2,"operations":[{{"id":"{id}","kind":"ping"}}]}}"#);
        let metadata = [("encoding".to_owned(), b"json/plain".to_vec())].into();
        let payload = Payload { metadata, data: data.into_bytes(), ..Payload::default() };
        let handle = self.handle(&self.bare);
        let signal = UntypedSignal::new("latchwork.mutex.apply");
        let input = RawValue::new(vec![payload]);
        let sent = handle.signal(signal, input, WorkflowSignalOptions::default());
        sent.await.expect("it is there");
        let query = UntypedQuery::new("status");
        let input = RawValue::new(Vec::new());
        let asked = handle.query(query, input, WorkflowQueryOptions::default());
        asked.await.expect("it answers");
    }

    /// The same number of locks in one workflow.
    async fn lock_in_a_workflow(&self, key: &str, count: u64) {
        let id = format!("bench-{:x}", Token::random().expose());
        let options = WorkflowStartOptions::new(&self.task_queue, id).build();
        let input = (key.to_owned(), count);
        let started = self.client.start_workflow(LockLoop::run, input, options).await;
        let started = started.expect("it starts");
        let done = started.get_result(WorkflowGetResultOptions::default());
        done.await.expect("it completes");
    }

    async fn lock_and_unlock(&self, key: &str) {
        let guard = self.locks.lock(key).ttl(TTL).acquire().await.expect("granted");
        guard.release().await.expect("held");
    }
}

fn lock_and_unlock(scale: Scale, runtime: &Runtime, server: &Server, table: &mut Table) {
    let key = format!("{:x}", Token::random().expose());
    let mut all = [
        Contender::new("latchwork", |operations| {
            runtime.block_on(async {
                for _ in 0..operations {
                    server.lock_and_unlock(&key).await;
                }
            });
        }),
        Contender::new("latchwork, inside a workflow", |operations| {
            runtime.block_on(server.lock_in_a_workflow(&key, operations));
        }),
        Contender::new("two signals with a reply each", |operations| {
            runtime.block_on(async {
                for _ in 0..operations {
                    server.signal_with_reply().await;
                    server.signal_with_reply().await;
                }
            });
        }),
    ];
    let race = race(scale, &mut all);
    for ((other, name), goal) in race.others().zip([Goal::None, Goal::AtMost(1.3)]) {
        // How much longer ours takes.
        let ratio = race.first_faster_than(other);
        let longer = 1.0 / ratio.median;
        let shown = format!("{longer:.2}× its time");
        table.row("lock and unlock by a client", name, longer, shown, goal);
    }
}

/// What a lock that nobody else wants adds to its history.
fn history(scale: Scale, runtime: &Runtime, server: &Server, table: &mut Table) {
    let key = format!("{:x}", Token::random().expose());
    let events = runtime.block_on(async {
        let handle = server.handle(&workflow_id(&format!("lock/{key}")));
        let length = async || {
            let found = handle.describe(WorkflowDescribeOptions::default()).await;
            found.expect("it is known").history_length()
        };
        server.lock_and_unlock(&key).await;
        let before = length().await;
        let count = scale.pick(100, 2);
        for _ in 0..count {
            server.lock_and_unlock(&key).await;
        }
        (length().await - before) as f64 / count as f64
    });
    let shown = format!("{events:.1}");
    table.row("events of history for a lock", "", events, shown, Goal::AtMost(8.5));
}
