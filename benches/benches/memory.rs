//! The in-memory provider beside other locks by key, as ratios of one run.
//!
//! `cargo bench -p latchwork-benches --bench memory` takes a minute or so. Goals are printed and
//! not asserted: a busy machine is no fault of the code.

use std::future::ready;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use latchwork_benches::{
    Contender, DashMapOfMutexes, Goal, KeyMutex, KeyedLock, Latchwork, Lockable, Peer, Ratio,
    Round, Scale, Table, around, jain, percentile, race,
};
use latchwork_lock::blocking;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, yield_now};

const WAITERS: usize = 64;

fn main() -> std::io::Result<()> {
    let scale = Scale::from_args();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;

    let mut speed = Table::new("Lock and unlock in memory: how many times faster than …");
    for load in LOADS {
        lock_and_unlock(scale, &runtime, load, &mut speed);
    }
    let mut cost = Table::new("The forms of asking, uncontended: how many times the cost of …");
    forms(scale, &runtime, &mut cost);
    let mut handing = Table::new("One key that 64 tasks want, again and again");
    hand_over(scale, &runtime, &mut handing);

    for table in [speed, cost, handing] {
        table.print(scale);
    }
    Ok(())
}

// ---- lock and unlock ---------------------------------------------------------------------------

#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    tasks: u64,
    keys: u64,
    /// Whether the lock is held while another task has its turn.
    over_yield: bool,
    /// Beside `lockable`; the others are for orientation.
    goal: Goal,
}

const LOADS: [Load; 6] = [
    Load {
        name: "1 task, 1 key",
        tasks: 1,
        keys: 1,
        over_yield: false,
        goal: Goal::AtLeast(1.2),
    },
    Load {
        name: "1 task, 10,000 keys",
        tasks: 1,
        keys: 10_000,
        over_yield: false,
        goal: Goal::AtLeast(1.2),
    },
    Load { name: "8 tasks, 1 key", tasks: 8, keys: 1, over_yield: false, goal: Goal::AtLeast(1.0) },
    Load {
        name: "8 tasks, 10,000 keys",
        tasks: 8,
        keys: 10_000,
        over_yield: false,
        goal: Goal::AtLeast(2.5),
    },
    Load {
        name: "8 tasks, 1 key, held over a yield",
        tasks: 8,
        keys: 1,
        over_yield: true,
        goal: Goal::AtLeast(0.95),
    },
    Load {
        name: "8 tasks, 10,000 keys, held over a yield",
        tasks: 8,
        keys: 10_000,
        over_yield: true,
        goal: Goal::AtLeast(0.95),
    },
];

fn lock_and_unlock(scale: Scale, runtime: &Runtime, load: Load, table: &mut Table) {
    let keys: Arc<[String]> = (0..load.keys).map(|number| format!("order:{number}")).collect();
    let mut contenders = [
        contender::<Latchwork>(runtime, load, &keys),
        contender::<Lockable>(runtime, load, &keys),
        contender::<KeyedLock>(runtime, load, &keys),
        contender::<KeyMutex>(runtime, load, &keys),
        contender::<DashMapOfMutexes>(runtime, load, &keys),
    ];
    let race = race(scale, &mut contenders);
    for (other, name) in race.others() {
        let goal = if name == Lockable::NAME { load.goal } else { Goal::None };
        let ratio = race.first_faster_than(other);
        table.row(load.name, name, ratio.median, ratio.to_string(), goal);
    }
}

fn contender<'a, P: Peer>(runtime: &'a Runtime, load: Load, keys: &Arc<[String]>) -> Contender<'a> {
    let (peer, keys) = (P::new(), keys.clone());
    Contender::new(P::NAME, move |operations| {
        let each = operations.div_ceil(load.tasks);
        let mut tasks = JoinSet::new();
        for task in 0..load.tasks {
            let (peer, keys) = (peer.clone(), keys.clone());
            // Two loops instead of a question in one: it would be asked inside of what is timed.
            if load.over_yield {
                let work = async move {
                    for key in walk(&keys, task, each) {
                        peer.with(key, yield_now()).await;
                    }
                };
                tasks.spawn_on(work, runtime.handle());
            } else {
                let work = async move {
                    for key in walk(&keys, task, each) {
                        peer.with(key, ready(())).await;
                    }
                };
                tasks.spawn_on(work, runtime.handle());
            }
        }
        runtime.block_on(tasks.join_all());
    })
}

/// A number of keys in an order that is no order, other for each task and the same in each round.
fn walk(keys: &[String], task: u64, steps: u64) -> impl Iterator<Item = &String> + Send {
    let mut state = task.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..steps).map(move |_| {
        // Knuth's generator; its upper bits are the good ones.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        &keys[((state >> 33) % keys.len() as u64) as usize]
    })
}

// ---- forms -------------------------------------------------------------------------------------

#[expect(clippy::expect_used, reason = "a bench of locks that are not granted is none")]
fn forms(scale: Scale, runtime: &Runtime, table: &mut Table) {
    let Latchwork(locks) = Latchwork::new();
    let threads = blocking::Locks::from(locks.clone());
    let key = "order:1".to_owned();

    // All on this thread, so that the form is the only difference.
    let mut dropped = |operations| {
        runtime.block_on(async {
            for _ in 0..operations {
                drop(black_box(locks.lock(&key).wait_forever().acquire().await.expect("granted")));
            }
        });
    };
    let mut released = |operations| {
        runtime.block_on(async {
            for _ in 0..operations {
                let guard = locks.lock(&key).wait_forever().acquire().await.expect("granted");
                black_box(guard).release().await.expect("held to the end");
            }
        });
    };
    let mut closure = |operations| {
        runtime.block_on(async {
            for _ in 0..operations {
                locks.lock(&key).wait_forever().run(|_| ready(())).await.expect("granted");
            }
        });
    };
    let mut blocked = |operations| {
        for _ in 0..operations {
            drop(black_box(threads.lock(&key).wait_forever().acquire().expect("granted")));
        }
    };

    let base = "async, released by drop";
    let cases: [(_, &mut dyn FnMut(u64), _); 3] = [
        ("blocking, released by drop", &mut blocked, Goal::AtMost(1.2)),
        ("async, release().await", &mut released, Goal::None),
        ("async, run(closure)", &mut closure, Goal::None),
    ];
    for (name, run, goal) in cases {
        let race =
            race(scale, &mut [Contender::new(name, run), Contender::new(base, &mut dropped)]);
        let ratio = race.first_costs_of(1);
        table.row(name, base, ratio.median, ratio.to_string(), goal);
    }
}

// ---- hand-over ---------------------------------------------------------------------------------

fn hand_over(scale: Scale, runtime: &Runtime, table: &mut Table) {
    // Many, because a task whose thread is put aside between unlocking and asking again waits for
    // nothing and misses turns: that is the machine's doing, and should count for little.
    let grants = scale.pick(51_200, 256);
    let mut peers = [
        Around::of::<Latchwork>(Goal::AtLeast(0.99)),
        Around::of::<Lockable>(Goal::None),
        Around::of::<KeyedLock>(Goal::None),
        Around::of::<KeyMutex>(Goal::None),
    ];
    for _ in 0..scale.rounds {
        let ping = percentile(&runtime.block_on(pings(grants)), 50.0);
        for peer in &mut peers {
            let round = (peer.run)(runtime, grants);
            peer.fair.push(jain(&round.shares));
            peer.p50.push(percentile(&round.hand_overs, 50.0) / ping);
            peer.p99.push(percentile(&round.hand_overs, 99.0) / ping);
        }
    }
    for peer in peers {
        let fair = Ratio::of(peer.fair);
        let shown = format!("{:.4} ({:.4} to {:.4})", fair.median, fair.low, fair.high);
        table.row("Jain's fairness index", peer.name, fair.median, shown, peer.goal);
        for (what, pings) in [("p50", peer.p50), ("p99", peer.p99)] {
            let what = format!("{what} of a hand-over, in median pings by oneshot");
            let pings = Ratio::of(pings);
            table.row(&what, peer.name, pings.median, pings.to_string(), Goal::None);
        }
    }
}

/// What one peer's rounds gave.
struct Around {
    name: &'static str,
    run: fn(&Runtime, u64) -> Round,
    goal: Goal,
    fair: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

impl Around {
    fn of<P: Peer>(goal: Goal) -> Self {
        let run = |runtime: &Runtime, grants| {
            let peer = P::new();
            // They ask in the same poll in which they leave the barrier; nobody tells when the last
            // one has, and the shares would only be a little less even.
            let all_wait = |_| {
                std::thread::sleep(Duration::from_millis(20));
                ready(())
            };
            runtime.block_on(around(WAITERS, grants, |_| peer.clone(), all_wait))
        };
        Around { name: P::NAME, run, goal, fair: vec![], p50: vec![], p99: vec![] }
    }
}

/// How long a value takes from one task to another that awaits it; sorted.
async fn pings(count: u64) -> Vec<f64> {
    let ping = async move {
        let mut took = Vec::new();
        let (mut send, mut receive) = oneshot::channel::<Question>();
        let other = tokio::spawn(async move {
            while let Ok(Question(answer)) = receive.await {
                let (next, receiver) = oneshot::channel();
                receive = receiver;
                let _ = answer.send(Answer(Instant::now(), next));
            }
        });
        for _ in 0..count {
            let (answer, answered) = oneshot::channel();
            let _ = send.send(Question(answer));
            let Ok(Answer(sent_at, next)) = answered.await else { return took };
            took.push(sent_at.elapsed().as_nanos() as f64);
            send = next;
        }
        drop(send);
        let _ = other.await;
        took.sort_by(f64::total_cmp);
        took
    };
    // On a worker like the tasks that it is compared with.
    tokio::spawn(ping).await.unwrap_or_default()
}

/// A question, with the way for its answer.
struct Question(oneshot::Sender<Answer>);

/// When it was sent, and the way for the next question.
struct Answer(Instant, oneshot::Sender<Question>);
