//! Never on from stale state (F14), with a process that is killed, another that moves the entity when
//! the lock has ended, and a runner that takes over afterwards.

use std::future::pending;
use std::time::Duration;

use futures::future::BoxFuture;
use latchwork_flow::{
    ActionResult, FlowRunner, GateResult, JsonDelta, JsonState, Loaded, MergeDelta, SaveRequest,
    StateMachine, StateMachineBuilder, Status, TransitionId,
};
use latchwork_lock::{LockConfig, LockStrategy};
use serde_json::json;

use crate::child::Child;
use crate::test_database::{Inside, TestDatabase};
use crate::{millis, secs, until};

type Test = fn(TestDatabase) -> BoxFuture<'static, ()>;

/// Over each database.
pub(crate) const TESTS: &[(&str, Test)] = &[
    ("f14_an_entity_that_others_moved_is_not_published_again", |test_database| {
        Box::pin(an_entity_that_others_moved_is_not_published_again(test_database))
    }),
    ("f14_a_handed_in_state_that_others_moved_is_quarantined", |test_database| {
        Box::pin(a_handed_in_state_that_others_moved_is_quarantined(test_database))
    }),
];

const TTL: Duration = Duration::from_secs(2);

fn publish() -> JsonDelta {
    JsonState::delta(json!({"status": "published"})).expect("a delta")
}

fn draft() -> JsonState {
    JsonState::new(json!({"id": "ORD-1", "status": "draft"})).expect("a state")
}

/// A machine whose order is published as often as the ledger says. Its lock ends after two seconds,
/// and its processes count as dead after four: others can come in between.
fn builder(inside: &Inside) -> StateMachineBuilder<JsonState> {
    let (load, save) = (inside.ledger.clone(), inside.ledger.clone());
    let strategy = LockStrategy::Wait;
    inside
        .builder()
        .lock_config(LockConfig { ttl: TTL, strategy, ..LockConfig::default() })
        .renew_lock_up_to(Duration::ZERO)
        .run_lease(2 * TTL)
        .load(move |id| {
            let ledger = load.clone();
            async move {
                let times = ledger.of("publish").await.len();
                let status = if times == 0 { "draft" } else { "published" };
                let order = JsonState::new(json!({"id": id, "status": status}))?;
                Ok(Some(Loaded::new(order).version(times)))
            }
        })
        .save(move |request: SaveRequest<JsonState>| {
            let ledger = save.clone();
            async move {
                let (entity, key) = (request.entity, request.transition.to_string());
                match ledger.note(&entity, "publish", &key, request.fence.get()).await {
                    true => Ok(()),
                    false => Err("a newer fence was here".into()),
                }
            }
        })
        .gate_fn("is_draft", |order, _| {
            GateResult::allow_if(order.get("status") == Some(&json!("draft")), "not a draft")
        })
}

fn quick(inside: &Inside) -> StateMachine<JsonState> {
    let machine = builder(inside).action_fn("slow", |_| async { Ok(ActionResult::proceed()) });
    machine.action(MergeDelta).build().expect("a machine")
}

/// What the child does: it begins, and is killed in its first action.
pub(crate) async fn play(inside: &Inside, of_entity: bool) {
    let machine = builder(inside).action_fn("slow", |_| async {
        println!("inside");
        pending().await
    });
    let machine = machine.action(MergeDelta).build().expect("a machine");
    let mut worker = match of_entity {
        true => machine.transition_of("ORD-1", publish()),
        false => machine.transition(draft(), publish()),
    };
    println!("id {}", worker.context().id());
    worker.execute().await.expect("it is killed before");
}

/// A process dies in its action, its lock ends, and another publishes the order.
async fn overtaken(test_database: &TestDatabase, part: &str) -> (Inside, TransitionId) {
    let inside = test_database.enter().await;
    let mut child = Child::start(part, &test_database.address);
    let id = child.id();
    child.expect_line("inside");
    child.kill();
    let other = quick(&inside).run_of("ORD-1", publish()).await.expect("the lock ends");
    assert!(other.is_completed());
    let left = inside.contexts.show(id).await.expect("it is stored");
    assert_eq!(left.status, Status::Running, "the dead process has not been taken over yet");
    (inside, id)
}

async fn an_entity_that_others_moved_is_not_published_again(test_database: TestDatabase) {
    let (inside, id) = overtaken(&test_database, "stale entity").await;
    // Going on needs a rebase, before which the gates are asked about what is there now.
    let machine = builder(&inside)
        .rebase(|_, theirs| Ok(theirs.clone()))
        .action_fn("slow", |_| async { Ok(ActionResult::proceed()) })
        .action(MergeDelta)
        .build()
        .expect("a machine");
    let runner = FlowRunner::new(&machine).expect("a store").tick(millis(50)).start();
    let shown = async || inside.contexts.show(id).await.expect("it is there");
    until("it is over", async || shown().await.status.is_over()).await;
    runner.stop().await.expect("it did well");
    let over = shown().await;
    assert_eq!(over.status, Status::Stopped, "{over:?}");
    assert_eq!(over.details.metadata.expect("it says why")["denied_by"], json!("is_draft"));
    assert_eq!(inside.ledger.of("publish").await.len(), 1, "published once");
}

async fn a_handed_in_state_that_others_moved_is_quarantined(test_database: TestDatabase) {
    let (inside, id) = overtaken(&test_database, "stale state").await;
    let runner = FlowRunner::new(&quick(&inside)).expect("a store").max_attempts(2);
    let runner = runner.retry(millis(20)).tick(millis(50)).start();
    let shown = async || inside.contexts.show(id).await.expect("it is there");
    until("it is given up", async || shown().await.status == Status::Quarantined).await;
    runner.stop().await.expect("it did well");
    let why = shown().await.last_error.expect("it says why");
    assert!(why.contains("stale") && why.contains("transition_of"), "{why}");
    assert_eq!(inside.ledger.of("publish").await.len(), 1, "published once");
    tokio::time::timeout(secs(30), inside.contexts.cancel(id, "looked at"))
        .await
        .expect("it answers")
        .expect("it can be called off");
}
