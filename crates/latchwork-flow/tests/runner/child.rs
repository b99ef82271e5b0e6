//! The other process: this test binary once more, in the part that `LATCHWORK_RUNNER_CHILD` names.

use std::future::pending;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use latchwork_contract::process::{self, Signal};
use latchwork_flow::{
    Action, ActionContext, ActionResult, BoxError, FlowRunner, Gate, GateContext, GateResult,
    JsonState, Pause, StateMachine, TransitionId,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;

use crate::test_database::{Inside, Ledger};
use crate::{millis, secs};

/// How a test sees the other process.
pub(crate) struct Child {
    process: std::process::Child,
    said: Receiver<String>,
}

impl Child {
    pub(crate) fn start(part: &str, address: &str) -> Child {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .env("LATCHWORK_RUNNER_CHILD", part)
            .env("LATCHWORK_RUNNER_ADDRESS", address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let out = BufReader::new(process.stdout.take().expect("piped"));
        let (tell, said) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        Child { process, said }
    }

    /// The next line.
    pub(crate) fn line(&self) -> String {
        self.said.recv_timeout(secs(60)).expect("it says something")
    }

    pub(crate) fn expect_line(&self, word: &str) {
        assert_eq!(self.line(), word);
    }

    /// The id in a line `id …`.
    pub(crate) fn id(&self) -> TransitionId {
        let line = self.line();
        line.strip_prefix("id ").expect("an id").parse().expect("an id")
    }

    pub(crate) fn send_line(&mut self) {
        writeln!(self.process.stdin.as_mut().expect("piped"), "go").expect("told");
    }

    pub(crate) fn number(&self) -> i64 {
        i64::from(self.process.id())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        process::send(&self.process, signal).expect("alive");
    }

    /// Whether it has died by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().expect("it was started").is_some()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("alive");
        self.process.wait().expect("reaped");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An action that notes in the ledger that it was done, and then does what its name asks for in a
/// child and not in the test itself.
pub(crate) struct Noted {
    pub(crate) name: &'static str,
    pub(crate) ledger: Ledger,
    pub(crate) then: Then,
}

#[derive(Clone)]
pub(crate) enum Then {
    Proceed,
    /// Says so and never ends.
    Hang,
    /// Says so and goes on when told.
    Wait(Arc<Notify>, Arc<Mutex<u64>>),
    Pause,
    /// Takes a while.
    Work,
}

impl Action<JsonState> for Noted {
    fn name(&self) -> &str {
        self.name
    }

    async fn execute(
        &self,
        at: ActionContext<JsonState>,
    ) -> Result<ActionResult<JsonState>, BoxError> {
        let entity = at.transition().id().to_string();
        let fence = at.fence().map_or(0, |fence| fence.get());
        if let Then::Work = self.then {
            tokio::time::sleep(millis(3)).await;
        }
        if !self.ledger.note(&entity, self.name, &at.idempotency_key(), fence).await {
            return Err("a newer fence was here".into());
        }
        match &self.then {
            Then::Hang => {
                println!("inside");
                pending::<()>().await;
            }
            Then::Wait(told, seen) => {
                *seen.lock() = fence;
                println!("inside");
                told.notified().await;
            }
            Then::Pause => return Ok(ActionResult::pause(Pause::new().keep_lock_for(secs(60)))),
            Then::Proceed | Then::Work => {}
        }
        Ok(ActionResult::proceed())
    }
}

/// A gate that never answers: a run that waits for it is between two actions.
struct Hanging;

impl Gate<JsonState> for Hanging {
    fn name(&self) -> &str {
        "hanging"
    }

    async fn evaluate(&self, _: GateContext<'_, JsonState>) -> Result<GateResult, BoxError> {
        println!("between");
        pending().await
    }
}

/// Three actions, of which the second is special in one way.
pub(crate) fn machine(inside: &Inside, second: Then) -> StateMachine<JsonState> {
    machine_of(inside, second, secs(2))
}

fn machine_of(inside: &Inside, second: Then, run_lease: Duration) -> StateMachine<JsonState> {
    let noted = |name, then| Noted { name, ledger: inside.ledger.clone(), then };
    let built = inside
        .builder()
        .run_lease(run_lease)
        .action(noted("one", Then::Proceed))
        .action(noted("two", second))
        .action(noted("three", Then::Proceed));
    built.build().expect("a machine")
}

pub(crate) fn entity(name: &str) -> JsonState {
    JsonState::new(json!({"id": name})).expect("a state")
}

/// What a child does.
pub(crate) async fn play(part: &str) {
    let address = std::env::var("LATCHWORK_RUNNER_ADDRESS").expect("told");
    let inside = Inside::enter(&address).await;
    let delta = || JsonState::delta(json!({})).expect("a delta");
    match part {
        // Is killed between two actions: before the gate of the second.
        "between" => {
            let noted = |name, then| Noted { name, ledger: inside.ledger.clone(), then };
            let machine = inside
                .builder()
                .action(noted("one", Then::Proceed))
                .action(noted("two", Then::Proceed).behind(Hanging))
                .action(noted("three", Then::Proceed))
                .build()
                .expect("a machine");
            let mut worker = machine.transition(entity("between"), delta());
            println!("id {}", worker.context().id());
            worker.execute().await.expect("it is killed before");
        }
        // Is killed inside the second action.
        "inside" => {
            let mut worker = machine(&inside, Then::Hang).transition(entity("inside"), delta());
            println!("id {}", worker.context().id());
            worker.execute().await.expect("it is killed before");
        }
        // Is stopped inside the second action, and wakes late.
        "late" => {
            let (told, fence) = (Arc::new(Notify::new()), Arc::new(Mutex::new(0)));
            let machine = machine(&inside, Then::Wait(told.clone(), fence.clone()));
            let mut worker = machine.transition(entity("late"), delta());
            let id = worker.context().id();
            println!("id {id}");
            let late = tokio::spawn(async move {
                tokio::task::spawn_blocking(read_line).await.expect("no panic");
                let fence = *fence.lock();
                let written = inside.ledger.note(&id.to_string(), "late", "late", fence).await;
                told.notify_one();
                written
            });
            let ended = worker.execute().await.expect_err("somebody else went on");
            let written = late.await.expect("no panic");
            println!("ended {} written {written}", ended.code());
        }
        // Pauses.
        "pause" => {
            let machine = machine(&inside, Then::Pause);
            let mut worker = machine.transition(entity("pause"), delta());
            let paused = worker.execute().await.expect("it pauses");
            assert!(paused.is_paused());
            println!("id {}", paused.id());
        }
        // Resumes what it is told to, with others at the same time.
        resume if resume.starts_with("resume ") => {
            let id: TransitionId = resume["resume ".len()..].parse().expect("an id");
            let machine = machine(&inside, Then::Pause);
            let mut worker = machine.resume(id).await.expect("it is paused");
            println!("ready");
            tokio::task::spawn_blocking(read_line).await.expect("no panic");
            match worker.execute().await {
                Ok(context) => println!("won {}", context.status()),
                Err(error) => println!("lost {}", error.code()),
            }
        }
        // Runs whatever is due until it is told to stop. A slow machine must not look dead where
        // nobody dies.
        "run" | "run until killed" => {
            let mortal = part == "run until killed";
            let machine = machine_of(&inside, Then::Work, if mortal { secs(2) } else { secs(60) });
            let runner = FlowRunner::new(&machine).expect("a store");
            let runner = runner.concurrency(4).tick(millis(50)).start();
            println!("runs");
            tokio::task::spawn_blocking(read_line).await.expect("no panic");
            runner.stop().await.expect("it did well");
            println!("stopped");
        }
        // Runs whatever is due, and is killed by one of them.
        "poison" => {
            let machine = crate::bounds::poisonous(&inside);
            let runner = FlowRunner::new(&machine).expect("a store");
            let runner = runner.retry(millis(50)).tick(millis(50));
            println!("runs");
            runner.run_until(pending()).await.expect("it did well");
        }
        "stale entity" => crate::stale::play(&inside, true).await,
        "stale state" => crate::stale::play(&inside, false).await,
        other => panic!("no such part: {other}"),
    }
}

fn read_line() {
    std::io::stdin().read_line(&mut String::new()).expect("told");
}
