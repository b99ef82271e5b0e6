//! The rules of one mutex, free of Temporal, clocks and threads: who holds, who waits, who is next.
//!
//! The workflow is a loop around this. Everything that it decides depends on the operations in the order
//! of its history and on the times that the history has for them, so a replay decides the same. The state
//! is carried from run to run as JSON, so fields are only added, and have defaults.
//!
//! All times are microseconds since 1970 by the server's clock.

use std::collections::VecDeque;
use std::time::Duration;

use latchwork_lock::Mode;
use serde::{Deserialize, Serialize};

use crate::messages::{
    Acquire, Batch, Caller, Granted, HolderView, Id, MutexReply, MutexStatus, Operation,
    OperationKind, Outcome, Patience, QueuePlace, ReplyKind, StatusAnswer, StatusRequest, VERSION,
    WaiterView,
};

/// How long a hand-over waits for a plain client to claim it (L5).
pub(crate) const CLAIM_WINDOW: Duration = Duration::from_secs(2);

/// How long a release is remembered that came before its acquire.
const TOMBSTONE: Duration = Duration::from_secs(600);

/// How many releases are remembered.
const TOMBSTONES: usize = 512;

/// How many outcomes are kept for callers that have not read them yet, and how many bytes of them.
const OUTCOMES: usize = 512;
const OUTCOME_BYTES: usize = 200_000;

/// How many holders the outcome of a break names.
const NAMED: usize = 100;

/// How many may hold and wait, and how many bytes their requests may have. A request beyond is refused: the
/// state is carried from run to run as one payload, and a server accepts at most two megabytes.
const MOST_REQUESTS: usize = 5_000;
const REQUEST_BYTES: usize = 1_500_000;

/// The first pause between two probes of a holder, and the longest.
const FIRST_PROBE: Duration = Duration::from_secs(2);
const LONGEST_PROBE: Duration = Duration::from_secs(60);

/// The state of one mutex.
#[doc(hidden)]
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct State {
    /// The highest fence that was given, here or in an earlier run.
    #[serde(default)]
    last_fence: u64,
    /// The fence of the last grant, where it is known.
    #[serde(default)]
    previous_fence: Option<u64>,
    #[serde(default)]
    holders: Vec<Holding>,
    #[serde(default)]
    queue: VecDeque<Waiting>,
    /// Released before they were acquired, and until when that is remembered.
    #[serde(default)]
    tombstones: VecDeque<(Id, u64)>,
    #[serde(default)]
    outcomes: VecDeque<(Id, Outcome)>,
    /// When it was last used.
    #[serde(default)]
    last_used: u64,
    /// What is to be told to workflows.
    #[serde(default)]
    outbox: Vec<Message>,
}

/// One grant.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Holding {
    request: Acquire,
    fence: u64,
    #[serde(default)]
    previous_fence: Option<u64>,
    since: u64,
    expires: u64,
    /// False while a plain client has not claimed its turn.
    claimed: bool,
    #[serde(default)]
    probe: Probe,
}

/// What is known of a holder that is a workflow.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Probe {
    /// When to look next.
    #[serde(default)]
    next: u64,
    /// The pause after that.
    #[serde(default)]
    pause: u64,
    /// A look is under way.
    #[serde(default)]
    running: bool,
    /// Its run has ended: the lock is freed at this time unless a new run of it confirms.
    #[serde(default)]
    free_at: Option<u64>,
}

/// One who waits.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Waiting {
    request: Acquire,
    since: u64,
    /// When it gives up.
    until: Option<u64>,
}

/// Something to be told to a workflow.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub(crate) workflow_id: String,
    /// None: whichever run there is.
    pub(crate) run_id: Option<String>,
    pub(crate) reply: MutexReply,
}

impl State {
    /// A mutex of which nothing is known but that its fences start above this one.
    pub(crate) fn new(floor: u64, now: u64) -> Self {
        State { last_fence: floor, last_used: now, ..State::default() }
    }

    /// Does what a batch asks for, in its order.
    pub(crate) fn apply(&mut self, batch: Batch, now: u64) {
        self.settle(now);
        for operation in batch.operations {
            // The client's retries send twice.
            if self.outcome(operation.id).is_some() {
                continue;
            }
            let id = operation.id;
            let outcome = if batch.version == VERSION {
                self.operate(operation, now)
            } else {
                Outcome::Unsupported
            };
            self.outcomes.push_back((id, outcome));
            self.settle(now);
        }
        self.forget_outcomes();
        self.last_used = now;
    }

    /// Drops the oldest outcomes, so that the rest stays within its bounds. The newest stays in any case.
    fn forget_outcomes(&mut self) {
        let mut left = OUTCOME_BYTES;
        let newest = self.outcomes.iter().rev().take(OUTCOMES);
        let fitting = newest.take_while(|(_, outcome)| {
            let bytes = outcome.bytes();
            let fits = bytes <= left;
            left = left.saturating_sub(bytes);
            fits
        });
        let fitting = fitting.count().max(1);
        let surplus = self.outcomes.len().saturating_sub(fitting);
        self.outcomes.drain(..surplus);
    }

    /// Ends what is over at this time, and lets in those whose turn it is.
    pub(crate) fn settle(&mut self, now: u64) {
        let mut ended = Vec::new();
        self.holders.retain(|held| {
            let over = held.expires <= now || held.probe.free_at.is_some_and(|at| at <= now);
            if over {
                ended.push(held.request.clone());
            }
            !over
        });
        for request in &ended {
            self.reply(request, ReplyKind::Lost);
        }
        let waiting = self.queue.len();
        self.queue.retain(|waiting| waiting.until.is_none_or(|until| until > now));
        self.tombstones.retain(|(_, until)| *until > now);
        if !ended.is_empty() || self.queue.len() != waiting {
            self.last_used = now;
        }
        while let Some(next) = self.queue.front() {
            if !self.admits(next.request.mode) {
                break;
            }
            let Some(next) = self.queue.pop_front() else { break };
            let claimed = next.request.workflow.is_some();
            self.grant(next.request, now, claimed);
        }
        self.schedule_probes(now);
    }

    /// When there is something to do without anybody asking for it.
    pub(crate) fn next_wake(&self, idle_timeout: u64) -> u64 {
        if self.is_idle() {
            return self.last_used.saturating_add(idle_timeout);
        }
        let leases = self.holders.iter().map(|held| held.expires);
        let gone = self.holders.iter().filter_map(|held| held.probe.free_at);
        let waits = self.queue.iter().filter_map(|waiting| waiting.until);
        let probes = self.holders.iter().filter(|held| self.wants_probe(held));
        let probes = probes.map(|held| held.probe.next);
        leases.chain(gone).chain(waits).chain(probes).min().unwrap_or(u64::MAX)
    }

    /// Whether nobody has used it for this long.
    pub(crate) fn is_over(&self, idle_timeout: u64, now: u64) -> bool {
        self.is_idle() && self.last_used.saturating_add(idle_timeout) <= now
    }

    fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty() && self.outbox.is_empty()
    }

    pub(crate) fn last_fence(&self) -> u64 {
        self.last_fence
    }

    /// What is to be told to workflows now.
    pub(crate) fn take_messages(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.outbox)
    }

    pub(crate) fn has_messages(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// A message could not be delivered, since there is no such run.
    pub(crate) fn undelivered(&mut self, message: &Message, now: u64) {
        let lease = message.reply.lease;
        let Some(held) = self.holders.iter_mut().find(|held| held.request.lease == lease) else {
            return;
        };
        let Some(caller) = held.request.workflow.clone() else { return };
        if message.run_id.is_none() && matches!(message.reply.kind, ReplyKind::Granted { .. }) {
            // No run of it is left. A holder that has never learnt of its grant has no activities.
            self.holders.retain(|held| held.request.lease != lease);
            self.settle(now);
            return;
        }
        // It may have been confirmed by another run meanwhile.
        if message.run_id.as_deref() != Some(&*caller.run_id) {
            return;
        }
        held.probe.running = false;
        match message.reply.kind {
            // Its run has ended while it waited. If it was reset, the new run waits for this grant: it is
            // told, and its run is learnt by the next look at it.
            ReplyKind::Granted { .. } => {
                self.outbox.push(Message { run_id: None, ..message.clone() });
            }
            ReplyKind::Probe => {
                held.probe.free_at = Some(now.saturating_add(caller.grace_us));
                let kind = ReplyKind::Confirm { mutex: String::new() };
                self.outbox.push(Message {
                    workflow_id: caller.workflow_id,
                    run_id: None,
                    reply: MutexReply { version: VERSION, lease, kind },
                });
                self.settle(now);
            }
            _ => {}
        }
    }

    /// A message was delivered.
    pub(crate) fn delivered(&mut self, message: &Message) {
        let lease = message.reply.lease;
        if let Some(held) = self.holders.iter_mut().find(|held| held.request.lease == lease)
            && message.reply.kind == ReplyKind::Probe
        {
            held.probe.running = false;
        }
    }

    /// Who must be probed now; they count as being probed from here on.
    pub(crate) fn take_probes(&mut self, now: u64) -> Vec<Message> {
        let wanted: Vec<Id> = self
            .holders
            .iter()
            .filter(|held| self.wants_probe(held) && held.probe.next <= now)
            .map(|held| held.request.lease)
            .collect();
        let mut messages = Vec::new();
        for held in &mut self.holders {
            if let Some(caller) = &held.request.workflow
                && wanted.contains(&held.request.lease)
            {
                let longest = micros(LONGEST_PROBE);
                held.probe.running = true;
                held.probe.pause = (held.probe.pause * 2).clamp(micros(FIRST_PROBE), longest);
                held.probe.next = now.saturating_add(held.probe.pause);
                messages.push(Message {
                    workflow_id: caller.workflow_id.clone(),
                    run_id: Some(caller.run_id.clone()),
                    reply: MutexReply {
                        version: VERSION,
                        lease: held.request.lease,
                        kind: ReplyKind::Probe,
                    },
                });
            }
        }
        messages
    }

    /// Only while somebody waits for a workflow that was not found gone yet.
    fn wants_probe(&self, held: &Holding) -> bool {
        !self.queue.is_empty()
            && held.request.workflow.is_some()
            && !held.probe.running
            && held.probe.free_at.is_none()
            && held.probe.next != 0
    }

    /// The first look at a holder comes some time after somebody began to wait for it.
    fn schedule_probes(&mut self, now: u64) {
        if self.queue.is_empty() {
            return;
        }
        for held in &mut self.holders {
            if held.request.workflow.is_some() && held.probe.next == 0 {
                held.probe.next = now.saturating_add(micros(FIRST_PROBE));
            }
        }
    }

    fn operate(&mut self, operation: Operation, now: u64) -> Outcome {
        match operation.kind {
            OperationKind::Ping => Outcome::Ready,
            OperationKind::Hello { lease, workflow } => {
                self.outbox.push(Message {
                    workflow_id: workflow.workflow_id,
                    run_id: Some(workflow.run_id),
                    reply: MutexReply { version: VERSION, lease, kind: ReplyKind::Ready },
                });
                Outcome::Ready
            }
            OperationKind::Acquire(request) => {
                let caller = request.workflow.as_ref().map(|_| request.clone());
                let outcome = self.acquire(request, now);
                if let (Some(request), Outcome::Refused { .. }) = (caller, &outcome) {
                    self.reply(&request, ReplyKind::Refused);
                }
                outcome
            }
            OperationKind::Release { lease } => self.release(lease, now),
            OperationKind::Renew { lease, ttl_us } => {
                let Some(held) = self.holder_mut(lease) else {
                    return Outcome::Done { found: false };
                };
                held.request.ttl_us = ttl_us;
                held.expires = now.saturating_add(ttl_us);
                held.claimed = true;
                Outcome::Done { found: true }
            }
            OperationKind::Check { lease } => {
                Outcome::Done { found: self.holder_mut(lease).is_some() }
            }
            OperationKind::Rotate { lease, fresh, ttl_us } => {
                self.rotate(lease, fresh, ttl_us, now)
            }
            OperationKind::Break { fence } => self.break_leases(fence),
            OperationKind::Confirm { lease, run_id } => {
                let Some(held) = self.holder_mut(lease) else {
                    return Outcome::Done { found: false };
                };
                held.probe = Probe::default();
                if let Some(caller) = &mut held.request.workflow {
                    caller.run_id = run_id;
                }
                Outcome::Done { found: true }
            }
            OperationKind::Unknown => Outcome::Unsupported,
        }
    }

    fn acquire(&mut self, request: Acquire, now: u64) -> Outcome {
        let lease = request.lease;
        if self.tombstones.iter().any(|(id, _)| *id == lease) {
            return Outcome::Refused { holder: None };
        }
        if let Some(held) = self.holder_mut(lease) {
            let began = !held.claimed;
            if began {
                held.claimed = true;
                held.expires = now.saturating_add(held.request.ttl_us);
            }
            return Outcome::Granted(Granted {
                fence: held.fence,
                previous_fence: held.previous_fence,
                waited: began,
                began,
            });
        }
        let waits = request.wait != Patience::No;
        if let Some(at) = self.queue.iter().position(|waiting| waiting.request.lease == lease) {
            if waits {
                self.queue[at].until = until(request.wait, now);
                return Outcome::Queued;
            }
            self.queue.remove(at);
            return self.refused();
        }
        if request.again && !waits {
            // Its time was over, and others went on: to let it in now would be out of turn.
            return self.refused();
        }
        if let Some(owner) = &request.owner
            && let Some(own) =
                self.holders.iter().position(|held| held.request.owner.as_ref() == Some(owner))
        {
            // An upgrade never waits (L7).
            if request.mode == Mode::Exclusive && self.holders.len() > 1 {
                return self.refused();
            }
            let old = self.holders.remove(own);
            self.reply(&old.request, ReplyKind::Lost);
            return self.grant(request, now, true);
        }
        if !self.has_room_for(&request) {
            return self.refused();
        }
        if self.queue.is_empty() && self.admits(request.mode) {
            return self.grant(request, now, true);
        }
        if !waits {
            return self.refused();
        }
        let until = until(request.wait, now);
        self.queue.push_back(Waiting { request, since: now, until });
        Outcome::Queued
    }

    fn release(&mut self, lease: Id, now: u64) -> Outcome {
        let found = self.holders.iter().position(|held| held.request.lease == lease);
        if let Some(at) = found {
            self.holders.remove(at);
        } else if let Some(at) = self.queue.iter().position(|it| it.request.lease == lease) {
            self.queue.remove(at);
        }
        // Also where it was found: a retry of its acquire may be on the way.
        if !self.tombstones.iter().any(|(id, _)| *id == lease) {
            self.tombstones.push_back((lease, now.saturating_add(micros(TOMBSTONE))));
        }
        if self.tombstones.len() > TOMBSTONES {
            self.tombstones.pop_front();
        }
        Outcome::Done { found: found.is_some() }
    }

    fn rotate(&mut self, lease: Id, fresh: Id, ttl_us: u64, now: u64) -> Outcome {
        if let Some(held) = self.holder_mut(fresh) {
            let granted = Granted {
                fence: held.fence,
                previous_fence: held.previous_fence,
                waited: false,
                began: false,
            };
            return Outcome::Rotated { granted: Some(granted) };
        }
        if self.tombstones.iter().any(|(id, _)| *id == fresh) {
            // Whoever resumed it has gone, and said so before: nobody holds it any more.
            self.holders.retain(|held| held.request.lease != lease);
            return Outcome::Rotated { granted: None };
        }
        let fence = self.last_fence + 1;
        let previous_fence = self.previous_fence;
        let Some(held) = self.holder_mut(lease) else {
            return Outcome::Rotated { granted: None };
        };
        held.request.lease = fresh;
        held.request.ttl_us = ttl_us;
        held.expires = now.saturating_add(ttl_us);
        held.fence = fence;
        held.previous_fence = previous_fence;
        held.claimed = true;
        self.last_fence = fence;
        self.previous_fence = Some(fence);
        let granted = Granted { fence, previous_fence, waited: false, began: true };
        Outcome::Rotated { granted: Some(granted) }
    }

    fn break_leases(&mut self, fence: Option<u64>) -> Outcome {
        let (broken, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.holders)
            .into_iter()
            .partition(|held| fence.is_none_or(|fence| fence == held.fence));
        self.holders = left;
        for held in &broken {
            self.reply(&held.request, ReplyKind::Lost);
        }
        Outcome::Broken { holders: broken.iter().take(NAMED).map(Holding::view).collect() }
    }

    fn grant(&mut self, request: Acquire, now: u64, claimed: bool) -> Outcome {
        // Two requests of one owner may have waited together: one lease per owner and key.
        if request.owner.is_some()
            && let Some(at) = self.holders.iter().position(|h| h.request.owner == request.owner)
        {
            let old = self.holders.remove(at);
            self.reply(&old.request, ReplyKind::Lost);
        }
        self.last_fence += 1;
        let fence = self.last_fence;
        let previous_fence = self.previous_fence.replace(fence);
        let lasts = if claimed { request.ttl_us } else { request.ttl_us.min(micros(CLAIM_WINDOW)) };
        let expires = now.saturating_add(lasts);
        self.reply(&request, ReplyKind::Granted { fence, previous_fence, expires_us: expires });
        self.holders.push(Holding {
            request,
            fence,
            previous_fence,
            since: now,
            expires,
            claimed,
            probe: Probe::default(),
        });
        Outcome::Granted(Granted { fence, previous_fence, waited: false, began: true })
    }

    /// Tells a workflow; a plain client asks by itself.
    fn reply(&mut self, request: &Acquire, kind: ReplyKind) {
        if let Some(Caller { workflow_id, run_id, .. }) = &request.workflow {
            self.outbox.push(Message {
                workflow_id: workflow_id.clone(),
                run_id: Some(run_id.clone()),
                reply: MutexReply { version: VERSION, lease: request.lease, kind },
            });
        }
    }

    fn has_room_for(&self, request: &Acquire) -> bool {
        let held = self.holders.iter().map(|held| &held.request);
        let requests = held.chain(self.queue.iter().map(|waiting| &waiting.request));
        let (count, bytes) =
            requests.fold((0, 0), |(count, bytes), it| (count + 1, bytes + it.bytes()));
        count < MOST_REQUESTS && bytes + request.bytes() <= REQUEST_BYTES
    }

    fn refused(&self) -> Outcome {
        Outcome::Refused { holder: self.holders.first().map(|held| Box::new(held.view())) }
    }

    fn admits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.holders.is_empty(),
            Mode::Shared => self.holders.iter().all(|held| held.request.mode == Mode::Shared),
        }
    }

    fn holder_mut(&mut self, lease: Id) -> Option<&mut Holding> {
        self.holders.iter_mut().find(|held| held.request.lease == lease)
    }

    fn outcome(&self, operation: Id) -> Option<&Outcome> {
        self.outcomes.iter().rev().find(|(id, _)| *id == operation).map(|(_, outcome)| outcome)
    }

    /// Answers a client's query.
    pub(crate) fn answer(&self, request: &StatusRequest, draining: bool) -> StatusAnswer {
        let outcomes = request.operations.iter().map(|id| self.outcome(*id).cloned()).collect();
        let places = request.requests.iter().map(|lease| self.place(*lease)).collect();
        StatusAnswer { outcomes, places, draining }
    }

    fn place(&self, lease: Id) -> QueuePlace {
        if let Some(held) = self.holders.iter().find(|held| held.request.lease == lease) {
            return if held.claimed { QueuePlace::Held } else { QueuePlace::Reserved };
        }
        match self.queue.iter().position(|waiting| waiting.request.lease == lease) {
            Some(at) => QueuePlace::Waiting(at + 1),
            None => QueuePlace::Unknown,
        }
    }

    /// All that may be shown.
    pub(crate) fn status(&self, resource: &str, now: u64) -> MutexStatus {
        MutexStatus {
            version: VERSION,
            resource: resource.to_owned(),
            holders: self.holders.iter().map(Holding::view).collect(),
            waiters: self.queue.iter().map(Waiting::view).collect(),
            last_fence: self.last_fence,
            now_us: now,
        }
    }

    /// One line for people who look at the workflow.
    pub(crate) fn summary(&self) -> String {
        let holders: Vec<_> = self.holders.iter().map(|held| held.request.who()).collect();
        match holders.as_slice() {
            [] => "free".to_owned(),
            _ => format!("held by {}; {} waiting", holders.join(", "), self.queue.len()),
        }
    }
}

impl Acquire {
    fn who(&self) -> &str {
        self.owner.as_deref().unwrap_or(&self.process)
    }

    /// About how many bytes of JSON it has in the state, and not less.
    fn bytes(&self) -> usize {
        let workflow = self.workflow.as_ref();
        let workflow = workflow.map_or(0, |it| 110 + quoted(&it.workflow_id) + quoted(&it.run_id));
        let text = [&self.owner, &self.note].into_iter().flatten().map(|text| 10 + quoted(text));
        260 + quoted(&self.process) + workflow + text.sum::<usize>()
    }
}

impl Outcome {
    /// As for [`Acquire::bytes`].
    fn bytes(&self) -> usize {
        let named = match self {
            Outcome::Refused { holder } => holder.as_slice(),
            Outcome::Broken { holders } => {
                return 150 + holders.iter().map(HolderView::bytes).sum::<usize>();
            }
            _ => return 150,
        };
        150 + named.iter().map(|holder| holder.bytes()).sum::<usize>()
    }
}

impl HolderView {
    fn bytes(&self) -> usize {
        let text = [&self.owner, &self.note, &self.run_id].into_iter().flatten();
        220 + quoted(&self.process) + text.map(|text| 12 + quoted(text)).sum::<usize>()
    }
}

/// How long a text can be as JSON: quotes and backslashes become two bytes.
fn quoted(text: &str) -> usize {
    2 * text.len()
}

impl Holding {
    fn view(&self) -> HolderView {
        let Acquire { owner, process, mode, note, workflow, .. } = &self.request;
        HolderView {
            owner: owner.clone(),
            process: process.clone(),
            mode: *mode,
            fence: self.fence,
            since_us: self.since,
            expires_us: self.expires,
            note: note.clone(),
            run_id: workflow.as_ref().map(|caller| caller.run_id.clone()),
        }
    }
}

impl Waiting {
    fn view(&self) -> WaiterView {
        let Acquire { owner, process, mode, note, .. } = &self.request;
        WaiterView {
            owner: owner.clone(),
            process: process.clone(),
            mode: *mode,
            since_us: self.since,
            note: note.clone(),
        }
    }
}

fn until(wait: Patience, now: u64) -> Option<u64> {
    match wait {
        Patience::No => Some(now),
        Patience::ForMicros(span) => Some(now.saturating_add(span)),
        Patience::Forever => None,
    }
}

/// A span in whole microseconds.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "state/tests.rs"]
mod tests;
