//! F6 A context travels as text, and is refused where it does not belong, untouched.

use latchwork_flow::store::{ContextDraft, ContextStore};
use latchwork_flow::{
    ActionResult, Contexts, FlowRunner, Pause, StateMachine, StateMachineBuilder, Status,
    TransitionContext,
};
use serde_json::{Value, json};

use super::Fixture;
use super::case::cases;
use super::machine_fixture::{MachineFixture, Order, draft, publish};

cases![
    f06_a_paused_context_travels_as_text,
    f06_the_secret_is_in_the_stored_form_and_nowhere_else,
    f06_an_unknown_action_is_named,
    f06_another_machines_context_is_refused,
    f06_a_newer_context_is_refused,
    f06_an_older_context_is_read,
    f06_a_truncated_context_is_refused,
    f06_a_corrupt_context_is_refused,
    f06_a_state_or_delta_of_the_wrong_shape_is_refused,
    f06_what_cannot_be_read_is_left_as_it_was,
    f06_nobody_resumes_what_is_over,
    f06_an_older_definition_is_migrated_and_goes_on,
    f06_what_cannot_be_migrated_is_quarantined,
];

fn waiting(fixture: &MachineFixture, builder: StateMachineBuilder<Order>) -> StateMachine<Order> {
    builder
        .definition(2)
        .action_fn("wait", |at| async move {
            let state = Order { note: "waiting".into(), ..at.state().clone() };
            Ok(ActionResult::pause(Pause::new().on_signal("go")).state(state))
        })
        .action(fixture.noting("after"))
        .build()
        .expect("a machine")
}

/// A paused context of a machine without a store, as text.
async fn paused(fixture: &MachineFixture) -> (StateMachine<Order>, String) {
    let machine = waiting(fixture, fixture.plain());
    let paused = machine.transition(draft(), publish()).execute().await.expect("no error");
    assert!(paused.is_paused());
    (machine, paused.to_json().expect("it serialises"))
}

fn refused(machine: &StateMachine<Order>, json: &str) -> latchwork_flow::Error {
    machine.read_context(json).expect_err("it must be refused")
}

/// The text with one field changed.
fn with(json: &str, field: &str, value: Value) -> String {
    let mut context: Value = serde_json::from_str(json).expect("it is JSON");
    context[field] = value;
    context.to_string()
}

async fn f06_a_paused_context_travels_as_text(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (_, json) = paused(&fixture).await;
    // Another process: a machine built anew, from the same parts.
    let machine = waiting(&fixture, fixture.plain());
    let context = machine.read_context(&json).expect("its own");
    assert_eq!((context.definition(), &*context.state().expect("a state").note), (2, "waiting"));
    assert_eq!(context.remaining_actions(), [std::sync::Arc::from("after")]);
    assert!(context.lock_state().is_locked());
    assert_eq!(context.to_json().expect("it serialises"), json, "nothing is lost on the way");
    let mut worker = machine.from_context(context).expect("its own");
    let done = worker.execute().await.expect("its lock is kept");
    assert!(done.is_completed());
    assert_eq!(fixture.ran(), ["after"]);
    assert!(!fixture.is_locked().await);
    let numbers: Vec<_> = fixture.events().iter().map(|event| event.sequence).collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>(), "also over the pause");
}

async fn f06_the_secret_is_in_the_stored_form_and_nowhere_else(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (machine, json) = paused(&fixture).await;
    let stored: Value = serde_json::from_str(&json).expect("it is JSON");
    let token = stored["lease"]["token"].as_str().expect("the lease is in it").to_owned();
    let context = machine.read_context(&json).expect("its own");
    let summary = serde_json::to_string(&context.summary()).expect("it serialises");
    let shown = format!("{context:?} {summary} {:?}", context.lock_state());
    let worker = machine.from_context(context).expect("its own");
    let shown = format!("{shown} {worker:?} {:?}", fixture.events());
    assert!(!shown.contains(&token), "{shown}");
    assert!(shown.contains(super::machine_fixture::KEY), "what is locked is no secret");
    // A broken lease is not quoted.
    let broken = json.replace(&token, &format!("{}!", &token[..31]));
    let said = refused(&machine, &broken).to_string();
    assert!(!said.contains(&token[..16]), "{said}");
}

async fn f06_an_unknown_action_is_named(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (_, json) = paused(&fixture).await;
    let other = fixture.plain().definition(2).action(fixture.noting("other")).build();
    let error = refused(&other.expect("a machine"), &json);
    assert_eq!(error.code(), "unknown_step");
    assert!(error.to_string().contains("after") && error.to_string().contains("other"), "{error}");
}

async fn f06_another_machines_context_is_refused(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (_, json) = paused(&fixture).await;
    let other = waiting(&fixture, StateMachine::builder("stranger"));
    let error = refused(&other, &json);
    assert_eq!(error.code(), "foreign_context");
    assert!(error.to_string().contains("stranger") && error.to_string().contains(f.machine()));
    let own: TransitionContext<Order> =
        waiting(&fixture, fixture.plain()).read_context(&json).expect("its own");
    assert_eq!(other.from_context(own).expect_err("not its own").code(), "foreign_context");
}

async fn f06_a_newer_context_is_refused(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (machine, json) = paused(&fixture).await;
    let error = refused(&machine, &with(&json, "format", json!(2)));
    assert_eq!(error.code(), "newer_context");
    assert!(error.to_string().contains("format version 2"), "{error}");
    let error = refused(&machine, &with(&json, "definition", json!(3)));
    assert_eq!(error.code(), "newer_context");
    assert!(error.to_string().contains("definition version 3"), "{error}");
}

async fn f06_an_older_context_is_read(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (machine, json) = paused(&fixture).await;
    let context = machine.read_context(&with(&json, "definition", json!(1))).expect("older");
    assert_eq!(context.definition(), 1);
    machine.read_context(&with(&json, "field_of_tomorrow", json!([1]))).expect("it is passed over");
}

async fn f06_a_truncated_context_is_refused(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (machine, json) = paused(&fixture).await;
    for cut in [0, 1, 20, json.len() / 2, json.len() - 1] {
        let error = refused(&machine, &json[..cut]);
        assert_eq!(error.code(), "corrupt_context", "{cut}: {error}");
    }
}

async fn f06_a_corrupt_context_is_refused(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (machine, json) = paused(&fixture).await;
    for (field, value) in [
        ("id", json!("no id")),
        ("status", json!("lost")),
        ("revision", json!(-1)),
        ("remaining", json!(7)),
        ("lease", json!({"key": "k"})),
        ("paused", json!([])),
        ("machine", json!(null)),
        ("format", json!("one")),
    ] {
        let error = refused(&machine, &with(&json, field, value));
        assert_eq!(error.code(), "corrupt_context", "{field}: {error}");
    }
    for text in ["null", "[]", "{}", "7", "\u{0}", "{\"format\":1"] {
        assert_eq!(refused(&machine, text).code(), "corrupt_context", "{text:?}");
    }
}

async fn f06_a_state_or_delta_of_the_wrong_shape_is_refused(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let (machine, json) = paused(&fixture).await;
    let error = refused(&machine, &with(&json, "state", json!({"id": 7})));
    assert_eq!(error.code(), "invalid_state");
    let error = refused(&machine, &with(&json, "delta", json!({"status": [1]})));
    assert_eq!(error.code(), "invalid_delta");
}

async fn f06_what_cannot_be_read_is_left_as_it_was(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = waiting(&fixture, fixture.stored());
    let paused = machine.transition(draft(), publish()).execute().await.expect("no error");
    let before = Contexts::load(&fixture.store, paused.id()).await.expect("it is stored");
    let other = fixture.stored().definition(2).action(fixture.noting("other")).build();
    let other = other.expect("a machine");
    let error = other.resume(paused.id()).await.expect_err("it lacks an action");
    assert_eq!(error.code(), "unknown_step");
    let older = fixture.stored().action(fixture.noting("after")).build().expect("a machine");
    assert_eq!(older.resume(paused.id()).await.expect_err("older").code(), "newer_context");
    assert_eq!(Contexts::load(&fixture.store, paused.id()).await.expect("still stored"), before);
    assert!(fixture.is_locked().await, "its lock is kept");
    // And what is no context at all.
    let corrupt = ContextDraft { body: "{".into(), ..f.draft(latchwork_flow::Status::Paused) };
    fixture.store.create(&corrupt, None).await.expect("it is new");
    let error = machine.resume(corrupt.id).await.expect_err("cut off");
    assert_eq!(error.code(), "corrupt_context");
    machine.resume(paused.id()).await.expect("its own").execute().await.expect("nothing was lost");
}

async fn f06_nobody_resumes_what_is_over(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let machine = fixture.stored().action(fixture.noting("a")).build().expect("a machine");
    let done = machine.transition(draft(), publish()).execute().await.expect("no error");
    assert_eq!(machine.resume(done.id()).await.expect_err("over").code(), "transition_over");
    let json = done.to_json().expect("it serialises");
    let read = machine.read_context(&json).expect("it can be looked at");
    assert_eq!(machine.from_context(read).expect_err("over").code(), "transition_over");
}

async fn f06_an_older_definition_is_migrated_and_goes_on(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let old = waiting(&fixture, fixture.stored());
    let id = old.run(draft(), publish()).await.expect("no error").id();
    let new = fixture.stored().definition(3).migrate(|older| {
        older.state.as_mut().ok_or("it was loaded")?["note"] = json!("migrated");
        older.remaining = Some(vec!["first".to_owned(), "second".to_owned()]);
        Ok(())
    });
    let new = new.action(fixture.noting("first")).action(fixture.noting("second"));
    let new = new.build().expect("a machine");
    let done = new.resume(id).await.expect("it is read").execute().await.expect("no error");
    assert!(done.is_completed());
    assert_eq!(fixture.ran(), ["first", "second"]);
    assert_eq!(done.state().map(|state| state.note.as_str()), Some("migrated"));
    let row = Contexts::load(&fixture.store, id).await.expect("it is stored");
    assert_eq!(refused(&old, &row.body).code(), "newer_context");
}

async fn f06_what_cannot_be_migrated_is_quarantined(f: Fixture) {
    let fixture = MachineFixture::new(&f).await;
    let old = waiting(&fixture, fixture.stored());
    let id = old.run(draft(), publish()).await.expect("no error").id();
    fixture.store.signal(id, "go", json!(null)).await.expect("it waits");
    let new = fixture.stored().definition(3).migrate(|_| Err("nobody knows how".into()));
    let new = new.action(fixture.noting("after")).build().expect("a machine");
    let millis = std::time::Duration::from_millis;
    let runner = FlowRunner::new(&new).expect("a store").max_attempts(2).retry(millis(1));
    let runner = runner.tick(millis(5)).start();
    for _ in 0..2_000 {
        let shown = fixture.store.show(id).await.expect("it is stored");
        if shown.status == Status::Quarantined {
            assert!(shown.last_error.expect("it is said").contains("nobody knows how"));
            runner.stop().await.expect("it did well");
            assert!(fixture.ran().is_empty());
            return;
        }
        f.pass(millis(5)).await;
        tokio::time::sleep(millis(2)).await;
    }
    panic!("it is tried for ever");
}
