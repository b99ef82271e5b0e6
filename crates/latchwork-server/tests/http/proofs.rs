//! Two servers on one PostgreSQL, as real processes: killed, restarted, and with the database restarted
//! under them.
//!
//! Without a PostgreSQL the proofs say that they are skipped, and fail where `CI` is set.

mod child;
mod ending;
mod load;
mod net;
mod places;

use std::time::Duration;

use latchwork_contract::own_server::OwnServer;
use rustix::process::Signal;

use self::child::{Server, room};
use self::load::Load;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A server is killed in the middle of everything; the other one goes on with all of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_nothing_and_does_nothing_twice() {
    let Some(url) = room().await else { return };
    let (one, other) = (Server::start(&url), Server::start(&url));
    let load = Load::begin(&[one.port, other.port]).await;
    load.submitted(20).await;
    one.signal(Signal::KILL);
    load.finish(other.port, &url).await;
    other.end(Signal::TERM);
}

/// Each server is replaced in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_loses_nothing_and_does_nothing_twice() {
    let Some(url) = room().await else { return };
    let (one, other) = (Server::start(&url), Server::start(&url));
    let load = Load::begin(&[one.port, other.port]).await;
    load.submitted(10).await;
    one.end(Signal::TERM);
    let next = Server::start(&url);
    load.add(next.port);
    load.submitted(25).await;
    other.end(Signal::TERM);
    load.finish(next.port, &url).await;
    next.end(Signal::TERM);
}

/// The database itself is restarted; the servers wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_database_loses_nothing_and_does_nothing_twice() {
    if room().await.is_none() {
        return;
    }
    let mut database = OwnServer::start("postgres");
    let url = database.address.clone();
    let (one, other) = (Server::start(&url), Server::start(&url));
    let load = Load::begin(&[one.port, other.port]).await;
    load.submitted(15).await;
    database.end(Signal::INT);
    database.up();
    load.finish(other.port, &url).await;
    one.end(Signal::TERM);
    other.end(Signal::TERM);
}

/// While the database is away, callers are told when to come back; then everything goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_database_is_away_callers_are_told_when_to_come_back() {
    if room().await.is_none() {
        return;
    }
    let mut database = OwnServer::start("postgres");
    let server = Server::start(&database.address);
    let order = r#"{"type":"job","payload":{"items":1}}"#;
    database.end(Signal::INT);
    let calls = [
        ("GET", "/readyz", ""),
        ("GET", "/v1/orders", ""),
        ("POST", "/v1/orders", order),
        ("GET", "/v1/locks", ""),
        ("GET", "/v1/flows", ""),
    ];
    for (method, path, body) in calls {
        let sent = net::send(server.port, method, path, "", body).await.expect("it listens");
        let (status, head, body) = net::whole(sent).await.expect("a whole answer");
        assert_eq!(status, 503, "{path}: {body}");
        assert!(head.contains("retry-after: 1"), "{path}: {head}");
    }
    let (status, _) = net::get(server.port, "/healthz").await.expect("it answers");
    assert_eq!(status, 200, "it need not be restarted");
    database.up();
    let order = serde_json::from_str(order).expect("JSON");
    let goes_on = async {
        while !matches!(net::post(server.port, "/v1/orders", "ada", &order).await, Ok((201, _))) {
            tokio::time::sleep(millis(50)).await;
        }
    };
    tokio::time::timeout(secs(30), goes_on).await.expect("it goes on");
    server.end(Signal::TERM);
}
