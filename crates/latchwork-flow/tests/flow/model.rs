//! Any sequence of gate and action outcomes against a small model: status, history, events, lock and
//! store agree.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use latchwork_flow::{
    Action, ActionContext, ActionResult, BoxError, ContextStore, EntityKey, Event, Execution, Gate,
    GateContext, GateResult, GateVerdict, InMemoryContextStore, JsonState, Pause, StateMachine,
    Status, TransitionContext,
};
use latchwork_lock::{InMemoryLockProvider, Locks};
use proptest::prelude::*;
use serde_json::json;

/// What a gate does when it is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Allow,
    Deny,
    Skip,
    Fail,
    Panic,
}

/// What an action does when it is run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Deed {
    Continue,
    Pause,
    Stop,
    Fail,
    Panic,
}

#[derive(Clone, Debug)]
struct Case {
    gates: Vec<Answer>,
    actions: Vec<(Option<Answer>, Deed)>,
    stored: bool,
    /// How a pause ends: in the same worker, or read from text by another.
    elsewhere: bool,
    stepwise: bool,
    /// Whether nobody watches until the first pause, and all is done in one go.
    unseen: bool,
}

/// What must come out of it.
#[derive(Debug, Default, PartialEq)]
struct Expected {
    status: Option<Status>,
    verdicts: Vec<GateVerdict>,
    executed: Vec<(usize, Execution)>,
    skipped: Vec<usize>,
    events: Vec<&'static str>,
    pauses: usize,
}

fn verdict(answer: Answer) -> Option<GateVerdict> {
    match answer {
        Answer::Allow => Some(GateVerdict::Allow),
        Answer::Deny => Some(GateVerdict::Deny),
        Answer::Skip => Some(GateVerdict::SkipIdempotent),
        Answer::Fail | Answer::Panic => None,
    }
}

/// The model: what the design says, in so many words.
fn expected(case: &Case) -> Expected {
    let mut out = Expected::default();
    out.events.extend(["TransitionStarting", "LockAcquiring", "LockAcquired"]);
    let end = |mut out: Expected, status: Status| {
        out.status = Some(status);
        out.events.push(match status {
            Status::Completed => "TransitionCompleted",
            Status::Failed => "TransitionFailed",
            _ => "TransitionStopped",
        });
        out.events.push("LockReleased");
        out
    };
    let mut skip = false;
    for gate in &case.gates {
        out.events.push("GateEvaluating");
        let Some(verdict) = verdict(*gate) else { return end(out, Status::Failed) };
        out.events.push("GateEvaluated");
        out.verdicts.push(verdict);
        match verdict {
            GateVerdict::Deny => return end(out, Status::Stopped),
            GateVerdict::SkipIdempotent => skip = true,
            GateVerdict::Allow => {}
        }
    }
    if skip {
        return end(out, Status::Completed);
    }
    for (index, (gate, deed)) in case.actions.iter().enumerate() {
        if let Some(gate) = gate {
            out.events.push("GateEvaluating");
            let Some(verdict) = verdict(*gate) else { return end(out, Status::Failed) };
            out.events.push("GateEvaluated");
            out.verdicts.push(verdict);
            if verdict != GateVerdict::Allow {
                out.events.push("ActionSkipped");
                out.skipped.push(index);
                continue;
            }
        }
        out.events.push("ActionExecuting");
        let execution = match deed {
            Deed::Continue => Execution::Continue,
            Deed::Pause => Execution::Pause,
            Deed::Stop => Execution::Stop,
            Deed::Fail | Deed::Panic => return end(out, Status::Failed),
        };
        out.events.push("ActionExecuted");
        out.executed.push((index, execution));
        match execution {
            Execution::Continue => {}
            Execution::Stop => return end(out, Status::Stopped),
            Execution::Pause | Execution::Repeat => {
                out.pauses += 1;
                out.events.extend(["TransitionPaused", "TransitionStarting", "LockRestored"]);
            }
        }
    }
    end(out, Status::Completed)
}

struct Told {
    name: String,
    answer: Answer,
}

impl Gate<JsonState> for Told {
    fn name(&self) -> &str {
        &self.name
    }

    async fn evaluate(&self, _: GateContext<'_, JsonState>) -> Result<GateResult, BoxError> {
        match self.answer {
            Answer::Allow => Ok(GateResult::Allow),
            Answer::Deny => Ok(GateResult::deny("told so")),
            Answer::Skip => Ok(GateResult::skip("told so")),
            Answer::Fail => Err("told so".into()),
            Answer::Panic => panic!("told so"),
        }
    }
}

struct Does {
    name: String,
    gate: Option<Answer>,
    deed: Deed,
    /// Whether it needs more than one look.
    slow: bool,
}

impl Action<JsonState> for Does {
    fn name(&self) -> &str {
        &self.name
    }

    fn gate(&self) -> Option<latchwork_flow::AnyGate<JsonState>> {
        let gate = |answer| Told { name: format!("gate of {}", self.name), answer };
        self.gate.map(|answer| latchwork_flow::AnyGate::new(gate(answer)))
    }

    async fn execute(
        &self,
        at: ActionContext<JsonState>,
    ) -> Result<ActionResult<JsonState>, BoxError> {
        assert_eq!(at.idempotency_key(), format!("{}:{}", at.transition().id(), at.index()));
        assert!(at.fence().is_some(), "it runs under the lock");
        assert_eq!(at.transition().status(), Status::Running);
        assert_eq!(
            at.transition().remaining_actions().first().map(|name| &**name),
            Some(&*self.name)
        );
        if self.slow {
            tokio::task::yield_now().await;
        }
        match self.deed {
            Deed::Continue => Ok(ActionResult::proceed()),
            Deed::Pause => Ok(ActionResult::pause(Pause::new())),
            Deed::Stop => Ok(ActionResult::stop()),
            Deed::Fail => Err("told so".into()),
            Deed::Panic => panic!("told so"),
        }
    }
}

async fn check(case: Case) {
    let locks = Locks::new(InMemoryLockProvider::new());
    let store = InMemoryContextStore::new();
    let seen: Arc<Mutex<Vec<(u64, &'static str)>>> = Arc::default();
    let witness = seen.clone();
    let builder = || {
        let mut builder =
            StateMachine::<JsonState>::builder("model").locks(&locks, EntityKey::new());
        if case.stored {
            builder = builder.store(store.clone());
        }
        for (number, answer) in case.gates.iter().enumerate() {
            builder = builder.gate(Told { name: format!("gate {number}"), answer: *answer });
        }
        for (number, (gate, deed)) in case.actions.iter().enumerate() {
            let (name, slow) = (format!("{number}"), number % 2 == 1);
            builder = builder.action(Does { name, gate: *gate, deed: *deed, slow });
        }
        builder
    };
    let observer = move |event: &Event<'_, JsonState>| {
        witness.lock().unwrap().push((event.sequence, event.kind.name()));
    };
    let machine = builder().observe(observer).build().unwrap();
    let state = JsonState::new(json!({"id": "one"})).unwrap();
    let delta = JsonState::delta(json!({})).unwrap();
    let mut pauses = 0;
    let mut expected = expected(&case);
    let mut first_seen = 0;
    let mut worker = if case.unseen {
        let unseen = builder().build().unwrap();
        let context = match unseen.run(state, delta).await {
            Ok(context) => context,
            Err(_) => {
                assert_eq!(expected.status, Some(Status::Failed));
                assert_eq!(expected.pauses, 0);
                assert!(!locks.exists("flow:entity:one").await.unwrap(), "no lock is left behind");
                return;
            }
        };
        if !context.is_paused() {
            assert_eq!(expected.pauses, 0);
            expected.events.clear();
            assert_eq!(seen_of(&context, Vec::new(), 0), expected);
            assert!(!locks.exists("flow:entity:one").await.unwrap(), "no lock is left behind");
            return;
        }
        pauses += 1;
        let begins = |event: &&'static str| *event == "TransitionStarting";
        let again = expected.events.iter().skip(1).position(begins);
        first_seen = 1 + again.expect("it begins again after a pause");
        expected.events.drain(..first_seen);
        let lock = locks.inspect("flow:entity:one").await.unwrap();
        assert_eq!(lock.holders.len(), 1, "a pause keeps the lock");
        machine.from_context(TransitionContext::clone(&context)).unwrap()
    } else {
        machine.transition(state, delta)
    };
    let mut failed = false;
    let mut steps = VecDeque::new();
    loop {
        let answer =
            if case.stepwise { worker.run_next_action().await } else { worker.execute().await };
        match answer {
            Ok(context) if context.status() == Status::Running => steps.push_back(()),
            Ok(context) if context.is_paused() => {
                pauses += 1;
                let lock = locks.inspect("flow:entity:one").await.unwrap();
                assert_eq!(lock.holders.len(), 1, "a pause keeps the lock");
                if case.elsewhere {
                    worker = match case.stored {
                        true => machine.resume(context.id()).await.unwrap(),
                        false => {
                            let text = context.to_json().unwrap();
                            machine.from_context(machine.read_context(&text).unwrap()).unwrap()
                        }
                    };
                }
            }
            Ok(_) => break,
            Err(_) => {
                failed = true;
                break;
            }
        }
        assert!(steps.len() <= case.actions.len(), "it comes to an end");
    }
    let context: &TransitionContext<JsonState> = worker.context();
    let events = seen.lock().unwrap().iter().map(|event| event.1).collect();
    // A pause at the very end waits for a resume that has nothing left to do.
    assert_eq!(seen_of(context, events, pauses), expected);
    assert_eq!(failed, context.is_failed());
    assert_eq!(context.failure().is_some(), failed);
    let numbers: Vec<u64> = seen.lock().unwrap().iter().map(|event| event.0).collect();
    let first_seen = first_seen as u64;
    assert_eq!(numbers, (first_seen..first_seen + numbers.len() as u64).collect::<Vec<_>>());
    assert!(!locks.exists("flow:entity:one").await.unwrap(), "no lock is left behind");
    // What acted at all is stored, and stands there as it stands here.
    let acted = seen.lock().unwrap().iter().any(|event| event.1.starts_with("Action"))
        || (!case.actions.is_empty() && !expected.executed.is_empty());
    let row = ContextStore::load(&store, context.id()).await.unwrap();
    if case.stored && acted {
        let head = row.expect("it is stored").head;
        assert_eq!((head.status, head.run, head.due_at), (context.status(), None, None));
        assert_eq!(head.revision, context.revision());
    }
}

fn seen_of(
    context: &TransitionContext<JsonState>,
    events: Vec<&'static str>,
    pauses: usize,
) -> Expected {
    Expected {
        status: Some(context.status()),
        verdicts: context.gate_evaluations().iter().map(|gate| gate.verdict).collect(),
        executed: context.action_executions().iter().map(|a| (a.index, a.execution)).collect(),
        skipped: context.action_skips().iter().map(|skip| skip.index).collect(),
        events,
        pauses,
    }
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        6 => Just(Answer::Allow),
        1 => Just(Answer::Deny),
        2 => Just(Answer::Skip),
        1 => Just(Answer::Fail),
        1 => Just(Answer::Panic),
    ]
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        6 => Just(Deed::Continue),
        3 => Just(Deed::Pause),
        1 => Just(Deed::Stop),
        1 => Just(Deed::Fail),
        1 => Just(Deed::Panic),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let gates = prop_oneof![Just(Vec::new()), proptest::collection::vec(answer(), 0..4)];
    let some = proptest::collection::vec((proptest::option::of(answer()), deed()), 0..6);
    let none = proptest::collection::vec((Just(None), deed()), 0..6);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (gates, prop_oneof![some, none], flags).prop_map(
        |(gates, actions, (stored, elsewhere, stepwise, unseen))| Case {
            gates,
            actions,
            stored,
            elsewhere,
            stepwise,
            unseen: unseen && !stored,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_outcomes_leave_status_history_events_lock_and_store_in_agreement(case in case()) {
        // What panics on purpose need not be read about.
        std::panic::set_hook(Box::new(|_| {}));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(check(case))));
        let _ = std::panic::take_hook();
        if let Err(panic) = run {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            return Err(TestCaseError::fail(text.unwrap_or_default()));
        }
    }
}
