//! The chapter of review: a rework, an edit, an approval, apply, and the receipt.

use std::path::{Path, PathBuf};

use latchwork::work::{
    Actor, Applier, Appliers, ApplyStep, Approval, Checkout, DeclaredOrderType, Diff, Lease,
    OrderContent, OrderState, OrderTypes, Proposal, Rejection, ReviewError, Submission, TypeError,
    WorkClient, WorkManager,
};
use serde_json::{Value, json};

use super::processes::failed;
use super::transcript::Transcript;
use crate::exit::Failure;

/// The order type, as an operator declares it in a file.
const DECLARATION: &str = r#"
name = "page"
[result]
type = "string"
minLength = 5
[split]
list = "/pages"
[apply]
applier = "publish"
"#;

/// Writes the pages to a file.
struct Publish(PathBuf);

impl Publish {
    fn diff(&self, order: &OrderContent) -> Diff {
        let before = std::fs::read_to_string(&self.0).unwrap_or_default();
        let pages: Vec<_> = order.items.iter().filter_map(|item| item.result.as_str()).collect();
        Diff::between(json!(before), json!(pages.join("\n"))).summary("the site is published")
    }
}

impl Applier for Publish {
    async fn preview(&self, order: &OrderContent) -> Result<Option<Diff>, TypeError> {
        Ok(Some(self.diff(order)))
    }

    async fn apply(&self, order: &OrderContent, _: &mut ApplyStep) -> Result<Diff, TypeError> {
        let diff = self.diff(order);
        let text = diff.after.as_str().unwrap_or_default();
        std::fs::write(&self.0, text).map_err(|error| TypeError::Failed(error.into()))?;
        Ok(diff)
    }
}

pub(super) async fn nothing_changes_before_approval(
    transcript: &mut Transcript,
    directory: &Path,
) -> Result<(), Failure> {
    transcript.section(
        "Nothing changes before somebody approved it",
        "What agents submit is reviewed, applied once, and provable afterwards.",
    );
    let site = directory.join("site.txt");
    let mut appliers = Appliers::new();
    appliers.add("publish", Publish(site.clone()))?;
    let mut types = OrderTypes::new();
    types.add_declared(DeclaredOrderType::parse("page.toml", DECLARATION)?, &appliers)?;
    let url = format!("sqlite://{}", directory.join("review.db").display());
    let work = WorkManager::builder(types).connect(&url).await?;
    let ada = work.client(Actor::user("ada")?);
    let bob = work.client(Actor::user("bob")?);
    let agent = work.client(Actor::agent("agent-1")?);

    let pages = json!({"pages": ["welcome", "imprint"]});
    let order = ada.propose(Proposal::new("page", pages)).await?.order.id;
    for lease in leases(&agent).await? {
        submit(&agent, &lease, json!("lorem ipsum")).await?;
    }
    let seen = work.preview(order).await?;
    transcript.promise(
        "an agent submits both pages; the preview shows what would change, and nothing has changed",
        seen.diff.is_some_and(|diff| diff.after == "lorem ipsum\nlorem ipsum") && !site.exists(),
    )?;

    let wrong = ReviewError::new("placeholder", "this is no welcome");
    let first = work.items(order, None, 1).await?.remove(0).item.id;
    bob.reject(Rejection::new(order, [wrong]).rework_items([first])).await?;
    let again = leases(&agent).await?;
    let previous = again.first().and_then(|lease| lease.previous.clone()).unwrap_or_default();
    transcript.promise(
        "Bob asks for a rework of one page: its next lease has the old result and his words",
        again.len() == 1 && previous.to_string().contains("this is no welcome"),
    )?;
    for lease in &again {
        submit(&agent, lease, json!("Welcom to our site")).await?;
    }
    let late =
        bob.approve(Approval { digest: seen.digest, ..Approval::of(&work.preview(order).await?) });
    transcript.promise(
        "an approval of the preview from before is a conflict: content_changed",
        late.await.is_err_and(|error| error.code() == "content_changed"),
    )?;
    let own = ada.approve(Approval::of(&work.preview(order).await?)).await;
    transcript.promise(
        "Ada may not approve what she proposed: reviewer_refused",
        own.is_err_and(|error| error.code() == "reviewer_refused"),
    )?;
    let edited =
        Approval::of(&work.preview(order).await?).edit(first, json!("Welcome to our site"));
    let approved = bob.approve(edited).await?;
    transcript.promise(
        "Bob corrects a word and approves that; the agent's version is kept beside his",
        approved.order.state == OrderState::Approved
            && approved.content_version == 3
            && !site.exists(),
    )?;

    let applied = work.apply_worker("worker-1")?.apply(order).await?;
    let text = std::fs::read_to_string(&site).map_err(failed)?;
    transcript.promise(
        "an apply worker writes the site, records what it changed, and the order is completed",
        applied.is_some_and(|order| order.state == OrderState::Completed)
            && text == "Welcome to our site\nlorem ipsum",
    )?;
    receipt(transcript, &work, order).await?;
    work.close().await;
    Ok(())
}

/// The receipt says who approved what, and the trail agrees.
async fn receipt(
    transcript: &mut Transcript,
    work: &WorkManager,
    order: latchwork::work::OrderId,
) -> Result<(), Failure> {
    while work.seal().await?.events > 0 {}
    let intact = work.verify().await?.is_intact();
    let (receipt, trail) = (work.receipt(order).await?, work.export(0, 1_000).await?);
    let by = receipt.approvals.pointer("/0/by/id").and_then(Value::as_str).unwrap_or_default();
    transcript.promise(
        &format!("its receipt names {by}, the digest, and two events of the trail, which agree"),
        intact && by == "bob" && receipt.events.len() == 2 && receipt.findings(&trail).is_empty(),
    )?;
    let mut forged = receipt.clone();
    forged.approvals[0]["by"]["id"] = json!("mallory");
    let findings = forged.findings(&trail);
    transcript.promise(
        &format!("a forged one does not: {}", findings.join("; ")),
        findings == ["approvals is not what the trail says"],
    )
}

async fn leases(agent: &WorkClient) -> Result<Vec<Lease>, Failure> {
    Ok(agent.checkout(Checkout::of_type("page").limit(10)).await?.leases)
}

async fn submit(agent: &WorkClient, lease: &Lease, result: Value) -> Result<(), Failure> {
    agent.submit(Submission::new(lease, result)).await?;
    Ok(())
}
