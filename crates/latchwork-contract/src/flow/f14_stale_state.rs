//! F14 Never on from stale state: unless the lock was held without a break, the entity is looked at
//! again.

use std::future::Future;
use std::sync::Arc;

use latchwork_flow::{
    ActionResult, Contexts, FlowRunner, Pause, Reloaded, StateMachine, StateMachineBuilder,
    StateWorker, Status, TransitionId,
};
use tokio::sync::Notify;

use super::Fixture;
use super::case::cases;
use super::entities::{Orders, take};
use super::fixture::code;
use super::machine_fixture::{KEY, MachineFixture, Order, draft, publish};

cases![
    f14_a_lock_that_nobody_else_had_is_no_break,
    f14_a_running_context_does_not_go_on_after_another,
    f14_an_unknown_past_counts_as_a_break,
    f14_an_unchanged_entity_goes_on_with_its_own_state,
    f14_states_are_compared_where_there_is_no_version,
    f14_gates_are_asked_again_about_a_changed_entity,
    f14_a_changed_entity_is_rebased,
    f14_a_changed_entity_without_a_rebase_stops,
    f14_an_entity_that_is_gone_fails,
    f14_a_pause_that_lost_its_lock_loads_again,
    f14_a_reloaded_state_must_pass_the_gates,
    f14_a_reloaded_running_context_must_pass_the_gates,
    f14_a_context_stored_without_locks,
    f14_an_expired_worker_does_not_lock_anew,
    f14_a_dropped_call_frees_the_lock,
    f14_a_runner_that_stops_keeps_the_lock_for_the_next,
];

/// A machine whose second action is the first to be run by another process.
fn two_steps(fixture: &MachineFixture, builder: StateMachineBuilder<Order>) -> StateMachine<Order> {
    let builder = MachineFixture::only_drafts(builder.run_lease(fixture.f.unit()));
    builder.action(fixture.noting("a")).action(fixture.noting("b")).build().expect("a machine")
}

/// Runs the first action and dies: the run-lease ends, and the lock too.
async fn dies_after_one(fixture: &MachineFixture, worker: StateWorker<Order>) -> TransitionId {
    let mut worker = worker;
    worker.run_next_action().await.expect("no error");
    let id = worker.context().id();
    std::mem::forget(worker); // nothing is given back
    fixture.f.pass(fixture.too_long()).await;
    id
}

/// Somebody else has the lock for a moment.
async fn another(fixture: &MachineFixture) {
    let other = fixture.locks.lock(KEY).acquire().await.expect("the lock has ended");
    other.release().await.expect("it is held");
}

async fn f14_a_lock_that_nobody_else_had_is_no_break(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = two_steps(&fixture, fixture.stored());
    let mut dead = machine.transition(draft(), publish());
    dead.run_next_action().await.expect("no error");
    f.pass(f.unit() * 2).await; // the run-lease ends, the lock does not
    let done = take(&fixture, &machine).await.execute().await.expect("it is taken over");
    assert!(done.is_completed());
    assert_eq!(fixture.ran(), ["a", "b"]);
    drop(dead);
}

async fn f14_a_running_context_does_not_go_on_after_another(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = two_steps(&fixture, fixture.stored());
    let id = dies_after_one(&fixture, machine.transition(draft(), publish())).await;
    another(&fixture).await;
    let mut worker = take(&fixture, &machine).await;
    let error = worker.execute().await.expect_err("others have moved the order");
    assert_eq!(error.code(), "lock_lost");
    assert!(error.is_lock_loss() && error.to_string().contains("reload"), "{error}");
    assert_eq!(fixture.ran(), ["a"]);
    assert_eq!(fixture.store.show(id).await.expect("stored").status, Status::Running);
    assert!(!fixture.is_locked().await, "and nobody waits for it");
}

async fn f14_an_unknown_past_counts_as_a_break(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = two_steps(&fixture, fixture.stored());
    dies_after_one(&fixture, machine.transition(draft(), publish())).await;
    another(&fixture).await;
    // A backend that has forgotten everything.
    let forgetful =
        latchwork_lock::Locks::new(latchwork_lock::InMemoryLockProvider::with_clock(f.clock()));
    let fixture = fixture.with_locks(forgetful);
    let machine = two_steps(&fixture, fixture.stored());
    assert_eq!(code(take(&fixture, &machine).await.execute().await), "lock_lost");
    assert_eq!(fixture.ran(), ["a"]);
}

/// A machine of orders whose first action changes the note, and which can rebase.
fn orders_machine(fixture: &MachineFixture, orders: &Orders) -> StateMachine<Order> {
    let own = fixture.clone();
    let builder = fixture.stored().action_fn("a", move |at| {
        own.note("a");
        let order = Order { note: "ours".into(), ..at.state().clone() };
        async { Ok(ActionResult::proceed_with(order)) }
    });
    let own = fixture.clone();
    let builder = orders.machine(builder).rebase(move |ours: &Order, loaded: &Order| {
        own.note("rebase");
        Ok(Order { note: format!("{} on {}", ours.note, loaded.note), ..loaded.clone() })
    });
    let builder = MachineFixture::only_drafts(builder).run_lease(fixture.f.unit());
    builder.action(fixture.noting("b")).build().expect("a machine")
}

async fn f14_an_unchanged_entity_goes_on_with_its_own_state(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::with(draft());
    let machine = orders_machine(&fixture, &orders);
    dies_after_one(&fixture, machine.transition_of("ORD-123", publish())).await;
    another(&fixture).await;
    let done = take(&fixture, &machine).await.execute().await.expect("no error");
    assert!(done.is_completed());
    assert_eq!((fixture.ran(), orders.loads()), (vec!["a".to_owned(), "b".to_owned()], 2));
    assert_eq!(orders.read("ORD-123").note, "ours");
}

async fn f14_states_are_compared_where_there_is_no_version(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::without_versions(draft());
    let machine = orders_machine(&fixture, &orders);
    dies_after_one(&fixture, machine.transition_of("ORD-123", publish())).await;
    another(&fixture).await;
    orders.write(draft()); // as it was
    assert!(take(&fixture, &machine).await.execute().await.expect("no error").is_completed());
    assert_eq!(fixture.ran(), ["a", "b"]);

    orders.write(draft());
    dies_after_one(&fixture, machine.transition_of("ORD-123", publish())).await;
    orders.write(Order { note: "theirs".into(), ..draft() });
    assert!(take(&fixture, &machine).await.execute().await.expect("no error").is_completed());
    assert_eq!(fixture.ran()[2..], ["a", "rebase", "b"]);
}

async fn f14_gates_are_asked_again_about_a_changed_entity(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::with(draft());
    let machine = orders_machine(&fixture, &orders);
    let id = dies_after_one(&fixture, machine.transition_of("ORD-123", publish())).await;
    another(&fixture).await;
    orders.write(Order { status: "published".into(), note: "theirs".into(), ..draft() });
    let done = take(&fixture, &machine).await.execute().await.expect("no error");
    assert!(done.is_stopped());
    assert_eq!((fixture.ran(), orders.saves()), (vec!["a".to_owned()], 0), "not published again");
    assert_eq!(done.gate_evaluations().len(), 2);
    assert_eq!(fixture.store.show(id).await.expect("stored").status, Status::Stopped);
}

async fn f14_a_changed_entity_is_rebased(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::with(draft());
    let machine = orders_machine(&fixture, &orders);
    dies_after_one(&fixture, machine.transition_of("ORD-123", publish())).await;
    another(&fixture).await;
    orders.write(Order { note: "theirs".into(), ..draft() });
    let done = take(&fixture, &machine).await.execute().await.expect("no error");
    assert!(done.is_completed());
    assert_eq!(fixture.ran(), ["a", "rebase", "b"]);
    assert_eq!(orders.read("ORD-123").note, "ours on theirs", "nobody's change is lost");
}

async fn f14_a_changed_entity_without_a_rebase_stops(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::with(draft());
    let machine = two_steps(&fixture, orders.machine(fixture.stored()));
    dies_after_one(&fixture, machine.transition_of("ORD-123", publish())).await;
    another(&fixture).await;
    orders.write(Order { note: "theirs".into(), ..draft() });
    let error = take(&fixture, &machine).await.execute().await.expect_err("it is stale");
    assert_eq!(error.code(), "lock_lost");
    assert!(error.to_string().contains("rebase"), "{error}");
    assert_eq!((orders.saves(), &*orders.read("ORD-123").note), (0, "theirs"));
}

async fn f14_an_entity_that_is_gone_fails(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::with(draft());
    let machine = orders_machine(&fixture, &orders);
    let id = dies_after_one(&fixture, machine.transition_of("ORD-123", publish())).await;
    orders.remove("ORD-123");
    another(&fixture).await;
    assert_eq!(code(take(&fixture, &machine).await.execute().await), "entity_not_found");
    assert_eq!(fixture.store.show(id).await.expect("stored").status, Status::Failed);
}

async fn f14_a_pause_that_lost_its_lock_loads_again(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::with(draft());
    let builder = MachineFixture::only_drafts(fixture.stored())
        .action_fn("wait", |_| async { Ok(ActionResult::pause(Pause::new())) });
    let machine = orders.machine(builder).build().expect("a machine");
    let one = machine.run_of("ORD-123", publish()).await.expect("no error");
    f.pass(fixture.too_long()).await;
    another(&fixture).await;
    let done = machine.resume(one.id()).await.expect("paused").execute().await.expect("no error");
    assert!(done.is_completed(), "nobody has changed it");

    orders.write(draft());
    let two = machine.run_of("ORD-123", publish()).await.expect("no error");
    f.pass(fixture.too_long()).await;
    orders.write(Order { status: "deleted".into(), ..draft() });
    let mut worker = machine.resume(two.id()).await.expect("paused");
    assert_eq!(code(worker.execute().await), "lock_lost", "there is no rebase");
    assert_eq!(orders.read("ORD-123").status, "deleted");
}

fn found(order: Order) -> impl Fn(Arc<latchwork_flow::TransitionContext<Order>>) -> ReloadFuture {
    move |_| std::future::ready(Ok(Reloaded::GoOn(order.clone())))
}

type ReloadFuture = std::future::Ready<Result<Reloaded<Order>, latchwork_flow::BoxError>>;

fn deleted() -> Order {
    Order { status: "deleted".into(), ..draft() }
}

async fn f14_a_reloaded_state_must_pass_the_gates(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let builder = MachineFixture::only_drafts(fixture.stored())
        .action_fn("wait", |_| async { Ok(ActionResult::pause(Pause::new())) })
        .action(fixture.noting("b"));
    let machine = builder.build().expect("a machine");
    let id = machine.run(draft(), publish()).await.expect("no error").id();
    f.pass(fixture.too_long()).await;
    let done = machine.resume_or_reacquire(id, found(deleted())).await.expect("no error");
    assert!(done.is_stopped(), "what is deleted is not published");
    assert!(fixture.ran().is_empty() && !fixture.is_locked().await);
}

async fn f14_a_reloaded_running_context_must_pass_the_gates(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = two_steps(&fixture, fixture.stored());
    for (order, status) in [(deleted(), Status::Stopped), (draft(), Status::Completed)] {
        let id = dies_after_one(&fixture, machine.transition(draft(), publish())).await;
        another(&fixture).await;
        let runner = FlowRunner::new(&machine).expect("it has a store").reload({
            let look = found(order);
            move |context| look(context)
        });
        let runner = runner.tick(f.unit() / 10).start();
        ends(&fixture, &runner, id, status).await;
        runner.stop().await.expect("it was well");
    }
    assert_eq!(fixture.ran(), ["a", "a", "b"]);
}

/// Waits until a runner has brought a transition there.
async fn ends(
    fixture: &MachineFixture,
    runner: &latchwork_flow::RunnerHandle,
    id: TransitionId,
    at: Status,
) {
    crate::lock::eventually("the runner goes on with it", async || {
        runner.wake();
        fixture.f.pass(fixture.f.unit() / 20).await;
        fixture.store.show(id).await.expect("stored").status == at
    })
    .await;
}

async fn f14_a_context_stored_without_locks(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let bare = || StateMachine::builder(f.machine()).store(fixture.store.clone());
    let unlocked = two_steps(&fixture, bare());
    let mut worker = unlocked.transition(draft(), publish());
    worker.run_next_action().await.expect("no error");
    drop(worker);
    f.pass(f.unit() * 2).await;
    let locked = two_steps(&fixture, fixture.stored());
    let error =
        take(&fixture, &locked).await.execute().await.expect_err("others were not kept away");
    assert_eq!(error.code(), "lock_lost");
    assert!(error.to_string().contains("without a lock"), "{error}");
    assert_eq!(fixture.ran(), ["a"]);
}

async fn f14_an_expired_worker_does_not_lock_anew(f: Fixture) {
    for stored in [true, false] {
        let fixture = MachineFixture::new(&f).await;
        let builder = if stored { fixture.stored() } else { fixture.plain() };
        let machine = builder.run_lease(fixture.too_long() * 9);
        let machine = machine.action(fixture.noting("a")).action(fixture.noting("b"));
        let machine = machine.build().expect("a machine");
        let mut worker = machine.transition(draft(), publish());
        worker.run_next_action().await.expect("no error");
        f.pass(fixture.too_long()).await;
        assert_eq!(code(worker.execute().await), "lock_expired");
        assert_eq!(code(worker.execute().await), "lock_lost", "also when it is called again");
        assert_eq!(fixture.ran(), ["a"]);
    }
}

async fn f14_a_dropped_call_frees_the_lock(f: Fixture) {
    for stored in [true, false] {
        let fixture = MachineFixture::new(&f).await;
        let (reached, tell) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let told = reached.clone();
        let builder = if stored { fixture.stored() } else { fixture.plain() };
        let machine = builder.action_fn("hangs", move |_| {
            told.notify_one();
            std::future::pending()
        });
        let machine = machine.build().expect("a machine");
        let mut worker = machine.transition(draft(), publish());
        {
            let mut call = std::pin::pin!(worker.execute());
            let mut until = std::pin::pin!(reached.notified());
            std::future::poll_fn(|task| {
                assert!(call.as_mut().poll(task).is_pending());
                until.as_mut().poll(task)
            })
            .await;
            assert!(fixture.is_locked().await);
        }
        fixture.locks.close().await;
        assert!(!fixture.is_locked().await, "the worker is kept, the lock is not");
        drop((worker, tell));
    }
}

async fn f14_a_runner_that_stops_keeps_the_lock_for_the_next(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (reached, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (told, wait) = (reached.clone(), go.clone());
    let builder = fixture.stored().action_fn("slow", move |_| {
        let (told, wait) = (told.clone(), wait.clone());
        async move {
            told.notify_one();
            wait.notified().await;
            Ok(ActionResult::proceed())
        }
    });
    let machine = builder.action(fixture.noting("b")).build().expect("a machine");
    let id = machine.submit(draft(), publish()).await.expect("it is stored");
    let runner = FlowRunner::new(&machine).expect("it has a store").start();
    reached.notified().await;
    let stopped = tokio::spawn(runner.stop());
    tokio::task::yield_now().await;
    go.notify_one();
    stopped.await.expect("no panic").expect("it was well");
    let row = Contexts::load(&fixture.store, id).await.expect("stored");
    if row.head.status == Status::Completed {
        return; // the word to stop came after the last look
    }
    assert_eq!((row.head.status, row.head.run.is_some()), (Status::Running, false));
    assert!(row.head.holds_lock && fixture.is_locked().await, "nobody comes in between");
    let done = take(&fixture, &machine).await.execute().await.expect("it goes on");
    assert!(done.is_completed() && !fixture.is_locked().await);
}
