//! Stored flows over HTTP: shown, signalled, woken, called off, and run by their own program.

use latchwork_flow::{ActionResult, EntityKey, JsonState, MergeDelta, Pause, StateMachine};
use serde_json::{Value, json};

use crate::support::Fixture;

/// A machine that pauses until it is told that it is approved.
pub(crate) fn publish(f: &Fixture) -> StateMachine<JsonState> {
    StateMachine::<JsonState>::builder("publish")
        .locks(&f.locks, EntityKey::new())
        .store(f.flows.clone())
        .action_fn("ask", |_| async { Ok(ActionResult::pause(Pause::new().on_signal("approved"))) })
        .action_fn("fail", |_| async { Err("not yet".into()) })
        .action(MergeDelta)
        .build()
        .expect("a machine")
}

/// A paused flow of an entity.
pub(crate) async fn paused(f: &Fixture, entity: &str) -> String {
    let order = JsonState::new(json!({"id": entity, "status": "draft"})).expect("a state");
    let delta = JsonState::delta(json!({"status": "published"})).expect("a delta");
    let paused = publish(f).run(order, delta).await.expect("it pauses");
    assert!(paused.is_paused());
    paused.id().to_string()
}

#[tokio::test]
async fn a_flow_is_shown_signalled_and_called_off_and_never_shows_its_secret() {
    let f = Fixture::new().await;
    let (one, other) = (paused(&f, "ORD-1").await, paused(&f, "ORD-2").await);
    let listed = f.get("/v1/flows?machine=publish&status=paused").await.ok();
    assert_eq!(listed["flows"].as_array().map(Vec::len), Some(2));
    assert_eq!(f.get("/v1/flows?machine=other").await.ok()["flows"], json!([]));
    let page = f.get("/v1/flows?limit=1").await;
    assert!(page.header("link").contains("rel=\"next\""), "{}", page.header("link"));

    let path = format!("/v1/flows/{one}");
    let shown = f.get(&path).await.ok();
    assert_eq!((&shown["status"], &shown["next_action"]), (&json!("paused"), &json!("fail")));
    assert_eq!(shown["waiting_for"][0]["code"], "signal");
    let stored = latchwork_flow::store::ContextStore::load(&f.flows, one.parse().expect("an id"));
    let stored = stored.await.expect("it answers").expect("it is there");
    let body: Value = serde_json::from_str(&stored.body).expect("JSON");
    let secret = token_in(&body).expect("the stored form has it");
    assert!(!shown.to_string().contains(&secret) && !listed.to_string().contains(&secret));

    let signal = json!({"name": "approved", "payload": {"by": "ana"}});
    let signalled = f.post(&format!("{path}/signal"), signal).await.ok();
    assert_eq!(signalled["waiting_for"][0]["code"], "runner", "{signalled}");
    f.post(&format!("{path}/signal"), json!({"name": ""})).await.refused(400, "invalid_argument");
    f.post(&format!("{path}/release"), Value::Null).await.refused(409, "context_conflict");
    let woken = f.post(&format!("/v1/flows/{other}/wake"), Value::Null).await.ok();
    assert_eq!(woken["waiting_for"][0]["code"], "runner", "{woken}");
    let off = f.post(&format!("/v1/flows/{other}/cancel"), json!({"reason": "enough"})).await.ok();
    assert_eq!((&off["done"], &off["flow"]["status"]), (&json!(true), &json!("cancelled")));
    f.post(&format!("/v1/flows/{other}/signal"), json!({"name": "approved"}))
        .await
        .refused(409, "transition_over");

    // Its own program runs it into an error; it is let go on over HTTP.
    let mut resumed = publish(&f).resume(one.parse().expect("an id")).await.expect("resumed");
    resumed.execute().await.expect_err("it fails");
    assert_eq!(f.get(&path).await.ok()["failure"]["code"], "action_failed");
    let retried = f.post(&format!("{path}/retry"), Value::Null).await.ok();
    assert_eq!(retried["waiting_for"][0]["code"], "runner", "{retried}");

    f.get("/v1/flows/00000000-0000-0000-0000-000000000000").await.refused(404, "context_not_found");
    f.get("/v1/flows/x").await.refused(400, "invalid_argument");
    f.get("/v1/flows?status=x").await.refused(400, "unknown_name");
    f.get("/v1/flows?view=x").await.refused(400, "unknown_name");
}

/// The first token in a stored context.
fn token_in(value: &Value) -> Option<String> {
    match value {
        Value::Object(map) => map.iter().find_map(|(name, value)| match value {
            Value::String(text) if name == "token" => Some(text.clone()),
            _ => token_in(value),
        }),
        Value::Array(values) => values.iter().find_map(token_in),
        _ => None,
    }
}
