//! Processes that are killed, stopped and continued.

use std::time::Instant;

use latchwork_lock::{Lease, PageRequest};
use libtest_mimic::Trial;

use crate::support::log::kill_at_any_instant;
use crate::support::{
    Backend, Child, Part, SLACK, Signal, TestDatabase, connect, eventually, gate, millis, secs,
    until, waiter, waiting,
};
use crate::trials;

pub(crate) fn trials(backend: Backend) -> Vec<Trial> {
    trials![backend;
        two_processes_exclude_each_other,
        processes_wait_in_the_order_in_which_they_came,
        a_killed_holder_ends_at_its_ttl,
        a_killed_waiter_is_forgotten,
        a_stopped_waiter_lets_others_ahead_and_still_gets_its_turn,
        a_stopped_holder_expires_and_learns_of_it,
        a_late_write_of_a_stopped_holder_is_refused,
        a_lease_outlives_its_process,
        eight_processes_may_begin_at_once,
        kills_at_any_instant_leave_order,
    ]
}

async fn two_processes_exclude_each_other(test_database: TestDatabase) {
    let locks = connect(&test_database.address).await;
    let (mut child, fence) = Child::hold(&test_database.address, "key", secs(60));
    let error = locks.lock("key").acquire().await.expect_err("taken");
    assert_eq!(error.code(), "lock_taken");
    assert!(error.to_string().contains(&child.id().to_string()), "it names the holder: {error}");
    let next = waiter(&locks, "key");
    waiting(&locks, "key", 1).await;
    assert_eq!(child.release(), "ok");
    let guard = next.await.expect("no panic");
    assert!(guard.waited() && guard.fence().get() > fence);
    guard.release().await.expect("held");
}

async fn processes_wait_in_the_order_in_which_they_came(test_database: TestDatabase) {
    let locks = connect(&test_database.address).await;
    let guard = locks.lock("key").ttl(secs(60)).acquire().await.expect("free");
    let mut children = Vec::new();
    for n in 1..=3 {
        children.push(Child::start("wait", &test_database.address, "key", secs(60)));
        waiting(&locks, "key", n).await;
    }
    let mut last = guard.fence().get();
    guard.release().await.expect("held");
    for mut child in children {
        let fence: u64 = child.expect_line("held").parse().expect("a fence");
        assert!(fence > last, "in turn");
        last = fence;
        assert_eq!(child.release(), "ok");
    }
}

async fn a_killed_holder_ends_at_its_ttl(test_database: TestDatabase) {
    let locks = connect(&test_database.address).await;
    let ttl = test_database.backend.unit * 4;
    let before = Instant::now();
    let (child, fence) = Child::hold(&test_database.address, "key", ttl);
    let held = Instant::now();
    let next = waiter(&locks, "key");
    waiting(&locks, "key", 1).await;
    child.kill();
    let guard = next.await.expect("no panic");
    assert!(guard.fence().get() > fence && guard.waited());
    let late = ttl + locks.capabilities().granularity() + SLACK;
    assert!(held.elapsed() < late, "let in after {:?}", held.elapsed());
    if !test_database.backend.frees_the_dead {
        assert!(before.elapsed() >= ttl, "let in after {:?}", before.elapsed());
    }
    println!("freed {:?} after the grant, of a ttl of {ttl:?}", held.elapsed());
    guard.release().await.expect("held");
}

async fn a_killed_waiter_is_forgotten(test_database: TestDatabase) {
    let locks = connect(&test_database.address).await;
    let guard = locks.lock("key").ttl(secs(60)).acquire().await.expect("free");
    let child = Child::start("wait", &test_database.address, "key", secs(60));
    waiting(&locks, "key", 1).await;
    let next = waiter(&locks, "key");
    waiting(&locks, "key", 2).await;
    // It lives, and is believed to for longer than one sign of life lasts.
    tokio::time::sleep(secs(9)).await;
    assert_eq!(locks.inspect("key").await.expect("it answers").waiters.len(), 2);
    child.kill();
    waiting(&locks, "key", 1).await;
    guard.release().await.expect("held");
    let released = Instant::now();
    next.await.expect("no panic").release().await.expect("held");
    assert!(released.elapsed() < SLACK, "handed on after {:?}", released.elapsed());
}

async fn a_stopped_waiter_lets_others_ahead_and_still_gets_its_turn(test_database: TestDatabase) {
    let locks = connect(&test_database.address).await;
    let guard = locks.lock("key").ttl(secs(60)).acquire().await.expect("free");
    let mut child = Child::start("wait", &test_database.address, "key", secs(60));
    waiting(&locks, "key", 1).await;
    child.signal(Signal::STOP);
    guard.release().await.expect("held");
    // Reserved for it, unclaimed, and passed on.
    let guard = locks.lock("key").ttl(secs(60)).wait(secs(20)).acquire().await.expect("passed on");
    child.signal(Signal::CONT);
    waiting(&locks, "key", 1).await;
    guard.release().await.expect("held");
    child.expect_line("held");
    assert_eq!(child.release(), "ok");
}

async fn a_stopped_holder_expires_and_learns_of_it(test_database: TestDatabase) {
    let locks = connect(&test_database.address).await;
    let (mut child, fence) =
        Child::hold(&test_database.address, "key", test_database.backend.unit * 2);
    child.signal(Signal::STOP);
    let guard = locks.lock("key").ttl(secs(60)).wait(secs(20)).acquire().await.expect("it ran out");
    assert!(guard.fence().get() > fence);
    child.signal(Signal::CONT);
    let code = child.release();
    assert!(code == "lock_expired" || code == "lock_lost", "{code}");
    guard.release().await.expect("not touched by the late one");
}

async fn a_late_write_of_a_stopped_holder_is_refused(test_database: TestDatabase) {
    // Before the provider makes its own tables, as who has only the gate would.
    gate::prepare(&test_database.gate).await;
    let locks = connect(&test_database.address).await;
    let part = Part::new("write", &test_database.address, "key", test_database.backend.unit * 2);
    let mut child = part.writing_to(&test_database.gate).start();
    child.expect_line("held");
    child.signal(Signal::STOP);
    let guard = locks.lock("key").ttl(secs(60)).wait(secs(20)).acquire().await.expect("it ran out");
    gate::write(&test_database.gate, "key", guard.fence()).await.expect("the newest fence");
    child.signal(Signal::CONT);
    child.send_line("write");
    assert_eq!(child.expect_line("wrote"), "stale_fence");
    assert_eq!(gate::written(&test_database.gate, "key").await, [guard.fence()]);
    guard.release().await.expect("held");
}

async fn a_lease_outlives_its_process(test_database: TestDatabase) {
    let mut child = Child::start("lease", &test_database.address, "key", secs(60));
    let lease: Lease = serde_json::from_str(&child.expect_line("lease")).expect("a lease");
    assert!(child.ends_well());
    let locks = connect(&test_database.address).await;
    assert_eq!(locks.lock("key").acquire().await.expect_err("held").code(), "lock_taken");
    let old = lease.fence;
    let guard = locks.resume(lease.clone()).await.expect("resumed");
    assert!(guard.fence() > old);
    assert_eq!(locks.resume(lease).await.expect_err("one wins").code(), "lock_lost");
    guard.release().await.expect("held");
}

async fn eight_processes_may_begin_at_once(test_database: TestDatabase) {
    // Nothing is there yet: no table, no directory.
    let start = |_| Some(Child::start("wait", &test_database.address, "key", secs(60)));
    let mut children: Vec<Option<Child>> = (0..8).map(start).collect();
    for _ in 0..children.len() {
        let mut next = None;
        until("one holds", || {
            let held = |child: &Option<Child>| child.as_ref().is_some_and(Child::has_spoken);
            next = children.iter().position(held);
            next.is_some()
        });
        let mut child = next.and_then(|at| children[at].take()).expect("one of them");
        assert_eq!(child.release(), "ok");
    }
}

async fn kills_at_any_instant_leave_order(test_database: TestDatabase) {
    let ttl = test_database.backend.unit * 2;
    let part = Part::new("loop", &test_database.address, "key", ttl)
        .writing_to(&test_database.file("log"));
    let last = kill_at_any_instant(&part, 3, millis(60));
    let locks = connect(&test_database.address).await;
    let guard = locks.lock("key").wait(secs(40)).acquire().await.expect("no damage");
    assert!(guard.fence().get() > last);
    guard.release().await.expect("held");
    eventually("nothing is left", async || {
        locks.list("", PageRequest::default()).await.expect("it answers").keys.is_empty()
    })
    .await;
}
