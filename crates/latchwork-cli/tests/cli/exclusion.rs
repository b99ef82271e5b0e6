//! Who gets the lock, and who is told what.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    LockDirectory, Running, assert_code, eventually, latchwork, said, server, text, unique_key,
};

/// Holds until the test says go.
const UNTIL_GO: &str = "echo $$ > $D/in; while [ ! -e $D/go ]; do sleep 0.01; done";

#[test]
fn runs_exclude_each_other() {
    let place = LockDirectory::new();
    let alone = "mkdir $D/room || exit 9; sleep 0.02; rmdir $D/room";
    let options = ["--wait", "30s"];
    let runs: Vec<_> =
        (0..8).map(|_| Running::start(&mut place.lock("k", &options, alone))).collect();
    for run in runs {
        assert_code(&run.output(), 0);
    }
}

/// The same between machines.
#[test]
fn runs_exclude_each_other_by_redis() {
    let Some(server) = server("LATCHWORK_TEST_REDIS") else { return };
    let place = LockDirectory::new();
    let key = unique_key("exclusion");
    let at = |options: &[&str], script: &str| {
        let mut command = latchwork();
        command
            .args(["lock", &key, "--at", &server])
            .args(options)
            .args(["--", "sh", "-c", script]);
        command.env("D", place.path("")).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let holder = Running::start(&mut at(&[], UNTIL_GO));
    place.line("in");
    let refused = at(&["--no-wait"], "exit 9").output().expect("it runs");
    assert_code(&refused, 75);
    let said = text(&refused);
    assert!(said.contains(&holder.pid().to_string()), "it names the holder: {said}");
    assert!(said.contains("--at 'redis://:***@"), "it names the place: {said}");
    let password = server.split([':', '@']).nth(2).expect("a password");
    assert!(!said.contains(password), "a secret in {said}");
    let next = Running::start(&mut at(&["--wait", "30s"], "exit 7"));
    place.touch("go");
    assert_code(&holder.output(), 0);
    assert_code(&next.output(), 7);
}

#[test]
fn a_taken_key_names_its_holder_and_what_to_do() {
    let place = LockDirectory::new();
    let holder = Running::start(&mut place.lock("job", &["--note", "the first"], UNTIL_GO));
    place.line("in");
    let refused = place.lock("job", &["--no-wait"], "exit 9").output().expect("it runs");
    assert_code(&refused, 75);
    let text = text(&refused);
    for part in ["\"job\" is taken by", &holder.pid().to_string(), "the first", "locks show"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    place.touch("go");
    assert_code(&holder.output(), 0);
}

#[test]
fn what_a_taken_key_proposes_can_be_pasted_into_a_shell() {
    for key in ["job", "-x", "it's a \"job\" of $HOME", "-a b", "Schlüssel/1"] {
        let place = LockDirectory::new();
        let odd = place.path("it's a place");
        let run = |options: &[&str], script: &str| {
            let mut command = latchwork();
            command.args(["lock", &format!("--key={key}"), "--at"]).arg(&odd).args(options);
            command.args(["--", "sh", "-c", script]).env("D", place.path(""));
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command
        };
        let holder = Running::start(&mut run(&[], UNTIL_GO));
        place.line("in");
        let refused = text(&run(&["--no-wait"], "exit 9").output().expect("it runs"));
        let proposed = refused.split('`').nth(1).expect("a command");
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_latchwork"));
        let path = format!("{}:/usr/bin:/bin", program.parent().expect("a directory").display());
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", proposed]).env("PATH", path).env_remove("LATCHWORK_AT");
        let shown = shell.output().expect("it runs");
        assert_code(&shown, 0);
        assert!(crate::support::said(&shown).contains("is held"), "{}", proposed);
        place.touch("go");
        assert_code(&holder.output(), 0);
    }
}

#[test]
fn what_a_taken_key_proposes_names_the_place_of_the_environment() {
    let place = LockDirectory::new();
    let holder = Running::start(&mut place.lock("job", &[], UNTIL_GO));
    place.line("in");
    let mut command = latchwork();
    command.args(["lock", "job", "--no-wait", "--", "true"]).env("LATCHWORK_AT", place.at());
    let refused = text(&command.output().expect("it runs"));
    assert!(refused.contains(&format!("show job --at {}`", place.at())), "{refused}");
    place.touch("go");
    assert_code(&holder.output(), 0);
}

#[test]
fn a_taken_key_as_json_and_in_silence() {
    let place = LockDirectory::new();
    let holder = Running::start(&mut place.lock("job", &["--owner", "ana"], UNTIL_GO));
    place.line("in");
    let refused = place.lock("job", &["--no-wait", "--json"], "exit 9").output().expect("it runs");
    assert_code(&refused, 75);
    let said: Value = serde_json::from_slice(&refused.stderr).expect("one object");
    assert_eq!(said["code"], "lock_taken");
    assert_eq!(said["exit"], 75);
    assert_eq!(said["key"], "job");
    assert_eq!(said["holders"][0]["owner"], "ana");
    assert!(said["holders"][0]["fence"].is_u64() && said["hint"].is_string(), "{said}");
    let quiet = place.lock("job", &["--no-wait", "--quiet"], "exit 9").output().expect("it runs");
    assert_code(&quiet, 75);
    assert_eq!(text(&quiet), "");
    place.touch("go");
    assert_code(&holder.output(), 0);
}

#[test]
fn waiting_ends_with_the_holder() {
    for option in [&["--wait", "30s"][..], &["--wait-forever"]] {
        let place = LockDirectory::new();
        let holder = Running::start(&mut place.lock("k", &[], UNTIL_GO));
        place.line("in");
        let waiter = Running::start(&mut place.lock("k", option, "echo in"));
        eventually("the queue", || place.waiters("k") == 1);
        place.touch("go");
        assert_code(&holder.output(), 0);
        let out = waiter.output();
        assert_code(&out, 0);
        assert_eq!(said(&out), "in\n");
    }
}

#[test]
fn waiting_has_an_end() {
    let place = LockDirectory::new();
    let holder = Running::start(&mut place.lock("k", &[], UNTIL_GO));
    place.line("in");
    let started = Instant::now();
    let out = place.lock("k", &["--wait", "300ms"], "exit 9").output().expect("it runs");
    assert_code(&out, 75);
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert!(text(&out).contains("; waited "), "{}", text(&out));
    place.touch("go");
    assert_code(&holder.output(), 0);
}

#[test]
fn shared_runs_are_in_together() {
    let place = LockDirectory::new();
    let holder = Running::start(&mut place.lock("k", &["--shared"], UNTIL_GO));
    place.line("in");
    let other = place.lock("k", &["--shared", "--no-wait"], "true").output().expect("it runs");
    assert_code(&other, 0);
    let alone = place.lock("k", &["--no-wait"], "exit 9").output().expect("it runs");
    assert_code(&alone, 75);
    place.touch("go");
    assert_code(&holder.output(), 0);
}

#[test]
fn the_same_owner_takes_over_and_the_first_is_stopped() {
    let place = LockDirectory::new();
    let options = ["--owner", "ana", "--ttl", "4s"];
    let first = Running::start(&mut place.lock("k", &options, UNTIL_GO));
    place.line("in");
    let second = place.lock("k", &["--owner", "ana", "--no-wait"], "true").output();
    assert_code(&second.expect("it runs"), 0);
    let out = first.output();
    assert_code(&out, 76);
    assert!(text(&out).contains("taken over"), "{}", text(&out));
}

#[test]
fn who_is_interrupted_while_waiting_leaves_the_queue() {
    let place = LockDirectory::new();
    let holder = Running::start(&mut place.lock("k", &[], UNTIL_GO));
    place.line("in");
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let waiter = Running::start(&mut place.lock("k", &["--wait-forever"], "exit 9"));
        eventually("the queue", || place.waiters("k") == 1);
        waiter.send(signal);
        assert_eq!(waiter.output().status.signal(), Some(signal.as_raw()), "as a shell expects");
        assert_eq!(place.waiters("k"), 0);
    }
    place.touch("go");
    assert_code(&holder.output(), 0);
}
