//! What a runner does, in one process and in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use latchwork_flow::{
    Action, ActionContext, ActionPolicy, ActionResult, BoxError, ContextStore, ContextSummary,
    Contexts, EntityKey, EventKind, FlowRunner, InMemoryContextStore, JsonState, OnTimeout, Pause,
    Reloaded, StateMachine, StateMachineBuilder, Status, TransitionContext, TransitionId, Woken,
    action_fn,
};
use latchwork_lock::{InMemoryLockProvider, LockConfig, Locks, OnLoss};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::flaky::Flaky;
use crate::{block_on, millis, secs, until};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    macro_rules! tests {
        ($($name:ident),* $(,)?) => {$(
            trials.push(Trial::test(concat!("memory::", stringify!($name)), || {
                block_on($name());
                Ok(())
            }));
        )*};
    }
    tests![
        what_was_submitted_is_begun,
        a_time_a_signal_and_a_timeout_wake,
        a_timeout_can_stop_and_fail,
        the_lock_of_a_pause_is_renewed,
        a_pause_that_was_called_off_gives_its_lock_back,
        a_lost_lock_is_taken_again_after_a_reload,
        a_taken_lock_is_waited_for_without_haste,
        what_cannot_be_read_is_left_to_others,
        no_action_begins_under_a_lock_that_ran_out,
        so_many_at_a_time_and_no_more,
        stopping_hands_over_between_two_actions,
        an_action_without_end_is_dropped_after_the_grace,
        a_long_wait_for_a_lock_is_no_death,
        an_idle_runner_looks_once_a_tick,
        an_outage_is_waited_for_ever_more_slowly,
        an_error_that_will_not_pass_ends_it,
        a_machine_without_a_store_has_no_runner,
    ];
    trials
}

const NAME: &str = "duties";

struct World {
    contexts: Contexts,
    locks: Locks,
}

impl World {
    fn new() -> Self {
        World {
            contexts: Contexts::new(InMemoryContextStore::new()),
            locks: Locks::new(InMemoryLockProvider::new()),
        }
    }

    fn machine(&self) -> StateMachineBuilder<JsonState> {
        self.machine_on(self.contexts.clone())
    }

    fn machine_on(&self, store: impl ContextStore) -> StateMachineBuilder<JsonState> {
        StateMachine::builder(NAME).store(store).locks(&self.locks, EntityKey::new())
    }

    async fn show(&self, id: TransitionId) -> ContextSummary {
        self.contexts.show(id).await.expect("it is there")
    }

    async fn becomes(&self, id: TransitionId, status: Status) {
        until(status.name(), || async { self.show(id).await.status == status }).await;
    }

    async fn holders(&self, key: &str) -> usize {
        self.locks.inspect(key).await.expect("it answers").holders.len()
    }
}

async fn submit(machine: &StateMachine<JsonState>, name: &str) -> TransitionId {
    let state = JsonState::new(json!({"id": name})).expect("a state");
    machine.submit(state, delta()).await.expect("stored")
}

fn delta() -> latchwork_flow::JsonDelta {
    JsonState::delta(json!({})).expect("a delta")
}

fn runner(machine: &StateMachine<JsonState>) -> FlowRunner<JsonState> {
    FlowRunner::new(machine).expect("a store").tick(millis(20))
}

/// An action that pauses, and one that keeps what woke it.
fn pausing(
    world: &World,
    pause: impl Fn() -> Pause + Send + Sync + 'static,
) -> StateMachineBuilder<JsonState> {
    world
        .machine()
        .action_fn("pause", move |_| {
            let pause = pause();
            async move { Ok(ActionResult::pause(pause)) }
        })
        .action_fn("woken", |at| async move {
            let woken = match at.woken() {
                Some(Woken::Time) => json!("time"),
                Some(Woken::Timeout) => json!("timeout"),
                Some(Woken::Signal { payload, .. }) => payload.clone(),
                other => json!(format!("{other:?}")),
            };
            Ok(ActionResult::stop().metadata(woken))
        })
}

/// What the second action of [`pausing`] has kept.
async fn woken(machine: &StateMachine<JsonState>, id: TransitionId) -> Value {
    let stored = machine.contexts().expect("a store").load(id).await.expect("it is there");
    let context = machine.read_context(&stored.body).expect("it is ours");
    context.metadata().cloned().unwrap_or_default()
}

async fn what_was_submitted_is_begun() {
    let world = World::new();
    let machine =
        world.machine().action_fn("do", |_| async { Ok(ActionResult::proceed()) }).build();
    let machine = machine.expect("a machine");
    let runner = runner(&machine).start();
    let id = submit(&machine, "a").await;
    world.becomes(id, Status::Completed).await;
    assert_eq!(world.holders("flow:entity:a").await, 0);
    runner.stop().await.expect("it did well");
}

async fn a_time_a_signal_and_a_timeout_wake() {
    let world = World::new();
    let pause = || {
        let pause = Pause::new().on_signal("go").keep_lock_for(secs(600));
        pause.timeout(millis(300), OnTimeout::Resume)
    };
    let machine = pausing(&world, pause).build().expect("a machine");
    let late = submit(&machine, "late").await;
    let runner_ = runner(&machine).start();
    world.becomes(late, Status::Stopped).await;
    assert_eq!(woken(&machine, late).await, "timeout");
    let told = submit(&machine, "told").await;
    machine
        .contexts()
        .expect("a store")
        .signal(told, "go", json!({"by": "Ada"}))
        .await
        .expect("it waits");
    world.becomes(told, Status::Stopped).await;
    assert_eq!(woken(&machine, told).await, json!({"by": "Ada"}));
    runner_.stop().await.expect("it did well");

    let world = World::new();
    let pause = || Pause::new().wake_after(millis(200)).keep_lock_for(secs(600));
    let machine = pausing(&world, pause).build().expect("a machine");
    let runner = runner(&machine).start();
    let timed = submit(&machine, "timed").await;
    world.becomes(timed, Status::Stopped).await;
    assert_eq!(woken(&machine, timed).await, "time");
    runner.stop().await.expect("it did well");
}

async fn a_timeout_can_stop_and_fail() {
    for (then, status) in [(OnTimeout::Stop, Status::Stopped), (OnTimeout::Fail, Status::Failed)] {
        let world = World::new();
        let pause = move || Pause::new().keep_lock_for(secs(600)).timeout(millis(50), then);
        let machine = pausing(&world, pause).build().expect("a machine");
        let runner = runner(&machine).start();
        let id = submit(&machine, "a").await;
        world.becomes(id, status).await;
        until("the lock is free", || async { world.holders("flow:entity:a").await == 0 }).await;
        assert_eq!(world.show(id).await.details.done, 1, "the second action was not run");
        runner.stop().await.expect("it did well");
    }
}

async fn the_lock_of_a_pause_is_renewed() {
    let world = World::new();
    let config = LockConfig { ttl: millis(900), ..LockConfig::default() };
    let pause = || Pause::new().on_signal("go").renew_lock();
    let machine = pausing(&world, pause).lock_config(config).build().expect("a machine");
    let runner = runner(&machine).start();
    let id = submit(&machine, "a").await;
    world.becomes(id, Status::Paused).await;
    let key = "flow:entity:a";
    let first = world.show(id).await.revision;
    // A renewal is a claim and a save, and comes after a third of the ttl.
    until("it was renewed for longer than its ttl", || async {
        assert_eq!(world.holders(key).await, 1, "it is held all the time");
        let seen = world.show(id).await;
        assert_eq!(seen.status, Status::Paused);
        seen.revision >= first + 2 * 5
    })
    .await;
    world.contexts.signal(id, "go", json!("done")).await.expect("it waits");
    world.becomes(id, Status::Stopped).await;
    assert_eq!(woken(&machine, id).await, "done");
    runner.stop().await.expect("it did well");
}

async fn a_pause_that_was_called_off_gives_its_lock_back() {
    let world = World::new();
    let pause = || Pause::new().on_signal("go").keep_lock_for(secs(600));
    let machine = pausing(&world, pause).build().expect("a machine");
    let runner = runner(&machine).start();
    let id = submit(&machine, "a").await;
    world.becomes(id, Status::Paused).await;
    assert_eq!(world.holders("flow:entity:a").await, 1);
    world.contexts.cancel(id, "no longer wanted").await.expect("it is paused");
    until("the lock is free", || async { world.holders("flow:entity:a").await == 0 }).await;
    world.becomes(id, Status::Cancelled).await;
    assert_eq!(world.show(id).await.cancel_reason.as_deref(), Some("no longer wanted"));
    runner.stop().await.expect("it did well");
}

async fn a_lost_lock_is_taken_again_after_a_reload() {
    let world = World::new();
    let pause = || Pause::new().on_signal("go").keep_lock_for(secs(600));
    let machine = pausing(&world, pause).build().expect("a machine");
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let runner = runner(&machine).reload(move |context| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move { Ok(Reloaded::GoOn(context.state().expect("a state").clone())) }
    });
    let runner = runner.start();
    let id = submit(&machine, "a").await;
    world.becomes(id, Status::Paused).await;
    world.locks.break_lock("flow:entity:a").await.expect("it answers");
    world.contexts.signal(id, "go", json!("done")).await.expect("it waits");
    world.becomes(id, Status::Stopped).await;
    assert_eq!(woken(&machine, id).await, "done");
    assert!(asked.load(Ordering::SeqCst) >= 1);
    runner.stop().await.expect("it did well");
}

async fn a_taken_lock_is_waited_for_without_haste() {
    let world = World::new();
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    let machine = world
        .machine()
        .action_fn("do", |_| async { Ok(ActionResult::proceed()) })
        .observe(move |event: &latchwork_flow::Event<'_, JsonState>| {
            if let EventKind::LockFailed { .. } = event.kind {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        })
        .build()
        .expect("a machine");
    let guard = world.locks.lock("flow:entity:a").acquire().await.expect("it is free");
    let runner = runner(&machine).tick(millis(1)).retry(millis(100)).start();
    let id = submit(&machine, "a").await;
    until("it was tried", || async { tries.load(Ordering::SeqCst) >= 3 }).await;
    assert_eq!(world.show(id).await.status, Status::Pending);
    let (before, begun) = (tries.load(Ordering::SeqCst), tokio::time::Instant::now());
    tokio::time::sleep(millis(500)).await;
    // From the third try on at least 200 ms lie between two.
    let most = begun.elapsed().as_millis() / 200 + 2;
    let more = tries.load(Ordering::SeqCst) - before;
    assert!(more as u128 <= most, "{more} tries");
    guard.release().await.expect("held");
    world.becomes(id, Status::Completed).await;
    runner.stop().await.expect("it did well");
}

async fn what_cannot_be_read_is_left_to_others() {
    let world = World::new();
    let newer = world
        .machine()
        .definition(2)
        .action_fn("do", |_| async { Ok(ActionResult::proceed()) })
        .build()
        .expect("a machine");
    let older = world
        .machine()
        .action_fn("do", |_| async { Ok(ActionResult::proceed()) })
        .build()
        .expect("a machine");
    let (hard, easy) = (submit(&newer, "hard").await, submit(&older, "easy").await);
    let old = runner(&older).retry(millis(50)).start();
    world.becomes(easy, Status::Completed).await;
    assert_eq!(world.show(hard).await.status, Status::Pending);
    let new = runner(&newer).start();
    world.becomes(hard, Status::Completed).await;
    for runner in [old, new] {
        runner.stop().await.expect("it did well");
    }
}

async fn no_action_begins_under_a_lock_that_ran_out() {
    let world = World::new();
    let config = LockConfig { ttl: millis(100), ..LockConfig::default() };
    let fences: Arc<parking_lot::Mutex<Vec<u64>>> = Arc::default();
    let (one, two) = (fences.clone(), fences.clone());
    let machine = world
        .machine()
        .lock_config(config)
        .renew_lock_up_to(millis(0))
        .action(
            action_fn("slow", move |at: ActionContext<JsonState>| {
                one.lock().extend(at.fence().map(|fence| fence.get()));
                async {
                    tokio::time::sleep(millis(300)).await;
                    Ok(ActionResult::proceed())
                }
            })
            // Else it would be dropped when the lock is lost.
            .with_policy(ActionPolicy { on_loss: OnLoss::Finish, ..ActionPolicy::default() }),
        )
        .action_fn("next", move |at| {
            two.lock().extend(at.fence().map(|fence| fence.get()));
            async { Ok(ActionResult::proceed()) }
        })
        .build()
        .expect("a machine");
    let state = JsonState::new(json!({"id": "a"})).expect("a state");
    let mut worker = machine.transition(state, delta());
    let error = worker.execute().await.expect_err("its lock ran out");
    assert_eq!(error.code(), "lock_expired", "{error}");
    assert_eq!(fences.lock().len(), 1, "the next action has not begun");
    let id = worker.context().id();
    assert_eq!(world.show(id).await.status, Status::Running);
    let runner = runner(&machine).reload(as_it_was).start();
    world.becomes(id, Status::Completed).await;
    let fences = fences.lock().clone();
    assert!(fences.len() == 2 && fences[1] > fences[0], "{fences:?}");
    runner.stop().await.expect("it did well");
}

/// What somebody finds who looks for an entity that nobody has changed.
async fn as_it_was(
    context: Arc<TransitionContext<JsonState>>,
) -> Result<Reloaded<JsonState>, BoxError> {
    Ok(Reloaded::GoOn(context.state().expect("a state").clone()))
}

async fn so_many_at_a_time_and_no_more() {
    let world = World::new();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (now.clone(), most.clone());
    let machine = world
        .machine()
        .action_fn("do", move |_| {
            let (now, most) = counts.clone();
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(millis(5)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(ActionResult::proceed())
            }
        })
        .build()
        .expect("a machine");
    let mut ids = Vec::new();
    for number in 0..30 {
        ids.push(submit(&machine, &format!("e{number}")).await);
    }
    let runner = runner(&machine).concurrency(3).start();
    for id in ids {
        world.becomes(id, Status::Completed).await;
    }
    assert_eq!(most.load(Ordering::SeqCst), 3);
    runner.stop().await.expect("it did well");
}

async fn stopping_hands_over_between_two_actions() {
    let world = World::new();
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, told) = (begun.clone(), go_on.clone());
    let machine = world
        .machine()
        .run_lease(secs(3_600))
        .action_fn("slow", move |_| {
            let (tell, told) = (tell.clone(), told.clone());
            async move {
                tell.notify_one();
                told.notified().await;
                Ok(ActionResult::proceed())
            }
        })
        .action_fn("next", |_| async { Ok(ActionResult::proceed()) })
        .build()
        .expect("a machine");
    let id = submit(&machine, "a").await;
    let first = runner(&machine).start();
    begun.notified().await;
    let stopping = tokio::spawn(first.stop());
    tokio::time::sleep(millis(50)).await;
    assert!(!stopping.is_finished(), "it waits for the action");
    go_on.notify_one();
    stopping.await.expect("no panic").expect("it did well");
    let left = world.show(id).await;
    assert_eq!((left.status, left.details.done, left.runner), (Status::Running, 1, None));
    assert_eq!(world.holders("flow:entity:a").await, 1, "kept, so that nobody comes in between");
    let second = runner(&machine).start();
    world.becomes(id, Status::Completed).await;
    second.stop().await.expect("it did well");
}

async fn an_action_without_end_is_dropped_after_the_grace() {
    let world = World::new();
    let (begun, tries) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (tell, counted) = (begun.clone(), tries.clone());
    let machine = world
        .machine()
        .run_lease(secs(3_600))
        .action_fn("endless", move |_| {
            let (tell, first) = (tell.clone(), counted.fetch_add(1, Ordering::SeqCst) == 0);
            async move {
                tell.notify_one();
                if first {
                    std::future::pending::<()>().await;
                }
                Ok(ActionResult::proceed())
            }
        })
        .build()
        .expect("a machine");
    let id = submit(&machine, "a").await;
    let first = runner(&machine).grace(millis(100)).start();
    begun.notified().await;
    first.stop().await.expect("it did well");
    assert_eq!(world.show(id).await.runner, None, "others need not wait for it");
    let second = runner(&machine).reload(as_it_was).start();
    world.becomes(id, Status::Completed).await;
    assert_eq!(tries.load(Ordering::SeqCst), 2);
    second.stop().await.expect("it did well");
}

async fn a_long_wait_for_a_lock_is_no_death() {
    let world = World::new();
    let config = LockConfig {
        strategy: latchwork_lock::LockStrategy::Wait,
        wait_timeout: Some(secs(60)),
        ..LockConfig::default()
    };
    let machine = world
        .machine()
        .lock_config(config)
        .run_lease(millis(600))
        .action_fn("do", |_| async { Ok(ActionResult::proceed()) })
        .build()
        .expect("a machine");
    let guard = world.locks.lock("flow:entity:a").acquire().await.expect("it is free");
    let id = submit(&machine, "a").await;
    let runner = runner(&machine).start();
    until("it waits", || async {
        world.locks.inspect("flow:entity:a").await.is_ok_and(|seen| !seen.waiters.is_empty())
    })
    .await;
    tokio::time::sleep(millis(2_000)).await;
    assert_eq!(world.show(id).await.revision, 2, "it was claimed once");
    guard.release().await.expect("held");
    world.becomes(id, Status::Completed).await;
    runner.stop().await.expect("it did well");
}

async fn an_idle_runner_looks_once_a_tick() {
    let world = World::new();
    let store = Flaky::new(world.contexts.clone());
    let machine = world
        .machine_on(store.clone())
        .action_fn("pause", |_| async {
            Ok(ActionResult::pause(Pause::new().wake_after(secs(3_600)).keep_lock_for(secs(7_200))))
        })
        .build()
        .expect("a machine");
    let id = submit(&machine, "a").await;
    let runner = FlowRunner::new(&machine).expect("a store").tick(secs(3_600)).start();
    world.becomes(id, Status::Paused).await;
    let looks = || store.looks.load(Ordering::SeqCst);
    until("it has settled", || async {
        let before = looks();
        tokio::time::sleep(millis(100)).await;
        before == looks()
    })
    .await;
    let before = looks();
    tokio::time::sleep(millis(300)).await;
    assert_eq!(looks(), before, "nothing is due for an hour, and the tick is an hour");
    runner.wake();
    until("it looks when somebody rings", || async { looks() == before + 1 }).await;
    runner.stop().await.expect("it did well");
}

async fn an_outage_is_waited_for_ever_more_slowly() {
    let world = World::new();
    let store = Flaky::new(world.contexts.clone());
    let machine = world
        .machine_on(store.clone())
        .action_fn("do", |_| async { Ok(ActionResult::proceed()) })
        .build()
        .expect("a machine");
    let id = submit(&machine, "a").await;
    store.away.store(true, Ordering::SeqCst);
    let begun = tokio::time::Instant::now();
    let runner = runner(&machine).tick(millis(1)).start();
    tokio::time::sleep(millis(1_000)).await;
    let tries = store.refusals.load(Ordering::SeqCst);
    // At least 50 ms, then 100, 200, 400, …
    let most = 2 + u32::try_from(begun.elapsed().as_millis() / 50).expect("small").ilog2();
    assert!(tries >= 1 && tries <= most, "{tries} tries");
    assert!(!runner.is_finished());
    store.away.store(false, Ordering::SeqCst);
    world.becomes(id, Status::Completed).await;
    runner.stop().await.expect("it did well");
}

async fn an_error_that_will_not_pass_ends_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("a.db");
    let store = latchwork_flow::SqliteContextStore::open_file(&file).await.expect("a store");
    let machine = StateMachine::<JsonState>::builder(NAME).store(store).build();
    let machine = machine.expect("a machine");
    let pool = sqlx::SqlitePool::connect(&format!("sqlite://{}", file.display())).await;
    let pool = pool.expect("the same file");
    let drop = sqlx::raw_sql("DROP TABLE latchwork_flow_context").execute(&pool).await;
    drop.expect("an accident");
    let runner = runner(&machine).start();
    until("it gives up", || async { runner.is_finished() }).await;
    assert_eq!(runner.stop().await.expect_err("no table").code(), "store_backend");
}

async fn a_machine_without_a_store_has_no_runner() {
    let machine = StateMachine::<JsonState>::builder(NAME).build().expect("a machine");
    let error = FlowRunner::new(&machine).expect_err("no store");
    assert_eq!(error.code(), "invalid_argument");
    assert!(error.to_string().contains(NAME), "{error}");
}
