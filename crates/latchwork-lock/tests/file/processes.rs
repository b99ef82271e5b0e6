//! What other processes do: live, die, stop, start at once.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::process::Command;
use std::time::{Duration, Instant};

use latchwork_lock::{FileLockProvider, Lease};

use crate::support::log::kill_at_any_instant;
use crate::support::{Child, Signal, secs, until};
use crate::{child, files, holder, locks, part, record, replace, shards, temp, waiters};

#[test]
fn a_killed_holder_frees_at_once() {
    let dir = temp();
    let locks = locks(dir.path());
    let (child, fence) = holder(dir.path(), "k", secs(600));
    let waiting = std::thread::spawn({
        let locks = locks.clone();
        move || locks.lock("k").wait(secs(60)).acquire().map(|guard| guard.fence().get())
    });
    until("it waits", || waiters(&locks, "k") == 1);
    child.signal(Signal::KILL); // and not waited for: a zombie holds nothing
    let killed = Instant::now();
    let got = waiting.join().expect("ended").expect("acquired");
    assert!(killed.elapsed() < secs(30), "{:?}", killed.elapsed());
    println!("freed {:?} after the kill", killed.elapsed());
    assert!(got > fence);
}

#[test]
fn a_lease_lives_while_a_companion_does() {
    let dir = temp();
    let locks = locks(dir.path());
    let mut companion = Command::new("sleep").arg("600").spawn().expect("started");
    let part = part("companion", dir.path(), "k", secs(600));
    let child = part.writing_to(&companion.id().to_string()).start();
    child.expect_line("held");
    child.kill();
    let taken = locks.lock("k").wait(Duration::from_millis(600)).acquire().expect_err("held");
    assert_eq!(taken.code(), "lock_taken");
    companion.kill().expect("killed");
    let killed = Instant::now();
    let _guard = locks.lock("k").wait(secs(60)).acquire().expect("free");
    assert!(killed.elapsed() < secs(30), "{:?}", killed.elapsed());
    companion.wait().expect("ended");
    let gone = FileLockProvider::builder(dir.path()).companion(companion.id()).open();
    assert_eq!(gone.expect_err("it is dead").code(), "invalid_argument");
}

/// Where syncing costs nothing, edits are many more; and no dead process is waited for.
#[test]
fn kills_at_any_instant_leave_order_in_memory() {
    let dir = match tempfile::tempdir_in("/dev/shm") {
        Ok(dir) => dir,
        Err(error) => {
            println!("SKIPPED kills_at_any_instant_leave_order_in_memory: {error}");
            return;
        }
    };
    let log = dir.path().join("log").display().to_string();
    let part = part("loop", dir.path(), "k", secs(600)).writing_to(&log);
    let last = kill_at_any_instant(&part, 4, Duration::from_millis(5));
    let locks = locks(dir.path());
    let guard = locks.lock("k").wait(secs(10)).acquire().expect("no damage, nobody left");
    assert!(guard.fence().get() > last);
    assert!(locks.inspect("k").expect("inspected").waiters.is_empty());
    guard.release().expect("released");
    assert!(files(&dir.path().join("keys")).is_empty());
}

/// Ten who wait in a process that is killed cost the next one nothing but a look.
#[test]
fn dead_waiters_ahead_cost_one_look() {
    let dir = temp();
    let locks = locks(dir.path());
    let guard = locks.lock("k").ttl(secs(600)).acquire().expect("free");
    let crowd = child("crowd", dir.path(), "k", secs(600));
    until("ten wait", || waiters(&locks, "k") == 10);
    let mut last = child("wait", dir.path(), "k", secs(600));
    until("one waits behind them", || waiters(&locks, "k") == 11);
    crowd.kill();
    guard.release().expect("released");
    let released = Instant::now();
    last.expect_line("held");
    println!("handed on {:?} after the release", released.elapsed());
    // A claim window each would be 20 s.
    assert!(released.elapsed() < secs(10), "{:?}", released.elapsed());
    assert_eq!(last.release(), "ok");
}

#[test]
fn a_stopped_waiter_does_not_block_the_queue() {
    let dir = temp();
    let locks = locks(dir.path());
    let guard = locks.lock("k").ttl(secs(600)).acquire().expect("free");
    let mut first = child("wait", dir.path(), "k", secs(600));
    until("the first waits", || waiters(&locks, "k") == 1);
    let mut second = child("wait", dir.path(), "k", secs(600));
    until("the second waits", || waiters(&locks, "k") == 2);
    first.signal(Signal::STOP);
    guard.release().expect("released");
    let released = Instant::now();
    second.expect_line("held");
    assert!(released.elapsed() > Duration::from_millis(1_500), "it was the first one's turn");
    assert!(released.elapsed() < secs(30), "{:?}", released.elapsed());
    first.signal(Signal::CONT);
    until("the first queues again", || waiters(&locks, "k") == 1);
    second.send_line("release");
    assert_eq!(second.expect_line("released"), "ok");
    first.expect_line("held");
    first.send_line("release");
    assert_eq!(first.expect_line("released"), "ok");
}

#[test]
fn a_reboot_frees_everything() {
    let dir = temp();
    let locks = locks(dir.path());
    let (child, fence) = holder(dir.path(), "k", secs(600));
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("reads");
    replace(&record(dir.path()), boot.trim(), "00000000-0000-0000-0000-000000000000");
    assert!(!locks.exists("k").expect("inspected"));
    let guard = locks.lock("k").acquire().expect("that was before the reboot");
    assert!(guard.fence().get() > fence);
    drop(child);
}

#[test]
fn a_reused_pid_is_another_process() {
    let dir = temp();
    let locks = locks(dir.path());
    let (child, fence) = holder(dir.path(), "k", secs(600));
    replace(&record(dir.path()), "\"start_ticks\": ", "\"start_ticks\": 1");
    let guard = locks.lock("k").acquire().expect("its process is gone");
    assert!(guard.fence().get() > fence);
    drop(child);
}

#[test]
fn a_process_of_another_namespace_lives_until_its_ttl() {
    let dir = temp();
    let locks = locks(dir.path());
    let (child, _) = holder(dir.path(), "k", secs(2));
    replace(&record(dir.path()), "pid:[", "pid:[9");
    child.kill();
    assert!(locks.lock("k").try_acquire().expect("asked").is_none(), "who knows whether it lives");
    let _guard = locks.lock("k").wait(secs(20)).acquire().expect("the ttl ended it");
}

#[test]
fn many_processes_open_a_fresh_directory_at_once() {
    let dir = temp();
    let mut children: Vec<Child> =
        (0..8).map(|_| child("rounds", dir.path(), "k", secs(60))).collect();
    children.iter().for_each(|c| drop(c.expect_line("ready")));
    for round in 0..25 {
        children.iter_mut().for_each(|c| c.send_line(&format!("a/b/{round}")));
        let fences: BTreeSet<String> = children.iter().map(|c| c.expect_line("fence")).collect();
        assert_eq!(fences.len(), 8, "each has its own: {fences:?}");
    }
}

#[test]
fn a_lease_outlives_its_process_when_handed_over() {
    let dir = temp();
    let locks = locks(dir.path());
    let mut child = child("lease", dir.path(), "k", secs(600));
    let lease: Lease = serde_json::from_str(&child.expect_line("lease")).expect("a lease");
    assert!(child.ends_well());
    assert!(locks.lock("k").try_acquire().expect("asked").is_none(), "it is still held");
    let old = lease.fence;
    let guard = locks.resume(lease.clone()).expect("resumed");
    assert!(guard.fence() > old);
    assert_eq!(locks.resume(lease).expect_err("one wins").code(), "lock_lost");
    let text = fs::read_to_string(record(dir.path())).expect("reads");
    assert!(text.contains(&format!("\"pid\": {}", std::process::id())), "{text}");
    assert!(text.contains("\"handed_over\": false"), "{text}");
    guard.release().expect("released");
}

#[test]
fn whoever_is_stopped_in_an_edit_is_an_outage_and_no_contention() {
    let dir = temp();
    let locks = locks(dir.path());
    locks.lock("k").acquire().expect("free").release().expect("released");
    let shard = shards(dir.path());
    let file = OpenOptions::new().write(true).open(&shard[0]).expect("opens");
    file.lock().expect("locked");
    let error = locks.lock("k").acquire().expect_err("somebody edits");
    assert_eq!(error.code(), "lock_unavailable");
    assert!(error.to_string().contains("/proc/locks"), "{error}");
    file.unlock().expect("unlocked");
    locks.close();
    let _guard = locks.lock("k").acquire().expect("free");
}
