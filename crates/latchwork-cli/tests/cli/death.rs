//! The command does not outlive the program that holds its lock.

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{LockDirectory, Running, assert_code, eventually, runs, said, state, text};

/// A script with a grandchild, which would live on by itself.
const WITH_GRANDCHILD: &str = "sleep 1000 & echo $$ $! > $D/pids; wait";

/// Fails if one of the processes in the file still runs.
const NOBODY_RUNS: &str = r#"
    for pid in $(cat $D/pids); do
        state=$(sed 's/.*) //' /proc/$pid/stat 2>/dev/null | cut -c1)
        case "$state" in ''|Z|X) ;; *) echo $pid is $state; exit 9;; esac
    done"#;

#[test]
fn a_killed_supervisor_takes_the_group_with_it_and_the_lock_follows() {
    for _ in 0..5 {
        let place = LockDirectory::new();
        // A ttl longer than any patience: only death can free the lock.
        let options = ["--ttl", "1h", "--wait-forever"];
        let holder = Running::start(&mut place.lock("k", &options, WITH_GRANDCHILD));
        let pids = place.line("pids");
        let next = Running::start(&mut place.lock("k", &options, NOBODY_RUNS));
        eventually("the queue", || place.waiters("k") == 1);
        assert!(pids.split(' ').all(runs));
        holder.send(Signal::KILL);
        assert_code(&next.output(), 0);
    }
}

#[test]
fn the_lock_is_not_free_before_the_keeper_has_done_its_work() {
    // Orphans come to us: the kernel would continue a stopped group that has no parent left.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).expect("allowed");
    let place = LockDirectory::new();
    let holder = Running::start(&mut place.lock("k", &["--ttl", "1h"], WITH_GRANDCHILD));
    let pids = place.line("pids");
    let (child, grandchild) = pids.split_once(' ').expect("two of them");
    let keeper = group_of(child);
    kill_process(keeper, Signal::STOP).expect("the keeper leads the group");
    eventually("the keeper's stop", || state(&keeper.to_string()) == Some('T'));
    holder.send(Signal::KILL);
    eventually("the end of the command itself", || !runs(child));
    let refused = place.lock("k", &["--wait", "1s"], "exit 9").output().expect("it runs");
    assert_code(&refused, 75);
    assert!(runs(grandchild), "which is why");
    kill_process(keeper, Signal::CONT).expect("the keeper is there");
    let options = ["--wait", "30s"];
    assert_code(&Running::start(&mut place.lock("k", &options, NOBODY_RUNS)).output(), 0);
}

/// What the command has started then lives on: the README says so.
#[test]
fn the_command_itself_dies_when_supervisor_and_keeper_are_killed_together() {
    let place = LockDirectory::new();
    let holder = Running::start(&mut place.lock("k", &["--ttl", "1h"], WITH_GRANDCHILD));
    let pids = place.line("pids");
    let (child, grandchild) = pids.split_once(' ').expect("two of them");
    // Stopped, so that it does not see the keeper's end.
    holder.send(Signal::STOP);
    kill_process(group_of(child), Signal::KILL).expect("the keeper leads the group");
    holder.send(Signal::KILL);
    eventually("the end of the command itself", || !runs(child));
    let left = Pid::from_raw(grandchild.parse().expect("a number")).expect("a process");
    let _ = kill_process(left, Signal::KILL);
}

#[test]
fn a_group_that_ignores_everything_dies_too() {
    let place = LockDirectory::new();
    let script = r#"trap "" INT TERM HUP QUIT
        sh -c 'while :; do sleep 0.01; done' & echo $$ $! > $D/pids; wait"#;
    let holder = Running::start(&mut place.lock("k", &["--ttl", "1h"], script));
    let pids = place.line("pids");
    holder.send(Signal::KILL);
    eventually("their end", || !pids.split(' ').any(runs));
    eventually("the free lock", || !place.is_held("k"));
}

#[test]
fn a_command_whose_keeper_died_is_stopped() {
    let place = LockDirectory::new();
    let script = "echo $$ > $D/pid; exec sleep 1000";
    let holder = Running::start(&mut place.lock("k", &["--ttl", "1h"], script));
    kill_process(group_of(&place.line("pid")), Signal::KILL).expect("the keeper leads the group");
    let out = holder.output();
    assert_code(&out, 70);
    assert!(text(&out).contains("keeper"), "{}", text(&out));
    assert!(!place.is_held("k"));
}

#[test]
fn a_supervisor_that_was_stopped_past_its_ttl_kills_the_command_first() {
    let place = LockDirectory::new();
    let script = "echo $LATCHWORK_FENCE > $D/fence; sleep 1000 & echo $$ $! > $D/pids; wait";
    let holder = Running::start(&mut place.lock("k", &["--ttl", "3s"], script));
    let pids = place.line("pids");
    let fence: u64 = place.line("fence").parse().expect("a number");
    holder.send(Signal::STOP);
    let next = place.lock("k", &["--wait", "30s"], "echo $LATCHWORK_FENCE").output();
    let next = next.expect("it runs");
    assert_code(&next, 0);
    let higher: u64 = said(&next).trim().parse().expect("a number");
    assert!(higher > fence, "{higher} after {fence}");
    assert!(pids.split(' ').all(runs), "nothing can be done while the supervisor is stopped");
    holder.send(Signal::CONT);
    let out = holder.output();
    assert_code(&out, 76);
    assert!(text(&out).contains("is gone"), "{}", text(&out));
    assert!(!pids.split(' ').any(runs));
}

/// The leader of a process's group.
fn group_of(pid: &str) -> Pid {
    let pid = Pid::from_raw(pid.parse().expect("a number"));
    rustix::process::getpgid(pid).expect("it runs")
}
