//! A server whose wall clock is set while leases are held.
//!
//! PostgreSQL, MariaDB and Redis judge leases by their own wall clock: a step ends them early or
//! keeps them for longer. That is a documented limit; what is promised is a warning.

use std::time::Duration;

use latchwork_lock::Refresh;
use libtest_mimic::Trial;

use crate::support::captured::Captured;
use crate::support::clock::WallClock;
use crate::support::server::OwnServer;
use crate::support::{Backend, TestDatabase, connect, eventually, secs, waiter, waiting};

/// A renewal whatever is left of the ttl.
const ALWAYS: Refresh = Refresh { ttl: None, threshold: Some(Duration::ZERO) };

/// For backends that judge leases by the wall clock of a server.
pub(crate) fn trials(backend: Backend) -> Vec<Trial> {
    // The name of the provider is its log's, that of the service `scripts/services`'.
    let (provider, service) = match backend.name {
        "postgres" => ("postgres", "postgres"),
        "mysql" => ("mysql", "mariadb"),
        "redis" => ("redis", "redis"),
        _ => return Vec::new(),
    };
    let test = move |_: TestDatabase| a_step_of_the_servers_clock_is_logged(provider, service);
    vec![backend.trial("a_step_of_the_servers_clock_is_logged", test)]
}

async fn a_step_of_the_servers_clock_is_logged(provider: &'static str, service: &'static str) {
    let log = Captured::warnings();
    let provider = format!("provider=\"{provider}\"");
    let warnings = || log.lines(&["the server's clock was set", &provider]);
    let clock = WallClock::new();
    let server = OwnServer::start_with(service, clock.environment());
    let (ours, theirs) = (connect(&server.address).await, connect(&server.address).await);

    // Each of the two clients hears the server's time by a renewal.
    let long = ours.lock("long").ttl(secs(200)).acquire().await.expect("free");
    long.refresh_with(ALWAYS).await.expect("held");
    let other = theirs.lock("other").ttl(secs(200)).acquire().await.expect("free");
    other.refresh_with(ALWAYS).await.expect("held");
    let short = ours.lock("short").ttl(secs(30)).acquire().await.expect("free");
    let waits = waiter(&theirs, "long");
    waiting(&ours, "long", 1).await;
    assert!(warnings().is_empty(), "{:?}", warnings());

    clock.step_by(60);
    // The client that only waits hears it when it looks after its waiters.
    eventually("a warning of the client that waits", async || !warnings().is_empty()).await;
    long.refresh_with(ALWAYS).await.expect("60 s are not its end");
    assert_eq!(warnings().len(), 2, "{:?}", warnings());
    assert!(warnings().iter().all(|line| line.contains("step=+")), "{:?}", warnings());
    // The limit of which the warning warns: the lease has ended in the middle of its ttl.
    let taken = theirs.lock("short").try_acquire().await.expect("an answer").expect("free");
    assert!(short.is_held() && taken.fence() > short.fence());

    // Each step is logged once by each client, and nothing else is.
    long.refresh_with(ALWAYS).await.expect("held");
    other.refresh_with(ALWAYS).await.expect("held");
    assert_eq!(warnings().len(), 2, "{:?}", warnings());
    clock.step_by(0);
    long.refresh_with(ALWAYS).await.expect("held");
    let back = || log.lines(&["the server's clock was set", &provider, "step=-"]).len();
    eventually("a warning of both", async || back() == 2).await;
    waits.abort();
}
