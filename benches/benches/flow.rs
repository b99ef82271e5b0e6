//! Transitions beside the bare lock, with and without observers, stored and resumed; and the bare
//! table beside other state machines. Ratios of one run.
//!
//! `cargo bench -p latchwork-benches --bench flow` takes a minute or so. Goals are printed and not
//! asserted: a busy machine is no fault of the code.
#![allow(clippy::expect_used, reason = "a bench of what fails is none")]

use std::borrow::Cow;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use latchwork_benches::{Contender, Goal, Scale, Table, race};
use latchwork_flow::{
    ActionResult, ChannelObserver, EntityKey, Event, GateResult, MergeDelta, Pause, State,
    StateMachine, StateMachineBuilder, TracingObserver, TransitionTable,
};
use latchwork_lock::{InMemoryLockProvider, Locks};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

fn main() -> std::io::Result<()> {
    let scale = Scale::from_args();
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;

    let mut cost = Table::new("A transition: how many times the cost of a bare lock and unlock");
    transitions(scale, &runtime, &mut cost);
    let mut watched =
        Table::new("One locked action with observers: how many times the cost of none");
    observers(scale, &runtime, &mut watched);
    let mut stored = Table::new("A paused context: how many times the cost of a locked transition");
    contexts(scale, &runtime, &mut stored);
    let mut tables = Table::new("A move of the bare table: how many times faster than …");
    moves(scale, &mut tables);

    for table in [cost, watched, stored, tables] {
        table.print(scale);
    }
    Ok(())
}

// ---- what is moved -----------------------------------------------------------------------------

#[derive(Clone, Serialize, Deserialize)]
struct Order {
    id: Cow<'static, str>,
    published: bool,
}

#[derive(Clone, Serialize, Deserialize)]
struct Publish;

impl State for Order {
    type Delta = Publish;

    fn with(&self, _: &Publish) -> Self {
        Order { published: true, ..self.clone() }
    }

    fn id(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(&self.id))
    }
}

fn order() -> Order {
    Order { id: Cow::Borrowed("ORD-123"), published: false }
}

fn locks() -> Locks {
    Locks::new(InMemoryLockProvider::new())
}

const NAMES: [&str; 5] = ["one", "two", "three", "four", "five"];

/// A machine with so many actions that do nothing.
fn builder(actions: usize) -> StateMachineBuilder<Order> {
    let mut builder = StateMachine::builder("bench");
    for name in &NAMES[..actions] {
        builder = builder.action_fn(name, |_| async { Ok(ActionResult::proceed()) });
    }
    builder
}

fn locked(actions: usize) -> StateMachineBuilder<Order> {
    builder(actions).locks(locks(), EntityKey::new())
}

fn execute<'a>(
    runtime: &'a Runtime,
    name: &'static str,
    machine: StateMachineBuilder<Order>,
) -> Contender<'a> {
    let machine = machine.build().expect("a machine");
    Contender::new(name, move |operations| {
        runtime.block_on(async {
            for _ in 0..operations {
                black_box(machine.run(order(), Publish).await.expect("nothing fails"));
            }
        });
    })
}

/// The same by a worker, which goes step by step.
fn step_by_step<'a>(
    runtime: &'a Runtime,
    name: &'static str,
    machine: StateMachineBuilder<Order>,
) -> Contender<'a> {
    let machine = machine.build().expect("a machine");
    Contender::new(name, move |operations| {
        runtime.block_on(async {
            for _ in 0..operations {
                let mut worker = machine.transition(order(), Publish);
                black_box(worker.execute().await.expect("nothing fails"));
            }
        });
    })
}

// ---- transitions -------------------------------------------------------------------------------

fn transitions(scale: Scale, runtime: &Runtime, table: &mut Table) {
    let bare = locks();
    let key = "flow:entity:ORD-123".to_owned();
    let run = |name, machine, goal| (execute(runtime, name, machine), name, goal);
    let gated = locked(1).gate_fn("may", |_, _| GateResult::Allow);
    let by_worker = "locked, 1 action, by a worker";
    let cases = [
        run("no lock, no action", builder(0), Goal::None),
        run("no lock, 1 action", builder(1), Goal::None),
        run("no lock, 5 actions", builder(5), Goal::None),
        run("locked, no action", locked(0), Goal::None),
        run("locked, 1 action", locked(1), Goal::AtMost(3.0)),
        run("locked, 1 action in place (MergeDelta)", locked(0).action(MergeDelta), Goal::None),
        run("locked, 5 actions", locked(5), Goal::None),
        run("locked, 1 gate, 1 action", gated, Goal::None),
        (step_by_step(runtime, by_worker, locked(1)), by_worker, Goal::None),
    ];
    for (transition, name, goal) in cases {
        let lock_and_unlock = Contender::new("lock and unlock", |operations| {
            runtime.block_on(async {
                for _ in 0..operations {
                    let guard = bare.lock(&key).acquire().await.expect("it is free");
                    black_box(guard).release().await.expect("held to the end");
                }
            });
        });
        let race = race(scale, &mut [transition, lock_and_unlock]);
        let ratio = race.first_costs_of(1);
        let shown = format!("{ratio}, {:.0} per s", race.per_second(0));
        table.row(name, "lock and unlock", ratio.median, shown, goal);
    }
}

// ---- observers ---------------------------------------------------------------------------------

fn observers(scale: Scale, runtime: &Runtime, table: &mut Table) {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let counts = |_: &Event<'_, Order>| {
        SEEN.fetch_add(1, Ordering::Relaxed);
    };
    let (full, _kept) = ChannelObserver::new(1);
    let cases = [
        ("a closure that counts", locked(1).observe(counts)),
        ("tracing, without a subscriber", locked(1).observe(TracingObserver)),
        ("a channel that is full", locked(1).observe(full)),
    ];
    for (name, machine) in cases {
        let mut contenders = [execute(runtime, name, machine), execute(runtime, "none", locked(1))];
        let race = race(scale, &mut contenders);
        let ratio = race.first_costs_of(1);
        table.row(name, "none", ratio.median, ratio.to_string(), Goal::None);
    }
}

// ---- contexts ----------------------------------------------------------------------------------

fn contexts(scale: Scale, runtime: &Runtime, table: &mut Table) {
    let machine = || {
        let machine = StateMachine::builder("bench").locks(locks(), EntityKey::new());
        let machine = machine
            .action_fn("wait", |_| async { Ok(ActionResult::pause(Pause::new())) })
            .action(MergeDelta);
        machine.build().expect("a machine")
    };
    let paused = machine();
    let mut worker = paused.transition(order(), Publish);
    let context = runtime.block_on(worker.execute()).expect("nothing fails");
    let json = context.to_json().expect("it serialises");

    let mut write = |operations: u64| {
        for _ in 0..operations {
            black_box(context.to_json().expect("it serialises"));
        }
    };
    let mut read = |operations: u64| {
        for _ in 0..operations {
            black_box(paused.read_context(&json).expect("its own"));
        }
    };
    let resumed = machine();
    let mut resume = |operations: u64| {
        runtime.block_on(async {
            for _ in 0..operations {
                let mut worker = resumed.transition(order(), Publish);
                let paused = worker.execute().await.expect("nothing fails");
                let json = paused.to_json().expect("it serialises");
                let context = resumed.read_context(&json).expect("its own");
                let mut worker = resumed.from_context(context).expect("its own");
                black_box(worker.execute().await.expect("its lock is kept"));
            }
        });
    };
    let cases: [(_, &mut dyn FnMut(u64)); 3] = [
        ("written as JSON", &mut write),
        ("read from JSON", &mut read),
        ("paused, written, read, resumed", &mut resume),
    ];
    for (name, run) in cases {
        let plain = execute(runtime, "locked, 1 action", locked(1));
        let race = race(scale, &mut [Contender::new(name, run), plain]);
        let ratio = race.first_costs_of(1);
        let shown = format!("{ratio}, {:.0} per s", race.per_second(0));
        table.row(name, "locked, 1 action", ratio.median, shown, Goal::None);
    }
}

// ---- the bare table ----------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Light {
    Red,
    Green,
    Yellow,
}

impl std::fmt::Display for Light {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The same three states in the words of `rust-fsm`.
mod with_rust_fsm {
    rust_fsm::state_machine! {
        /// Round and round.
        pub(crate) light(Red)

        Red(Next) => Green,
        Green(Next) => Yellow,
        Yellow(Next) => Red,
    }
}

/// The same three states in the words of `statig`.
mod with_statig {
    use statig::prelude::*;

    #[derive(Default)]
    pub(crate) struct Lights;

    pub(crate) struct Next;

    #[state_machine(initial = "State::red()")]
    impl Lights {
        #[state]
        fn red(event: &Next) -> Outcome<State> {
            let _ = event; // the macro knows it by its name
            Transition(State::green())
        }

        #[state]
        fn green(event: &Next) -> Outcome<State> {
            let _ = event; // the macro knows it by its name
            Transition(State::yellow())
        }

        #[state]
        fn yellow(event: &Next) -> Outcome<State> {
            let _ = event; // the macro knows it by its name
            Transition(State::red())
        }
    }
}

fn moves(scale: Scale, table: &mut Table) {
    use statig::blocking::IntoStateMachineExt as _;

    let lights = TransitionTable::builder("light")
        .initial(Light::Red)
        .allow(Light::Red, [Light::Green])
        .allow(Light::Green, [Light::Yellow])
        .allow(Light::Yellow, [Light::Red])
        .terminal([Light::Red])
        .build()
        .expect("it holds together");
    let ours = |operations: u64| {
        let mut light = Light::Red;
        for _ in 0..operations {
            let to = match black_box(light) {
                Light::Red => Light::Green,
                Light::Green => Light::Yellow,
                Light::Yellow => Light::Red,
            };
            lights.check(&light, &to).expect("it is allowed");
            light = to;
        }
        black_box(light);
    };
    let mut fsm = with_rust_fsm::light::StateMachine::new();
    let rust_fsm = |operations: u64| {
        for _ in 0..operations {
            black_box(fsm.consume(black_box(&with_rust_fsm::light::Input::Next)).expect("allowed"));
        }
    };
    let mut machine = with_statig::Lights.uninitialized_state_machine().init();
    let statig = |operations: u64| {
        for _ in 0..operations {
            machine.handle(black_box(&with_statig::Next));
        }
    };
    let mut contenders = [
        Contender::new("latchwork", ours),
        Contender::new("rust-fsm", rust_fsm),
        Contender::new("statig", statig),
    ];
    let race = race(scale, &mut contenders);
    for (other, name) in race.others() {
        let ratio = race.first_faster_than(other);
        let shown = format!("{ratio}, {:.0} million per s", race.per_second(0) / 1e6);
        table.row("a legal move, checked", name, ratio.median, shown, Goal::None);
    }
}
