//! A place in a queue outlives the server at which it was taken, and every cut connection.

use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::child::{Server, room};
use super::{millis, net, secs};

fn token(number: u8) -> String {
    format!("{number:032x}")
}

async fn call(port: u16, name: &str, agent: &str, body: Value) -> Value {
    let answered = net::post(port, &format!("/v1/locks/{name}"), agent, &body).await;
    let (status, told) = answered.expect("it answers");
    assert_eq!(status, 200, "{name}: {told}");
    told
}

/// Who waits for the key, in the order of the queue.
async fn queue(port: u16) -> Vec<String> {
    let (_, told) = net::get(port, "/v1/locks/keys/k").await.expect("it answers");
    let waiters = told["waiters"].as_array().expect("a list").iter();
    waiters.map(|waiter| waiter["note"].as_str().unwrap_or_default().to_owned()).collect()
}

async fn queued(port: u16, names: &[&str]) {
    let begun = Instant::now();
    loop {
        let found = queue(port).await;
        if found == names {
            return;
        }
        assert!(begun.elapsed() < secs(20), "{found:?} and not {names:?}");
        tokio::time::sleep(millis(20)).await;
    }
}

fn wait(number: u8, wait_ms: u64) -> Value {
    json!({"key": "k", "token": token(number), "wait_ms": wait_ms})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_outlives_the_server_at_which_it_was_taken() {
    let Some(url) = room().await else { return };
    let (one, other) = (Server::start(&url), Server::start(&url));
    let (a, b) = (one.port, other.port);
    let first = call(b, "acquire", "holder", json!({"key": "k", "token": token(1)})).await;
    let at_a =
        tokio::spawn(async move { net::post(a, "/v1/locks/wait", "w-2", &wait(2, 50_000)).await });
    queued(b, &["agent:w-2"]).await;
    let at_b =
        tokio::spawn(async move { net::post(b, "/v1/locks/wait", "w-3", &wait(3, 50_000)).await });
    queued(b, &["agent:w-2", "agent:w-3"]).await;

    one.signal(Signal::KILL);
    at_a.await.expect("no panic").expect_err("its server is dead");
    // It goes on at the other server, before the one that came after it.
    let at_a =
        tokio::spawn(async move { net::post(b, "/v1/locks/wait", "w-2", &wait(2, 50_000)).await });
    tokio::time::sleep(secs(8)).await; // by now nobody believes that the dead server lives
    assert_eq!(queue(b).await, ["agent:w-2", "agent:w-3"]);
    let released = call(b, "release", "holder", json!({"key": "k", "token": token(1)})).await;
    assert_eq!(released["released"], true);
    let (_, turn) = at_a.await.expect("no panic").expect("it answers");
    assert_eq!(turn["ready"], true);
    let second = call(b, "claim", "w-2", json!({"key": "k", "token": token(2)})).await;
    assert!(!at_b.is_finished(), "two at once");
    call(b, "release", "w-2", json!({"key": "k", "token": token(2)})).await;
    let (_, turn) = at_b.await.expect("no panic").expect("it answers");
    assert_eq!(turn["ready"], true);
    let third = call(b, "claim", "w-3", json!({"key": "k", "token": token(3)})).await;
    let fences: Vec<_> = [&first, &second, &third].map(|held| held["fence"].as_u64()).into();
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    other.end(Signal::TERM);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_comes_while_a_server_dies_is_claimed_at_another() {
    let Some(url) = room().await else { return };
    let (one, other) = (Server::start(&url), Server::start(&url));
    let (a, b) = (one.port, other.port);
    call(b, "acquire", "holder", json!({"key": "k", "token": token(1)})).await;
    let at_a =
        tokio::spawn(async move { net::post(a, "/v1/locks/wait", "w-2", &wait(2, 50_000)).await });
    queued(b, &["agent:w-2"]).await;
    // Stopped, it cannot tell its client of the turn that it gets; then it is killed.
    one.signal(Signal::STOP);
    call(b, "release", "holder", json!({"key": "k", "token": token(1)})).await;
    one.signal(Signal::KILL);
    at_a.await.expect("no panic").expect_err("its server is dead");
    let turn = call(b, "wait", "w-2", wait(2, 10_000)).await;
    assert_eq!(turn["ready"], true);
    call(b, "claim", "w-2", json!({"key": "k", "token": token(2)})).await;
    other.end(Signal::TERM);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_releases_nothing() {
    let Some(url) = room().await else { return };
    let server = Server::start(&url);
    let port = server.port;
    let held = call(port, "acquire", "holder", json!({"key": "k", "token": token(1)})).await;
    let actor = "latchwork-actor: agent:w-2\r\n";
    let body = wait(2, 50_000).to_string();
    let poll = net::send(port, "POST", "/v1/locks/wait", actor, &body).await.expect("sent");
    queued(port, &["agent:w-2"]).await;
    call(port, "wait", "w-3", wait(3, 0)).await;
    drop(poll);
    // Requests are cut off at any moment; whatever became of them, the lease and the places stay.
    for _ in 0..30 {
        let body = json!({"key": "k", "token": token(1)}).to_string();
        let actor = "latchwork-actor: agent:holder\r\n";
        drop(net::send(port, "POST", "/v1/locks/acquire", actor, &body).await.expect("sent"));
    }
    tokio::time::sleep(secs(1)).await;
    assert_eq!(queue(port).await, ["agent:w-2", "agent:w-3"]);
    let again = call(port, "acquire", "holder", json!({"key": "k", "token": token(1)})).await;
    assert_eq!(again["fence"], held["fence"]);
    call(port, "release", "holder", json!({"key": "k", "token": token(1)})).await;
    assert_eq!(call(port, "wait", "w-2", wait(2, 10_000)).await["ready"], true);
    server.end(Signal::TERM);
}
