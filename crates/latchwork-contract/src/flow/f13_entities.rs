//! F13 Loaded under the lock: what gates judge is what is there, and it is saved with the fence.

use std::sync::Arc;
use std::time::Duration;

use latchwork_flow::{
    Action, ActionContext, ActionPolicy, ActionResult, MergeDelta, SnapshotKey, StateMachine,
    Status, TransitionKey, action_fn,
};
use latchwork_lock::{Key, LockConfig, LockStrategy, OnLoss};
use tokio::sync::Notify;

use super::Fixture;
use super::case::cases;
use super::entities::{Orders, take};
use super::fixture::code;
use super::machine_fixture::{KEY, MachineFixture, Order, draft, publish};

cases![
    f13_of_two_publishers_the_second_finds_it_published,
    f13_gates_judge_what_is_loaded_under_the_lock,
    f13_it_is_saved_with_fence_version_and_transition,
    f13_what_does_not_complete_saves_nothing,
    f13_an_entity_that_is_not_there,
    f13_a_loader_that_fails_or_panics,
    f13_a_submitted_entity_is_loaded_when_it_begins,
    f13_a_submitted_entity_waits_for_its_loader,
    f13_a_crash_after_the_save_is_recognised,
    f13_a_crash_before_the_save_runs_no_action_again,
    f13_a_changed_entity_is_not_overwritten,
    f13_keys_without_a_state_are_needed,
    f13_a_key_of_id_and_delta,
    f13_a_machine_without_a_loader_refuses,
    f13_a_handed_in_state_is_neither_loaded_nor_saved,
    f13_a_lock_that_ends_in_the_last_action_saves_nothing,
    f13_without_a_save_the_context_says_that_the_lock_ended,
];

/// The race that seed 000 opens with.
async fn f13_of_two_publishers_the_second_finds_it_published(f: Fixture) {
    for strategy in [LockStrategy::Wait, LockStrategy::FailFast] {
        let fixture = MachineFixture::new(&f).await;
        let orders = Orders::with(draft());
        let config = LockConfig {
            strategy,
            wait_timeout: Some(Duration::from_secs(30)),
            ..fixture.lock_config()
        };
        let machine = MachineFixture::only_drafts(orders.machine(fixture.stored()))
            .lock_config(config)
            .action(fixture.noting("published"))
            .build()
            .expect("a machine");
        let both = futures::join!(
            machine.run_of("ORD-123", publish()),
            machine.run_of("ORD-123", publish())
        );
        let mut completed = 0;
        for answer in [both.0, both.1] {
            match answer {
                Ok(done) if done.is_completed() => completed += 1,
                Ok(done) => assert_eq!(done.status(), Status::Stopped),
                Err(error) => assert_eq!(error.code(), "lock_taken"),
            }
        }
        assert_eq!((completed, orders.saves()), (1, 1), "{strategy:?}");
        // And one who comes after the release.
        let late = machine.run_of("ORD-123", publish()).await.expect("no error");
        assert!(late.is_stopped());
        assert_eq!(fixture.ran(), ["published"]);
    }
}

async fn f13_gates_judge_what_is_loaded_under_the_lock(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::with(draft());
    let config = LockConfig {
        strategy: LockStrategy::Wait,
        wait_timeout: Some(Duration::from_secs(30)),
        ..fixture.lock_config()
    };
    let machine = MachineFixture::only_drafts(orders.machine(fixture.stored())).lock_config(config);
    let machine = machine.build().expect("a machine");
    let other = fixture.locks.lock(KEY).ttl(Duration::from_secs(60)).acquire().await.expect("free");
    let task = tokio::spawn(async move { machine.run_of("ORD-123", publish()).await });
    crate::lock::eventually("it waits", async || {
        !fixture.locks.inspect(KEY).await.expect("it answers").waiters.is_empty()
    })
    .await;
    assert_eq!(orders.loads(), 0, "nothing is read before the lock is held");
    orders.write(Order { status: "deleted".into(), ..draft() });
    other.release().await.expect("it is held");
    assert!(task.await.expect("no panic").expect("no error").is_stopped());
    assert_eq!(orders.read("ORD-123").status, "deleted");
}

async fn f13_it_is_saved_with_fence_version_and_transition(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (orders, own) = (Orders::with(draft()), fixture.clone());
    let load = orders.clone();
    let machine = fixture
        .stored()
        .load(move |id| {
            let loaded = load.load(&id);
            async move { Ok(loaded) }
        })
        .save(move |request| {
            let held = request.fence.get();
            own.note(format!("{} {:?}", request.state.status, request.expected_version));
            own.note(format!("{} {held}", request.transition));
            async { Ok(()) }
        })
        .action_fn("look", |at| async move {
            let fence = at.fence().ok_or("no fence")?;
            Ok(ActionResult::proceed().metadata(fence.get()))
        })
        .action(MergeDelta);
    let machine = machine.build().expect("a machine");
    let done = machine.run_of("ORD-123", publish()).await.expect("no error");
    assert!(done.is_completed() && !done.was_lock_lost());
    assert_eq!(done.entity().as_deref(), Some("ORD-123"));
    let fence = done.action_executions()[0].metadata.clone().expect("the fence");
    assert_eq!(
        fixture.ran(),
        [r#"published Some("1")"#.to_owned(), format!("{} {fence}", done.id())]
    );
    let shown = fixture.store.show(done.id()).await.expect("stored");
    assert_eq!((shown.status, shown.entity.as_deref()), (Status::Completed, Some("ORD-123")));
}

async fn f13_what_does_not_complete_saves_nothing(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::with(draft());
    let stops = orders.machine(fixture.stored());
    let stops = stops.action_fn("stop", |_| async { Ok(ActionResult::stop()) });
    let done = stops.build().expect("a machine").run_of("ORD-123", publish()).await;
    assert!(done.expect("no error").is_stopped());
    let fails = orders.machine(fixture.stored());
    let fails = fails.action_fn("fail", |_| async { Err("it must not be".into()) });
    let failed = fails.build().expect("a machine").run_of("ORD-123", publish()).await;
    assert_eq!(code(failed), "action_failed");
    assert_eq!((orders.saves(), orders.read("ORD-123")), (0, draft()));
    assert!(!fixture.is_locked().await);
}

async fn f13_an_entity_that_is_not_there(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = Orders::default().machine(fixture.stored()).build().expect("a machine");
    let mut worker = machine.transition_of("ORD-123", publish());
    assert_eq!(code(worker.execute().await), "entity_not_found");
    assert!(worker.context().is_failed() && worker.context().state().is_none());
    assert!(!fixture.is_locked().await);
    assert_eq!(code(machine.run_of("", publish()).await), "no_entity_id");
}

async fn f13_a_loader_that_fails_or_panics(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let away = fixture.stored().load(|_| async { Err("the database is away".into()) });
    let error = away.build().expect("a machine").run_of("1", publish()).await.expect_err("away");
    assert_eq!(error.code(), "load_failed");
    assert!(error.to_string().contains("the database is away"), "{error}");
    let broken = fixture.stored().load(|_| async { panic!("the loader fell over") });
    let error =
        broken.build().expect("a machine").run_of("1", publish()).await.expect_err("broken");
    assert_eq!(error.code(), "load_failed");
    assert!(error.to_string().contains("fell over"), "{error}");
    fixture.locks.close().await;
    assert!(!fixture.locks.exists("flow:entity:1").await.expect("it answers"));
}

async fn f13_a_submitted_entity_is_loaded_when_it_begins(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::with(draft());
    let machine = orders.machine(fixture.stored()).build().expect("a machine");
    let id = machine.submit_of("ORD-123", publish()).await.expect("it is stored");
    assert_eq!(orders.loads(), 0);
    let shown = fixture.store.show(id).await.expect("stored");
    assert_eq!((shown.status, shown.entity.as_deref()), (Status::Pending, Some("ORD-123")));
    orders.write(Order { note: "written since".into(), ..draft() });
    let done = take(&fixture, &machine).await.execute().await.expect("no error");
    assert!(done.is_completed());
    let order = orders.read("ORD-123");
    assert_eq!((&*order.status, &*order.note), ("published", "written since"));
}

async fn f13_a_submitted_entity_waits_for_its_loader(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let away = fixture.stored().load(|_| async { Err("the database is away".into()) });
    let away = away.action(MergeDelta).build().expect("a machine");
    let id = away.submit_of("ORD-123", publish()).await.expect("it is stored");
    assert_eq!(code(take(&fixture, &away).await.execute().await), "load_failed");
    assert_eq!(fixture.store.show(id).await.expect("stored").status, Status::Pending);
    let orders = Orders::with(draft());
    let machine = orders.machine(fixture.stored()).build().expect("a machine");
    assert!(take(&fixture, &machine).await.execute().await.expect("no error").is_completed());
    assert_eq!(orders.saves(), 1);
}

/// A machine whose save is done, or not even begun, when the process ends.
async fn ended_in_its_save(fixture: &MachineFixture, orders: &Orders, saved: bool) {
    let reached = Arc::new(Notify::new());
    let (load, save, tell) = (orders.clone(), orders.clone(), reached.clone());
    let machine = fixture
        .stored()
        .run_lease(fixture.f.unit())
        .load(move |id| {
            let loaded = load.load(&id);
            async move { Ok(loaded) }
        })
        .save(move |request| {
            if saved {
                save.save(request).expect("it is ours");
            }
            tell.notify_one();
            std::future::pending()
        })
        .action(MergeDelta)
        .action(fixture.noting("a"));
    let machine = machine.build().expect("a machine");
    let task = tokio::spawn(async move { machine.run_of("ORD-123", publish()).await });
    reached.notified().await;
    task.abort();
    assert!(task.await.expect_err("it was ended").is_cancelled());
    fixture.locks.close().await;
    fixture.f.pass(fixture.f.unit() * 3).await;
}

async fn f13_a_crash_after_the_save_is_recognised(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::with(draft());
    ended_in_its_save(&fixture, &orders, true).await;
    let machine =
        MachineFixture::only_drafts(orders.machine(fixture.stored())).action(fixture.noting("a"));
    let machine = machine.build().expect("a machine");
    let done = take(&fixture, &machine).await.execute().await.expect("no error");
    assert!(done.is_completed());
    assert_eq!((orders.saves(), fixture.ran()), (1, vec!["a".to_owned()]), "it was not done again");
}

async fn f13_a_crash_before_the_save_runs_no_action_again(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::with(draft());
    ended_in_its_save(&fixture, &orders, false).await;
    let machine =
        MachineFixture::only_drafts(orders.machine(fixture.stored())).action(fixture.noting("a"));
    let machine = machine.build().expect("a machine");
    let done = take(&fixture, &machine).await.execute().await.expect("no error");
    assert!(done.is_completed());
    assert_eq!((orders.saves(), fixture.ran()), (1, vec!["a".to_owned()]));
    assert_eq!(orders.read("ORD-123").status, "published");
}

async fn f13_a_changed_entity_is_not_overwritten(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::with(draft());
    let meddler = orders.clone();
    let meddled = std::sync::atomic::AtomicBool::new(false);
    let builder = orders.machine(fixture.stored()).rebase(|ours: &Order, loaded: &Order| {
        Ok(Order { note: loaded.note.clone(), ..ours.clone() })
    });
    let machine = builder.action_fn("meddle", move |_| {
        if !meddled.swap(true, std::sync::atomic::Ordering::Relaxed) {
            meddler.write(Order { note: "by another".into(), ..draft() });
        }
        async { Ok(ActionResult::proceed()) }
    });
    let machine = machine.build().expect("a machine");
    let mut worker = machine.transition_of("ORD-123", publish());
    assert_eq!(code(worker.execute().await), "entity_changed");
    assert_eq!(orders.read("ORD-123").note, "by another");
    let id = worker.context().id();
    drop(worker);
    let done = machine.resume(id).await.expect("stored").execute().await.expect("no error");
    assert!(done.is_completed());
    let order = orders.read("ORD-123");
    assert_eq!((&*order.status, &*order.note), ("published", "by another"));
}

async fn f13_keys_without_a_state_are_needed(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::with(draft());
    let refused = |machine: latchwork_flow::StateMachineBuilder<Order>| {
        let error = machine.build().expect_err("it must be refused");
        assert_eq!(error.code(), "invalid_argument", "{error}");
        error.to_string()
    };
    refused(orders.machine(fixture.stored()).locks(&fixture.locks, TransitionKey::new()));
    let said = refused(orders.machine(fixture.stored()).locks(&fixture.locks, SnapshotKey::new()));
    assert!(said.contains("EntityKey"), "{said}");
    let by_state = orders.machine(fixture.stored());
    refused(by_state.lock_key_fn(&fixture.locks, |order, _| Ok(Key::new(&order.id)?)));
    let none = LockConfig { strategy: LockStrategy::None, ..fixture.lock_config() };
    refused(orders.machine(fixture.stored()).lock_config(none));
    refused(orders.machine(StateMachine::builder(f.machine())));
    let save = fixture.stored().save(|_| async { Ok(()) });
    refused(save);
}

async fn f13_a_key_of_id_and_delta(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::with(draft());
    let machine = orders
        .machine(fixture.stored())
        .entity_key_fn(&fixture.locks, |id, delta| {
            let to = delta.status.as_deref().unwrap_or("nowhere");
            Ok(Key::new(&format!("order:{id}:{to}"))?)
        })
        .action_fn("look", |at| async move {
            let key = at.transition().summary().details.lock_key;
            Ok(ActionResult::proceed().metadata(key))
        });
    let machine = machine.build().expect("a machine");
    let done = machine.run_of("ORD-123", publish()).await.expect("no error");
    let said = done.action_executions()[1].metadata.clone();
    assert_eq!(said, Some("order:ORD-123:published".into()));
}

async fn f13_a_machine_without_a_loader_refuses(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action(fixture.noting("a")).build().expect("a machine");
    assert_eq!(code(machine.run_of("ORD-123", publish()).await), "invalid_argument");
    assert_eq!(code(machine.submit_of("ORD-123", publish()).await), "invalid_argument");
    // Nor does it go on with one that another machine has begun.
    let orders = Orders::with(draft());
    let pauses = orders
        .machine(fixture.stored())
        .action_fn("wait", |_| async { Ok(ActionResult::pause(latchwork_flow::Pause::new())) });
    let machine_with = pauses.action(fixture.noting("a")).build().expect("a machine");
    let paused = machine_with.run_of("ORD-123", publish()).await.expect("no error");
    let mut worker = machine.resume(paused.id()).await.expect("it can be read");
    assert_eq!(code(worker.execute().await), "invalid_argument");
    assert!(fixture.ran().is_empty());
}

async fn f13_a_handed_in_state_is_neither_loaded_nor_saved(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let orders = Orders::with(draft());
    let machine = orders.machine(fixture.stored()).build().expect("a machine");
    let done = machine.run(draft(), publish()).await.expect("no error");
    assert!(done.is_completed());
    assert_eq!((orders.loads(), orders.saves()), (0, 0));
}

/// An action during which the lock ends, and that finishes all the same.
fn slow(
    fixture: &MachineFixture,
    builder: latchwork_flow::StateMachineBuilder<Order>,
) -> StateMachine<Order> {
    let own = fixture.clone();
    let slow = action_fn("slow", move |_: ActionContext<Order>| {
        let fixture = own.clone();
        async move {
            fixture.f.pass(fixture.too_long()).await;
            Ok(ActionResult::proceed())
        }
    });
    let policy = ActionPolicy { on_loss: OnLoss::Finish, ..ActionPolicy::default() };
    let builder = builder.run_lease(fixture.too_long() * 9).action(slow.with_policy(policy));
    builder.build().expect("a machine")
}

async fn f13_a_lock_that_ends_in_the_last_action_saves_nothing(f: Fixture) {
    for stored in [true, false] {
        let fixture = MachineFixture::new(&f).await;
        let orders = Orders::with(draft());
        let builder = if stored { fixture.stored() } else { fixture.plain() };
        let machine = slow(&fixture, orders.machine(builder));
        let mut worker = machine.transition_of("ORD-123", publish());
        assert_eq!(code(worker.execute().await), "lock_expired");
        assert_eq!((orders.saves(), worker.context().status()), (0, Status::Running));
        // Called again, it takes a new lock and looks first.
        orders.write(Order { status: "deleted".into(), ..draft() });
        assert_eq!(code(worker.execute().await), "lock_lost", "there is no rebase");
        assert_eq!(orders.read("ORD-123").status, "deleted");
    }
}

async fn f13_without_a_save_the_context_says_that_the_lock_ended(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = slow(&fixture, fixture.stored());
    let done = machine.run(draft(), publish()).await.expect("nothing was refused");
    assert!(done.is_completed() && done.was_lock_lost());
    let row = fixture.store.load(done.id()).await.expect("stored");
    assert!(machine.read_context(&row.body).expect("its own").was_lock_lost());
    assert!(fixture.event_names().contains(&"LockLost"));
    let quick = fixture.stored().action(fixture.noting("a")).build().expect("a machine");
    assert!(!quick.run(draft(), publish()).await.expect("no error").was_lock_lost());
}
