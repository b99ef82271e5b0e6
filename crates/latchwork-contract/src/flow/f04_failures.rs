//! F4 What fails or panics ends the transition, and leaves no lock behind.

use std::time::Duration;

use latchwork_flow::{
    ActionContext, ActionResult, BoxError, Configuration, ConfigurationProvider, ErrorKind, Gate,
    GateContext, GateResult, StateMachineBuilder,
};
use latchwork_lock::{Key, LockConfig};

use super::Fixture;
use super::case::cases;
use super::machine_fixture::{Change, MachineFixture, Order, draft, publish};

cases![
    f04_a_failing_action,
    f04_a_panicking_action,
    f04_a_failing_gate,
    f04_a_panicking_gate,
    f04_a_panicking_gate_of_an_action,
    f04_a_failing_configuration,
    f04_a_panicking_configuration,
    f04_a_panicking_key,
    f04_an_illegal_key,
    f04_a_state_without_an_id,
    f04_an_unknown_step,
    f04_what_was_done_is_kept,
];

/// Runs the machine into its fault, and checks all that is the same for every fault.
async fn fails(
    fixture: &MachineFixture,
    machine: StateMachineBuilder<Order>,
    order: Order,
    code: &str,
) -> String {
    // Long, since to write the backtrace of a panic can take seconds on a busy machine.
    let long = LockConfig { ttl: Duration::from_secs(60), ..fixture.lock_config() };
    let machine = machine.lock_config(long).build().expect("a machine");
    let mut worker = machine.transition(order, publish());
    let error = worker.execute().await.expect_err("it fails");
    assert_eq!(error.code(), code, "{error}");
    assert!(!error.is_temporary());
    let context = worker.context();
    assert!(context.is_failed());
    let failure = context.failure().expect("it is noted");
    assert_eq!(failure.code, code);
    for said in ["the nail is bent", "the lock is rusty", "the book is gone"] {
        assert!(failure.message.matches(said).count() <= 1, "said twice: {}", failure.message);
    }
    assert!(!fixture.is_locked().await, "the lock is released");
    let names = fixture.event_names();
    assert_eq!(names.iter().filter(|name| **name == "TransitionFailed").count(), 1);
    let taken = names.iter().filter(|name| **name == "LockAcquired").count();
    assert_eq!(names.iter().filter(|name| **name == "LockReleased").count(), taken);
    let again = worker.execute().await.expect_err("it is over");
    assert_eq!(again.code(), "transition_over");
    error.to_string()
}

struct Broken {
    panics: bool,
}

impl Gate<Order> for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    async fn evaluate(&self, _: GateContext<'_, Order>) -> Result<GateResult, BoxError> {
        assert!(!self.panics, "the gate fell off");
        Err("the lock is rusty".into())
    }
}

impl ConfigurationProvider<Order> for Broken {
    async fn provide(&self, _: &Order, _: &Change) -> Result<Configuration<Order>, BoxError> {
        assert!(!self.panics, "the book fell shut");
        Err("the book is gone".into())
    }
}

async fn act(panics: bool) -> Result<ActionResult<Order>, BoxError> {
    tokio::task::yield_now().await;
    assert!(!panics, "the hammer broke");
    Err(std::io::Error::other("the nail is bent").into())
}

async fn f04_a_failing_action(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action_fn("nail", |_| act(false)).build().expect("a machine");
    let mut worker = machine.transition(draft(), publish());
    let error = worker.execute().await.expect_err("it fails");
    match error.kind() {
        ErrorKind::ActionFailed { action, index, panicked, source, .. } => {
            assert_eq!((&**action, *index, *panicked), ("nail", 0, false));
            let source = source.as_ref().expect("the action's own error");
            assert!(source.downcast_ref::<std::io::Error>().is_some());
        }
        other => panic!("{other:?}"),
    }
    let fresh = MachineFixture::new(&f).await;
    let machine = fresh.stored().action_fn("nail", |_| act(false));
    let said = fails(&fresh, machine, draft(), "action_failed").await;
    assert!(said.contains("nail") && said.contains("bent"), "{said}");
}

async fn f04_a_panicking_action(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action_fn("nail", |_| act(true));
    let said = fails(&fixture, machine, draft(), "action_failed").await;
    assert!(said.contains("panicked") && said.contains("the hammer broke"), "{said}");
    // Also when it panics before it gives a future.
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action_fn("nail", |at: ActionContext<Order>| {
        assert!(at.index() > 7, "no hammer");
        act(false)
    });
    let said = fails(&fixture, machine, draft(), "action_failed").await;
    assert!(said.contains("no hammer"), "{said}");
}

async fn f04_a_failing_gate(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().gate(Broken { panics: false }).action(fixture.noting("a"));
    let said = fails(&fixture, machine, draft(), "gate_failed").await;
    assert!(said.contains("broken") && said.contains("rusty"), "{said}");
    assert!(fixture.ran().is_empty());
}

async fn f04_a_panicking_gate(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().gate(Broken { panics: true }).action(fixture.noting("a"));
    let said = fails(&fixture, machine, draft(), "gate_failed").await;
    assert!(said.contains("the gate fell off"), "{said}");
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().gate_fn("closure", |_, _| panic!("it slammed"));
    let said = fails(&fixture, machine, draft(), "gate_failed").await;
    assert!(said.contains("it slammed"), "{said}");
}

async fn f04_a_panicking_gate_of_an_action(f: Fixture) {
    use latchwork_flow::Action as _;
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action(fixture.noting("a"));
    let machine = machine.action(fixture.noting("b").behind(Broken { panics: true }));
    fails(&fixture, machine, draft(), "gate_failed").await;
    assert_eq!(fixture.ran(), ["a"]);
}

async fn f04_a_failing_configuration(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().configure(Broken { panics: false });
    let said = fails(&fixture, machine, draft(), "provider_failed").await;
    assert!(said.contains("the book is gone"), "{said}");
}

async fn f04_a_panicking_configuration(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().configure(Broken { panics: true });
    let said = fails(&fixture, machine, draft(), "provider_failed").await;
    assert!(said.contains("the book fell shut"), "{said}");
}

async fn f04_a_panicking_key(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let key = |_: &Order, _: &Change| -> latchwork_flow::Result<Key> { panic!("no key") };
    let machine = fixture.stored().locks(&fixture.locks, key).action(fixture.noting("a"));
    let said = fails(&fixture, machine, draft(), "provider_failed").await;
    assert!(said.contains("lock key") && said.contains("no key"), "{said}");
    assert!(fixture.ran().is_empty());
}

async fn f04_an_illegal_key(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture
        .stored()
        .lock_key_fn(&fixture.locks, |order, _| Ok(Key::new(&format!("{}\n", order.id))?))
        .action(fixture.noting("a"));
    fails(&fixture, machine, draft(), "invalid_key").await;
    assert!(fixture.ran().is_empty());
}

async fn f04_a_state_without_an_id(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let order = Order { id: String::new(), ..draft() };
    let machine = fixture.stored().action(fixture.noting("a"));
    let said = fails(&fixture, machine, order, "no_entity_id").await;
    assert!(said.contains("id"), "{said}");
    assert!(fixture.ran().is_empty());
}

async fn f04_an_unknown_step(f: Fixture) {
    for (names, what) in [((Some("missing"), None), "gate"), ((None, Some("missing")), "action")] {
        let fixture = MachineFixture::new(&f).await;
        let machine = fixture.stored().action(fixture.noting("a"));
        let machine = machine.configure(move |_: &Order, _: &Change| {
            Configuration::new().gates(names.0).actions(names.1)
        });
        let said = fails(&fixture, machine, draft(), "unknown_step").await;
        assert!(said.contains(what) && said.contains("missing"), "{said}");
    }
    // With a store, an action in person must be found again by name.
    let fixture = MachineFixture::new(&f).await;
    let own = fixture.clone();
    let machine = fixture.stored().configure(move |_: &Order, _: &Change| {
        Configuration::new().action(own.noting("unregistered"))
    });
    let said = fails(&fixture, machine, draft(), "unknown_step").await;
    assert!(said.contains("unregistered"), "{said}");
}

async fn f04_what_was_done_is_kept(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action(fixture.noting("a")).action_fn("nail", |_| act(true));
    let machine = machine.build().expect("a machine");
    let mut worker = machine.transition(draft(), publish());
    worker.execute().await.expect_err("it fails");
    let done: Vec<_> = worker.context().action_executions().iter().map(|a| &*a.action).collect();
    assert_eq!(done, ["a"]);
    let stored = fixture.store.show(worker.context().id()).await.expect("it was stored");
    assert_eq!(stored.status.name(), "failed");
    assert_eq!(stored.details.failure.expect("it is noted").code, "action_failed");
}
