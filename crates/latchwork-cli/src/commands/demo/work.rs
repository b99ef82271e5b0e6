//! The chapter of work: an order, an agent that is killed, and another one that does its item.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use latchwork::lock::{Clock as _, SystemClock};
use latchwork::work::{
    Actor, BlockerCode, Checkout, DynamicOrderType, Lease, OrderState, OrderTypes, PlannedItem,
    Proposal, RetryPolicy, Submission, TypeSettings, WorkManager,
};
use serde_json::{Value, json};

use super::processes::{Running, failed};
use super::transcript::{Transcript, eventually};
use crate::duration;
use crate::exit::Failure;

/// The type of the demonstration's order: one item a page.
const SUMMARY: &str = "summary";

/// The lease of the agent that is killed: short, so that nobody waits long for it.
const SHORT_LEASE: Duration = Duration::from_secs(1);

/// The lease of the other agent: a slow machine must not take its items away.
const LEASE: Duration = Duration::from_secs(60);

pub(super) async fn a_killed_agent(
    transcript: &mut Transcript,
    directory: &Path,
) -> Result<(), Failure> {
    transcript.section(
        "Work that outlives its agent",
        "An order is split into items. Agents lease and submit them, and every step is an event.",
    );
    let url = format!("sqlite://{}", directory.join("work.db").display());
    let work = open(&url, LEASE).await?;
    let ada = work.client(Actor::user("ada")?);
    let pages = json!({"pages": ["the first page", "the second page"]});
    let order = ada.propose(Proposal::new(SUMMARY, pages)).await?.order;
    transcript.promise(
        "Ada proposes an order, and it is planned: two items wait for agents",
        order.state == OrderState::Queued && order.items == 2,
    )?;

    let mut command = Command::new("/proc/self/exe");
    command.args(["demo", "--agent", &url]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = Running::start(command)?;
    let mut told = String::new();
    if let Some(stdout) = child.0.stdout.take() {
        BufReader::new(stdout).read_line(&mut told).map_err(failed)?;
    }
    let dead: Lease = serde_json::from_str(&told).map_err(|error| {
        Failure::internal(format!("the demonstration failed: no lease of the agent: {error}"))
    })?;
    let blocker = work.explain_item(dead.item_id).await?.blocker;
    let message = blocker.as_ref().map(|found| found.message.clone()).unwrap_or_default();
    transcript.write_line(
        "Another process is agent-1, and leases the first item. Ask what the item is at:",
    );
    transcript.promise(&message, blocker.is_some_and(|found| found.code == BlockerCode::Leased))?;

    transcript.write_line("agent-1 is killed with SIGKILL. It cannot say goodbye.");
    let killed_at = SystemClock.now();
    child.0.kill().map_err(failed)?;
    child.0.wait().map_err(failed)?;
    let back =
        eventually(async || work.reclaim_expired().await.is_ok_and(|count| count == 1)).await;
    let took = duration::show(SystemClock.now().since(killed_at));
    transcript.promise(&format!("its lease runs out, and the item is back {took} later"), back)?;

    let agent = work.client(Actor::agent("agent-2")?);
    let leases = agent.checkout(Checkout::any().limit(2)).await?.leases;
    let again = leases.iter().find(|lease| lease.item_id == dead.item_id);
    let fence = again.map(|lease| lease.fence).unwrap_or_default();
    transcript.promise(
        &format!(
            "agent-2 gets both items, that one with a higher fence: {fence} after {}",
            dead.fence
        ),
        leases.len() == 2 && fence > dead.fence,
    )?;
    let late = work.client(Actor::agent("agent-1")?);
    let refused = late.submit(Submission::new(&dead, json!("too late"))).await;
    transcript.promise(
        "a late result of agent-1 is refused: lease_expired",
        refused.is_err_and(|error| error.code() == "lease_expired"),
    )?;
    for lease in &leases {
        let result = json!({"summary": lease.input});
        agent.submit(Submission::new(lease, result)).await?;
    }
    let state = work.order(order.id).await?.order.state;
    transcript.promise(
        "agent-2 submits both, and the order is submitted",
        state == OrderState::Submitted,
    )?;
    trail(transcript, &work).await?;
    work.close().await;
    Ok(())
}

/// Every event has its place and its hash.
async fn trail(transcript: &mut Transcript, work: &WorkManager) -> Result<(), Failure> {
    while work.seal().await?.events > 0 {}
    let verified = work.verify().await?;
    transcript.promise(
        &format!(
            "its {} events are sealed without a gap, and their chain verifies",
            verified.events
        ),
        verified.is_intact() && verified.unsealed == 0 && verified.events > 0,
    )
}

/// The other process: leases an item, says so, and works on it until it is killed.
pub(super) async fn be_the_agent(url: &str) -> Result<(), Failure> {
    let work = open(url, SHORT_LEASE).await?;
    let agent = work.client(Actor::agent("agent-1")?);
    let wait = Duration::from_secs(5);
    let leases = agent.checkout(Checkout::of_type(SUMMARY).wait(wait)).await?.leases;
    let Some(lease) = leases.into_iter().next() else {
        return Err(Failure::internal("the demonstration failed: nothing to lease"));
    };
    let told = serde_json::to_string(&lease).unwrap_or_default();
    crate::output::out(&format!("{told}\n"));
    loop {
        tokio::time::sleep(lease.heartbeat_every).await;
        // Ends with the lease, also where the demonstration itself was killed.
        agent.heartbeat(lease.id).await?;
    }
}

async fn open(url: &str, lease_ttl: Duration) -> Result<WorkManager, Failure> {
    let split = |payload: &Value| {
        let pages = payload["pages"].as_array().into_iter().flatten();
        Ok(pages.map(|page| PlannedItem::new(page.clone())).collect())
    };
    let retry = RetryPolicy {
        max_attempts: 3,
        backoff: Duration::ZERO,
        max_backoff: Duration::ZERO,
        jitter: Duration::ZERO,
    };
    let settings = TypeSettings {
        lease_ttl,
        heartbeat_every: lease_ttl / 5,
        retry,
        ..TypeSettings::default()
    };
    let mut types = OrderTypes::new();
    types.add_dynamic(DynamicOrderType::new(SUMMARY).plan(split).settings(settings))?;
    Ok(WorkManager::builder(types).connect(url).await?)
}
