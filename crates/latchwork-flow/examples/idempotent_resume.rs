//! Resuming safely: what to do when a paused transition may have been finished by somebody else, or
//! has lost its lock.
//!
//! `cargo run -p latchwork-flow --example idempotent_resume`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_flow::{
    ActionResult, BoxError, EntityKey, InMemoryContextStore, JsonState, MergeDelta, Pause,
    Reloaded, Result, State, StateMachine, TransitionId,
};
use latchwork_lock::{LockConfig, Locks};
use serde_json::json;

/// Where the articles of this example live.
type Articles = Arc<Mutex<JsonState>>;

fn read(articles: &Articles) -> JsonState {
    articles.lock().unwrap_or_else(|broken| broken.into_inner()).clone()
}

fn write(articles: &Articles, article: JsonState) {
    *articles.lock().unwrap_or_else(|broken| broken.into_inner()) = article;
}

fn status(article: &JsonState) -> String {
    article.status().unwrap_or_default().into_owned()
}

/// Publishing: a job renders the article, which takes its time, and then it is moved.
async fn machine(articles: &Articles, locks: &Locks) -> Result<StateMachine<JsonState>> {
    let articles = articles.clone();
    StateMachine::<JsonState>::builder("publish")
        .locks(locks, EntityKey::new())
        .lock_config(LockConfig { ttl: Duration::from_millis(50), ..LockConfig::default() })
        .store(InMemoryContextStore::new())
        .action_fn("render", |_| async {
            Ok(ActionResult::pause(Pause::new().on_signal("rendered")))
        })
        .action(MergeDelta)
        .action_fn("save", move |at| {
            // A real store would be sent the fence and the idempotency key along with the write.
            write(&articles, at.state().clone());
            async { Ok(ActionResult::proceed()) }
        })
        .build()
}

/// Resumes, and gives a word on what came of it.
async fn resume(
    machine: &StateMachine<JsonState>,
    articles: &Articles,
    id: TransitionId,
) -> Result<String> {
    // Asked before anything is done, and again under a new lock if the old one was lost: somebody
    // may have been in between.
    let look = |_| {
        let article = read(articles);
        async move {
            let found: Result<_, BoxError> = Ok(match &*status(&article) {
                "published" => Reloaded::Done(article),
                _ => Reloaded::GoOn(article),
            });
            found
        }
    };
    let done = machine.resume_or_reacquire(id, look).await?;
    let acted = done.action_executions().len();
    Ok(format!(
        "{}, after {acted} actions: {}",
        done.status(),
        done.state().map(status).unwrap_or_default()
    ))
}

async fn paused(machine: &StateMachine<JsonState>, articles: &Articles) -> Result<TransitionId> {
    let delta = JsonState::delta(json!({"status": "published"}))?;
    Ok(machine.transition(read(articles), delta).execute().await?.id())
}

/// The three stories, each as a line.
pub(crate) async fn run() -> Result<Vec<String>> {
    let mut told = Vec::new();
    let draft = JsonState::new(json!({"id": "A-1", "status": "draft"}))?;
    let articles: Articles = Arc::new(Mutex::new(draft.clone()));
    let locks = Locks::connect("memory:").await?;
    let machine = machine(&articles, &locks).await?;

    let id = paused(&machine, &articles).await?;
    told.push(format!("the lock was kept: {}", resume(&machine, &articles, id).await?));

    write(&articles, draft.clone());
    let id = paused(&machine, &articles).await?;
    while locks.exists("flow:entity:A-1").await? {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    told.push(format!("the lock ran out: {}", resume(&machine, &articles, id).await?));

    write(&articles, draft.clone());
    let id = paused(&machine, &articles).await?;
    write(&articles, draft.with(&JsonState::delta(json!({"status": "published"}))?));
    told.push(format!("somebody else was faster: {}", resume(&machine, &articles, id).await?));
    Ok(told)
}

#[allow(dead_code, reason = "the tests call `run`")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    for line in run().await? {
        println!("{line}");
    }
    Ok(())
}
