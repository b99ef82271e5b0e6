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

/// A missing server is named on a laptop, and a failure in CI.
#[cfg(feature = "postgres")]
#[test]
fn postgres() {
    match std::env::var("LATCHWORK_TEST_POSTGRES") {
        Ok(url) => processes(&url),
        Err(_) if std::env::var_os("CI").is_none() => {
            println!("skipped: no server; `scripts/services up postgres` starts one");
        }
        Err(_) => panic!("no server: LATCHWORK_TEST_POSTGRES is not set"),
    }
}

/// The same.
#[cfg(feature = "mysql")]
#[test]
fn mysql() {
    match std::env::var("LATCHWORK_TEST_MARIADB") {
        Ok(url) => processes(&url),
        Err(_) if std::env::var_os("CI").is_none() => {
            println!("skipped: no server; `scripts/services up mariadb` starts one");
        }
        Err(_) => panic!("no server: LATCHWORK_TEST_MARIADB is not set"),
    }
}

/// A missing server is named on a laptop, and a failure in CI.
#[cfg(feature = "etcd")]
#[test]
fn etcd() {
    match std::env::var("LATCHWORK_TEST_ETCD") {
        Ok(url) => {
            let mut torture = Torture::at(&url);
            // Its leases count in seconds, so a key stays long with the killed.
            torture.keys *= 2;
            println!("{torture}");
            println!("{:?}", torture::run(torture));
        }
        Err(_) if std::env::var_os("CI").is_none() => {
            println!("skipped: no server; `scripts/services up etcd` starts one");
        }
        Err(_) => panic!("no server: LATCHWORK_TEST_ETCD is not set"),
    }
}

#[cfg(any(feature = "file", feature = "sqlite", feature = "postgres", feature = "mysql"))]
fn processes(url: &str) {
    let torture = Torture::at(url);
    println!("{torture}");
    println!("{:?}", torture::run(torture));
}
