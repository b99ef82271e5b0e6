//! Settings are checked when a machine is built, and nothing is stored before what can fail.

use std::time::Duration;

use latchwork_flow::store::{ContextFilter, ContextPageRequest};
use latchwork_flow::{
    ActionResult, Contexts, EntityKey, JsonState, Pause, StateMachine, StateMachineBuilder,
};
use latchwork_lock::{InMemoryLockProvider, LockConfig, Locks};
use serde_json::json;

fn builder() -> StateMachineBuilder<JsonState> {
    StateMachine::builder("settings")
}

fn locks() -> Locks {
    Locks::new(InMemoryLockProvider::new())
}

fn order() -> JsonState {
    JsonState::new(json!({"id": 1})).unwrap()
}

fn ttl(ttl: Duration) -> LockConfig {
    LockConfig { ttl, ..LockConfig::default() }
}

fn refused(builder: StateMachineBuilder<JsonState>) -> String {
    let error = builder.build().unwrap_err();
    assert_eq!(error.code(), "invalid_argument", "{error}");
    error.to_string()
}

#[test]
fn an_illegal_ttl_is_refused_when_the_machine_is_built() {
    let short = ttl(Duration::from_millis(1));
    refused(builder().locks(locks(), EntityKey::new()).lock_config(short.clone()));
    refused(builder().locks(locks().with_defaults(short), EntityKey::new()));
}

#[test]
fn settings_of_a_lock_need_locks() {
    assert!(refused(builder().lock_config(LockConfig::default())).contains("locks"));
    refused(builder().renew_lock_up_to(Duration::from_secs(60)));
}

#[tokio::test]
async fn a_lock_outlives_the_take_over_unless_told_otherwise() {
    let second = Duration::from_secs(1);
    assert_eq!(builder().build().unwrap().run_lease(), 10 * second);
    let locked =
        |ttl_of: Duration| builder().locks(locks(), EntityKey::new()).lock_config(ttl(ttl_of));
    assert_eq!(locked(30 * second).build().unwrap().run_lease(), 10 * second);
    assert_eq!(locked(6 * second).build().unwrap().run_lease(), 2 * second);
    assert_eq!(locked(60 * second).run_lease(5 * second).build().unwrap().run_lease(), 5 * second);
}

#[tokio::test]
async fn the_lock_of_a_stored_transition_is_renewed_while_it_runs() {
    for (renewed, told) in [(true, None), (false, Some(Duration::ZERO))] {
        let short = Duration::from_millis(300);
        let contexts = Contexts::connect("memory:").await.unwrap();
        let machine = builder().locks(locks(), EntityKey::new()).lock_config(ttl(short));
        let machine = machine.store(contexts).action_fn("long", move |at| async move {
            tokio::time::sleep(2 * short).await;
            assert!(at.is_held());
            Ok(ActionResult::proceed())
        });
        let machine = match told {
            Some(bound) => machine.renew_lock_up_to(bound),
            None => machine,
        };
        let done = machine.build().unwrap().run(order(), Default::default()).await;
        match renewed {
            true => assert!(done.unwrap().is_completed()),
            false => assert_eq!(done.unwrap_err().code(), "lock_expired"),
        }
    }
}

#[tokio::test]
async fn the_defaults_of_the_locks_are_those_of_the_machine() {
    let minute = Duration::from_secs(60);
    let machine = builder()
        .locks(locks().with_defaults(ttl(minute)), EntityKey::new())
        .action_fn("wait", |_| async { Ok(ActionResult::pause(Pause::new())) })
        .build()
        .unwrap();
    let paused = machine.run(order(), Default::default()).await.unwrap();
    assert_eq!(paused.lock_state().ttl, Some(minute));
}

#[tokio::test]
async fn a_pause_that_cannot_keep_its_lock_is_not_stored_as_one() {
    let (locks, contexts) = (locks(), Contexts::connect("memory:").await.unwrap());
    let stored = || builder().locks(&locks, EntityKey::new()).store(contexts.clone());
    let short = Pause::new().keep_lock_for(Duration::from_millis(1));
    let machine = stored()
        .action_fn("wait", move |_| {
            let pause = short.clone();
            async move { Ok(ActionResult::pause(pause)) }
        })
        .build()
        .unwrap();
    let mut worker = machine.transition(order(), Default::default());
    assert_eq!(worker.execute().await.unwrap_err().code(), "invalid_argument");
    assert!(worker.context().is_failed());
    let page = contexts.list(&ContextFilter::default(), &ContextPageRequest::default()).await;
    assert_eq!(page.unwrap().contexts[0].status.name(), "failed");
    assert!(!locks.exists("flow:entity:1").await.unwrap());
}

#[tokio::test]
async fn a_lock_that_a_runner_renews_needs_a_store() {
    let machine = builder()
        .locks(locks(), EntityKey::new())
        .action_fn("wait", |_| async { Ok(ActionResult::pause(Pause::new().renew_lock())) })
        .build()
        .unwrap();
    let error = machine.run(order(), Default::default()).await.unwrap_err();
    assert_eq!(error.code(), "invalid_argument");
    assert!(error.to_string().contains("store"), "{error}");
}
