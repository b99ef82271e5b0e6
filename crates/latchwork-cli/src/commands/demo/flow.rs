//! The chapter of a flow: an entity that is moved, waits for somebody, and is moved on.

use latchwork::Locks;
use latchwork::flow::{
    ActionResult, Contexts, EntityKey, GateResult, JsonState, MergeDelta, Pause, StateMachine,
};
use serde_json::json;

use super::transcript::Transcript;
use crate::exit::Failure;

pub(super) async fn pause_and_resume(transcript: &mut Transcript) -> Result<(), Failure> {
    transcript.section(
        "A flow waits, and its lock with it",
        "Gates decide whether an entity may move, actions move it; a pause outlives its process.",
    );
    let locks = Locks::connect("memory:").await?;
    let contexts = Contexts::connect("memory:").await?;
    let publish = StateMachine::<JsonState>::builder("publish")
        .locks(&locks, EntityKey::new())
        .store(contexts.clone())
        .gate_fn("is_draft", |order, _| {
            GateResult::allow_if(order.get("status") == Some(&json!("draft")), "it is no draft")
        })
        .action_fn("ask", |_| async { Ok(ActionResult::pause(Pause::new().on_signal("approved"))) })
        .action(MergeDelta)
        .build()?;
    let order = JsonState::new(json!({"id": "ORD-1", "status": "draft"}))?;
    let delta = JsonState::delta(json!({"status": "published"}))?;
    let paused = publish.transition(order.clone(), delta.clone()).execute().await?;
    transcript
        .write_line("An order is to be published. The first action asks for approval, and pauses.");
    transcript.promise(
        "it is paused, and saved",
        contexts.show(paused.id()).await?.status.name() == "paused",
    )?;
    let second = publish.transition(order, delta.clone()).execute().await;
    transcript.promise(
        "meanwhile nobody else can move the order",
        second.is_err_and(|error| error.is_lock_taken()),
    )?;
    contexts.signal(paused.id(), "approved", json!({"by": "Ana"})).await?;
    transcript.write_line("Ana approves. Two processes resume it at the same time.");
    let (mut one, mut two) =
        (publish.resume(paused.id()).await?, publish.resume(paused.id()).await?);
    let (first, second) = (one.execute().await?, two.execute().await);
    transcript.promise("one of them finishes it", first.is_completed())?;
    transcript.promise("the other learns that it came second", second.is_err())?;
    let published = first.state().cloned().unwrap_or_default();
    let again = publish.dry_run(&published, &delta).await?;
    let why = again.blockers().find_map(|gate| gate.message.clone()).unwrap_or_default();
    transcript.promise(&format!("and a dry run says why not once more: {why}"), !again.is_allowed())
}
