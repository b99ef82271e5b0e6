//! Hand-overs of one key, in units of what one step of the backend costs.
#![expect(clippy::expect_used, reason = "a bench whose parts do not come about is none")]

use std::time::{Duration, Instant};

use latchwork_lock::Locks;
use tokio::runtime::Runtime;

use crate::{Goal, Ratio, Released, Table, around, jain, percentile};

/// What is measured, and in which words it is told.
pub struct HandOver<'a> {
    /// How many want the key.
    pub waiters: usize,
    /// How often it is granted in a round.
    pub grants: u64,
    /// How many rounds there are.
    pub rounds: usize,
    /// What one step of the backend is called.
    pub unit: &'a str,
    /// For the median, and for the slowest hundredth.
    pub goals: [Goal; 2],
}

impl HandOver<'_> {
    /// Adds the figures. The waiters take turns among the `locks`, each of which is to the backend
    /// what a process is; `idle` tells what a step costs when nothing else happens, sorted.
    pub fn measure(
        &self,
        runtime: &Runtime,
        locks: &[Locks],
        idle: impl AsyncFn() -> Vec<f64>,
        table: &mut Table,
    ) {
        let (mut p50, mut p99, mut own, mut fair) = (vec![], vec![], vec![], vec![]);
        for _ in 0..self.rounds {
            let steps = runtime.block_on(idle());
            let step = percentile(&steps, 50.0);
            own.push(percentile(&steps, 99.0) / step);
            let round = runtime.block_on(around(
                self.waiters,
                self.grants,
                |task| Released(locks[task % locks.len()].clone()),
                |key| wait_for(&locks[0], key, self.waiters),
            ));
            p50.push(percentile(&round.hand_overs, 50.0) / step);
            p99.push(percentile(&round.hand_overs, 99.0) / step);
            fair.push(jain(&round.shares));
        }
        let of = match locks.len() {
            1 => format!("{} waiters", self.waiters),
            processes => format!("{} waiters of {processes} processes", self.waiters),
        };
        for (what, figures, goal) in [
            (format!("p50, {of}"), p50, self.goals[0]),
            (format!("p99, {of}"), p99, self.goals[1]),
            // How much of that is the machine's doing.
            (format!("p99 of {} itself", self.unit), own, Goal::None),
        ] {
            let ratio = Ratio::of(figures);
            let unit = format!("the median of {}", self.unit);
            table.row(&what, &unit, ratio.median, ratio.to_string(), goal);
        }
        let fair = Ratio::of(fair);
        let shown = format!("{:.4} ({:.4} to {:.4})", fair.median, fair.low, fair.high);
        table.row(&format!("Jain's index, {of}"), "", fair.median, shown, Goal::AtLeast(0.95));
    }
}

/// What a step costs when nothing else happens, in nanoseconds; sorted.
pub async fn timed<F: Future<Output = ()> + Send>(
    count: u64,
    step: impl Fn() -> F + Send + 'static,
) -> Vec<f64> {
    // On a worker like the tasks that it is compared with.
    let timed = tokio::spawn(async move {
        let mut took = Vec::new();
        for _ in 0..count {
            let begin = Instant::now();
            step().await;
            took.push(begin.elapsed().as_nanos() as f64);
        }
        took.sort_by(f64::total_cmp);
        took
    });
    timed.await.expect("no panic")
}

/// Ends when so many wait for the key.
pub async fn wait_for(locks: &Locks, key: &str, count: usize) {
    while locks.inspect(key).await.expect("it answers").waiters.len() < count {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
