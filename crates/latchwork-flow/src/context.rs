//! All that is known of one transition.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use latchwork_lock::{Clock, Fence, Lease, LockState};
use serde_json::Value;

use crate::entity::Entity;
use crate::machine::Machine;
use crate::{
    ActionExecution, ActionResult, ActionSkip, AnyAction, Error, Execution, Failure,
    GateEvaluation, Pause, Paused, Result, State, Status, TransitionId, Woken,
};

/// All that is known of one transition: where it stands, what was done, what is left to do.
///
/// [`to_json`](Self::to_json) gives the form from which a paused transition is resumed, in another
/// process if need be; `StateMachine::read_context` reads it back. That form holds the secret of
/// the lock's lease and is itself a secret; `Debug` and [`summary`](Self::summary) do not show it.
pub struct TransitionContext<S: State> {
    pub(crate) id: TransitionId,
    pub(crate) machine: Arc<MachineLabel>,
    pub(crate) definition: u32,
    pub(crate) revision: u64,
    /// How many events there were: the next one's sequence.
    pub(crate) events: u64,
    /// None until it is loaded, where the transition names its entity.
    pub(crate) state: Option<S>,
    pub(crate) delta: S::Delta,
    pub(crate) status: Status,
    pub(crate) metadata: Option<Value>,
    pub(crate) failure: Option<Box<Failure>>,
    /// What is to be done, once the gates have allowed it.
    pub(crate) plan: Option<Plan>,
    pub(crate) next: usize,
    pub(crate) gates: Vec<GateEvaluation>,
    pub(crate) actions: Executions,
    pub(crate) skips: Vec<ActionSkip>,
    // What most transitions never have is kept apart, since all of them are made and moved.
    pub(crate) paused: Option<Box<Paused>>,
    pub(crate) woken: Option<Box<Woken>>,
    /// The key that was locked first: a state on its way may say another.
    pub(crate) lock_key: Option<latchwork_lock::Key>,
    pub(crate) lease: Option<Box<Lease>>,
    /// The fence of the last grant that it ran under: who takes the lock again learns by it whether
    /// anybody else had it in between.
    pub(crate) fence: Option<Fence>,
    /// What is loaded and saved, where the transition names its entity.
    pub(crate) entity: Option<Box<Entity>>,
    pub(crate) skipped_by_lock: bool,
    pub(crate) lock_lost: bool,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) updated_at: DateTime<Utc>,
}

/// What all contexts of a machine say of it.
pub(crate) struct MachineLabel {
    pub(crate) name: Arc<str>,
    /// All its actions, in order.
    pub(crate) actions: Arc<[Arc<str>]>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// The actions that have run.
#[derive(Clone)]
pub(crate) enum Executions {
    /// Most transitions have one: it needs no room elsewhere, and is written where it stays.
    One(Option<ActionExecution>),
    Many(Vec<ActionExecution>),
}

impl Executions {
    #[cold]
    fn many(before: Option<ActionExecution>, done: ActionExecution, planned: usize) -> Self {
        let mut many = Vec::with_capacity(planned.min(16));
        many.extend(before);
        many.push(done);
        Executions::Many(many)
    }

    #[cold]
    fn forget_last(&mut self) {
        match self {
            Executions::One(one) => *one = None,
            Executions::Many(many) => _ = many.pop(),
        }
    }

    pub(crate) fn as_slice(&self) -> &[ActionExecution] {
        match self {
            Executions::One(one) => one.as_slice(),
            Executions::Many(many) => many,
        }
    }
}

/// What a transition is to do.
#[derive(Clone)]
pub(crate) enum Plan {
    /// All actions of its machine.
    All,
    /// The actions with these names, the first of them at this place.
    Chosen { names: Arc<[Arc<str>]>, first: usize },
}

impl Plan {
    /// The place of the first action that is known.
    pub(crate) fn first(&self) -> usize {
        match self {
            Plan::All => 0,
            Plan::Chosen { first, .. } => *first,
        }
    }
}

impl<S: State> TransitionContext<S> {
    /// A transition that has not begun.
    #[inline]
    pub(crate) fn new(
        machine: &Machine<S>,
        state: Option<S>,
        entity: Option<Box<Entity>>,
        delta: S::Delta,
        now: DateTime<Utc>,
    ) -> Arc<Self> {
        Arc::new(TransitionContext {
            id: TransitionId::new(now),
            machine: machine.label.clone(),
            definition: machine.definition,
            revision: 0,
            events: 0,
            state,
            delta,
            status: Status::Pending,
            metadata: None,
            failure: None,
            plan: None,
            next: 0,
            gates: Vec::new(),
            actions: Executions::One(None),
            skips: Vec::new(),
            paused: None,
            woken: None,
            lock_key: None,
            lease: None,
            fence: None,
            entity,
            skipped_by_lock: false,
            lock_lost: false,
            created_at: now,
            updated_at: now,
        })
    }

    /// Notes what an action has done, the next of so many, and gives back how to go on.
    #[inline(always)] // handed over, the result would be copied before it is stored
    pub(crate) fn note(
        &mut self,
        action: &AnyAction<S>,
        result: ActionResult<S>,
        planned: usize,
        started_at: DateTime<Utc>,
        ended_at: DateTime<Utc>,
    ) -> (Execution, Option<Box<Pause>>) {
        let ActionResult { execution, state, metadata, pause } = result;
        let index = self.next;
        self.updated_at = ended_at;
        self.next = index + usize::from(execution != Execution::Repeat);
        if state.is_some() {
            self.state = state;
        }
        let metadata = metadata.map(|metadata| *metadata);
        if execution != Execution::Continue {
            self.metadata.clone_from(&metadata);
        }
        let action = action.name.clone();
        let repeats = self.forget_repetition(index);
        let done =
            ActionExecution { action, index, execution, repeats, metadata, started_at, ended_at };
        match &mut self.actions {
            Executions::One(one @ None) if planned == 1 => *one = Some(done),
            Executions::One(one) => self.actions = Executions::many(one.take(), done, planned),
            Executions::Many(many) => many.push(done),
        }
        (execution, pause)
    }

    /// Takes back what is known of an action that asked to be run again, and gives how often it has.
    /// Who asks every minute for a year would else be remembered every minute.
    #[inline]
    fn forget_repetition(&mut self, index: usize) -> u32 {
        let last = self.actions.as_slice().last();
        match last.filter(|last| last.index == index && last.execution == Execution::Repeat) {
            None => 0,
            Some(last) => {
                let repeats = last.repeats.saturating_add(1);
                self.actions.forget_last();
                repeats
            }
        }
    }

    /// The transition's name.
    pub fn id(&self) -> TransitionId {
        self.id
    }

    /// The name of its machine.
    pub fn machine(&self) -> &str {
        &self.machine.name
    }

    /// The version of the machine's definition under which it began.
    pub fn definition(&self) -> u32 {
        self.definition
    }

    /// How often it was stored; a store accepts a change only with the latest number.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The state as the last action left it; none while the state of a
    /// [`transition_of`](crate::StateMachine::transition_of) has not been loaded.
    pub fn state(&self) -> Option<&S> {
        self.state.as_ref()
    }

    /// The state of a transition that must have one by now.
    pub(crate) fn need_state(&self) -> Result<&S> {
        self.state.as_ref().ok_or_else(|| Error::corrupt_context("it has no state"))
    }

    /// The id of the entity, where the transition names it or the state does.
    pub fn entity(&self) -> Option<Cow<'_, str>> {
        match &self.entity {
            Some(entity) => Some(Cow::Borrowed(&entity.id)),
            None => self.state.as_ref()?.id(),
        }
    }

    /// The change that is wanted.
    pub fn delta(&self) -> &S::Delta {
        &self.delta
    }

    /// Where it stands.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Whether all is done.
    pub fn is_completed(&self) -> bool {
        self.status == Status::Completed
    }

    /// Whether it waits to go on.
    pub fn is_paused(&self) -> bool {
        self.status == Status::Paused
    }

    /// Whether a gate or an action ended it.
    pub fn is_stopped(&self) -> bool {
        self.status == Status::Stopped
    }

    /// Whether a gate or an action failed.
    pub fn is_failed(&self) -> bool {
        self.status == Status::Failed
    }

    /// Whether it was called off.
    pub fn is_cancelled(&self) -> bool {
        self.status == Status::Cancelled
    }

    /// Whether nothing was done because somebody else had the lock.
    pub fn was_skipped_due_to_lock(&self) -> bool {
        self.skipped_by_lock
    }

    /// Whether its lock ended before its last action did: somebody else may have been at the entity
    /// meanwhile. With a fenced [`save`](crate::StateMachineBuilder::save) such a transition does not
    /// complete.
    pub fn was_lock_lost(&self) -> bool {
        self.lock_lost
    }

    /// What the action said that paused or stopped it, or why it was stopped otherwise.
    pub fn metadata(&self) -> Option<&Value> {
        self.metadata.as_ref()
    }

    /// What ended it, if it failed.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_deref()
    }

    /// Every look at a gate, in order.
    pub fn gate_evaluations(&self) -> &[GateEvaluation] {
        &self.gates
    }

    /// Every action that ran to its end, in order.
    pub fn action_executions(&self) -> &[ActionExecution] {
        self.actions.as_slice()
    }

    /// Every action that its gate kept from running, in order.
    pub fn action_skips(&self) -> &[ActionSkip] {
        &self.skips
    }

    /// The names of the actions that are left; empty also before the gates were asked.
    pub fn remaining_actions(&self) -> &[Arc<str>] {
        let (names, first) = match &self.plan {
            Some(Plan::All) => (&self.machine.actions, 0),
            Some(Plan::Chosen { names, first }) => (names, *first),
            None => return &[],
        };
        names.get(self.next - first..).unwrap_or_default()
    }

    /// The place of the next action, from zero.
    pub fn next_index(&self) -> usize {
        self.next
    }

    /// What it waits for, while it is paused.
    pub fn paused(&self) -> Option<&Paused> {
        self.paused.as_deref()
    }

    /// What ended its last pause.
    pub fn woken(&self) -> Option<&Woken> {
        self.woken.as_deref()
    }

    /// The lock that a paused transition keeps. That of a running one is asked of its worker.
    pub fn lock_state(&self) -> LockState {
        self.lease.as_deref().map(LockState::from).unwrap_or_default()
    }

    /// When it was made.
    pub fn created_at(&self) -> DateTime<Utc> {
        self.created_at
    }

    /// When something last happened.
    pub fn updated_at(&self) -> DateTime<Utc> {
        self.updated_at
    }

    /// The key by which an action's effect outside can be recognised when the action is run again
    /// after a crash: the transition's id and the action's place.
    pub fn idempotency_key(&self, index: usize) -> String {
        format!("{}:{index}", self.id)
    }
}

impl<S: State> Clone for TransitionContext<S> {
    fn clone(&self) -> Self {
        TransitionContext {
            id: self.id,
            machine: self.machine.clone(),
            definition: self.definition,
            revision: self.revision,
            events: self.events,
            state: self.state.clone(),
            delta: self.delta.clone(),
            status: self.status,
            metadata: self.metadata.clone(),
            failure: self.failure.clone(),
            plan: self.plan.clone(),
            next: self.next,
            gates: self.gates.clone(),
            actions: self.actions.clone(),
            skips: self.skips.clone(),
            paused: self.paused.clone(),
            woken: self.woken.clone(),
            lock_key: self.lock_key.clone(),
            lease: self.lease.clone(),
            fence: self.fence,
            entity: self.entity.clone(),
            skipped_by_lock: self.skipped_by_lock,
            lock_lost: self.lock_lost,
            created_at: self.created_at,
            updated_at: self.updated_at,
        }
    }
}

/// Neither the lease nor the state: what is in a state, this crate cannot know.
impl<S: State> fmt::Debug for TransitionContext<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransitionContext")
            .field("id", &self.id)
            .field("machine", &self.machine.name)
            .field("revision", &self.revision)
            .field("status", &self.status)
            .field("metadata", &self.metadata)
            .field("failure", &self.failure)
            .field("actions", &self.action_executions())
            .field("skips", &self.skips)
            .field("remaining", &self.remaining_actions())
            .field("paused", &self.paused)
            .field("lock", &self.lock_state())
            .finish_non_exhaustive()
    }
}
