//! Limits to keys: each route of locks and flows is tried with a key of another.

use latchwork_flow::{ActionResult, Contexts, EntityKey, JsonState, Pause, StateMachine};
use latchwork_lock::Locks;
use latchwork_server::{NewToken, Role};
use serde_json::{Value, json};

use crate::support::Fixture;

/// Stands in what is red, and nowhere else.
const MARK: &str = "only-for-red-eyes";

fn token(number: u8) -> String {
    format!("{number:032x}")
}

#[tokio::test]
async fn locks_outside_of_the_limits_can_be_neither_seen_nor_used() {
    for f in Fixture::each().await {
        let root = f.plain("root", Role::Operator).await;
        let admin = f.limited("blue-admin", Role::Admin, "blue").await;
        let agent = f.limited("blue-agent", Role::Agent, "blue").await;
        let hold =
            |key: &str, number: u8| json!({"key": key, "token": token(number), "note": MARK});
        let held = f.post("/v1/locks/acquire", &root, hold("red/x", 1)).await.ok();
        f.post("/v1/locks/acquire", &agent, hold("blue/x", 2)).await.ok();
        let secrets = json!({"key": "red/x", "token": token(1)});
        let with = |name: &str, value: Value| {
            let mut body = secrets.clone();
            body[name] = value;
            body
        };
        for (path, body) in [
            ("acquire", with("wait_ms", json!(10))),
            ("wait", secrets.clone()),
            ("claim", secrets.clone()),
            ("renew", secrets.clone()),
            ("release", secrets.clone()),
            ("resume", with("new_token", json!(token(3)))),
            ("break", json!({"key": "red/x"})),
            ("check-fence", json!({"key": "red/x", "fence": 1})),
        ] {
            for caller in [&admin, &agent] {
                let answer = f.post(&format!("/v1/locks/{path}"), caller, body.clone()).await;
                answer.refused(403, "forbidden");
                assert!(!answer.text.contains(MARK), "{}", answer.text);
            }
        }
        for path in ["/v1/locks/keys/red%2Fx", "/v1/explain/locks/red%2Fx"] {
            f.get(path, &admin).await.refused(403, "forbidden");
        }
        let keys = async |path: &str| {
            let found = f.get(path, &admin).await.ok();
            let locks = found["locks"].as_array().expect("locks").clone();
            locks.into_iter().map(|lock| lock["key"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(keys("/v1/locks").await, ["blue/x"]);
        assert_eq!(keys("/v1/locks?prefix=b").await, ["blue/x"]);
        assert!(keys("/v1/locks?prefix=red").await.is_empty());
        let seen = f.get("/v1/locks/keys/red%2Fx", &root).await.ok();
        assert_eq!(seen["holders"][0]["fence"], held["fence"], "nothing has happened to it");
        assert_eq!(seen["waiters"], json!([]));
    }
}

/// A paused flow of an entity; its id.
async fn paused(f: &Fixture, entity: &str) -> String {
    let locks = Locks::connect(&f.url).await.expect("locks");
    let machine = StateMachine::<JsonState>::builder("publish")
        .locks(&locks, EntityKey::new())
        .store(Contexts::connect(&f.url).await.expect("flows"))
        .action_fn("ask", |_| async { Ok(ActionResult::pause(Pause::new().on_signal("go"))) })
        .build()
        .expect("a machine");
    let state = JsonState::new(json!({"id": entity})).expect("a state");
    let paused = machine.run(state, Default::default()).await.expect("it pauses");
    paused.id().to_string()
}

#[tokio::test]
async fn flows_outside_of_the_limits_are_like_none() {
    for f in Fixture::each().await {
        let root = f.plain("root", Role::Operator).await;
        // A flow counts by the key of its lock.
        let key_prefixes = Some(vec!["flow:entity:blue/".to_owned()]);
        let admin = NewToken { key_prefixes, ..NewToken::new("blue-admin", Role::Admin) };
        let admin = f.token(admin).await.1;
        let (red, blue) = (paused(&f, "red/1").await, paused(&f, "blue/1").await);
        let before = f.get(&format!("/v1/flows/{red}"), &root).await.ok();
        for (call, body) in [
            ("signal", json!({"name": "go"})),
            ("cancel", json!({"reason": "x"})),
            ("retry", json!({})),
            ("release", json!({})),
            ("wake", json!({})),
        ] {
            let answer = f.post(&format!("/v1/flows/{red}/{call}"), &admin, body).await;
            answer.refused(404, "context_not_found");
            assert!(!answer.text.contains("red/1"), "{}", answer.text);
        }
        for path in [format!("/v1/flows/{red}"), format!("/v1/explain/flows/{red}")] {
            f.get(&path, &admin).await.refused(404, "context_not_found");
        }
        let listed = f.get("/v1/flows", &admin).await.ok();
        assert_eq!(listed["flows"].as_array().map(Vec::len), Some(1));
        assert_eq!(listed["flows"][0]["id"], *blue);
        assert_eq!(f.get(&format!("/v1/flows/{red}"), &root).await.ok(), before);
        f.get(&format!("/v1/flows/{blue}"), &admin).await.ok();
    }
}
