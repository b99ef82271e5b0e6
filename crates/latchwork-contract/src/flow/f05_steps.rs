//! F5 Step by step: the first step takes the lock, each later one checks it.

use latchwork_flow::{ActionResult, GateResult, Pause, Status};

use super::Fixture;
use super::case::cases;
use super::fixture::code;
use super::machine_fixture::{MachineFixture, draft, publish};

cases![
    f05_gates_then_actions_one_by_one,
    f05_a_denied_step_ends_it,
    f05_actions_never_pass_the_gates,
    f05_a_step_after_the_lease_ran_out,
    f05_an_action_that_outlasts_the_lock_is_the_last,
    f05_a_step_after_a_pause_that_lasted_too_long,
    f05_renewing_by_hand_keeps_it,
    f05_releasing_by_hand,
    f05_dropping_the_worker_releases_the_lock,
];

async fn f05_gates_then_actions_one_by_one(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().gate_fn("ok", |_, _| GateResult::Allow);
    let machine = machine.action(fixture.noting("a")).action(fixture.noting("b"));
    let machine = machine.build().expect("a machine");
    let mut worker = machine.transition(draft(), publish());
    assert!(!fixture.is_locked().await, "nothing happens before the first step");
    assert_eq!(worker.run_gates().await.expect("no error"), GateResult::Allow);
    assert!(fixture.is_locked().await && worker.lock_state().is_locked());
    assert!(fixture.ran().is_empty());
    let one = worker.run_next_action().await.expect("no error");
    assert_eq!((one.status(), fixture.ran().len()), (Status::Running, 1));
    assert_eq!(one.remaining_actions().len(), 1);
    let two = worker.run_next_action().await.expect("no error");
    assert!(two.is_completed());
    assert_eq!(fixture.ran(), ["a", "b"]);
    assert!(!fixture.is_locked().await);
    assert_eq!(code(worker.run_next_action().await), "transition_over");
}

async fn f05_a_denied_step_ends_it(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().gate_fn("no", |_, _| GateResult::deny("no"));
    let machine = machine.action(fixture.noting("a")).build().expect("a machine");
    let mut worker = machine.transition(draft(), publish());
    assert_eq!(worker.run_gates().await.expect("no error"), GateResult::deny("no"));
    assert!(worker.context().is_stopped() && !fixture.is_locked().await);
}

async fn f05_actions_never_pass_the_gates(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().gate_fn("no", |_, _| GateResult::deny("no"));
    let machine = machine.action(fixture.noting("a")).build().expect("a machine");
    let done = machine.transition(draft(), publish()).run_actions().await.expect("no error");
    assert!(done.is_stopped());
    let done = machine.transition(draft(), publish()).run_next_action().await.expect("no error");
    assert!(done.is_stopped());
    assert!(fixture.ran().is_empty());
}

async fn f05_a_step_after_the_lease_ran_out(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.plain().action(fixture.noting("a")).action(fixture.noting("b"));
    let machine = machine.build().expect("a machine");
    let mut worker = machine.transition(draft(), publish());
    worker.run_next_action().await.expect("no error");
    f.pass(fixture.too_long()).await;
    assert_eq!(code(worker.run_next_action().await), "lock_expired");
    assert_eq!(fixture.ran(), ["a"]);
    assert_eq!(fixture.event_names().last(), Some(&"LockLost"));
    assert!(!worker.lock_state().is_locked());
}

async fn f05_an_action_that_outlasts_the_lock_is_the_last(f: Fixture) {
    for stored in [true, false] {
        let fixture = MachineFixture::new(&f).await;
        let builder = if stored { fixture.stored() } else { fixture.plain() };
        let slow = fixture.clone();
        let machine = builder
            .run_lease(fixture.too_long() * 9)
            .action_fn("slow", move |_| {
                let fixture = slow.clone();
                async move {
                    fixture.f.pass(fixture.too_long()).await;
                    Ok(ActionResult::proceed())
                }
            })
            .action(fixture.noting("after"));
        let machine = machine.build().expect("a machine");
        assert_eq!(code(machine.run(draft(), publish()).await), "lock_expired");
        assert!(fixture.ran().is_empty(), "nothing runs without its lock");
    }
}

async fn f05_a_step_after_a_pause_that_lasted_too_long(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture
        .stored()
        .action_fn("wait", |_| async { Ok(ActionResult::pause(Pause::new())) })
        .action(fixture.noting("b"));
    let machine = machine.build().expect("a machine");
    let mut worker = machine.transition(draft(), publish());
    assert!(worker.execute().await.expect("no error").is_paused());
    f.pass(fixture.too_long()).await;
    assert_eq!(code(worker.run_next_action().await), "lock_expired");
    assert!(fixture.ran().is_empty() && worker.context().is_paused(), "it can still be recovered");
}

async fn f05_renewing_by_hand_keeps_it(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture
        .stored()
        .action(fixture.noting("a"))
        .action_fn("wait", |_| async { Ok(ActionResult::pause(Pause::new())) })
        .action(fixture.noting("b"));
    let machine = machine.build().expect("a machine");
    let mut worker = machine.transition(draft(), publish());
    assert_eq!(code(worker.renew_lock().await), "invalid_argument");
    worker.run_next_action().await.expect("no error");
    let half = fixture.too_long() / 2;
    for _ in 0..3 {
        f.pass(half).await;
        worker.renew_lock().await.expect("it is held");
    }
    assert!(worker.run_next_action().await.expect("it is still held").is_paused());
    for _ in 0..3 {
        f.pass(half).await;
        worker.renew_lock().await.expect("it is kept");
    }
    assert!(worker.execute().await.expect("it is still kept").is_completed());
    assert_eq!(fixture.ran(), ["a", "b"]);
}

async fn f05_releasing_by_hand(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture
        .stored()
        .action_fn("wait", |_| async { Ok(ActionResult::pause(Pause::new())) })
        .action(fixture.noting("b"));
    let machine = machine.build().expect("a machine");
    let mut worker = machine.transition(draft(), publish());
    assert!(!worker.release_lock().await.expect("nothing to release"));
    worker.run_gates().await.expect("no error");
    assert!(worker.release_lock().await.expect("it was held") && !fixture.is_locked().await);

    let mut worker = machine.transition(draft(), publish());
    worker.execute().await.expect("no error");
    assert!(fixture.is_locked().await);
    assert!(worker.release_lock().await.expect("it was kept") && !fixture.is_locked().await);
    assert!(!worker.release_lock().await.expect("nothing to release"), "only once");
    let error = worker.execute().await.expect_err("it was let go");
    assert_eq!(error.code(), "lock_lost");
    let told = error.to_string();
    assert!(told.contains("released by hand") && !told.contains("fence"), "{told}");
}

async fn f05_dropping_the_worker_releases_the_lock(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action(fixture.noting("a")).build().expect("a machine");
    let mut worker = machine.transition(draft(), publish());
    worker.run_gates().await.expect("no error");
    assert!(fixture.is_locked().await);
    drop(worker);
    fixture.locks.close().await;
    assert!(!fixture.is_locked().await);
}
