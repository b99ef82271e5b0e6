//! The stored form, version by version: what was written once must be read for ever.
//!
//! The files beside this one are as they were written by the version in their name. They are never
//! changed; a new version adds its own.

use latchwork_flow::{
    ActionResult, CONTEXT_FORMAT, EntityKey, JsonState, OnTimeout, Pause, StateMachine, Status,
    TransitionContext, Woken,
};
use latchwork_lock::{InMemoryLockProvider, Locks};
use proptest::prelude::*;
use serde_json::{Value, json};

const PAUSED: &str = include_str!("v1-paused.json");
const RUNNING: &str = include_str!("v1-running.json");
const PENDING: &str = include_str!("v1-pending.json");
const FAILED: &str = include_str!("v1-failed.json");
/// The paused one as [`migrating`] brings it from definition 2 to 4.
const MIGRATED: &str = include_str!("v1-migrated-from-2-to-4.json");

fn machine() -> StateMachine<JsonState> {
    StateMachine::builder("publish")
        .definition(3)
        .locks(Locks::new(InMemoryLockProvider::new()), EntityKey::new())
        .action_fn("ask", |_| async { Ok(ActionResult::proceed()) })
        .action_fn("notify", |_| async { Ok(ActionResult::proceed()) })
        .action(latchwork_flow::MergeDelta)
        .build()
        .unwrap()
}

fn read(text: &str) -> TransitionContext<JsonState> {
    machine().read_context(text).unwrap()
}

#[test]
fn f06_a_paused_context_of_version_1_is_read() {
    let context = read(PAUSED);
    assert_eq!(context.id().to_string(), "01999c2e-5c00-7000-8000-00000000c0de");
    assert_eq!(
        (context.status(), context.revision(), context.definition()),
        (Status::Paused, 4, 2)
    );
    assert_eq!(context.state().unwrap().get("status"), Some(&json!("draft")));
    assert_eq!(context.delta().get("status"), Some(&json!("published")));
    assert_eq!(context.metadata(), Some(&json!({"job": 7})));
    let left: Vec<_> = context.remaining_actions().iter().map(|name| &**name).collect();
    assert_eq!((left, context.next_index()), (vec!["notify", "merge_delta"], 2));
    assert_eq!(context.gate_evaluations().len(), 2);
    assert_eq!(context.action_executions()[0].action.as_ref(), "ask");
    assert_eq!(context.action_skips()[0].index, 1);
    let paused = context.paused().unwrap();
    assert_eq!(paused.signal.as_deref(), Some("approved"));
    assert_eq!(paused.timeout.unwrap().then, OnTimeout::Stop);
    let lock = context.lock_state();
    assert_eq!((lock.key.as_deref(), lock.fence.unwrap().get()), (Some("flow:entity:ORD-1"), 41));
}

#[test]
fn f06_other_contexts_of_version_1_are_read() {
    let running = read(RUNNING);
    assert_eq!((running.status(), running.remaining_actions().len()), (Status::Running, 1));
    assert!(matches!(running.woken(), Some(Woken::Signal { name, .. }) if name == "approved"));
    let pending = read(PENDING);
    assert_eq!((pending.status(), pending.remaining_actions().len()), (Status::Pending, 0));
    let failed = read(FAILED);
    assert_eq!(failed.failure().unwrap().code, "action_failed");
}

#[test]
fn f06_what_is_written_today_is_what_was_written_then() {
    for text in [PAUSED, RUNNING, PENDING, FAILED] {
        let written: Value = serde_json::from_str(&read(text).to_json().unwrap()).unwrap();
        let before: Value = serde_json::from_str(text).unwrap();
        assert_eq!(written, before, "a change of the form needs a new version beside this one");
    }
    assert_eq!(CONTEXT_FORMAT, 1, "a new version needs files of its own here");
}

#[tokio::test]
async fn f06_a_context_of_version_1_goes_on() {
    // Its lock is long gone, so it is recovered.
    let machine = machine();
    let context = machine.read_context(PAUSED).unwrap();
    let mut worker = machine.from_context(context).unwrap();
    assert_eq!(worker.execute().await.unwrap_err().code(), "lock_lost");
    let done = worker
        .execute_or_reacquire(|context| async move {
            Ok(latchwork_flow::Reloaded::GoOn(context.state().unwrap().clone()))
        })
        .await
        .unwrap();
    assert!(done.is_completed());
    assert_eq!(done.state().unwrap().get("status"), Some(&json!("published")));
}

#[tokio::test]
async fn f06_a_pause_writes_what_the_files_show() {
    // The fields of the files are those that are really written.
    let machine = StateMachine::<JsonState>::builder("publish")
        .locks(Locks::new(InMemoryLockProvider::new()), EntityKey::new())
        .gate_fn("open", |_, _| latchwork_flow::GateResult::Allow)
        .action_fn("ask", |_| async {
            let hour = std::time::Duration::from_secs(3_600);
            let pause = Pause::new().on_signal("approved").timeout(hour, OnTimeout::Stop);
            Ok(ActionResult::pause(pause).metadata(json!({"job": 7})))
        })
        .build()
        .unwrap();
    let state = JsonState::new(json!({"id": "ORD-1"})).unwrap();
    let paused = machine.transition(state, Default::default()).execute().await.unwrap();
    let written: Value = serde_json::from_str(&paused.to_json().unwrap()).unwrap();
    let before: Value = serde_json::from_str(PAUSED).unwrap();
    let fields = |value: &Value| -> Vec<String> {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect()
    };
    assert_eq!(fields(&written), fields(&before));
    for field in ["lease", "paused"] {
        assert_eq!(fields(&written[field]), fields(&before[field]), "{field}");
    }
    for field in ["gates", "actions"] {
        assert!(fields(&before[field][0]).iter().all(|name| {
            fields(&written[field][0]).contains(name) || ["action", "message"].contains(&&**name)
        }));
    }
}

/// A later definition: the total is in cents, `notify` is named otherwise, and nothing is merged.
fn migrating() -> StateMachine<JsonState> {
    StateMachine::builder("publish")
        .definition(4)
        .locks(Locks::new(InMemoryLockProvider::new()), EntityKey::new())
        .migrate(|older| {
            if older.definition < 4 {
                let state = older.state.as_mut().ok_or("there is no state")?;
                let total = state["total"].take().as_f64().ok_or("it has no total")?;
                state["cents"] = json!((total * 100.0).round());
                state.as_object_mut().ok_or("it is no object")?.remove("total");
                older.delta["by"] = json!("migration");
                let left = older.remaining.as_mut().ok_or("it has not begun")?;
                left.retain(|name| name != "merge_delta");
                left.iter_mut()
                    .filter(|name| *name == "notify")
                    .for_each(|name| *name = "tell".into());
            }
            Ok(())
        })
        .action_fn("tell", |_| async { Ok(ActionResult::proceed()) })
        .build()
        .unwrap()
}

#[test]
fn f06_an_older_definition_is_migrated() {
    let migrated = migrating().read_context(PAUSED).unwrap();
    assert_eq!((migrated.definition(), migrated.next_index()), (4, 2));
    let written: Value = serde_json::from_str(&migrated.to_json().unwrap()).unwrap();
    assert_eq!(written, serde_json::from_str::<Value>(MIGRATED).unwrap());
    // Once is enough: what was migrated is read as it is.
    let again = migrating().read_context(MIGRATED).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&again.to_json().unwrap()).unwrap(), written);
    // Older programs do not go on with it, and what is over is left as it was.
    assert_eq!(machine().read_context(MIGRATED).unwrap_err().code(), "newer_context");
    assert_eq!(migrating().read_context(FAILED).unwrap().definition(), read(FAILED).definition());
}

#[test]
fn f06_a_migration_that_fails_says_why() {
    let error = migrating().read_context(RUNNING).unwrap_err();
    assert_eq!(error.code(), "migration_failed");
    assert!(error.to_string().contains("it has no total"), "{error}");
}

#[test]
fn f06_a_wrong_field_is_named_and_no_value_is() {
    let damaged = |from: &str, to: &str| {
        let text = PAUSED.replace(from, to);
        assert_ne!(text, PAUSED);
        let told = machine().read_context(&text).unwrap_err().to_string();
        assert!(!told.contains("0123456789abcdef"), "{told}");
        told
    };
    let told = damaged("\"fence\": 41,", "");
    assert!(told.contains("\"lease.fence\" is missing"), "{told}");
    let told = damaged(
        "\"token\": \"0123456789abcdef0123456789abcdef\"",
        "\"token\": \"0123456789abcdef\"",
    );
    assert!(told.contains("\"lease.token\" has the wrong shape"), "{told}");
    let told = damaged("\"index\": 0", "\"index\": -1");
    assert!(told.contains("\"actions.index\""), "{told}");
}

/// Any place of a document, by its number among all.
fn place<'v>(value: &'v mut Value, number: &mut usize) -> Option<&'v mut Value> {
    if *number == 0 {
        return Some(value);
    }
    *number -= 1;
    match value {
        Value::Array(list) => list.iter_mut().find_map(|one| place(one, number)),
        Value::Object(map) => map.values_mut().find_map(|one| place(one, number)),
        _ => None,
    }
}

/// What may stand where something else belongs.
fn anything() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        Just(json!([])),
        Just(json!({"id": 1})),
    ]
}

fn stored() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![PAUSED, RUNNING, PENDING, FAILED])
}

/// The secret of the lock of [`PAUSED`].
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Read, or refused with a code of its own and without the secret of its lock.
fn told(text: &str) {
    if let Err(error) = machine().read_context(text) {
        assert!(!error.code().is_empty());
        assert!(!error.to_string().contains(SECRET), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn f06_any_text_is_a_context_or_an_error(text in "\\PC{0,60}") {
        told(&text);
    }

    #[test]
    fn f06_a_cut_context_is_an_error(text in stored(), at in any::<prop::sample::Index>()) {
        let end = at.index(text.trim_end().len() - 1);
        prop_assert!(machine().read_context(text.get(..end).unwrap_or_default()).is_err());
    }

    #[test]
    fn f06_a_damaged_context_is_told_or_read(
        text in stored(),
        at in 0_usize..80,
        instead in anything(),
    ) {
        let mut value: Value = serde_json::from_str(text).unwrap();
        let mut number = at;
        if let Some(found) = place(&mut value, &mut number) {
            *found = instead;
        }
        told(&value.to_string());
    }
}
