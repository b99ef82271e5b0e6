//! Signals to the supervisor reach the command's whole group.

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{LockDirectory, Running, assert_code, eventually, state};

/// A script and its child, both of which hear a signal.
const BOTH_HEAR: &str = r#"
trap 'echo heard > $D/outer; exit 7' $S
sh -c "trap 'echo heard > $D/inner; exit' $S; echo in > $D/in; while :; do sleep 0.01; done"
"#;

#[test]
fn signals_reach_the_command_and_its_children() {
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
    ] {
        let place = LockDirectory::new();
        let run = Running::start(place.lock("k", &[], BOTH_HEAR).env("S", name));
        place.line("in");
        run.send(signal);
        assert_code(&run.output(), 7);
        assert_eq!((place.line("inner"), place.line("outer")), ("heard".into(), "heard".into()));
        assert!(!place.is_held("k"));
    }
}

#[test]
fn a_second_signal_is_forwarded_too() {
    let place = LockDirectory::new();
    let script = r#"
        trap 'trap "exit 5" TERM; echo once > $D/once' TERM
        echo in > $D/in
        while :; do sleep 0.01 || true; done"#;
    let run = Running::start(&mut place.lock("k", &[], script));
    place.line("in");
    run.send(Signal::TERM);
    place.line("once");
    run.send(Signal::TERM);
    assert_code(&run.output(), 5);
}

#[test]
fn a_command_that_dies_of_the_signal_gives_its_code() {
    let place = LockDirectory::new();
    let run = Running::start(&mut place.lock("k", &[], "echo in > $D/in; exec sleep 60"));
    place.line("in");
    run.send(Signal::TERM);
    assert_code(&run.output(), 128 + 15);
}

#[test]
fn a_command_that_was_stopped_hears_it_too() {
    let place = LockDirectory::new();
    let run = Running::start(&mut place.lock("k", &[], "echo $$ > $D/pid; exec sleep 60"));
    let pid = place.line("pid");
    let child = Pid::from_raw(pid.parse().expect("a number")).expect("a process");
    kill_process(child, Signal::STOP).expect("it runs");
    eventually("its stop", || state(&pid) == Some('T'));
    run.send(Signal::TERM);
    assert_code(&run.output(), 128 + 15);
}

#[test]
fn what_the_caller_ignores_stays_ignored() {
    let place = LockDirectory::new();
    // As `nohup` does it.
    let mut nohup = Command::new("sh");
    nohup.args(["-c", r#"trap "" HUP; exec "$0" "$@""#, env!("CARGO_BIN_EXE_latchwork")]);
    nohup.args(["lock", "k", "--at", &place.at(), "--", "sh", "-c"]);
    nohup.arg("echo in > $D/in; while [ ! -e $D/go ]; do sleep 0.01; done");
    let run = Running::start(nohup.env("D", place.path("")));
    place.line("in");
    run.send(Signal::HUP);
    place.touch("go");
    assert_code(&run.output(), 0);
}

#[test]
fn the_lock_is_kept_until_the_parts_of_a_pipeline_have_ended() {
    let place = LockDirectory::new();
    // The shell dies at once; the part that it started takes its time to clean up.
    let script = r#"sh -c '
        trap "sleep 0.3; echo clean > $D/clean; exit" TERM
        echo in > $D/in
        while :; do sleep 0.01; done' | cat"#;
    let run = Running::start(&mut place.lock("k", &[], script));
    place.line("in");
    run.send(Signal::TERM);
    assert_code(&run.output(), 128 + 15);
    assert!(place.exists("clean"));
}
