//! Why something waits, followed through the layers: an order waits for an agent, the agent for a key,
//! the key's holder is a flow, and the flow waits for a signal.
//!
//! Each layer says what it knows of its own objects; this only follows the names. A flow's lock is owned
//! by the flow's id. A caller of this server is in the owner and the note of its locks, and an agent's
//! name is in the blockers of its items. Whatever is outside of the caller's limits ends the chain.

use std::collections::HashSet;

use chrono::{DateTime, SecondsFormat, Utc};
use futures::future::BoxFuture;
use latchwork_api::{Explanation, Reason, Subject};
use latchwork_flow::store::ContextStore as _;
use latchwork_flow::{ContextSummary, TransitionId};
use latchwork_lock::{Holder, Inspection, PageRequest, Waiter};
use latchwork_work::{Blocker, BlockerGroup, ItemId, OrderId};

use crate::app::App;
use crate::caller::Caller;
use crate::convert_flow;
use crate::error::ApiError;
use crate::lock_calls::{millis, owners_of};

/// So many keys are searched for those that an agent waits for.
const SEARCHED: usize = 1_000;

/// Follows one chain of reasons.
pub(crate) struct Explainer<'a> {
    app: &'a App,
    caller: &'a Caller,
    /// What the chain has been through: a circle is told and not followed.
    seen: HashSet<String>,
}

impl<'a> Explainer<'a> {
    pub(crate) fn new(app: &'a App, caller: &'a Caller) -> Self {
        Explainer { app, caller, seen: HashSet::new() }
    }

    pub(crate) async fn order(mut self, id: OrderId) -> Result<Explanation, ApiError> {
        let told = self.app.work.explain_order(id).await?;
        self.seen.insert(format!("order {id}"));
        let mut reasons = Vec::new();
        for group in told.blockers {
            reasons.push(self.group(group).await?);
        }
        let state = told.state.as_str().to_owned();
        Ok(Explanation { subject: subject("order", id), state, reasons })
    }

    pub(crate) async fn item(mut self, id: ItemId) -> Result<Explanation, ApiError> {
        let told = self.app.work.explain_item(id).await?;
        self.seen.insert(format!("item {id}"));
        let mut reasons = Vec::new();
        if let Some(blocker) = told.blocker {
            reasons.push(self.blocker(blocker).await?);
        }
        let state = told.state.as_str().to_owned();
        Ok(Explanation { subject: subject("item", id), state, reasons })
    }

    pub(crate) async fn flow(mut self, id: TransitionId) -> Result<Explanation, ApiError> {
        let found = self.app.flows()?.show(id).await?;
        let state = found.status.name().to_owned();
        let reasons = self.of_flow(&found).await?;
        Ok(Explanation { subject: subject("flow", id), state, reasons })
    }

    pub(crate) async fn lock(mut self, key: &str) -> Result<Explanation, ApiError> {
        let found = self.app.locks()?.inspect(key).await?;
        let state = if found.is_held() { "held" } else { "free" }.to_owned();
        let mut reasons = self.of_lock(&found, None).await?;
        reasons.extend(queue(&found));
        Ok(Explanation { subject: subject("lock", key), state, reasons })
    }

    /// Items of an order that wait for the same kind of thing.
    async fn group(&mut self, group: BlockerGroup) -> Result<Reason, ApiError> {
        let code = group.code.as_str();
        let mut all = Vec::new();
        for blocker in group.first {
            all.push(self.blocker(blocker).await?);
        }
        let mut told = match all.len() {
            0 => reason(code, format!("{} items wait", group.count)),
            _ => all.remove(0),
        };
        if group.count > 1 {
            told.message = format!("{} items: the first: {}", group.count, told.message);
        }
        told.count = Some(group.count);
        // The chains of the others, where they lead elsewhere.
        told.because.extend(all.into_iter().flat_map(|other| other.because));
        Ok(told)
    }

    async fn blocker(&mut self, mut blocker: Blocker) -> Result<Reason, ApiError> {
        self.hide_behind(&mut blocker).await?;
        let mut told = reason(blocker.code.as_str(), blocker.message);
        told.until = blocker.until;
        told.subject = match (&blocker.agent, blocker.behind, blocker.item_id) {
            (Some(agent), ..) => Some(subject("caller", format!("agent:{agent}"))),
            (None, Some(item), _) | (None, None, Some(item)) => Some(subject("item", item)),
            _ => None,
        };
        if let Some(agent) = blocker.agent {
            told.because = self.of_caller(&format!("agent:{agent}")).await?;
        } else if let Some(item) = blocker.behind
            && self.seen.insert(format!("item {item}"))
        {
            let behind = self.app.work.explain_item(item).await?;
            if let Some(next) = behind.blocker {
                told.because = vec![self.followed_blocker(next).await?];
            }
        }
        Ok(told)
    }

    /// An ordered key may have items of several types. Of one outside of the caller's limits nothing is
    /// told but that it is there.
    async fn hide_behind(&self, blocker: &mut Blocker) -> Result<(), ApiError> {
        let (Some(behind), Some(types)) = (blocker.behind, self.caller.scope().types()) else {
            return Ok(());
        };
        match self.app.work.check_item_type(behind, types).await {
            Ok(()) => Ok(()),
            Err(error) if error.code() == "item_not_found" => {
                blocker.message =
                    "stands behind another item of its ordered key, outside of the token's limits"
                        .to_owned();
                (blocker.behind, blocker.until) = (None, None);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The same, in a form that may call itself.
    fn followed_blocker(&mut self, blocker: Blocker) -> BoxFuture<'_, Result<Reason, ApiError>> {
        Box::pin(self.blocker(blocker))
    }

    /// The keys that a caller of this server waits for.
    async fn of_caller(&mut self, identity: &str) -> Result<Vec<Reason>, ApiError> {
        let Ok(locks) = self.app.locks() else { return Ok(Vec::new()) };
        if !self.seen.insert(format!("caller {identity}")) {
            return Ok(Vec::new());
        }
        let page = PageRequest { limit: SEARCHED, after: None };
        let found = locks.list("", page).await?;
        let mut reasons = Vec::new();
        for lock in found.keys {
            let Some(waiter) = lock.waiters.iter().find(|waiter| is_of(waiter, identity)) else {
                continue;
            };
            if !self.caller.scope().allows_key(&lock.key) {
                continue;
            }
            let (key, place) = (&lock.key, waiter.position);
            let message = format!("{identity} waits for the key {key:?}, at place {place}");
            let mut told = reason("lock_wait", message);
            told.subject = Some(subject("lock", key));
            told.because = self.of_lock(&lock, None).await?;
            reasons.push(told);
        }
        Ok(reasons)
    }

    /// Who holds a key, but for a flow itself, and what those wait for.
    async fn of_lock(
        &mut self,
        lock: &Inspection,
        besides: Option<TransitionId>,
    ) -> Result<Vec<Reason>, ApiError> {
        let mut reasons = Vec::new();
        if !self.seen.insert(format!("lock {}", lock.key)) {
            let message = format!("the key {:?} is in this chain already: a circle", lock.key);
            let circle =
                Reason { subject: Some(subject("lock", &lock.key)), ..reason("circle", message) };
            return Ok(vec![circle]);
        }
        for holder in &lock.holders {
            let owner = holder.owner.as_ref().map(|owner| owner.as_str());
            let flow = owner.and_then(|owner| owner.strip_prefix("flow:")?.parse().ok());
            if flow.is_some() && flow == besides {
                continue;
            }
            reasons.push(self.holder(&lock.key, holder, flow).await?);
        }
        Ok(reasons)
    }

    async fn holder(
        &mut self,
        key: &str,
        holder: &Holder,
        flow: Option<TransitionId>,
    ) -> Result<Reason, ApiError> {
        let who = holder.note.as_deref().filter(|_| holder.owner.is_none());
        let who = who.unwrap_or_else(|| holder.who());
        let message = format!(
            "the key {key:?} is held by {who} since {}, until {} unless renewed",
            clock(holder.since),
            clock(holder.expires_at)
        );
        let mut told = reason("lock_held", message);
        told.until = Some(holder.expires_at);
        told.subject = Some(subject("process", &holder.process));
        if let Some(id) = flow
            && let Some(found) = self.known_flow(id).await?
        {
            told.subject = Some(subject("flow", id));
            told.because = self.followed_flow(&found).await?;
        } else if let Some(order) = order_of(holder) {
            told.subject = Some(subject("order", order));
            told.because = self.followed_order(order).await?;
        } else if let Some(identity) = identity_of(holder) {
            told.subject = Some(subject("caller", identity));
        }
        Ok(told)
    }

    /// A stored flow within the caller's limits.
    async fn known_flow(&self, id: TransitionId) -> Result<Option<ContextSummary>, ApiError> {
        let Ok(flows) = self.app.flows() else { return Ok(None) };
        match flows.show(id).await {
            Ok(found) => Ok(is_within(self.caller, &found).then_some(found)),
            Err(error) if error.code() == "context_not_found" => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn followed_flow<'b>(
        &'b mut self,
        flow: &'b ContextSummary,
    ) -> BoxFuture<'b, Result<Vec<Reason>, ApiError>> {
        Box::pin(self.of_flow(flow))
    }

    /// What a flow waits for, its lock included.
    async fn of_flow(&mut self, flow: &ContextSummary) -> Result<Vec<Reason>, ApiError> {
        if !self.seen.insert(format!("flow {}", flow.id)) {
            let message = format!("the flow {} is in this chain already: a circle", flow.id);
            let circle =
                Reason { subject: Some(subject("flow", flow.id)), ..reason("circle", message) };
            return Ok(vec![circle]);
        }
        let now = self.app.flows()?.now().await?;
        let mut reasons = convert_flow::reasons(flow, now);
        let waits = !flow.status.is_over() && flow.quarantined_at.is_none();
        if let (true, Some(key), Ok(locks)) = (waits, &flow.details.lock_key, self.app.locks()) {
            let lock = locks.inspect(key).await?;
            reasons.extend(self.of_lock(&lock, Some(flow.id)).await?);
        }
        Ok(reasons)
    }

    fn followed_order(&mut self, id: OrderId) -> BoxFuture<'_, Result<Vec<Reason>, ApiError>> {
        Box::pin(async move {
            let is_known = self.caller.require_order(self.app, id).await.is_ok();
            if !is_known || !self.seen.insert(format!("order {id}")) {
                return Ok(Vec::new());
            }
            let told = match self.app.work.explain_order(id).await {
                Ok(told) => told,
                Err(error) if error.code() == "order_not_found" => return Ok(Vec::new()),
                Err(error) => return Err(error.into()),
            };
            let mut reasons = Vec::new();
            for group in told.blockers {
                reasons.push(self.group(group).await?);
            }
            Ok(reasons)
        })
    }
}

/// Who waits for a key, and for how long yet.
fn queue(lock: &Inspection) -> Option<Reason> {
    let last = lock.waiters.last()?;
    let mut message = format!("{} wait for the key {:?}", lock.waiters.len(), lock.key);
    if let Some(wait) = last.expected_wait {
        message.push_str(&format!("; the last of them for {} ms yet, by estimate", millis(wait)));
    }
    Some(Reason { count: u32::try_from(lock.waiters.len()).ok(), ..reason("lock_queue", message) })
}

/// Whether a flow is within the caller's limits: by the key of its lock, or by its entity.
pub(crate) fn is_within(caller: &Caller, flow: &ContextSummary) -> bool {
    let name = flow.details.lock_key.as_deref().or(flow.entity.as_deref());
    caller.scope().allows_key(name.unwrap_or_default())
}

/// Whether a waiter is this caller of the server; see `LockCalls`.
fn is_of(waiter: &Waiter, identity: &str) -> bool {
    let owner = waiter.owner.as_ref().map(|owner| owner.as_str());
    owner.is_some_and(|owner| owner.starts_with(&owners_of(identity)))
        || waiter
            .note
            .as_deref()
            .and_then(|note| note.strip_prefix(identity))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(": "))
}

/// The caller of this server that holds a key.
fn identity_of(holder: &Holder) -> Option<&str> {
    let note = holder.note.as_deref()?;
    let end = note.find(": ").unwrap_or(note.len());
    let identity = &note[..end];
    ["agent:", "user:"].iter().any(|kind| identity.starts_with(kind)).then_some(identity)
}

/// The order that a holder works for, where it says so: `order:ID` as its owner or in its note.
fn order_of(holder: &Holder) -> Option<OrderId> {
    let owner = holder.owner.as_ref().map(|owner| owner.as_str()).into_iter();
    let words = owner.chain(holder.note.as_deref());
    let mut words = words.flat_map(|text| text.split(['/', ' ', ',']));
    words.find_map(|word| word.strip_prefix("order:").and_then(|id| id.parse().ok()))
}

fn reason(code: &str, message: String) -> Reason {
    Reason {
        code: code.to_owned(),
        message,
        subject: None,
        count: None,
        until: None,
        because: Vec::new(),
    }
}

fn subject(kind: &str, id: impl ToString) -> Subject {
    Subject { kind: kind.to_owned(), id: id.to_string() }
}

fn clock(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}
