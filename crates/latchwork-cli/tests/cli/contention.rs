//! Many runs want one key at once, on every backend: all get it in their turn, one at a time.

use std::fs;
use std::ops::RangeInclusive;

use crate::support::{LockDirectory, Running, assert_code, latchwork, server, unique_key};

/// How many runs compete in a round.
const RUNS: usize = 12;
const ROUNDS: usize = 15;

/// Reads the count, adds one, and writes it back: two at a time lose one.
const COUNT: &str = r#"read n < "$D/count"; echo $((n + 1)) > "$D/count""#;

fn all_get_their_turn(place: &LockDirectory, at: &str) {
    let key = unique_key("contention");
    fs::write(place.path("count"), "0\n").expect("written");
    rounds(place, at, &key, 1..=ROUNDS);
}

fn rounds(place: &LockDirectory, at: &str, key: &str, rounds: RangeInclusive<usize>) {
    for round in rounds {
        let start = |_| {
            let mut command = latchwork();
            command.args(["lock", key, "--at", at, "--wait", "60s", "--", "sh", "-c", COUNT]);
            command.env("D", place.path("")).stderr(std::process::Stdio::piped());
            Running::start(&mut command)
        };
        let runs: Vec<_> = (0..RUNS).map(start).collect();
        for run in runs {
            assert_code(&run.output(), 0);
        }
        assert_eq!(place.line("count"), (round * RUNS).to_string(), "in round {round}");
    }
}

fn all_get_their_turn_on(variable: &str) {
    if let Some(at) = server(variable) {
        all_get_their_turn(&LockDirectory::new(), &at);
    }
}

#[test]
fn all_get_their_turn_on_files() {
    let place = LockDirectory::new();
    all_get_their_turn(&place, &place.at());
}

#[test]
fn all_get_their_turn_on_sqlite() {
    let place = LockDirectory::new();
    let at = format!("sqlite://{}", place.path("locks.db").display());
    all_get_their_turn(&place, &at);
}

#[test]
fn all_get_their_turn_on_postgres() {
    all_get_their_turn_on("LATCHWORK_TEST_POSTGRES");
}

#[test]
fn all_get_their_turn_on_pgbouncer() {
    all_get_their_turn_on("LATCHWORK_TEST_PGBOUNCER");
}

#[test]
fn all_get_their_turn_on_mariadb() {
    all_get_their_turn_on("LATCHWORK_TEST_MARIADB");
}

#[test]
fn all_get_their_turn_on_redis() {
    all_get_their_turn_on("LATCHWORK_TEST_REDIS");
}

#[test]
fn all_get_their_turn_on_etcd() {
    all_get_their_turn_on("LATCHWORK_TEST_ETCD");
}

/// Two rounds only, since each lock takes tens of milliseconds there; the worker is killed between them.
#[cfg(feature = "temporal")]
#[test]
fn all_get_their_turn_on_temporal() {
    let Some(server) = server("LATCHWORK_TEST_TEMPORAL") else { return };
    let place = LockDirectory::new();
    let key = unique_key("contention");
    let at = format!("temporal://{server}/default?task-queue={key}");
    let worker = || {
        let mut command = latchwork();
        command.args(["temporal", "worker", "--at", &at]).stderr(std::process::Stdio::null());
        Running::start(&mut command)
    };
    fs::write(place.path("count"), "0\n").expect("written");
    let first = worker();
    rounds(&place, &at, &key, 1..=1);
    first.send(rustix::process::Signal::KILL);
    drop(first.output());
    let second = worker();
    rounds(&place, &at, &key, 2..=2);
    second.send(rustix::process::Signal::TERM);
    assert_code(&second.output(), 0);
}
