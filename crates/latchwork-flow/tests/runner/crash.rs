//! Processes that die, stop and compete.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use latchwork_contract::process::Signal;
use latchwork_flow::store::{ContextFilter, ContextPageRequest, ContextStore};
use latchwork_flow::{FlowRunner, JsonState, RunnerHandle, StateMachine, Status, TransitionId};
use serde_json::json;

use crate::child::{Child, Then, entity, machine};
use crate::test_database::{Effect, Inside, TestDatabase};
use crate::{millis, until};

type Test = fn(TestDatabase) -> BoxFuture<'static, ()>;

macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub(crate) const TESTS: &[(&str, Test)] = &[
            $((stringify!($name), |test_database| Box::pin($name(test_database)))),*
        ];
    };
}

tests![
    killed_between_actions_it_goes_on_at_the_next,
    killed_inside_an_action_it_runs_again_with_the_same_key,
    a_process_that_wakes_late_cannot_save_nor_write,
    of_many_resumers_one_wins,
    two_runners_do_everything_once,
    kills_lose_nothing,
];

fn runner(machine: &StateMachine<JsonState>) -> RunnerHandle {
    FlowRunner::new(machine).expect("a store").tick(millis(100)).start()
}

async fn ended(inside: &Inside, id: TransitionId) -> Status {
    let over =
        || async { inside.contexts.show(id).await.is_ok_and(|context| context.status.is_over()) };
    until("it ends", over).await;
    inside.contexts.show(id).await.expect("it is there").status
}

fn keys(effects: &[Effect]) -> Vec<&str> {
    effects.iter().map(|effect| &*effect.key).collect()
}

async fn killed_between_actions_it_goes_on_at_the_next(test_database: TestDatabase) {
    let mut child = Child::start("between", &test_database.address);
    let id = child.id();
    child.expect_line("between");
    let dead = child.number();
    child.kill();
    let inside = test_database.enter().await;
    let before = inside.contexts.show(id).await.expect("it was saved");
    assert_eq!((before.status, before.details.done), (Status::Running, 1));
    let runner = runner(&machine(&inside, Then::Proceed));
    assert_eq!(ended(&inside, id).await, Status::Completed);
    runner.stop().await.expect("it did well");
    let (one, two) = (inside.ledger.of("one").await, inside.ledger.of("two").await);
    assert_eq!(keys(&one), [format!("{id}:0")], "what was saved is not done again");
    assert_eq!(one[0].process, dead);
    assert_eq!(keys(&two), [format!("{id}:1")]);
    assert!(two[0].fence > one[0].fence, "the lock was taken again");
    assert_eq!(inside.ledger.of("three").await.len(), 1);
}

async fn killed_inside_an_action_it_runs_again_with_the_same_key(test_database: TestDatabase) {
    let mut child = Child::start("inside", &test_database.address);
    let id = child.id();
    child.expect_line("inside");
    let dead = child.number();
    child.kill();
    let inside = test_database.enter().await;
    let runner = runner(&machine(&inside, Then::Proceed));
    assert_eq!(ended(&inside, id).await, Status::Completed);
    runner.stop().await.expect("it did well");
    assert_eq!(inside.ledger.of("one").await.len(), 1);
    let mut two = inside.ledger.of("two").await;
    two.sort_by_key(|effect| effect.fence);
    let key = format!("{id}:1");
    assert_eq!(keys(&two), [&*key, &*key], "the called service can tell that it is the same");
    assert_eq!(two[0].process, dead);
    assert!(two[1].fence > two[0].fence);
    assert_eq!(inside.ledger.of("three").await.len(), 1);
}

async fn a_process_that_wakes_late_cannot_save_nor_write(test_database: TestDatabase) {
    let mut child = Child::start("late", &test_database.address);
    let id = child.id();
    child.expect_line("inside");
    child.signal(Signal::STOP);
    let inside = test_database.enter().await;
    let runner = runner(&machine(&inside, Then::Proceed));
    assert_eq!(ended(&inside, id).await, Status::Completed);
    runner.stop().await.expect("it did well");
    let after = inside.contexts.show(id).await.expect("it is there");
    child.send_line();
    child.signal(Signal::CONT);
    child.expect_line("ended context_conflict written false");
    assert_eq!(inside.contexts.show(id).await.expect("it is there"), after, "nothing was saved");
    assert!(inside.ledger.of("late").await.is_empty());
    let mut two = inside.ledger.of("two").await;
    two.sort_by_key(|effect| effect.fence);
    assert_eq!(two.len(), 2);
    assert!(two[0].process == child.number() && two[1].fence > two[0].fence);
}

async fn of_many_resumers_one_wins(test_database: TestDatabase) {
    let child = Child::start("pause", &test_database.address);
    let id = child.id();
    let part = format!("resume {id}");
    let mut resumers: Vec<Child> =
        (0..4).map(|_| Child::start(&part, &test_database.address)).collect();
    for resumer in &resumers {
        resumer.expect_line("ready");
    }
    for resumer in &mut resumers {
        resumer.send_line();
    }
    let mut won = 0;
    for resumer in &resumers {
        match &*resumer.line() {
            "won completed" => won += 1,
            "lost context_busy" | "lost context_conflict" | "lost transition_over" => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(won, 1);
    let inside = test_database.enter().await;
    assert_eq!(inside.ledger.of("three").await.len(), 1);
}

async fn submit(inside: &Inside, machine: &StateMachine<JsonState>, count: usize) {
    for number in 0..count {
        let delta = JsonState::delta(json!({})).expect("a delta");
        machine.submit(entity(&format!("e{number}")), delta).await.expect("stored");
    }
    assert_eq!(left(inside).await, count);
}

/// How many are not completed.
async fn left(inside: &Inside) -> usize {
    let page = ContextPageRequest { limit: 1_000, after: None };
    let all = ContextStore::list(&inside.contexts, &ContextFilter::default(), &page).await;
    let all = all.expect("it answers").contexts;
    all.iter().filter(|context| context.status != Status::Completed).count()
}

/// How often each key was seen.
async fn counts(inside: &Inside) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for effect in inside.ledger.effects().await {
        *counts.entry(effect.key).or_default() += 1;
    }
    counts
}

async fn two_runners_do_everything_once(test_database: TestDatabase) {
    const COUNT: usize = 40;
    let inside = test_database.enter().await;
    submit(&inside, &machine(&inside, Then::Work), COUNT).await;
    let mut children = [(); 2].map(|()| Child::start("run", &test_database.address));
    until("all are completed", || async { left(&inside).await == 0 }).await;
    for child in &mut children {
        child.expect_line("runs");
        child.send_line();
        child.expect_line("stopped");
    }
    let counts = counts(&inside).await;
    assert_eq!(counts.len(), 3 * COUNT, "none is lost");
    assert!(counts.values().all(|count| *count == 1), "none is done twice: {counts:?}");
    let workers = children.map(|child| child.number());
    let all = inside.ledger.effects().await;
    assert!(all.iter().all(|effect| workers.contains(&effect.process)));
}

async fn kills_lose_nothing(test_database: TestDatabase) {
    const COUNT: usize = 40;
    const KILLS: usize = 4;
    let inside = test_database.enter().await;
    submit(&inside, &machine(&inside, Then::Work), COUNT).await;
    let mut children = [(); 2].map(|()| Child::start("run until killed", &test_database.address));
    for kill in 0..KILLS {
        let done = inside.ledger.effects().await.len();
        let more = || async {
            inside.ledger.effects().await.len() >= done + 8 || left(&inside).await == 0
        };
        until("some are done", more).await;
        let at = kill % children.len();
        children[at].kill();
        children[at] = Child::start("run until killed", &test_database.address);
    }
    until("all are completed", || async { left(&inside).await == 0 }).await;
    let counts = counts(&inside).await;
    assert_eq!(counts.len(), 3 * COUNT, "none is lost");
    // Each kill interrupts what the dead runner was at, at most.
    let again: usize = counts.values().map(|count| count - 1).sum();
    assert!(again <= KILLS * 4, "{again} were done again");
}
