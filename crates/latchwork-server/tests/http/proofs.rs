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
