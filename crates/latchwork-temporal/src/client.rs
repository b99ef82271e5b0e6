//! Calls to mutex workflows: every one with a time limit, and with errors that tell apart what an operator
//! has to tell apart.
//!
//! Nothing is retried here or in the SDK. Whoever calls knows how long it may take, and retries by itself
//! what is worth it: see [`CallError`].

use std::future::Future;
use std::time::Duration;

use latchwork_lock::{Clock, SystemClock};
use temporalio_client::errors::{WorkflowInteractionError, WorkflowQueryError, WorkflowStartError};
use temporalio_client::tonic::{Code, Status};
use temporalio_client::{
    Client, NamespacedClient, QueryRejectCondition, RetryOptions, RpcOptions,
    WorkflowDescribeOptions, WorkflowExecutionStatus, WorkflowHandle, WorkflowIdConflictPolicy,
    WorkflowIdReusePolicy, WorkflowQueryOptions, WorkflowSignalOptions, WorkflowStartOptions,
    grpc::WorkflowService,
};
use temporalio_common::data_converters::RawValue;
use temporalio_common::protos::temporal::api::common::v1::Payload;
use temporalio_common::protos::temporal::api::enums::v1::TaskQueueType;
use temporalio_common::protos::temporal::api::taskqueue::v1::TaskQueue;
use temporalio_common::protos::temporal::api::workflowservice::v1::{
    DescribeNamespaceRequest, DescribeTaskQueueRequest,
};

use crate::messages::{
    Batch, Id, MutexInput, MutexStatus, Operation, OperationKind, Outcome, StatusAnswer,
    StatusRequest, VERSION, WORKFLOW_TYPE, workflow_id,
};
use crate::workflow::MutexWorkflow;
use crate::{Error, ErrorKind, Result};

/// How long a mutex stays although nobody uses it, unless told otherwise.
pub const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// Calls to the mutexes of one namespace. Clones share the connection.
#[derive(Clone)]
pub(crate) struct MutexClient {
    client: Client,
    task_queue: String,
    idle_timeout: Duration,
    operations_per_run: Option<u64>,
}

/// Why a call failed, as one who retries sees it.
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    /// There is no mutex of this resource, or it has ended.
    NotFound,
    /// The mutex gets more calls at once than the server lets through; a short pause helps.
    Busy(String),
    /// The server or the mutex did not answer; the call may have had its effect.
    NoAnswer(String),
    /// What only an operator can change, or what is certain.
    Final(Error),
}

impl MutexClient {
    pub(crate) fn new(client: Client, task_queue: impl Into<String>) -> Self {
        MutexClient {
            client,
            task_queue: task_queue.into(),
            idle_timeout: DEFAULT_IDLE_TIMEOUT,
            operations_per_run: None,
        }
    }

    pub(crate) fn with_idle_timeout(self, idle_timeout: Duration) -> Self {
        MutexClient { idle_timeout, ..self }
    }

    pub(crate) fn with_operations_per_run(self, operations_per_run: Option<u64>) -> Self {
        MutexClient { operations_per_run, ..self }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn task_queue(&self) -> &str {
        &self.task_queue
    }

    fn handle(&self, resource: &str) -> WorkflowHandle<Client, MutexWorkflow> {
        self.client.get_workflow_handle(workflow_id(resource))
    }

    /// Sends operations; starts the mutex where there is none, if `start` says so.
    pub(crate) async fn send(
        &self,
        resource: &str,
        operations: Vec<Operation>,
        start: bool,
        limit: Duration,
    ) -> Result<(), CallError> {
        let batch = payload(&Batch { version: VERSION, operations })?;
        if !start {
            let options = WorkflowSignalOptions::builder().rpc_options(rpc_options(limit)).build();
            let handle = self.handle(resource);
            let sent = handle.signal(MutexWorkflow::apply, batch, options);
            return limited(limit, sent).await?.map_err(|error| self.interaction(error));
        }
        let input = MutexInput {
            version: VERSION,
            resource: resource.to_owned(),
            idle_timeout_ms: u64::try_from(self.idle_timeout.as_millis()).unwrap_or(u64::MAX),
            operations_per_run: self.operations_per_run,
            carried: None,
        };
        let options = WorkflowStartOptions::new(&self.task_queue, workflow_id(resource))
            .id_reuse_policy(WorkflowIdReusePolicy::AllowDuplicate)
            .id_conflict_policy(WorkflowIdConflictPolicy::UseExisting)
            .static_summary(format!("Latchwork mutex of {resource:?}"))
            .rpc_options(rpc_options(limit))
            .build();
        let sent = self.client.signal_with_start_workflow(
            MutexWorkflow::run,
            input,
            MutexWorkflow::apply,
            batch,
            options,
        );
        match limited(limit, sent).await? {
            Ok(_) => Ok(()),
            Err(WorkflowStartError::Rpc(status)) => Err(self.status_error(&status)),
            Err(error) => Err(CallError::Final(Error::refused("signalling", error.to_string()))),
        }
    }

    /// Asks what became of operations and how requests stand. It sees all signals that were sent before.
    pub(crate) async fn ask_status(
        &self,
        resource: &str,
        request: StatusRequest,
        limit: Duration,
    ) -> Result<StatusAnswer, CallError> {
        let handle = self.handle(resource);
        let answer = handle.query(MutexWorkflow::answer, request, query_options(limit));
        limited(limit, answer).await?.map_err(|error| self.query_error(error))
    }

    /// Who holds and who waits.
    pub(crate) async fn status(
        &self,
        resource: &str,
        limit: Duration,
    ) -> Result<MutexStatus, CallError> {
        self.status_of(&self.handle(resource), limit).await
    }

    /// The same of a workflow that was found in a listing.
    pub(crate) async fn status_by_id(
        &self,
        workflow_id: &str,
        limit: Duration,
    ) -> Result<MutexStatus, CallError> {
        self.status_of(&self.client.get_workflow_handle(workflow_id), limit).await
    }

    async fn status_of(
        &self,
        handle: &WorkflowHandle<Client, MutexWorkflow>,
        limit: Duration,
    ) -> Result<MutexStatus, CallError> {
        let answer = handle.query(MutexWorkflow::status, (), query_options(limit));
        limited(limit, answer).await?.map_err(|error| self.query_error(error))
    }

    /// Waits until the mutex of a resource answers, and starts it where there is none.
    ///
    /// A signal that was accepted proves nothing: it is also accepted without a worker, and by a foreign
    /// workflow under our id. So this waits for the answer, and says what is wrong where there is none.
    pub(crate) async fn ready(&self, resource: &str, limit: Duration) -> Result<()> {
        let operation = Operation { id: Id::random(), kind: OperationKind::Ping };
        let outcome = self.perform(resource, operation, true, limit).await?;
        match outcome {
            Some(Outcome::Ready) => Ok(()),
            _ => Err(ErrorKind::Unsupported {}.into()),
        }
    }

    /// Does one operation and waits for its outcome; none where there is no mutex and none was to be
    /// started.
    pub(crate) async fn perform(
        &self,
        resource: &str,
        operation: Operation,
        start: bool,
        limit: Duration,
    ) -> Result<Option<Outcome>> {
        let end = SystemClock.now().after(limit);
        let left = || end.since(SystemClock.now());
        let mut last = String::from("it did not answer in time");
        let mut pauses = Pauses::default();
        let mut is_sent = false;
        let mut is_known = false;
        while !left().is_zero() {
            // A call without an answer leaves some time to find out why.
            let limit = left().mul_f64(0.7).max(Duration::from_millis(200)).min(left());
            let result = if is_sent {
                let request =
                    StatusRequest { operations: vec![operation.id], ..StatusRequest::default() };
                match self.ask_status(resource, request, limit).await {
                    Ok(answer) => match answer.outcomes.into_iter().next().flatten() {
                        Some(outcome) => return Ok(Some(outcome)),
                        None => Ok(()),
                    },
                    Err(error) => Err(error),
                }
            } else {
                self.send(resource, vec![operation.clone()], start, limit).await
            };
            match result {
                Ok(()) if !is_sent => {
                    is_sent = true;
                    continue;
                }
                // It may have ended between the signal and the question.
                Ok(()) => is_sent = pauses.count < 3,
                Err(CallError::NotFound) if !start => return Ok(None),
                Err(CallError::NotFound) => is_sent = false,
                Err(CallError::Busy(reason)) => last = reason,
                Err(CallError::NoAnswer(reason)) => {
                    last = reason;
                    if is_sent && !is_known {
                        is_known = true;
                        if let Ok(Some(found)) = self.why(resource, left()).await
                            && !found.is_temporary()
                        {
                            return Err(found);
                        }
                    }
                    // The signal was accepted, so the server is there: who does not answer is the mutex.
                    if is_sent && left() < limit {
                        break;
                    }
                }
                Err(CallError::Final(error)) => {
                    return Err(self.explained(resource, error, left()).await);
                }
            }
            tokio::time::sleep(pauses.next().min(left())).await;
        }
        let error = Error::unreachable("waiting for its answer", last);
        Err(self.explained(resource, error, left().max(Duration::from_secs(1))).await)
    }

    /// Finds out why a mutex does not answer, or answers what no mutex would.
    pub(crate) async fn explained(&self, resource: &str, error: Error, limit: Duration) -> Error {
        if matches!(error.kind(), ErrorKind::NoNamespace { .. } | ErrorKind::ForeignWorkflow { .. })
        {
            return error;
        }
        let limit = limit.clamp(Duration::from_millis(500), Duration::from_secs(3));
        match self.why(resource, limit).await {
            Ok(Some(found)) => found,
            Ok(None) | Err(_) => error,
        }
    }

    async fn why(&self, resource: &str, limit: Duration) -> Result<Option<Error>, CallError> {
        let options = WorkflowDescribeOptions::builder().rpc_options(rpc_options(limit)).build();
        let handle = self.handle(resource);
        let described = limited(limit, handle.describe(options)).await?;
        let mut there = None;
        let task_queue = match described {
            Ok(found) if found.workflow_type() != WORKFLOW_TYPE => {
                return Ok(Some(
                    ErrorKind::ForeignWorkflow {
                        workflow_id: workflow_id(resource),
                        workflow_type: found.workflow_type().to_owned(),
                    }
                    .into(),
                ));
            }
            Ok(found) => {
                let task_queue = found.task_queue().to_owned();
                there = (task_queue != self.task_queue).then(|| workflow_id(resource));
                task_queue
            }
            Err(WorkflowInteractionError::NotFound(status)) => match self.status_error(&status) {
                CallError::Final(error) => return Ok(Some(error)),
                _ => self.task_queue.clone(),
            },
            Err(error) => return Err(self.interaction(error)),
        };
        if self.has_worker(&task_queue, limit).await? {
            return Ok(None);
        }
        let namespace = self.client.namespace();
        Ok(Some(ErrorKind::NoWorker { task_queue, namespace, workflow_id: there }.into()))
    }

    /// Whether somebody has polled the task queue for workflows of late.
    async fn has_worker(&self, task_queue: &str, limit: Duration) -> Result<bool, CallError> {
        let request = DescribeTaskQueueRequest {
            namespace: self.client.namespace(),
            task_queue: Some(TaskQueue { name: task_queue.to_owned(), ..TaskQueue::default() }),
            task_queue_type: TaskQueueType::Workflow as i32,
            ..DescribeTaskQueueRequest::default()
        };
        let mut client = self.client.clone();
        let mut request = temporalio_client::tonic::Request::new(request);
        request.set_timeout(limit);
        let described = WorkflowService::describe_task_queue(&mut client, request);
        let described = limited(limit, described).await?;
        match described {
            Ok(found) => Ok(!found.into_inner().pollers.is_empty()),
            Err(status) => Err(self.status_error(&status)),
        }
    }

    /// Fails where the server or the namespace is not there.
    pub(crate) async fn check_namespace(&self, limit: Duration) -> Result<(), CallError> {
        let request = DescribeNamespaceRequest {
            namespace: self.client.namespace(),
            ..DescribeNamespaceRequest::default()
        };
        let mut client = self.client.clone();
        let mut request = temporalio_client::tonic::Request::new(request);
        request.set_timeout(limit);
        let described =
            limited(limit, WorkflowService::describe_namespace(&mut client, request)).await?;
        match described {
            Ok(_) => Ok(()),
            Err(status) if status.code() == Code::NotFound => Err(self.no_namespace()),
            // Not everybody may look at it, and that is no harm.
            Err(status) if status.code() == Code::PermissionDenied => Ok(()),
            Err(status) => Err(self.status_error(&status)),
        }
    }

    fn no_namespace(&self) -> CallError {
        let namespace = self.client.namespace();
        CallError::Final(ErrorKind::NoNamespace { namespace }.into())
    }

    fn interaction(&self, error: WorkflowInteractionError) -> CallError {
        match error {
            WorkflowInteractionError::NotFound(status) | WorkflowInteractionError::Rpc(status) => {
                self.status_error(&status)
            }
            error => CallError::Final(Error::refused("calling", error.to_string())),
        }
    }

    fn query_error(&self, error: WorkflowQueryError) -> CallError {
        match error {
            // What the worker answered: one that is about to end does so, and so does any other workflow under
            // our id, which is looked at then.
            WorkflowQueryError::Rpc(status) if status.code() == Code::InvalidArgument => {
                CallError::NoAnswer(status.message().to_owned())
            }
            WorkflowQueryError::NotFound(status) | WorkflowQueryError::Rpc(status) => {
                self.status_error(&status)
            }
            // The next run is there already, and has everything.
            WorkflowQueryError::Rejected {
                status: Some(WorkflowExecutionStatus::ContinuedAsNew),
            } => CallError::Busy("it continues as new".to_owned()),
            WorkflowQueryError::Rejected { .. } => CallError::NotFound,
            error => CallError::Final(Error::refused("querying", error.to_string())),
        }
    }

    /// What a status of the server means for a call to a mutex.
    pub(crate) fn status_error(&self, status: &Status) -> CallError {
        let message = status.message();
        match status.code() {
            // The one code is for both. A workflow's id is at the end of its message.
            Code::NotFound if message.starts_with("Namespace ") => self.no_namespace(),
            Code::NotFound => CallError::NotFound,
            Code::ResourceExhausted => CallError::Busy(message.to_owned()),
            Code::PermissionDenied
            | Code::Unauthenticated
            | Code::InvalidArgument
            | Code::Unimplemented => CallError::Final(Error::refused("calling", message)),
            // Also "no poller seen" and "not ready yet": the reason is looked for when time is up.
            _ => CallError::NoAnswer(format!("{:?}: {message}", status.code())),
        }
    }
}

/// Pauses between tries, jittered, so that clients do not come back together.
#[derive(Default)]
pub(crate) struct Pauses {
    count: u32,
}

impl Pauses {
    pub(crate) fn next(&mut self) -> Duration {
        self.count += 1;
        let span = Duration::from_millis(10 << self.count.min(5));
        span.mul_f64(rand::random_range(0.3..=1.0))
    }

    /// The same for a mutex that is busy, which is over soon: a server lets one query wait at a time for the
    /// task that a signal has begun.
    pub(crate) fn next_busy(&mut self) -> Duration {
        self.count += 1;
        let span = Duration::from_millis(4 << self.count.min(4));
        span.mul_f64(rand::random_range(0.2..=1.0))
    }

    pub(crate) fn reset(&mut self) {
        self.count = 0;
    }
}

fn payload(batch: &Batch) -> Result<RawValue, CallError> {
    let data = serde_json::to_vec(batch)
        .map_err(|error| CallError::Final(Error::refused("writing a signal", error.to_string())))?;
    let metadata = [("encoding".to_owned(), b"json/plain".to_vec())].into();
    Ok(RawValue::new(vec![Payload { metadata, data, ..Payload::default() }]))
}

fn rpc_options(limit: Duration) -> RpcOptions {
    RpcOptions::builder().timeout(limit).retry_options(RetryOptions::no_retries()).build()
}

fn query_options(limit: Duration) -> WorkflowQueryOptions {
    WorkflowQueryOptions::builder()
        .reject_condition(QueryRejectCondition::NotOpen)
        .rpc_options(rpc_options(limit))
        .build()
}

/// The server need not keep to the limit that it is told.
async fn limited<T>(limit: Duration, call: impl Future<Output = T>) -> Result<T, CallError> {
    tokio::time::timeout(limit, call)
        .await
        .map_err(|_| CallError::NoAnswer(format!("no answer within {limit:.1?}")))
}
