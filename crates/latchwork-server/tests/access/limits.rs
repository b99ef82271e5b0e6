//! A token's limits hold everywhere: each route is tried with another's objects.

use axum::body::Body;
use latchwork_server::{NewToken, Role};
use serde_json::{Value, json};

use crate::roles::routes;
use crate::support::{Fixture, request};

/// Stands in everything that is red, and nowhere else.
const MARK: &str = "only-for-red-eyes";

struct Red {
    order: String,
    item: String,
    lease: String,
    token: String,
}

/// A red order with everything that an order can have, made by callers without limits.
async fn red(f: &Fixture) -> Red {
    let root = f.plain("root", Role::Admin).await;
    let agent = f.plain(&format!("agent-{MARK}"), Role::Agent).await;
    let payload = json!({"texts": [MARK, MARK]});
    let body =
        json!({"type": "red", "payload": payload, "meta": {"mark": MARK}, "unique_key": MARK});
    let order = f.post("/v1/orders", &root, body).await.ok()["order"]["id"].clone();
    let order = order.as_str().expect("an id").to_owned();
    f.post(&format!("/v1/orders/{order}/comments"), &root, json!({"text": MARK})).await.ok();
    let got = f.post("/v1/items/checkout", &agent, json!({})).await.ok();
    let text = |value: &Value| value.as_str().expect("an id").to_owned();
    let (item, lease) = (text(&got["leases"][0]["item_id"]), text(&got["leases"][0]["id"]));
    let token = f.tokens.list(None, 100).await.expect("tokens").remove(0).id.to_string();
    f.work.seal().await.expect("sealed");
    Red { order, item, lease, token }
}

/// What a route may be sent; each is tried.
fn bodies(path: &str, red: &Red) -> Vec<Value> {
    let lease = json!({"lease": red.lease});
    let with = |name: &str, value: Value| {
        let mut body = lease.clone();
        body[name] = value;
        body
    };
    match path {
        "/v1/orders" => vec![json!({"type": "red", "payload": {"texts": ["x"]}})],
        "/v1/items/checkout" => {
            vec![json!({}), json!({"order": red.order}), json!({"types": ["red"]})]
        }
        "/v1/orders/plan" => vec![json!({"type": "red", "payload": {"texts": [MARK]}})],
        "/v1/orders/propose-many" => [true, false]
            .map(|all| {
                let order = json!({"type": "red", "payload": {"texts": ["x"]}});
                json!({"orders": [order], "all_or_none": all})
            })
            .to_vec(),
        "/v1/items/heartbeat" | "/v1/items/release" | "/v1/parts/finalize" => vec![lease],
        "/v1/items/submit" => vec![with("result", json!("x"))],
        "/v1/items/heartbeat-many" => vec![json!({"leases": [red.lease]})],
        "/v1/items/submit-many" => [true, false]
            .map(|all| json!({"submissions": [with("result", json!("x"))], "all_or_none": all}))
            .to_vec(),
        "/v1/parts" => vec![{
            let mut body = with("key", json!("x"));
            body["payload"] = json!("x");
            body
        }],
        "/v1/orders/{id}/approve" => vec![json!({"content_version": 1, "digest": "0".repeat(64)})],
        "/v1/orders/{id}/reject" => {
            vec![json!({"errors": [{"code": "x", "message": "x"}], "rework": true})]
        }
        "/v1/items/snooze" => vec![with("for_ms", json!(1_000))],
        "/v1/items/fail" => vec![with("code", json!("x")), {
            let mut body = with("code", json!("x"));
            body["message"] = json!("x");
            body
        }],
        _ => vec![json!({}), json!({"reason": "x"}), json!({"text": "x"}), lease],
    }
}

#[tokio::test]
async fn each_route_is_tried_with_the_objects_of_another() {
    for f in Fixture::each().await {
        let red = red(&f).await;
        // A role that may do everything: only the limits are in the way. Leases are for agents.
        let admin = f.limited("blue-admin", Role::Admin, "blue").await;
        let agent = f.limited("blue-agent", Role::Agent, "blue").await;
        let before = f.work.order(red.order.parse().expect("an id")).await.expect("there");
        for (method, path) in routes() {
            let id = match path.split('/').nth(2) {
                Some("items") => &red.item,
                Some("tokens") => &red.token,
                _ => &red.order,
            };
            let called = path.replace("{name}", "red").replace("{id}", id);
            let called = called.replace(['{', '}'], "");
            let mut sent = vec![Value::Null];
            if method != "GET" {
                sent = bodies(&path, &red);
            }
            for body in sent {
                for token in [&admin, &agent] {
                    let answer = f.call(&method, &called, token, body.clone()).await;
                    let told =
                        format!("{method} {called} {body}: {} {}", answer.status, answer.text);
                    assert!(answer.status.as_u16() < 500, "{told}");
                    // Of several in one, each is.
                    let refused = !answer.status.is_success()
                        || answer.body["outcomes"].as_array().is_some_and(|outcomes| {
                            outcomes.iter().all(|outcome| outcome["problem"].is_object())
                        });
                    for secret in [MARK, &red.order, &red.item, &red.lease] {
                        // What the caller sent itself may come back.
                        let own = called.contains(secret) || body.to_string().contains(secret);
                        assert!(own || !answer.text.contains(secret), "{told}");
                        assert!(!own || refused, "{told}");
                    }
                }
            }
        }
        let after = f.work.order(red.order.parse().expect("an id")).await.expect("there");
        assert_eq!((before.order, before.item_counts), (after.order, after.item_counts));
    }
}

#[tokio::test]
async fn an_object_outside_is_like_none_and_a_name_outside_is_forbidden() {
    for f in Fixture::each().await {
        let red = red(&f).await;
        let blue = f.limited("blue", Role::Admin, "blue").await;
        let nobody = "00000000-0000-0000-0000-000000000000";
        for path in ["/v1/orders/{}", "/v1/orders/{}/events", "/v1/events?order={}"] {
            let outside = f.get(&path.replace("{}", &red.order), &blue).await;
            outside.refused(404, "order_not_found");
            let none = f.get(&path.replace("{}", nobody), &blue).await;
            none.refused(404, "order_not_found");
            assert_eq!(
                outside.body["detail"].as_str().map(|text| text.replace(&red.order, "")),
                none.body["detail"].as_str().map(|text| text.replace(nobody, ""))
            );
        }
        f.get(&format!("/v1/items/{}", red.item), &blue).await.refused(404, "item_not_found");
        f.get("/v1/order-types/red", &blue).await.refused(404, "order_type_not_found");
        let body = json!({"type": "red", "payload": {"texts": ["x"]}});
        f.post("/v1/orders", &blue, body).await.refused(403, "forbidden");
        f.get("/v1/items?type=red", &blue).await.refused(403, "forbidden");
        f.get("/v1/events?type=blue,red", &blue).await.refused(403, "forbidden");
        f.get("/metrics", &blue).await.refused(403, "forbidden");
        // Nor does a refusal list the types of others.
        let green = f.limited("green", Role::Agent, "green").await;
        let body = json!({"type": "green", "payload": {"texts": ["x"]}});
        let answer = f.post("/v1/orders", &green, body).await;
        answer.refused(422, "order_type_not_found");
        assert!(
            !answer.text.contains("\"red\"") && !answer.text.contains("blue"),
            "{}",
            answer.text
        );
    }
}

#[tokio::test]
async fn lists_events_counts_and_agents_are_of_the_limits_only() {
    for f in Fixture::each().await {
        let root = f.plain("root", Role::Admin).await;
        for _ in 0..30 {
            f.propose(&root, "red").await;
        }
        let mine = f.propose(&root, "blue").await;
        f.propose(&root, "red").await;
        let (red_agent, blue_agent) =
            (f.plain("both", Role::Agent).await, f.limited("only", Role::Agent, "blue").await);
        f.post("/v1/items/checkout", &red_agent, json!({"types": ["red"]})).await.ok();
        let got = f.post("/v1/items/checkout", &blue_agent, json!({"limit": 10})).await.ok();
        assert_eq!(got["leases"].as_array().map(Vec::len), Some(1));
        assert_eq!(got["leases"][0]["order_id"], *mine);
        f.work.seal().await.expect("sealed");

        let blue = f.limited("blue", Role::Reader, "blue").await;
        // A page is full or the last one, although nearly everything is another's.
        let orders = f.get("/v1/orders?page[size]=2", &blue).await.ok();
        assert_eq!(orders["orders"].as_array().map(Vec::len), Some(1));
        assert!(orders["next"].is_null(), "{orders}");
        let items = f.get("/v1/items?page[size]=2", &blue).await.ok();
        assert_eq!(
            (items["items"].as_array().map(Vec::len), items["next"].is_null()),
            (Some(1), true)
        );
        let events = f.get("/v1/events?limit=100", &blue).await.ok();
        let of = |event: &Value| event["order_id"] == *mine;
        let list = events["events"].as_array().expect("events");
        assert!(!list.is_empty() && list.iter().all(of) && events["next"].is_null(), "{events}");
        let stats = f.get("/v1/stats", &blue).await.ok();
        assert!(!stats.to_string().contains("\"red\""), "{stats}");
        let agents = f.get("/v1/agents", &blue).await.ok();
        assert_eq!(agents["agents"].as_array().map(Vec::len), Some(1));
        assert_eq!(agents["agents"][0]["id"], "only");
        let types = f.get("/v1/order-types", &blue).await.ok();
        assert_eq!(types["order_types"].as_array().map(Vec::len), Some(1));

        // The stream, too: it ends with the server here, so all of it can be read.
        f.shutdown.begin();
        let stream = request("GET", "/v1/events")
            .header("authorization", format!("Bearer {blue}"))
            .header("accept", "text/event-stream");
        let stream = f.send(stream.body(Body::empty()).expect("a request")).await.text;
        let data = stream.lines().filter_map(|line| line.strip_prefix("data:"));
        let data: Vec<Value> = data.map(|text| serde_json::from_str(text).expect("JSON")).collect();
        assert!(data.len() == list.len() && data.iter().all(of), "{stream}");
    }
}

#[tokio::test]
async fn a_chain_of_reasons_ends_where_the_limits_do() {
    for f in Fixture::each().await {
        let root = f.plain("root", Role::Admin).await;
        let agent = f.plain(&format!("agent-{MARK}"), Role::Agent).await;
        let before = f.propose(&root, "first").await;
        let mine = f.propose(&root, "second").await;
        let first_of = async |order: &str| {
            let items = f.get(&format!("/v1/orders/{order}/items"), &root).await.ok();
            items["items"][0]["item"]["id"].as_str().expect("an id").to_owned()
        };
        let (item, other) = (first_of(&mine).await, first_of(&before).await);
        let all = f.get(&format!("/v1/explain/orders/{mine}"), &root).await.ok();
        assert!(
            all["reasons"][0]["code"] == "ordered" && all.to_string().contains(&other),
            "{all}"
        );
        let types = Some(vec!["second".to_owned()]);
        let reader = NewToken { types, ..NewToken::new("reader", Role::Reader) };
        let reader = f.token(reader).await.1;
        // What stands before it is queued at first, and leased then.
        for _ in 0..2 {
            for path in [format!("orders/{mine}"), format!("items/{item}")] {
                let told = f.get(&format!("/v1/explain/{path}"), &reader).await.ok();
                assert_eq!(told["reasons"].as_array().map(Vec::len), Some(1), "{told}");
                for secret in [MARK, &other, &before] {
                    assert!(!told.to_string().contains(secret), "{told}");
                }
            }
            f.post("/v1/items/checkout", &agent, json!({"types": ["first"]})).await.ok();
        }
    }
}

#[tokio::test]
async fn a_stored_answer_is_not_told_to_a_narrower_token_of_the_same_name() {
    for f in Fixture::each().await {
        let (wide, secret) = f.token(NewToken::new("bot", Role::Agent)).await;
        let send = async |path: &str, token: &str, body: Value| {
            let request = request("POST", path)
                .header("authorization", format!("Bearer {token}"))
                .header("content-type", "application/json")
                .header("idempotency-key", "k-1");
            f.send(request.body(Body::from(body.to_string())).expect("a request")).await
        };
        let proposal = json!({"type": "red", "payload": {"texts": [MARK]}});
        let order = send("/v1/orders", &secret, proposal.clone()).await.ok()["order"]["id"].clone();
        let order = order.as_str().expect("an id").to_owned();
        send("/v1/items/checkout", &secret, json!({})).await.ok();
        let comments = format!("/v1/orders/{order}/comments");
        send(&comments, &secret, json!({"text": MARK})).await.ok();
        f.tokens.revoke(wide.id).await.expect("revoked");

        let narrow = f.limited("bot", Role::Agent, "blue").await;
        send("/v1/orders", &narrow, proposal).await.refused(403, "forbidden");
        send(&comments, &narrow, json!({"text": MARK})).await.refused(404, "order_not_found");
        let answer = send("/v1/items/checkout", &narrow, json!({})).await;
        answer.refused(422, "idempotency_conflict");
        assert!(!answer.text.contains(MARK), "{}", answer.text);
    }
}

#[tokio::test]
async fn a_lease_is_over_for_a_narrower_token_of_the_same_name() {
    for f in Fixture::each().await {
        let root = f.plain("root", Role::Admin).await;
        let (wide, secret) = f.token(NewToken::new("bot", Role::Agent)).await;
        let send = async |path: &str, token: &str, body: &Value| {
            let request = request("POST", path)
                .header("authorization", format!("Bearer {token}"))
                .header("content-type", "application/json")
                .header("idempotency-key", "k-1");
            f.send(request.body(Body::from(body.to_string())).expect("a request")).await
        };
        let body = json!({"type": "red", "payload": {"texts": vec![MARK; 5]}});
        f.post("/v1/orders", &root, body).await.ok();
        let got = f.post("/v1/items/checkout", &secret, json!({"limit": 5})).await.ok();
        let lease = |n: usize| json!({"lease": got["leases"][n]["id"]});
        let with = |n: usize, more: Value| {
            let mut body = lease(n);
            body.as_object_mut().expect("one").extend(more.as_object().expect("one").clone());
            body
        };
        let result = json!({"result": "x"});
        let done = [
            ("/v1/items/submit", with(0, result.clone())),
            ("/v1/items/release", lease(1)),
            ("/v1/items/fail", with(2, json!({"code": "x", "message": "x"}))),
        ];
        for (path, body) in &done {
            send(path, &secret, body).await.ok();
        }
        f.tokens.revoke(wide.id).await.expect("revoked");
        let narrow = f.limited("bot", Role::Agent, "blue").await;
        // What was done with the key of before, and what could be done with leases that go on.
        for (path, body) in done {
            send(path, &narrow, &body).await.refused(409, "lease_expired");
        }
        for (path, body) in [
            ("heartbeat", lease(3)),
            ("submit", with(3, result.clone())),
            ("release", lease(3)),
            ("snooze", with(3, json!({"for_ms": 1_000}))),
            ("fail", with(3, json!({"code": "x", "message": "x"}))),
        ] {
            let answer = f.post(&format!("/v1/items/{path}"), &narrow, body).await;
            answer.refused(409, "lease_expired");
        }
        let part = with(3, json!({"key": "x", "payload": "x"}));
        f.post("/v1/parts", &narrow, part).await.refused(409, "lease_expired");
        f.post("/v1/parts/finalize", &narrow, lease(3)).await.refused(409, "lease_expired");
        let all = json!({"leases": [got["leases"][3]["id"]]});
        let beats = f.post("/v1/items/heartbeat-many", &narrow, all).await.ok();
        assert_eq!(beats["outcomes"][0]["problem"]["code"], "lease_expired", "{beats}");
        let all = json!({"submissions": [with(3, result.clone())]});
        let outcomes = f.post("/v1/items/submit-many", &narrow, all).await.ok();
        assert_eq!(outcomes["outcomes"][0]["problem"]["code"], "lease_expired", "{outcomes}");
        let item = format!("/v1/items/{}", got["leases"][3]["item_id"].as_str().expect("an id"));
        let item = f.get(&item, &root).await.ok();
        assert_eq!(item["item"]["state"], "leased", "nothing has happened to it");
    }
}

/// A plan is the operator's code: its keys are not the caller's words, so key prefixes do not limit them.
/// What the caller may do by itself with such a key they do limit.
#[tokio::test]
async fn key_prefixes_limit_what_a_caller_names_and_not_what_a_plan_does() {
    for f in Fixture::each().await {
        let limited = async |name: &str, role| {
            let types = Some(vec!["keyed".to_owned()]);
            let key_prefixes = Some(vec!["team-a/".to_owned()]);
            f.token(NewToken { types, key_prefixes, ..NewToken::new(name, role) }).await.1
        };
        let (ada, agent) =
            (limited("ada", Role::Operator).await, limited("bot", Role::Agent).await);
        let body = json!({"type": "keyed", "payload": {"texts": ["team-b/x", "team-b/x"]}});
        f.post("/v1/orders", &ada, body).await.ok();
        let got = f.post("/v1/items/checkout", &agent, json!({"limit": 2})).await.ok();
        assert_eq!(
            got["leases"].as_array().map(Vec::len),
            Some(1),
            "the plan's limit holds: {got}"
        );
        for path in ["/v1/locks/keys/team-b%2Fx", "/v1/explain/locks/team-b%2Fx"] {
            f.get(path, &ada).await.refused(403, "forbidden");
        }
        let lock = json!({"key": "team-b/x", "token": "0".repeat(32)});
        f.post("/v1/locks/acquire", &agent, lock).await.refused(403, "forbidden");
    }
}
