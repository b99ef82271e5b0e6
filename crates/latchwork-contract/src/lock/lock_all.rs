//! Several keys at once: sorted, under one deadline, all or none.

use std::time::Duration;

use futures::future::join_all;

use super::case::case;
use super::fixture::{SLACK, code};
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(l01_all_keys_are_held, [Exclusion]),
    case!(l01_all_or_nothing, [Exclusion]),
    case!(l05_all_opposite_orders_do_not_deadlock, [Wait, Exclusion]),
    case!(l05_all_have_one_deadline, [Wait, Exclusion]),
    case!(
        l10_all_first_leases_outlive_the_wait_for_the_last,
        [Wait, Renew, Inspect, Exclusion, Expiry]
    ),
    case!(l14_all_are_released_on_drop, [Exclusion]),
];

async fn l01_all_keys_are_held(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let keys = ["c", "a", "b", "a", "c"].map(|name| f.key(name));
    let set = ours.lock_all(&keys).acquire().await.expect("free keys");
    let held: Vec<_> = set.iter().map(|held| held.key().to_owned()).collect();
    assert_eq!(held, ["a", "b", "c"].map(|name| f.key(name)), "sorted, each once");
    assert!(set.is_held() && set.len() == 3 && !set.is_empty());
    for key in &keys {
        assert!(set.get(key).is_some_and(latchwork_lock::Held::is_held));
        assert!(theirs.lock(key).try_acquire().await.expect("it answers").is_none());
    }
    set.release().await.expect("held");
    for key in &held {
        assert!(theirs.lock(key).try_acquire().await.expect("it answers").is_some());
    }
}

async fn l01_all_or_nothing(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let keys = ["a", "b", "c"].map(|name| f.key(name));
    // The last in order, so that the others have been taken by then.
    let last = theirs.lock(&keys[2]).acquire().await.expect("a free key");
    assert_eq!(code(ours.lock_all(&keys).acquire().await), "lock_taken");
    assert!(ours.lock_all(&keys).try_acquire().await.expect("it answers").is_none());
    ours.close().await;
    for key in &keys[..2] {
        assert!(theirs.lock(key).try_acquire().await.expect("it answers").is_some(), "{key} kept");
    }
    last.release().await.expect("held");
}

async fn l05_all_opposite_orders_do_not_deadlock(f: Fixture) {
    let clients = [f.open().await, f.open().await];
    let names = ["a", "b", "c"].map(|name| f.key(name));
    let rounds = f.rounds(5);
    let tasks = (0..6).map(|i| {
        let locks = clients[i % 2].clone();
        let mut keys = names.to_vec();
        keys.rotate_left(i % 3);
        if i >= 3 {
            keys.reverse();
        }
        tokio::spawn(async move {
            for _ in 0..rounds {
                let set = locks.lock_all(&keys).wait(Duration::from_secs(30)).acquire().await;
                tokio::task::yield_now().await;
                set.expect("its turn comes").release().await.expect("held");
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("no panic");
    }
}

async fn l05_all_have_one_deadline(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let keys = ["a", "b", "c"].map(|name| f.key(name));
    let wait = f.ttl() * 4;
    // The first becomes free at half of the time, the last never: not a new deadline for each.
    let first = theirs.lock(&keys[0]).ttl(wait / 2).acquire().await.expect("a free key");
    let last = theirs.lock(&keys[2]).acquire().await.expect("a free key");
    let asked = f.now();
    let asking = ours.lock_all(&keys).wait(wait).acquire();
    let limit = wait + f.capabilities().granularity() + SLACK;
    assert_eq!(code(f.within(limit, "the deadline ends it", asking).await), "lock_taken");
    let took = f.now().since(asked);
    assert!(
        took >= wait && took < wait * 3 / 2 + SLACK / 2,
        "{took:?} with a deadline of {wait:?}"
    );
    ours.close().await;
    assert!(theirs.lock(&keys[0]).try_acquire().await.expect("it answers").is_some());
    drop((first, last));
}

async fn l10_all_first_leases_outlive_the_wait_for_the_last(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let keys = ["a", "b"].map(|name| f.key(name));
    let ttl = f.ttl() * 4;
    let last = theirs.lock(&keys[1]).acquire().await.expect("a free key");
    let (locks, names) = (ours.clone(), keys.clone());
    let asking = tokio::spawn(async move {
        locks.lock_all(&names).ttl(ttl).wait(Duration::from_secs(30)).acquire().await
    });
    f.queued(&theirs, &keys[1], 1).await;
    let fence = theirs.inspect(&keys[0]).await.expect("it answers").holders[0].fence;
    let end = f.now().after(ttl * 2);
    f.within(ttl * 3 + SLACK, "twice the ttl passes", async {
        while f.now() < end {
            let other = theirs.lock(&keys[0]).try_acquire().await.expect("it answers");
            assert!(other.is_none(), "the first lease ran out while the last was waited for");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    last.release().await.expect("held");
    let set = f.soon("the last is let in", asking).await.expect("all are held");
    assert!(set.is_held());
    assert_eq!(set.get(&keys[0]).map(latchwork_lock::Held::fence), Some(fence), "the same lease");
    set.release().await.expect("held");
}

async fn l14_all_are_released_on_drop(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let keys = ["a", "b"].map(|name| f.key(name));
    drop(ours.lock_all(&keys).acquire().await.expect("free keys"));
    ours.close().await;
    let set = theirs.lock_all(&keys).acquire().await.expect("free again");
    set.release().await.expect("held");
}
