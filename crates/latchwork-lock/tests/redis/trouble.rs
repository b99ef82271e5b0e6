//! Servers that restart, forget, and stand still.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use latchwork_contract::process::Signal;
use latchwork_lock::{Fence, FenceGate, Locks, PageRequest, RedisLockProvider, Refresh};

use crate::server::{Server, admin_command, count};
use crate::{eventually, locks, millis, secs, waiter, waiting};

/// Many write under a lock whose server forgets everything, again and again.
pub(crate) async fn a_restart_without_data_lets_no_stale_write_pass() {
    let mut server = Server::start(&[]);
    let gate = Arc::new(FenceGate::new());
    let written: Arc<Mutex<Vec<Fence>>> = Arc::default();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut tasks = Vec::new();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(locks(&server.address()).await);
    }
    // Some of each, so that a key also goes from hand to hand inside of a process.
    for locks in clients.iter().cycle().take(12) {
        let locks = locks.clone();
        let (gate, written, stop) = (gate.clone(), written.clone(), stop.clone());
        tasks.push(tokio::spawn(async move {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let asked = locks.lock("key").ttl(secs(2)).wait(secs(30)).acquire().await;
                let guard = asked.expect("the server comes back");
                let fence = guard.fence();
                if gate.advance("key", fence).is_ok() {
                    tokio::time::sleep(millis(3)).await;
                    // As one step: what passes the gate is written in that order.
                    let write = |fence| written.lock().expect("no panic").push(fence);
                    let _ = gate.write("key", fence, || write(fence));
                }
                let _ = guard.release().await;
            }
        }));
    }
    for _ in 0..4 {
        tokio::time::sleep(millis(400)).await;
        server.kill();
        server.up();
    }
    let seen = written.lock().expect("no panic").len();
    eventually("they go on after the last restart", async || {
        written.lock().expect("no panic").len() > seen + 20
    })
    .await;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no panic");
    }
    let written = written.lock().expect("no panic");
    assert!(written.is_sorted(), "a stale write passed");
    let mut distinct = written.clone();
    distinct.dedup();
    assert_eq!(distinct.len(), written.len(), "two wrote under one fence");
}

pub(crate) async fn a_restart_with_data_keeps_leases_and_waiters() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (ours, theirs) = (locks(&server.address()).await, locks(&server.address()).await);
    let guard = ours.lock("key").ttl(secs(60)).acquire().await.expect("a free key");
    let first = waiter(&theirs, "key");
    waiting(&ours, "key", 1).await;
    let second = waiter(&ours, "key");
    waiting(&ours, "key", 2).await;
    server.kill();
    server.up();
    eventually("both wait again", async || {
        ours.inspect("key").await.is_ok_and(|seen| seen.waiters.len() == 2 && seen.is_held())
    })
    .await;
    let fence = guard.fence();
    guard.release().await.expect("still held");
    let first = first.await.expect("no panic");
    assert!(first.fence() > fence);
    assert!(!second.is_finished(), "two at once");
    first.release().await.expect("held");
    second.await.expect("no panic").release().await.expect("held");
}

pub(crate) async fn the_callers_connection_manager_comes_back() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let client = redis::Client::open(server.address()).expect("an address");
    let manager = redis::aio::ConnectionManager::new(client.clone()).await.expect("there");
    let theirs = RedisLockProvider::from_connection(manager, client).await.expect("there");
    let (ours, theirs) = (locks(&server.address()).await, Locks::new(theirs));
    let guard = theirs.lock("key").ttl(secs(60)).wait(secs(10)).acquire().await.expect("free");
    let waits = waiter(&theirs, "key");
    waiting(&ours, "key", 1).await;
    server.kill();
    let refused = theirs.lock("other").try_acquire().await.expect_err("there is no server");
    assert_eq!(refused.code(), "lock_unavailable", "{refused}");
    server.up();
    eventually("the manager opens a new connection", async || theirs.inspect("key").await.is_ok())
        .await;
    guard.refresh_with(Refresh { ttl: None, threshold: Some(millis(0)) }).await.expect("held");
    let fence = guard.fence();
    guard.release().await.expect("the lease was kept");
    let next = waits.await.expect("no panic");
    assert!(next.fence() > fence);
    next.release().await.expect("held");
}

pub(crate) async fn fences_grow_when_all_is_forgotten() {
    let server = Server::start(&[]);
    let locks = locks(&server.address()).await;
    let mut last = None;
    for _ in 0..20 {
        let guard = locks.lock("key").acquire().await.expect("a free key");
        assert!(Some(guard.fence()) > last, "{} after {last:?}", guard.fence());
        last = Some(guard.fence());
        // Under the guard: it is as free for the next as if nobody held it.
        admin_command::<()>(&server.address(), &["FLUSHALL"]);
        let error = guard.release().await.expect_err("the server has forgotten it");
        assert_eq!(error.code(), "lock_lost", "{error}");
    }
}

pub(crate) async fn the_server_may_forget_the_script() {
    let server = Server::start(&[]);
    let locks = locks(&server.address()).await;
    let guard = locks.lock("key").acquire().await.expect("a free key");
    let waits = waiter(&locks, "key");
    waiting(&locks, "key", 1).await;
    for _ in 0..3 {
        admin_command::<()>(&server.address(), &["SCRIPT", "FLUSH"]);
        let other = locks.lock("other").acquire().await.expect("a free key");
        admin_command::<()>(&server.address(), &["SCRIPT", "FLUSH"]);
        other.release().await.expect("held");
    }
    admin_command::<()>(&server.address(), &["SCRIPT", "FLUSH"]);
    guard.release().await.expect("held");
    waits.await.expect("no panic").release().await.expect("held");
}

pub(crate) async fn notices_that_are_lost_are_made_up_for() {
    let server = Server::start(&[]);
    let (ours, theirs) = (locks(&server.address()).await, locks(&server.address()).await);
    for round in 0..3 {
        let guard = ours.lock("key").acquire().await.expect("a free key");
        let waiter = waiter(&theirs, "key");
        waiting(&ours, "key", 1).await;
        eventually("it listens", async || count(&server.address(), "subscribe") > round).await;
        // The subscriber is cut off, and may not come back before the key is handed over.
        admin_command::<()>(&server.address(), &["CLIENT", "KILL", "TYPE", "pubsub"]);
        guard.release().await.expect("held");
        let next = tokio::time::timeout(secs(10), waiter).await.expect("in time");
        next.expect("no panic").release().await.expect("held");
    }
}

/// The response to a release may have the grant of another request, also if its caller is gone.
pub(crate) async fn a_release_that_nobody_waits_for_hands_on() {
    let server = Server::start(&[]);
    let locks = locks(&server.address()).await;
    for round in 0..50 {
        let guard = locks.lock("key").acquire().await.expect("a free key");
        // Shorter than what looks after lost grants takes: such a turn would be lost.
        let there = locks.clone();
        let next = tokio::spawn(async move {
            there.lock("key").ttl(millis(500)).wait(secs(30)).acquire().await
        });
        waiting(&locks, "key", 1).await;
        let mut release = Box::pin(guard.release());
        let _ = futures::poll!(&mut release); // begun, and on a busy machine answered by chance
        for _ in 0..round % 3 {
            tokio::task::yield_now().await;
        }
        drop(release);
        let next = next.await.expect("no panic").expect("its turn");
        assert!(next.is_held(), "round {round}");
        next.release().await.expect("it has just begun");
    }
}

/// Releases that drops have queued go ahead of new requests of the same tasks: under load a dropped key is
/// free soon, and what is queued does not pile up.
pub(crate) async fn drops_under_load_are_released_soon() {
    let server = Server::start(&[]);
    let (ours, theirs) = (locks(&server.address()).await, locks(&server.address()).await);
    let stop = Arc::new(AtomicBool::new(false));
    let before = resident();
    let busy: Vec<_> = (0..32)
        .map(|task| {
            let (locks, stop) = (ours.clone(), stop.clone());
            tokio::spawn(async move {
                let mut done = 0;
                while !stop.load(Ordering::Relaxed) {
                    let guard = locks.lock(format!("busy-{task}-{done}")).ttl(secs(600)).acquire();
                    let guard = guard.await.expect("a free key");
                    if done % 3 == 0 {
                        drop(guard);
                    } else {
                        guard.release().await.expect("held");
                    }
                    done += 1;
                }
                done
            })
        })
        .collect();
    let mut took = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < secs(4) {
        let key = format!("dropped-{}", took.len());
        let guard = ours.lock(&key).ttl(secs(600)).acquire().await.expect("a free key");
        let dropped = Instant::now();
        drop(guard);
        let next = theirs.lock(&key).ttl(secs(600)).wait(secs(60)).acquire().await;
        took.push(dropped.elapsed());
        next.expect("it is free in the end").release().await.expect("held");
    }
    stop.store(true, Ordering::Relaxed);
    let mut done = 0;
    for task in busy {
        done += task.await.expect("no panic");
    }
    let flushing = Instant::now();
    tokio::time::timeout(secs(10), ours.close()).await.expect("not much is queued");
    let (flushed, grown) = (flushing.elapsed(), resident().saturating_sub(before));
    took.sort_unstable();
    let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
    println!(
        "{done} leases; a dropped key was free after {median:?}, at worst {worst:?}; \
         flushed in {flushed:?}; {} kB more",
        grown / 1024
    );
    assert!(median < secs(1), "a dropped key is free after {median:?}, at worst {worst:?}");
    assert!(grown < 64 << 20, "{grown} bytes more after {done} leases");
    let left: Vec<String> = admin_command(&server.address(), &["KEYS", "latchwork:[khqd]:*"]);
    assert!(left.is_empty(), "{left:?}");
}

/// Bytes of memory that this process has.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("told there");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
}

/// What drops have queued on the lane of a runtime is done when that runtime has ended.
pub(crate) async fn a_runtime_that_ends_loses_no_release() {
    let server = Server::start(&[]);
    let locks = locks(&server.address()).await;
    for round in 0..5 {
        let there = locks.clone();
        let short = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let asks =
                    (0..200).map(|i| there.lock(format!("key-{i}")).ttl(secs(600)).acquire());
                let guards = futures::future::join_all(asks).await;
                assert!(guards.iter().all(Result::is_ok), "all keys were free in round {round}");
            });
            runtime.shutdown_background();
        });
        short.join().expect("no panic");
        locks.close().await;
        let left: Vec<String> = admin_command(&server.address(), &["KEYS", "latchwork:[khqd]:*"]);
        assert!(left.is_empty(), "round {round}: {left:?}");
    }
}

pub(crate) async fn a_server_that_stands_still_is_unavailable() {
    let server = Server::start(&[]);
    let locks = locks(&server.address()).await;
    let guard = locks.lock("key").ttl(secs(60)).acquire().await.expect("a free key");
    server.signal(Signal::STOP);
    let asked = locks.lock("other").try_acquire().await;
    server.signal(Signal::CONT);
    let error = asked.expect_err("nobody answers");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    guard.release().await.expect("still held");
    // What was asked for in vain is given back.
    eventually("it is free", async || {
        locks.lock("other").try_acquire().await.is_ok_and(|guard| guard.is_some())
    })
    .await;
}

/// It is more than fits into the messages that are under way.
pub(crate) async fn a_crowd_is_told_soon_that_a_server_stands_still() {
    let server = Server::start(&[]);
    let locks = locks(&server.address()).await;
    locks.lock("key").acquire().await.expect("a free key").release().await.expect("held");
    server.signal(Signal::STOP);
    let ask = |n: usize| {
        let locks = locks.clone();
        tokio::spawn(async move { locks.lock(format!("key-{n}")).try_acquire().await })
    };
    let asked = futures::future::join_all((0..1_500).map(ask));
    // Message after message it would take half a minute.
    let told = tokio::time::timeout(secs(15), asked).await;
    server.signal(Signal::CONT);
    for told in told.expect("all are told") {
        let error = told.expect("no panic").expect_err("nobody answers");
        assert_eq!(error.code(), "lock_unavailable", "{error}");
    }
    eventually("what was asked for in vain is given back", async || {
        let page = locks.list("key-", PageRequest::default()).await;
        page.is_ok_and(|page| page.keys.is_empty())
    })
    .await;
}
