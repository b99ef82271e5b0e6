//! F7 Resuming: of two one wins, the lease is checked and not the key, and what was lost can be
//! taken again.

use std::sync::Arc;

use latchwork_flow::{
    ActionResult, BoxError, MergeDelta, Pause, Reloaded, StateMachine, StateMachineBuilder, Woken,
};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::code;
use super::machine_fixture::{KEY, MachineFixture, Order, draft, publish};

cases![
    f07_of_two_resumers_one_wins_by_the_store,
    f07_of_two_resumers_one_wins_by_the_lease,
    f07_a_lock_that_ran_out_is_lost,
    f07_anothers_lock_on_the_key_is_no_lease,
    f07_a_lost_lock_leaves_the_context_as_it_was,
    f07_a_resumed_transition_has_a_higher_fence,
    f07_recovery_when_it_is_done_already,
    f07_recovery_takes_a_new_lock,
    f07_recovery_when_another_did_it_meanwhile,
    f07_recovery_waits_its_turn,
    f07_a_failed_reload_changes_nothing,
    f07_a_machine_without_locks_cannot_resume_a_locked_one,
];

fn build(fixture: &MachineFixture, builder: StateMachineBuilder<Order>) -> StateMachine<Order> {
    let (before, after) = (fixture.clone(), fixture.clone());
    builder
        .action_fn("wait", move |at| {
            before.note(format!("fence {}", at.fence().is_some()));
            async { Ok(ActionResult::pause(Pause::new())) }
        })
        .action_fn("after", move |at| {
            after.note(match at.woken() {
                Some(Woken::Hand) => "by hand",
                _ => "otherwise",
            });
            async { Ok(ActionResult::proceed()) }
        })
        .action(MergeDelta)
        .build()
        .expect("a machine")
}

async fn f07_of_two_resumers_one_wins_by_the_store(f: Fixture) {
    for _ in 0..3 {
        let fixture = MachineFixture::new(&f).await;
        let machine = build(&fixture, fixture.stored());
        let id = machine.transition(draft(), publish()).execute().await.expect("no error").id();
        let mut workers = Vec::new();
        for _ in 0..3 {
            let elsewhere = fixture.elsewhere().await;
            let machine = build(&elsewhere, elsewhere.stored());
            workers.push(machine.resume(id).await.expect("it is paused"));
        }
        let tasks: Vec<_> = workers
            .into_iter()
            .map(|mut worker| tokio::spawn(async move { worker.execute().await }))
            .collect();
        let mut won = 0;
        for task in tasks {
            match task.await.expect("no panic") {
                Ok(done) => {
                    assert!(done.is_completed());
                    won += 1;
                }
                Err(error) => assert!(
                    ["context_busy", "context_conflict", "transition_over"].contains(&error.code()),
                    "{error}"
                ),
            }
        }
        assert_eq!(won, 1);
        assert_eq!(fixture.ran(), ["fence true", "by hand"], "its actions ran once");
        assert!(!fixture.is_locked().await);
    }
}

async fn f07_of_two_resumers_one_wins_by_the_lease(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = build(&fixture, fixture.plain());
    let paused = machine.transition(draft(), publish()).execute().await.expect("no error");
    let json = paused.to_json().expect("it serialises");
    let mut workers = [0, 1].map(|_| {
        let context = machine.read_context(&json).expect("its own");
        machine.from_context(context).expect("its own")
    });
    let [one, two] = &mut workers;
    let answers = futures::join!(one.run_next_action(), two.run_next_action());
    let codes =
        [answers.0, answers.1].map(|answer| answer.map(|_| ()).map_err(|error| error.code()));
    assert!(codes.contains(&Ok(())) && codes.contains(&Err("lock_lost")), "{codes:?}");
    assert_eq!(fixture.ran(), ["fence true", "by hand"]);
}

async fn f07_a_lock_that_ran_out_is_lost(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = build(&fixture, fixture.stored());
    let id = machine.transition(draft(), publish()).execute().await.expect("no error").id();
    f.pass(fixture.too_long()).await;
    let mut worker = machine.resume(id).await.expect("it is paused");
    assert_eq!(code(worker.execute().await), "lock_lost");
    assert_eq!(fixture.event_names().last(), Some(&"LockLost"));
}

async fn f07_anothers_lock_on_the_key_is_no_lease(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = build(&fixture, fixture.stored());
    let id = machine.transition(draft(), publish()).execute().await.expect("no error").id();
    f.pass(fixture.too_long()).await;
    let other = fixture.locks.lock(KEY).acquire().await.expect("it ran out");
    let mut worker = machine.resume(id).await.expect("it is paused");
    assert_eq!(code(worker.execute().await), "lock_lost", "somebody holds the key, but not we");
    assert!(other.is_held());
    other.release().await.expect("it was not disturbed");
    assert_eq!(fixture.ran(), ["fence true"]);
}

async fn f07_a_lost_lock_leaves_the_context_as_it_was(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = build(&fixture, fixture.stored());
    let id = machine.transition(draft(), publish()).execute().await.expect("no error").id();
    fixture.locks.break_lock(KEY).await.expect("it is kept");
    let before = fixture.store.load(id).await.expect("it is stored");
    let mut worker = machine.resume(id).await.expect("it is paused");
    assert_eq!(code(worker.execute().await), "lock_lost");
    let after = fixture.store.load(id).await.expect("still stored");
    assert_eq!((after.body, after.head.status), (before.body, before.head.status));
    assert_eq!(after.head.run, None, "and nobody is at it");
}

async fn f07_a_resumed_transition_has_a_higher_fence(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = build(&fixture, fixture.stored());
    let paused = machine.transition(draft(), publish()).execute().await.expect("no error");
    let before = paused.lock_state().fence.expect("it is locked");
    let mut worker = machine.resume(paused.id()).await.expect("it is paused");
    worker.run_next_action().await.expect("its lock is kept");
    assert!(worker.lock_state().fence.expect("it is locked") > before);
}

type Reload = Result<Reloaded<Order>, BoxError>;

/// What somebody finds who looks: each time the next of these.
fn finds(
    fixture: &MachineFixture,
    answers: Vec<Reloaded<Order>>,
) -> impl Fn(Arc<latchwork_flow::TransitionContext<Order>>) -> std::future::Ready<Reload> {
    let answers = std::sync::Mutex::new(answers.into_iter());
    let fixture = fixture.clone();
    move |_| {
        fixture.note("reload");
        std::future::ready(Ok(answers.lock().unwrap().next().expect("asked too often")))
    }
}

fn published() -> Order {
    Order { status: "published".into(), note: "by another".into(), ..draft() }
}

async fn f07_recovery_when_it_is_done_already(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = build(&fixture, fixture.stored());
    let id = machine.transition(draft(), publish()).execute().await.expect("no error").id();
    let reload = finds(&fixture, vec![Reloaded::Done(published())]);
    let done = machine.resume_or_reacquire(id, reload).await.expect("it is done");
    assert!(done.is_completed());
    assert_eq!(
        (done.state().expect("a state"), done.metadata()),
        (&published(), Some(&json!({"already_done": true})))
    );
    assert_eq!(fixture.ran(), ["fence true", "reload"]);
    assert!(!fixture.is_locked().await, "the lock that it kept is given back");
    assert_eq!(fixture.store.show(id).await.expect("stored").status.name(), "completed");
}

async fn f07_recovery_takes_a_new_lock(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = build(&fixture, fixture.stored());
    let id = machine.transition(draft(), publish()).execute().await.expect("no error").id();
    f.pass(fixture.too_long()).await;
    let moved = Order { note: "moved meanwhile".into(), ..draft() };
    let reload = finds(&fixture, vec![Reloaded::GoOn(draft()), Reloaded::GoOn(moved)]);
    let done = machine.resume_or_reacquire(id, reload).await.expect("it is recovered");
    assert!(done.is_completed());
    assert_eq!(
        (&*done.state().expect("a state").status, &*done.state().expect("a state").note),
        ("published", "moved meanwhile")
    );
    assert_eq!(fixture.ran(), ["fence true", "reload", "reload", "by hand"]);
    assert!(!fixture.is_locked().await);
}

async fn f07_recovery_when_another_did_it_meanwhile(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = build(&fixture, fixture.stored());
    let id = machine.transition(draft(), publish()).execute().await.expect("no error").id();
    f.pass(fixture.too_long()).await;
    let reload = finds(&fixture, vec![Reloaded::GoOn(draft()), Reloaded::Done(published())]);
    let done = machine.resume_or_reacquire(id, reload).await.expect("it is recovered");
    assert!(done.is_completed());
    assert_eq!(done.state().expect("a state"), &published());
    assert_eq!(fixture.ran(), ["fence true", "reload", "reload"]);
    assert!(!fixture.is_locked().await);
}

async fn f07_recovery_waits_its_turn(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = build(&fixture, fixture.stored());
    let id = machine.transition(draft(), publish()).execute().await.expect("no error").id();
    f.pass(fixture.too_long()).await;
    let other = fixture.locks.lock(KEY).acquire().await.expect("it ran out");
    let reload = finds(&fixture, vec![Reloaded::GoOn(draft()), Reloaded::GoOn(draft())]);
    let answer = machine.resume_or_reacquire(id, reload).await;
    assert_eq!(code(answer), "lock_taken", "the strategy is to fail fast");
    let head = fixture.store.load(id).await.expect("it is stored").head;
    assert_eq!((head.status.name(), head.run), ("paused", None), "it can be tried again");
    other.release().await.expect("it was not disturbed");
}

async fn f07_a_failed_reload_changes_nothing(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = build(&fixture, fixture.stored());
    let id = machine.transition(draft(), publish()).execute().await.expect("no error").id();
    let before = fixture.store.load(id).await.expect("it is stored");
    let reload = |_| async { Err("the database is away".into()) };
    assert_eq!(code(machine.resume_or_reacquire(id, reload).await), "provider_failed");
    assert_eq!(fixture.store.load(id).await.expect("it is stored"), before);
    assert!(fixture.is_locked().await);
}

async fn f07_a_machine_without_locks_cannot_resume_a_locked_one(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = build(&fixture, fixture.stored());
    let id = machine.transition(draft(), publish()).execute().await.expect("no error").id();
    let bare = build(&fixture, StateMachine::builder(f.machine()).store(fixture.store.clone()));
    let mut worker = bare.resume(id).await.expect("it is paused");
    assert_eq!(code(worker.execute().await), "invalid_argument");
    assert!(machine.resume(id).await.expect("still paused").execute().await.is_ok());
}
