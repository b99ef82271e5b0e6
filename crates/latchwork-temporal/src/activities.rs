//! What workflows cannot do themselves and let their worker do: a signal that also starts the mutex, and
//! the look at the server before a mutex begins.
#![allow(missing_docs, reason = "the macros make constants of the methods")]

use std::time::Duration;

use futures_util::StreamExt;
use latchwork_lock::{Clock, SystemClock};
use serde::{Deserialize, Serialize};
use temporalio_client::grpc::{OperatorService, WorkflowService};
use temporalio_client::tonic::Request;
use temporalio_client::{
    Client, NamespacedClient, RetryOptions, RpcOptions, WorkflowExecutionStatus,
    WorkflowListOptions,
};
use temporalio_common::data_converters::{SerializationContextData, WorkflowSerializationContext};
use temporalio_common::protos::temporal::api::common::v1::WorkflowExecution;
use temporalio_common::protos::temporal::api::enums::v1::HistoryEventFilterType;
use temporalio_common::protos::temporal::api::enums::v1::IndexedValueType;
use temporalio_common::protos::temporal::api::history::v1::history_event::Attributes;
use temporalio_common::protos::temporal::api::operatorservice::v1::ListSearchAttributesRequest;
use temporalio_common::protos::temporal::api::workflowservice::v1::GetWorkflowExecutionHistoryRequest;
use temporalio_macros::activities;
use temporalio_sdk::activities::{ActivityContext, ActivityError};

use crate::client::MutexClient;
use crate::messages::{MutexResult, Operation, Outcome, RESOURCE_ATTRIBUTE};
use crate::{Error, ErrorKind};

/// The activities that mutexes and those who lock them need. A worker whose workflows use
/// [`Mutex`](crate::Mutex) registers them: see [`register_caller`](crate::register_caller).
pub struct MutexActivities;

/// Sends an operation to a mutex, which is started where there is none.
#[doc(hidden)]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SendRequest {
    pub(crate) resource: String,
    pub(crate) task_queue: String,
    pub(crate) idle_timeout_ms: u64,
    pub(crate) operation: Operation,
    /// Whether to wait for the outcome.
    pub(crate) answer: bool,
    /// How long it may take.
    pub(crate) limit_ms: u64,
}

/// What became of it.
#[doc(hidden)]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SendAnswer {
    /// The mutex has it; the outcome, where it was waited for.
    Sent(Option<Outcome>),
    /// It could not be sent.
    Failed(ErrorKind),
}

/// A run, and a workflow's id, before which an earlier run is looked for.
#[doc(hidden)]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PreviousRun {
    pub(crate) workflow_id: String,
    pub(crate) run_id: String,
}

/// What a mutex knows of its server when it begins.
#[doc(hidden)]
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Beginning {
    /// The highest fence that earlier runs gave, as far as the server still knows them.
    #[serde(default)]
    pub(crate) last_fence: u64,
    /// Whether the namespace has the search attribute of mutexes.
    #[serde(default)]
    pub(crate) has_attribute: bool,
}

#[activities]
impl MutexActivities {
    /// Sends an operation.
    #[activity(name = "latchwork.mutex.send")]
    pub async fn send(
        context: ActivityContext,
        request: SendRequest,
    ) -> Result<SendAnswer, ActivityError> {
        let SendRequest { resource, task_queue, idle_timeout_ms, operation, answer, limit_ms } =
            request;
        let limit = Duration::from_millis(limit_ms);
        let client = MutexClient::new(context.client(), task_queue)
            .with_idle_timeout(Duration::from_millis(idle_timeout_ms));
        let sent = if answer {
            client.perform(&resource, operation, true, limit).await
        } else {
            client.deliver(&resource, operation, limit).await.map(|()| None)
        };
        Ok(match sent {
            Ok(outcome) => SendAnswer::Sent(outcome),
            Err(error) => SendAnswer::Failed(error.kind().clone()),
        })
    }

    /// Looks at the server before a mutex begins.
    #[activity(name = "latchwork.mutex.begin")]
    pub async fn begin(
        context: ActivityContext,
        before: PreviousRun,
    ) -> Result<Beginning, ActivityError> {
        let client = context.client();
        let (last_fence, has_attribute) =
            futures_util::future::join(last_fence(&client, &before), has_attribute(&client)).await;
        Ok(Beginning { last_fence: last_fence.unwrap_or(0), has_attribute })
    }
}

/// Whether the namespace has the search attribute. Not every server lets everybody ask, and then it counts as
/// missing.
async fn has_attribute(client: &Client) -> bool {
    let mut request = Request::new(ListSearchAttributesRequest { namespace: client.namespace() });
    request.set_timeout(Duration::from_secs(2));
    let mut client = client.clone();
    let listed = OperatorService::list_search_attributes(&mut client, request);
    let Ok(Ok(found)) = tokio::time::timeout(Duration::from_secs(2), listed).await else {
        return false;
    };
    let found = found.into_inner().custom_attributes.get(RESOURCE_ATTRIBUTE).copied();
    found == Some(IndexedValueType::Keyword as i32)
}

/// Of the runs that ended last.
async fn last_fence(client: &Client, before: &PreviousRun) -> Option<u64> {
    const RUNS: usize = 3;
    let rpc = || {
        RpcOptions::builder()
            .timeout(Duration::from_secs(2))
            .retry_options(RetryOptions::no_retries())
            .build()
    };
    let id = quoted(&before.workflow_id);
    let query = format!("WorkflowId = {id} AND ExecutionStatus = 'Completed'");
    let options = WorkflowListOptions::builder().limit(RUNS).rpc_options(rpc()).build();
    let mut found = client.list_workflows(query, options);
    let mut highest = None;
    while let Some(Ok(run)) = found.next().await {
        if run.run_id() == before.run_id || run.status() != WorkflowExecutionStatus::Completed {
            continue;
        }
        let fence = fence_of(client, &before.workflow_id, run.run_id()).await;
        highest = highest.max(fence);
    }
    highest
}

/// The fence in the result of a run.
async fn fence_of(client: &Client, workflow_id: &str, run_id: &str) -> Option<u64> {
    let mut request = Request::new(GetWorkflowExecutionHistoryRequest {
        namespace: client.namespace(),
        execution: Some(WorkflowExecution {
            workflow_id: workflow_id.to_owned(),
            run_id: run_id.to_owned(),
        }),
        history_event_filter_type: HistoryEventFilterType::CloseEvent as i32,
        ..GetWorkflowExecutionHistoryRequest::default()
    });
    request.set_timeout(Duration::from_secs(2));
    let mut client = client.clone();
    let found = WorkflowService::get_workflow_execution_history(&mut client, request).await.ok()?;
    let last = found.into_inner().history?.events.pop()?;
    let Attributes::WorkflowExecutionCompletedEventAttributes(completed) = last.attributes? else {
        return None;
    };
    let mut result = completed.result?;
    let context = SerializationContextData::Workflow(WorkflowSerializationContext::new());
    let converter = client.data_converter().clone();
    let result: MutexResult =
        converter.from_payloads(&context, result.payloads.split_off(0)).await.ok()?;
    Some(result.last_fence)
}

/// A text in a query of the server's listing.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

impl MutexClient {
    /// Sends an operation without waiting for its outcome. The mutex was found ready before.
    async fn deliver(
        &self,
        resource: &str,
        operation: Operation,
        limit: Duration,
    ) -> Result<(), Error> {
        use crate::client::{CallError, Pauses};

        let end = SystemClock.now().after(limit);
        let mut last = String::from("it is busy");
        let mut pauses = Pauses::default();
        loop {
            let left = end.since(SystemClock.now());
            if left.is_zero() {
                let error = Error::unreachable("signalling", last);
                return Err(self.explained(resource, error, Duration::from_secs(1)).await);
            }
            match self.send(resource, vec![operation.clone()], true, left).await {
                Ok(()) => return Ok(()),
                Err(CallError::Final(error)) => return Err(error),
                Err(CallError::NoAnswer(reason) | CallError::Busy(reason)) => last = reason,
                Err(CallError::NotFound) => {}
            }
            tokio::time::sleep(pauses.next().min(left)).await;
        }
    }
}
