//! What is bounded (F15): contexts that kill their process, actions that block their thread, clocks
//! that are set, and rows that are damaged.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::BoxFuture;
use latchwork_flow::store::{
    ContextDraft, ContextStore, DueClaim, Proof, RunClaim, StoredContext, Waiting,
};
use latchwork_flow::{Action, ActionContext};
use latchwork_flow::{
    ActionPolicy, ActionResult, Contexts, FlowRunner, InMemoryContextStore, JsonState, Pause,
    SqliteContextStore, StateMachine, Status, TransitionId, WaitingFor, action_fn,
};
use latchwork_lock::provider::Moment;
use latchwork_lock::{Clock, LockConfig, PageRequest, SystemClock};
use libtest_mimic::Trial;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::child::{Child, entity};
use crate::test_database::{Inside, TestDatabase};
use crate::{block_on, millis, secs, until};

type Test = fn(TestDatabase) -> BoxFuture<'static, ()>;

macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        /// Over each database.
        pub(crate) const TESTS: &[(&str, Test)] = &[
            $((stringify!($name), |test_database| Box::pin($name(test_database)))),*
        ];
    };
}

tests![
    what_kills_its_process_is_quarantined_and_the_others_finish,
    an_action_that_blocks_its_thread_is_run_once,
    an_action_that_blocks_with_the_only_connection_keeps_its_lock,
    an_action_that_blocks_beyond_its_limit_is_given_up,
    the_lock_of_an_action_that_is_given_up_ends_with_its_ttl,
];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("sqlite::a_clock_that_is_set_takes_nobodys_work", || {
            block_on(a_clock_that_is_set_takes_nobodys_work());
            Ok(())
        }),
        Trial::test("memory::no_damaged_context_hinders_a_runner", || {
            block_on(no_damaged_context_hinders_a_runner());
            Ok(())
        }),
    ]
}

fn nothing() -> latchwork_flow::JsonDelta {
    JsonState::delta(json!({})).expect("a delta")
}

/// A machine whose action aborts the process for one entity.
pub(crate) fn poisonous(inside: &Inside) -> StateMachine<JsonState> {
    let ledger = inside.ledger.clone();
    let machine = inside.builder().action_fn("do", move |at| {
        let ledger = ledger.clone();
        async move {
            if at.state().get("id") == Some(&json!("poison")) {
                std::process::abort();
            }
            // Longer than the poison needs, so that nobody finishes beside it.
            tokio::time::sleep(millis(300)).await;
            let id = at.transition().id().to_string();
            ledger.note(&id, "do", &at.idempotency_key(), 0).await;
            Ok(ActionResult::proceed())
        }
    });
    machine.build().expect("a machine")
}

async fn what_kills_its_process_is_quarantined_and_the_others_finish(test_database: TestDatabase) {
    let inside = test_database.enter().await;
    let machine = poisonous(&inside);
    let mut others = Vec::new();
    let poison = machine.submit(entity("poison"), nothing()).await.expect("stored");
    for number in 0..5 {
        let entity = entity(&format!("other {number}"));
        others.push(machine.submit(entity, nothing()).await.expect("stored"));
    }
    let status = async |id| inside.contexts.show(id).await.expect("it is there").status;
    let all_done = async || {
        for id in &others {
            if status(*id).await != Status::Completed {
                return false;
            }
        }
        status(poison).await == Status::Quarantined
    };
    let mut starts = 0;
    while !all_done().await {
        starts += 1;
        assert!(starts <= 20, "after {starts} starts it still kills");
        let mut child = Child::start("poison", &test_database.address);
        child.expect_line("runs");
        let mut looks = 0;
        while !child.has_ended() && !all_done().await {
            looks += 1;
            if looks > 2_000 {
                let mut left = Vec::new();
                for id in others.iter().chain([&poison]) {
                    left.push(inside.contexts.show(*id).await.expect("it is there"));
                }
                panic!("start {starts} neither ends nor finishes: {left:#?}");
            }
            tokio::time::sleep(millis(20)).await;
        }
    }
    let shown = inside.contexts.show(poison).await.expect("it is there");
    assert_eq!(shown.attempts, 5);
    let reasons = shown.waiting_for(shown.updated_at);
    assert!(
        matches!(&reasons[..], [WaitingFor::Release { why, .. }] if why.contains("died")),
        "{reasons:?}"
    );
    for id in others {
        assert!(inside.contexts.show(id).await.expect("it is there").attempts <= 5);
    }
}

/// A machine whose action blocks its thread the first time, and its runner in a runtime that has no
/// other one.
fn blocking(
    test_database: &TestDatabase,
    span: Duration,
    ttl: Duration,
    policy: ActionPolicy,
) -> (Arc<AtomicU32>, std::thread::JoinHandle<()>, tokio::sync::oneshot::Sender<()>) {
    let (begun, address) = (Arc::new(AtomicU32::new(0)), test_database.address.clone());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let count = begun.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async move {
            let inside = Inside::enter(&address).await;
            let blocks = action_fn("blocks", move |_: ActionContext<JsonState>| {
                let first = count.fetch_add(1, Ordering::SeqCst) == 0;
                async move {
                    // Once it has waited, and so not where it was begun.
                    tokio::time::sleep(millis(10)).await;
                    if first {
                        std::thread::sleep(span);
                    }
                    Ok(ActionResult::proceed())
                }
            });
            let ttl = LockConfig { ttl, ..LockConfig::default() };
            let machine = inside.builder().lock_config(ttl).run_lease(secs(1));
            let machine = machine.action(blocks.with_policy(policy));
            let machine = machine.build().expect("a machine");
            let runner = FlowRunner::new(&machine).expect("a store").tick(millis(20));
            let stop = async { drop(stopped.await) };
            runner.run_until(stop).await.expect("it did well");
        });
    });
    (begun, thread, stop)
}

async fn submitted(inside: &Inside) -> TransitionId {
    let machine = inside.builder().action_fn("blocks", |_| async { Ok(ActionResult::proceed()) });
    let machine = machine.build().expect("a machine");
    machine.submit(entity("blocked"), nothing()).await.expect("stored")
}

async fn an_action_that_blocks_its_thread_is_run_once(test_database: TestDatabase) {
    let inside = test_database.enter().await;
    let id = submitted(&inside).await;
    let (begun, thread, stop) =
        blocking(&test_database, secs(5), secs(20), ActionPolicy::default());
    // Another runner would take over whatever is not kept alive.
    let other = inside
        .builder()
        .run_lease(secs(1))
        .action_fn("blocks", |_| async { Err("somebody else has begun it".into()) });
    until("it is begun", async || begun.load(Ordering::SeqCst) == 1).await;
    let runner = FlowRunner::new(&other.build().expect("a machine")).expect("a store");
    let runner = runner.tick(millis(20)).start();
    let shown = async || inside.contexts.show(id).await.expect("it is there");
    until("it ends", async || shown().await.status.is_over()).await;
    assert_eq!(shown().await.status, Status::Completed);
    assert_eq!(begun.load(Ordering::SeqCst), 1, "nobody began it again");
    runner.stop().await.expect("it did well");
    stop.send(()).expect("it runs");
    tokio::task::spawn_blocking(|| thread.join()).await.expect("no panic").expect("no panic");
}

/// Contexts, locks and the action share a pool of one connection, which the action has while it
/// blocks the only thread for longer than the run-lease and the lock's ttl.
async fn an_action_that_blocks_with_the_only_connection_keeps_its_lock(
    test_database: TestDatabase,
) {
    let inside = test_database.enter().await;
    let id = submitted(&inside).await;
    let (held, address) = (Arc::new(Mutex::new(Vec::new())), test_database.address.clone());
    let seen = held.clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async move {
            let (inside, pool) = Inside::with_pool_of_one(&address).await;
            let ttl = LockConfig { ttl: secs(2), ..LockConfig::default() };
            let machine = inside.builder().lock_config(ttl).run_lease(secs(1));
            let machine = machine.action_fn("blocks", move |at| {
                let (pool, seen) = (pool.clone(), seen.clone());
                async move {
                    let connection = pool.occupy().await;
                    std::thread::sleep(secs(6));
                    seen.lock().push(at.is_held());
                    drop(connection);
                    Ok(ActionResult::proceed())
                }
            });
            let machine = machine.build().expect("a machine");
            let runner = FlowRunner::new(&machine).expect("a store").tick(millis(20));
            let stop = async { drop(stopped.await) };
            runner.run_until(stop).await.expect("it did well");
        });
    });
    let shown = async || inside.contexts.show(id).await.expect("it is there");
    until("it ends", async || shown().await.status.is_over()).await;
    assert_eq!(shown().await.status, Status::Completed);
    assert_eq!(*held.lock(), [true], "begun once, and under its lock to the end");
    stop.send(()).expect("it runs");
    tokio::task::spawn_blocking(|| thread.join()).await.expect("no panic").expect("no panic");
}

async fn an_action_that_blocks_beyond_its_limit_is_given_up(test_database: TestDatabase) {
    let inside = test_database.enter().await;
    let id = submitted(&inside).await;
    let policy = ActionPolicy { time_limit: Some(millis(200)), ..ActionPolicy::default() };
    let (begun, thread, stop) = blocking(&test_database, secs(6), secs(20), policy);
    let shown = async || inside.contexts.show(id).await.expect("it is there");
    until("it is given up", async || shown().await.last_error.is_some()).await;
    let given_up = shown().await;
    let why = given_up.last_error.expect("it is said");
    assert!(why.contains("\"blocks\"") && why.contains("blocked its thread"), "{why}");
    assert_eq!((given_up.status, given_up.attempts, given_up.runner), (Status::Running, 1, None));
    assert_eq!(begun.load(Ordering::SeqCst), 1, "the runner leaves alone what it is stuck in");
    // Its thread is free again, its late save is refused, and it is begun anew.
    until("it ends", async || shown().await.status.is_over()).await;
    assert_eq!(shown().await.status, Status::Completed);
    assert_eq!(begun.load(Ordering::SeqCst), 2);
    stop.send(()).expect("it runs");
    tokio::task::spawn_blocking(|| thread.join()).await.expect("no panic").expect("no panic");
}

/// A future that blocks cannot be dropped, so its lock must not be renewed for as long as it blocks.
async fn the_lock_of_an_action_that_is_given_up_ends_with_its_ttl(test_database: TestDatabase) {
    let inside = test_database.enter().await;
    submitted(&inside).await;
    let policy = ActionPolicy { time_limit: Some(millis(200)), ..ActionPolicy::default() };
    let (begun, thread, stop) = blocking(&test_database, secs(12), secs(2), policy);
    until("it is begun", async || begun.load(Ordering::SeqCst) == 1).await;
    let blocked = Instant::now();
    let held = async || {
        let page = inside.locks.list("", PageRequest::default()).await.expect("it answers");
        page.keys.iter().any(latchwork_lock::Inspection::is_held)
    };
    assert!(held().await, "the action runs under its lock");
    until("the lock ends", async || !held().await).await;
    assert!(blocked.elapsed() < secs(10), "only with the action: {:?}", blocked.elapsed());
    stop.send(()).expect("it runs");
    tokio::task::spawn_blocking(|| thread.join()).await.expect("no panic").expect("no panic");
}

/// The system's clocks, but somebody sets the wall clock.
#[derive(Clone, Default)]
struct Settable(Arc<AtomicI64>);

impl Settable {
    fn step(&self, seconds: i64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for Settable {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn wall(&self) -> DateTime<Utc> {
        SystemClock.wall() + TimeDelta::seconds(self.0.load(Ordering::SeqCst))
    }

    fn sleep_until(&self, until: Moment) -> latchwork_lock::provider::Sleep {
        SystemClock.sleep_until(until)
    }
}

fn draft(clock: &impl Clock, status: Status) -> ContextDraft {
    let id = TransitionId::new(clock.wall());
    ContextDraft {
        id,
        machine: "clocks".to_owned(),
        entity: None,
        status,
        body: format!("{{\"of\":\"{id}\"}}"),
        details: "{}".to_owned(),
        waiting: None,
        holds_lock: false,
    }
}

async fn due(store: &SqliteContextStore, ttl: Duration) -> Vec<StoredContext> {
    let claim = RunClaim::new(ttl);
    store.claim_due(&DueClaim::new("clocks", 10, &claim)).await.expect("it answers")
}

async fn a_clock_that_is_set_takes_nobodys_work() {
    let directory = tempfile::tempdir().expect("a directory");
    let (clock, path) = (Settable::default(), directory.path().join("a.db"));
    let open = async || {
        let store = SqliteContextStore::open_file(&path).await.expect("a store");
        store.with_clock(Arc::new(clock.clone()))
    };
    let (live, other) = (open().await, open().await);
    // A live process keeps its work, however far the clock is set forward.
    let (running, claim) = (draft(&clock, Status::Running), RunClaim::new(secs(60)));
    live.create(&running, Some(&claim)).await.expect("it is new");
    for step in [10, 3_600, 86_400 * 365] {
        clock.step(step);
        assert!(due(&other, secs(60)).await.is_empty(), "after {step} s");
        let refused = other.claim(running.id, None, &RunClaim::new(secs(60))).await;
        assert_eq!(refused.expect_err("somebody is at it").code(), "context_busy");
        let next = other.next_due("clocks").await.expect("it answers").expect("its end");
        assert!(next > secs(1) && next <= secs(60), "{next:?}");
        let proof = Proof { id: running.id, token: claim.token };
        assert!(live.heartbeat(proof, secs(60)).await.expect("it answers").held);
    }
    // A dead one's is taken over in time, however far it is set back.
    let dead = draft(&clock, Status::Running);
    live.create(&dead, Some(&RunClaim::new(millis(300)))).await.expect("it is new");
    let submitted = draft(&clock, Status::Pending);
    live.create(&submitted, None).await.expect("it is new");
    clock.step(-86_400 * 365);
    let at_once = due(&other, secs(60)).await;
    assert_eq!(at_once.iter().map(|row| row.head.id).collect::<Vec<_>>(), [submitted.id]);
    let next = other.next_due("clocks").await.expect("it answers").expect("its end");
    assert!(next <= millis(300), "{next:?}");
    until("it is taken over", async || {
        due(&other, secs(60)).await.iter().any(|row| row.head.id == dead.id)
    })
    .await;
    // What waits for a time of day waits for the clock that shows it.
    let wake_at = Some(clock.wall() + secs(3_600));
    let waiting = Some(Waiting { wake_at, ..Waiting::default() });
    let paused = ContextDraft { waiting, ..draft(&clock, Status::Paused) };
    live.create(&paused, None).await.expect("it is new");
    assert!(due(&other, secs(60)).await.is_empty());
    clock.step(3_601);
    assert_eq!(due(&other, secs(60)).await.len(), 1);
}

/// A machine that leaves contexts behind in every state.
fn versatile(store: &Contexts) -> StateMachine<JsonState> {
    let machine = StateMachine::<JsonState>::builder("damaged")
        .store(store.clone())
        .action_limit(secs(5))
        .action_fn("one", |_| async { Ok(ActionResult::proceed()) })
        .action_fn("two", |at| async move {
            Ok(match at.state().get("id") {
                Some(id) if *id == json!("pauses") => {
                    ActionResult::pause(Pause::new().wake_after(Duration::ZERO))
                }
                Some(id) if *id == json!("repeats") && at.woken().is_none() => {
                    ActionResult::retry_after(Duration::ZERO)
                }
                Some(id) if *id == json!("waits") => {
                    ActionResult::pause(Pause::new().on_signal("never"))
                }
                _ => ActionResult::proceed(),
            })
        })
        .action_fn("three", |_| async { Ok(ActionResult::proceed()) });
    machine.build().expect("a machine")
}

/// Rows as a machine leaves them: begun, paused in each way, dead in the middle.
async fn rows() -> Vec<StoredContext> {
    let store = Contexts::new(InMemoryContextStore::new());
    let machine = versatile(&store);
    let mut rows = Vec::new();
    let submitted = machine.submit(entity("new"), nothing()).await.expect("stored");
    rows.push(Contexts::load(&store, submitted).await.expect("it is there"));
    for name in ["pauses", "repeats", "waits", "dies"] {
        let mut worker = machine.transition(entity(name), nothing());
        let id = worker.context().id();
        worker.run_gates().await.expect("no error");
        worker.run_next_action().await.expect("no error");
        if name != "dies" {
            worker.run_next_action().await.expect("no error");
        }
        rows.push(Contexts::load(&store, id).await.expect("it is there"));
    }
    rows
}

/// Deletes, changes or doubles a field somewhere in a JSON text.
fn damage(text: &str, chance: &mut StdRng) -> String {
    let mut value: Value = serde_json::from_str(text).expect("our own");
    let garbage = [
        json!(null),
        json!(-1),
        json!(0),
        json!(u64::MAX),
        json!("x"),
        json!([]),
        json!(["two"]),
        json!(["two", "two", "nobody"]),
        json!({}),
        json!(true),
        json!("running"),
        json!("paused"),
        json!("pending"),
        json!("quarantined"),
    ];
    let mut place = &mut value;
    while let Some(fields) = place.as_object_mut().filter(|fields| !fields.is_empty()) {
        let index = chance.random_range(0..fields.len());
        let key = fields.keys().nth(index).expect("in range").clone();
        match chance.random_range(0..6) {
            0 | 1 => {
                fields.remove(&key);
                return value.to_string();
            }
            2 | 3 => {
                fields.insert(key, garbage[chance.random_range(0..garbage.len())].clone());
                return value.to_string();
            }
            4 if value_is_flat(&fields[&key]) => {
                // Twice, which only text can say.
                let twice = format!("{{{}:{},", json!(key), garbage[chance.random_range(0..14)]);
                return value.to_string().replacen('{', &twice, 1);
            }
            _ => place = value_at(&mut value, &key),
        }
    }
    value.to_string()
}

fn value_is_flat(value: &Value) -> bool {
    !value.is_object()
}

fn value_at<'a>(value: &'a mut Value, key: &str) -> &'a mut Value {
    &mut value[key]
}

async fn no_damaged_context_hinders_a_runner() {
    let rows = rows().await;
    for _ in 0..30 {
        let seed: u64 = rand::random();
        let mut chance = StdRng::seed_from_u64(seed);
        let store = Contexts::new(InMemoryContextStore::new());
        let machine = versatile(&store);
        let mut bad = Vec::new();
        for row in &rows {
            let head = &row.head;
            let mut body = row.body.clone();
            for _ in 0..chance.random_range(1..=2) {
                body = damage(&body, &mut chance);
                if serde_json::from_str::<Value>(&body).is_err() {
                    break;
                }
            }
            let details = match chance.random_range(0..4) {
                0 => damage(&head.details, &mut chance),
                _ => head.details.clone(),
            };
            let draft = ContextDraft {
                id: head.id,
                machine: "damaged".to_owned(),
                entity: head.entity.clone(),
                status: head.status,
                body,
                details,
                waiting: head.waiting.clone(),
                holds_lock: head.holds_lock,
            };
            store.create(&draft, None).await.expect("it is new");
            bad.push(draft.id);
        }
        let mut good = Vec::new();
        for _ in 0..3 {
            good.push(machine.submit(entity("good"), nothing()).await.expect("stored"));
        }
        let runner = FlowRunner::new(&machine).expect("a store").max_attempts(2);
        let runner = runner.concurrency(2).retry(millis(1)).tick(millis(5)).start();
        let status = async |id| store.show(id).await.expect("it is there").status;
        let settled = async || {
            for id in &good {
                if status(*id).await != Status::Completed {
                    return false;
                }
            }
            for id in &bad {
                let shown = store.show(*id).await.expect("it is there");
                // What another program may know how to read is left to it.
                let left = matches!(shown.status, Status::Quarantined | Status::Paused)
                    || shown.attempts == 0 && shown.last_error.is_some();
                if !shown.status.is_over() && !left {
                    return false;
                }
            }
            true
        };
        let ended = tokio::time::timeout(secs(30), async {
            while !settled().await {
                tokio::time::sleep(millis(2)).await;
            }
        });
        if ended.await.is_err() {
            let mut all = Vec::new();
            for id in bad.iter().chain(&good) {
                all.push(store.show(*id).await.expect("it is there"));
            }
            panic!("seed {seed}: {all:#?}");
        }
        let stopped = tokio::time::timeout(secs(20), runner.stop()).await;
        stopped.unwrap_or_else(|_| panic!("seed {seed}: it does not stop")).expect("it did well");
    }
}
