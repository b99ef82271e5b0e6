//! Kills, stops, breaks and dropped futures over the providers of this crate, for some seconds
//! each; see `latchwork_contract::torture` for how to run it longer.
#![cfg(target_os = "linux")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what went wrong by panicking")]
#![allow(clippy::print_stdout, reason = "the seed, and what was done, are for whoever looks")]

use latchwork_contract::torture::{self, Torture};
use latchwork_lock::{InMemoryLockProvider, Locks};

/// Not a test of its own: what the worker processes run.
#[test]
fn worker() {
    torture::worker();
}

/// No other process sees these locks, so there are tasks only.
#[test]
fn memory() {
    let torture = Torture::at("memory:");
    println!("{torture}");
    let locks = Locks::new(InMemoryLockProvider::new());
    println!("{:?}", torture::run_here(&locks, torture));
}

#[cfg(feature = "file")]
#[test]
fn file() {
    // Where syncing costs nothing, edits are many more, and the disk's other users do not matter.
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let directory = directory.expect("a temporary directory");
    processes(&format!("file://{}", directory.path().display()));
}

#[cfg(feature = "sqlite")]
#[test]
fn sqlite() {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let directory = directory.expect("a temporary directory");
    processes(&format!("sqlite://{}/locks.db", directory.path().display()));
}

#[cfg(feature = "postgres")]
#[test]
fn postgres() {
    server("LATCHWORK_TEST_POSTGRES", "postgres", |_| {});
}

#[cfg(feature = "redis")]
#[test]
fn redis() {
    server("LATCHWORK_TEST_REDIS", "redis", |_| {});
}

/// A missing server is named on a laptop, and a failure in CI.
#[cfg(any(feature = "postgres", feature = "redis", feature = "mysql", feature = "etcd"))]
fn server(variable: &str, service: &str, adjust: impl FnOnce(&mut Torture)) {
    match std::env::var(variable) {
        Ok(url) => {
            let mut torture = Torture::at(&url);
            adjust(&mut torture);
            tortured(torture);
        }
        Err(_) if std::env::var_os("CI").is_none() => {
            println!("skipped: no server; `scripts/services up {service}` starts one");
        }
        Err(_) => panic!("no server: {variable} is not set"),
    }
}

/// Its leases count in seconds, so a key stays long with the killed.
#[cfg(feature = "etcd")]
#[test]
fn etcd() {
    server("LATCHWORK_TEST_ETCD", "etcd", |torture| torture.keys *= 2);
}

#[cfg(feature = "mysql")]
#[test]
fn mysql() {
    server("LATCHWORK_TEST_MARIADB", "mariadb", |_| {});
}

#[cfg(any(feature = "file", feature = "sqlite"))]
fn processes(url: &str) {
    tortured(Torture::at(url));
}

fn tortured(torture: Torture) {
    println!("{torture}");
    println!("{:?}", torture::run(torture));
}
