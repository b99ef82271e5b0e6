//! Which mutexes are held or waited for.
//!
//! The server's listing knows the mutexes that run, some of them a moment late, and not which of them are
//! held: each is asked. What this process has just used is asked too, so that it sees its own locks.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use latchwork_lock::{Inspection, Result};
use temporalio_client::{RetryOptions, RpcOptions, WorkflowListOptions};

use super::link::Links;
use super::provider::{failed, with_retry};
use super::report;
use crate::activities::quoted;
use crate::client::CallError;
use crate::messages::{ID_PREFIX, WORKFLOW_TYPE, workflow_id};

/// How many mutexes are asked at the same time.
const AT_ONCE: usize = 16;

/// How long each of them may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The mutexes whose resource begins so and that are in use, sorted.
pub(super) async fn list(links: &Links, prefix: &str) -> Result<Vec<Inspection>> {
    let mut ids = running(links, prefix).await.map_err(|error| failed(error, "listing"))?;
    for key in links.recent() {
        if key.as_str().starts_with(prefix) {
            ids.insert(workflow_id(key.as_str()));
        }
    }
    let client = links.client();
    let asked = stream::iter(ids).map(|id| async move {
        let status = with_retry(PATIENCE, |limit| client.status_by_id(&id, limit)).await;
        (id, status)
    });
    let mut asked = asked.buffer_unordered(AT_ONCE);
    let mut found = Vec::new();
    while let Some((id, status)) = asked.next().await {
        match status {
            Ok(status) => {
                let used = !status.holders.is_empty() || !status.waiters.is_empty();
                if used && status.resource.starts_with(prefix) {
                    found.push(report::inspection(&status));
                }
            }
            Err(CallError::NotFound) => {}
            // One that nobody runs any more must not hide all others.
            Err(CallError::NoAnswer(reason)) => {
                tracing::warn!(workflow = id, reason, "a mutex does not answer, and is left out");
            }
            Err(error) => return Err(failed(error, "listing")),
        }
    }
    found.sort_by(|one, other| one.key.cmp(&other.key));
    Ok(found)
}

/// The ids of the mutexes that run, as the server lists them.
async fn running(links: &Links, prefix: &str) -> std::result::Result<BTreeSet<String>, CallError> {
    // Of a long name only the beginning is in the id.
    let mut end = prefix.len().min(100);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    let begins = quoted(&format!("{ID_PREFIX}{}", &prefix[..end]));
    let query = format!(
        "WorkflowType = {} AND ExecutionStatus = 'Running' AND WorkflowId STARTS_WITH {begins}",
        quoted(WORKFLOW_TYPE)
    );
    let rpc = RpcOptions::builder()
        .timeout(Duration::from_secs(5))
        .retry_options(RetryOptions::no_retries())
        .build();
    let options = WorkflowListOptions::builder().rpc_options(rpc).build();
    let mut found = links.client().client().list_workflows(query, options);
    let mut ids = BTreeSet::new();
    while let Some(run) = found.next().await {
        match run {
            Ok(run) => {
                ids.insert(run.id().to_owned());
            }
            Err(temporalio_client::errors::ClientError::Rpc(status)) => {
                return Err(links.client().status_error(&status));
            }
            Err(error) => {
                let error = crate::Error::refused("listing", error.to_string());
                return Err(CallError::Final(error));
            }
        }
    }
    Ok(ids)
}
