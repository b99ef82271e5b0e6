//! A command is stopped before its lease ends.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use rustix::fs::{FlockOperation, flock};

use crate::support::{LockDirectory, Running, assert_code, runs, text};

/// A script with a grandchild.
const LONG: &str = "sleep 1000 & echo $$ $! > $D/pids; wait";

#[test]
fn renewal_keeps_the_lock_past_the_ttl() {
    let place = LockDirectory::new();
    let holder = Running::start(&mut place.lock("k", &["--ttl", "3s"], "echo > $D/in; sleep 5"));
    place.line("in");
    let other = place.lock("k", &["--wait", "4s"], "exit 9").output().expect("it runs");
    assert_code(&other, 75);
    assert_code(&holder.output(), 0);
}

#[test]
fn a_broken_lease_stops_the_command() {
    let place = LockDirectory::new();
    let holder = Running::start(&mut place.lock("k", &["--ttl", "3s", "--json"], LONG));
    let pids = place.line("pids");
    assert_code(&place.locks(&["break", "k", "--yes"]), 0);
    let out = holder.output();
    assert_code(&out, 76);
    let said: Value = serde_json::from_slice(&out.stderr).expect("one object");
    assert_eq!((&said["code"], &said["exit"]), (&"lock_lost".into(), &76.into()));
    assert!(said["fence"].is_u64(), "{said}");
    assert!(!pids.split(' ').any(runs));
}

/// Writes down the time, again and again. The first is after the grant, so what was stopped before
/// the ttl ended has less than the ttl between the first and the last.
const STAMPS: &str = "while :; do date +%s%N >> $D/stamps; sleep 0.02; done";

fn stamped(place: &LockDirectory) -> Duration {
    let text = fs::read_to_string(place.path("stamps")).expect("stamps");
    let mut stamps = text.lines().map(|line| line.parse::<u64>().expect("a number"));
    let first = stamps.next().expect("the first");
    Duration::from_nanos(stamps.next_back().unwrap_or(first) - first)
}

#[test]
fn without_renewal_the_command_is_told_before_the_ttl_ends() {
    let place = LockDirectory::new();
    let script = format!("trap 'echo told > $D/told; exit 0' TERM; {STAMPS}");
    let options = ["--ttl", "4s", "--no-renew"];
    let out = Running::start(&mut place.lock("k", &options, &script)).output();
    assert_code(&out, 76);
    assert!(stamped(&place) < Duration::from_secs(4), "{:?}", stamped(&place));
    assert!(text(&out).contains("--no-renew"), "{}", text(&out));
    assert_eq!(place.line("told"), "told");
}

#[test]
fn a_command_that_does_not_listen_is_killed_before_the_ttl_ends() {
    let place = LockDirectory::new();
    // It is the grandchild that works on.
    let script = format!("trap '' TERM; sh -c '{STAMPS}' & echo $$ $! > $D/pids; wait");
    let options = ["--ttl", "4s", "--no-renew"];
    let out = Running::start(&mut place.lock("k", &options, &script)).output();
    assert_code(&out, 76);
    assert!(!place.line("pids").split(' ').any(runs));
    let held = stamped(&place);
    assert!(held > Duration::from_secs(2) && held < Duration::from_secs(4), "{held:?}");
}

#[test]
fn a_reader_that_does_not_read_holds_up_nothing() {
    let place = LockDirectory::new();
    let (_reader, writer) = rustix::pipe::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&writer, true).expect("set");
    for chunk in [4096, 1] {
        while rustix::io::write(&writer, &vec![0; chunk]).is_ok() {}
    }
    rustix::io::ioctl_fionbio(&writer, false).expect("set");
    let script = format!("trap '' TERM; exec 2>/dev/null; echo $$ > $D/pids; {STAMPS}");
    let options = ["--ttl", "4s", "--no-renew"];
    let mut command = place.lock("k", &options, &script);
    assert_code(&Running::start(command.stderr(writer)).output(), 76);
    assert!(stamped(&place) < Duration::from_secs(4), "{:?}", stamped(&place));
}

#[test]
fn a_command_that_is_done_in_time_needs_no_renewal() {
    let place = LockDirectory::new();
    let out = place.lock("k", &["--ttl", "10s", "--no-renew"], "exit 3").output();
    assert_code(&out.expect("it runs"), 3);
}

#[test]
fn the_longest_hold_is_a_bound() {
    let place = LockDirectory::new();
    let options = ["--ttl", "2s", "--max-hold", "1s"];
    let started = Instant::now();
    let out = Running::start(&mut place.lock("k", &options, "exec sleep 1000")).output();
    assert_code(&out, 76);
    let held = started.elapsed();
    assert!(held >= Duration::from_secs(1), "{held:?}");
    assert!(text(&out).contains("--max-hold"), "{}", text(&out));
}

#[test]
fn a_lease_that_cannot_be_renewed_stops_the_command() {
    let place = LockDirectory::new();
    let holder = Running::start(&mut place.lock("k", &["--ttl", "3s"], LONG));
    let pids = place.line("pids");
    fs::remove_dir_all(place.path("locks")).expect("removed");
    let out = holder.output();
    assert_code(&out, 76);
    assert!(text(&out).contains("somebody removed the lock directory"), "{}", text(&out));
    assert!(!pids.split(' ').any(runs));
}

#[test]
fn a_place_that_does_not_answer_stops_the_command_in_time() {
    let place = LockDirectory::new();
    let script =
        "trap 'echo told > $D/told; exit 0' TERM; echo > $D/in; while :; do sleep 0.01; done";
    let holder = Running::start(&mut place.lock("k", &["--ttl", "4s"], script));
    place.line("in");
    // As if the file system hung: every change has to wait for us.
    let shards = fs::read_dir(place.path("locks/shards")).expect("the shards");
    let shards: Vec<_> = shards
        .map(|shard| fs::File::open(shard.expect("a shard").path()).expect("opened"))
        .inspect(|shard| flock(shard, FlockOperation::LockExclusive).expect("locked"))
        .collect();
    place.line("told");
    let out = holder.output();
    drop(shards);
    assert_code(&out, 76);
    assert!(text(&out).contains("could not be renewed"), "{}", text(&out));
}
