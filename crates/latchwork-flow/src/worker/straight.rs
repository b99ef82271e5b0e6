//! The straight way of a transition that nobody watches, stores or holds up.

use std::sync::Arc;

use latchwork_lock::LockStrategy;

use super::lock::not_released;
use super::steps::Started;
use super::{StateWorker, Steps};
use crate::machine::{Locking, Machine};
use crate::{Execution, Result, State, StateMachine, Status, TransitionContext};

/// Whether [`run`] suits a machine: nobody sees its transitions but their actions, and nothing but an
/// action can end one early.
pub(crate) fn suits<S: State>(machine: &Machine<S>) -> bool {
    let takes = |locking: &Locking<S>| {
        matches!(locking.config.strategy, LockStrategy::FailFast | LockStrategy::Wait)
    };
    machine.observers.is_empty()
        && machine.store.is_none()
        && machine.provider.is_none()
        && machine.all.gates.is_empty()
        && machine.all.actions.iter().all(|action| action.gate.is_none())
        && machine.locking.as_ref().is_none_or(takes)
}

/// Does all of a transition at once, as a [`StateWorker`] does step by step; where that does not suit
/// the machine, by a worker.
///
/// What nobody can see is not written down: the context is made as it is when the actions begin, no
/// event is told, and what is left of a transition that fails is its error. What an action does and
/// how it is noted is the worker's; one that pauses or stops leaves the rest to a worker.
///
/// Cancel safety: as for [`StateWorker::execute`].
pub(crate) async fn run<S: State>(
    machine: &StateMachine<S>,
    state: S,
    delta: S::Delta,
) -> Result<Arc<TransitionContext<S>>> {
    if !machine.inner().straight {
        let mut worker = machine.transition(state, delta);
        worker.execute_at_once().await?;
        return Ok(worker.into_context());
    }
    let machine = machine.inner();
    let now = machine.now();
    let (mut key, mut guard) = (None, None);
    if let Some(locking) = &machine.locking {
        let key = key.insert(locking.key(machine, &state, &delta)?);
        guard = Some(locking.request(key).acquire().await?);
    }
    let waited = guard.as_ref().is_some_and(|guard| guard.waited());
    let mut started_at = if waited { machine.now() } else { now };
    let actions = &machine.all.actions;
    let status = if actions.is_empty() { Status::Completed } else { Status::Running };
    let mut context = TransitionContext::new(machine, state, delta, now, status, key);
    for (index, action) in actions.iter().enumerate() {
        if index > 0
            && let Some(guard) = &guard
            && !guard.is_held()
        {
            return Err(latchwork_lock::Error::expired(guard.key(), guard.fence()).into());
        }
        let fence = guard.as_ref().map(|guard| guard.fence());
        let result = match action.start(&context, index, fence).await {
            Started::Done(result) => result,
            Started::Waits(work) => work.await,
        };
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                if let Some(guard) = guard
                    && let Err(unreleased) = guard.release().await
                {
                    not_released(&unreleased, context.id);
                }
                return Err(error);
            }
        };
        let ended_at = machine.now().max(started_at);
        let noted = Arc::make_mut(&mut context);
        let (execution, pause) = noted.note(action, result, actions.len(), started_at, ended_at);
        let last = index + 1 == actions.len();
        if execution != Execution::Continue {
            let mut worker = StateWorker::new(machine.clone(), context);
            // It has begun; there was its lock; there were its actions.
            worker.events = 1 + 2 * u64::from(guard.is_some()) + 2 * (index as u64 + 1);
            worker.steps = Some(Steps::All);
            (worker.begun, worker.gates_passed, worker.acted) = (true, true, true);
            (worker.guard, worker.fresh) = (guard, true);
            worker.after_step(execution, pause, last).await?;
            return Ok(worker.into_context());
        }
        if last {
            noted.status = Status::Completed;
        }
        started_at = ended_at;
    }
    if let Some(guard) = guard
        && let Err(unreleased) = guard.release().await
    {
        not_released(&unreleased, context.id);
    }
    Ok(context)
}
