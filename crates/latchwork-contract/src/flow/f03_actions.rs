//! F3 Actions are first in, first out; a pause keeps the lock, a stop releases it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_flow::{
    ActionResult, Configuration, EntityKey, Execution, MergeDelta, Pause, StateMachine,
};
use latchwork_lock::{LockConfig, LockStrategy};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::code;
use super::machine_fixture::{Change, MachineFixture, Order, draft, publish};

cases![
    f03_actions_run_in_order,
    f03_a_stop_ends_it_and_releases_the_lock,
    f03_a_pause_keeps_the_lock,
    f03_a_second_machine_is_kept_out_by_a_pause,
    f03_the_four_strategies,
    f03_a_provider_chooses_under_the_lock,
    f03_a_context_remembers_what_ran,
    f03_an_action_that_waits_for_its_own_lock_is_told,
];

/// L22, for the lock of a transition.
async fn f03_an_action_that_waits_for_its_own_lock_is_told(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    for machine in [fixture.stored(), fixture.plain()] {
        let (locks, told) = (fixture.locks.clone(), Arc::new(Mutex::new(Vec::new())));
        let codes = told.clone();
        let machine = machine
            .action_fn("nested", move |_| {
                let (locks, codes) = (locks.clone(), codes.clone());
                async move {
                    tokio::task::yield_now().await;
                    let same =
                        locks.lock(super::machine_fixture::KEY).wait_forever().acquire().await;
                    let other = locks.lock("another").wait_forever().acquire().await;
                    let mut codes = codes.lock().expect("no panic");
                    codes.extend(
                        [same, other].map(|answer| answer.map_err(|error| error.code()).err()),
                    );
                    Ok(ActionResult::proceed())
                }
            })
            .build()
            .expect("a machine");
        let mut worker = machine.transition(draft(), publish());
        let done = tokio::time::timeout(Duration::from_secs(30), worker.execute()).await;
        let done = done.expect("at once");
        assert!(done.expect("no error").is_completed());
        assert_eq!(*told.lock().expect("no panic"), [Some("lock_deadlock"), None]);
    }
}

async fn f03_actions_run_in_order(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let mut machine = fixture.stored();
    for name in ["c", "a", "b"] {
        machine = machine.action(fixture.noting(name));
    }
    let machine = machine.build().expect("a machine");
    machine.transition(draft(), publish()).execute().await.expect("no error");
    assert_eq!(fixture.ran(), ["c", "a", "b"]);
}

async fn f03_a_stop_ends_it_and_releases_the_lock(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture
        .stored()
        .action_fn("check", |at| async move {
            let state = Order { note: "checked".into(), ..at.state().clone() };
            Ok(ActionResult::stop().state(state).metadata(json!({"errors": ["too dear"]})))
        })
        .action(fixture.noting("after"));
    let machine = machine.build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("no error");
    assert!(done.is_stopped());
    assert_eq!(done.metadata(), Some(&json!({"errors": ["too dear"]})));
    assert_eq!(done.state().expect("a state").note, "checked");
    assert!(fixture.ran().is_empty());
    assert!(!fixture.is_locked().await);
}

async fn f03_a_pause_keeps_the_lock(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture
        .stored()
        .action_fn("render", |at| async move {
            let state = Order { note: "rendering".into(), ..at.state().clone() };
            Ok(ActionResult::pause(Pause::new()).state(state).metadata(json!({"job": 7})))
        })
        .action(fixture.noting("after"));
    let machine = machine.build().expect("a machine");
    let mut worker = machine.transition(draft(), publish());
    let paused = worker.execute().await.expect("no error");
    assert!(paused.is_paused());
    assert_eq!(
        (paused.metadata(), &*paused.state().expect("a state").note),
        (Some(&json!({"job": 7})), "rendering")
    );
    assert!(paused.lock_state().is_locked());
    drop(worker);
    fixture.locks.close().await;
    assert!(fixture.is_locked().await, "also when the worker is gone");
    assert!(fixture.ran().is_empty());
}

/// Seed 000's own test: two machines on one provider, the first one paused.
async fn f03_a_second_machine_is_kept_out_by_a_pause(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = |name: &str| {
        StateMachine::builder(name)
            .locks(&fixture.locks, EntityKey::new())
            .action_fn("wait", |_| async { Ok(ActionResult::pause(Pause::new())) })
            .build()
            .expect("a machine")
    };
    let (first, second) = (machine("first"), machine("second"));
    let paused = first.transition(draft(), publish()).execute().await.expect("it is free");
    assert!(paused.lock_state().is_locked());
    let mut worker = second.transition(draft(), publish());
    let error = worker.execute().await.expect_err("the first one holds it");
    assert_eq!(error.code(), "lock_taken");
    assert!(error.is_lock_taken() && error.is_temporary());
    assert!(worker.context().is_failed() && !worker.lock_state().is_locked());
}

async fn f03_the_four_strategies(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = |strategy| {
        let config = LockConfig { strategy, ..fixture.lock_config() };
        fixture.stored().lock_config(config).action(MergeDelta).build().expect("a machine")
    };
    let held = fixture.locks.lock(super::machine_fixture::KEY).acquire().await.expect("it is free");
    let run = async |strategy| machine(strategy).transition(draft(), publish()).execute().await;

    let none = run(LockStrategy::None).await.expect("it asks for no lock");
    assert!(none.is_completed() && !none.was_skipped_due_to_lock());
    assert_eq!(code(run(LockStrategy::FailFast).await), "lock_taken");
    let skipped = run(LockStrategy::Skip).await.expect("that is no error");
    assert!(skipped.was_skipped_due_to_lock() && !skipped.is_completed());
    assert_eq!(skipped.state().expect("a state"), &draft());

    let waiting = machine(LockStrategy::Wait);
    let task = tokio::spawn(async move { waiting.transition(draft(), publish()).execute().await });
    let queued = async || {
        fixture.locks.inspect(super::machine_fixture::KEY).await.expect("it answers").waiters.len()
            == 1
    };
    crate::lock::eventually("it waits", queued).await;
    held.release().await.expect("held");
    let waited = task.await.expect("no panic").expect("it gets the lock");
    assert!(waited.is_completed());
    assert!(!fixture.is_locked().await);
}

async fn f03_a_provider_chooses_under_the_lock(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let witness = fixture.clone();
    let machine =
        fixture.stored().action(fixture.noting("publish")).action(fixture.noting("archive"));
    let machine = machine.configure(move |_: &Order, change: &Change| {
        witness.note(witness.event_names().last().copied().unwrap_or("nothing"));
        match change.status.as_deref() {
            Some("published") => Configuration::new().actions(["publish"]),
            _ => Configuration::new().actions(["archive"]),
        }
    });
    let machine = machine.build().expect("a machine");
    machine.transition(draft(), publish()).execute().await.expect("no error");
    machine.transition(draft(), Change::default()).execute().await.expect("no error");
    assert_eq!(fixture.ran(), ["LockAcquired", "publish", "LockAcquired", "archive"]);
}

async fn f03_a_context_remembers_what_ran(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action(fixture.noting("a")).action_fn("b", |at| async move {
        let before: Vec<_> =
            at.transition().action_executions().iter().map(|a| a.action.to_string()).collect();
        Ok(ActionResult::stop().metadata(json!({"before": before, "key": at.idempotency_key()})))
    });
    let machine = machine.build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("no error");
    let key = format!("{}:1", done.id());
    assert_eq!(done.metadata(), Some(&json!({"before": ["a"], "key": key})));
    let ran = done.action_executions();
    assert_eq!((&*ran[0].action, ran[0].index, ran[0].execution), ("a", 0, Execution::Continue));
    assert_eq!((&*ran[1].action, ran[1].index, ran[1].execution), ("b", 1, Execution::Stop));
    assert!(ran[0].started_at <= ran[0].ended_at && ran[0].ended_at <= ran[1].started_at);
}
