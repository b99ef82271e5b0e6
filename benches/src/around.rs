//! One key that goes around among many tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::Locking;

/// What one round gave.
pub struct Round {
    /// How often each task got the key.
    pub shares: Vec<u64>,
    /// From just before the unlock to just after the next lock, in nanoseconds; sorted.
    pub hand_overs: Vec<f64>,
}

/// Tasks that all want the same key, again and again, until it was granted often enough. `peer`
/// gives each task its locks, and `all_wait` ends when all stand in the queue of the key.
pub async fn around<L: Locking, F: Future<Output = ()> + Send>(
    waiters: usize,
    grants: u64,
    peer: impl Fn(usize) -> L,
    all_wait: impl FnOnce(&'static str) -> F + Send,
) -> Round {
    const KEY: &str = "order:1";
    let start = Instant::now();
    let since = move || start.elapsed().as_nanos() as u64;
    let granted = Arc::new(AtomicU64::new(0));
    let unlocked_at = Arc::new(AtomicU64::new(0));
    let here = Arc::new(Barrier::new(waiters + 1));

    let mut tasks = JoinSet::new();
    for task in 0..waiters {
        let (peer, here) = (peer(task), here.clone());
        let (granted, unlocked_at) = (granted.clone(), unlocked_at.clone());
        tasks.spawn(async move {
            here.wait().await;
            let (mut share, mut hand_overs, mut over) = (0, Vec::new(), false);
            while !over {
                let inside = async {
                    let waited = since() - unlocked_at.load(Ordering::Relaxed);
                    over = granted.fetch_add(1, Ordering::Relaxed) >= grants;
                    if !over {
                        share += 1;
                        hand_overs.push(waited as f64);
                    }
                    unlocked_at.store(since(), Ordering::Relaxed);
                };
                peer.with(KEY, inside).await;
            }
            (task, share, hand_overs)
        });
    }
    let all_queue = async {
        here.wait().await;
        all_wait(KEY).await;
        unlocked_at.store(since(), Ordering::Relaxed);
    };
    peer(0).with(KEY, all_queue).await;

    let mut round = Round { shares: vec![0; waiters], hand_overs: Vec::new() };
    for (task, share, hand_overs) in tasks.join_all().await {
        round.shares[task] = share;
        round.hand_overs.extend(hand_overs);
    }
    round.hand_overs.sort_by(f64::total_cmp);
    round
}
