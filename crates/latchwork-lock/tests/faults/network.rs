//! A network that cuts, delays, and swallows, between a provider and its server.
//!
//! Each test does the same under every kind of outage at once, each with a proxy, a provider and
//! keys of its own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::future::join_all;
use latchwork_contract::proxy::{Direction, Flow, Proxy};
use latchwork_lock::{Guard, Locks, Refresh, Result};
use libtest_mimic::Trial;

use crate::support::{Backend, SLACK, TestDatabase, connect, eventually, secs, waiting};
use crate::trials;

pub(crate) fn trials(backend: Backend) -> Vec<Trial> {
    trials![backend;
        a_cut_connection_is_made_anew,
        an_outage_at_connect_says_so,
        an_outage_at_acquire_is_no_contention,
        an_outage_at_renew_takes_nothing_away,
        an_outage_at_release_leaves_no_holder,
        an_outage_while_waiting_is_no_contention,
        an_outage_that_passes_costs_nobody_their_turn,
        trust_ends_in_time_while_nobody_answers,
        a_grant_whose_answer_was_lost_is_found_again,
        a_grant_whose_answer_is_never_heard_is_given_back,
        a_release_whose_answer_was_lost_disturbs_nobody,
        stranded_connections_are_given_up,
        a_waiter_whose_notices_are_swallowed_gets_its_turn,
        a_slow_network_is_only_slow,
        no_connection_outlives_its_provider,
    ]
}

/// When a call that nobody answers must have come back, after the time that it was given.
const PATIENCE: Duration = Duration::from_secs(15);

/// How many answers pass before one is lost: up to more than any call waits for. Ten times, since a
/// provider may do something else besides, and the answer to that may be the one that is lost: on a
/// busy machine several times in a row.
fn each_answer() -> impl Iterator<Item = (u32, u32)> {
    (0..10).flat_map(|round| (0..12).map(move |answers| (round, answers)))
}

const FORCE: Refresh = Refresh { ttl: None, threshold: Some(Duration::ZERO) };

#[derive(Clone, Copy, Debug, PartialEq)]
enum Outage {
    /// Nobody listens.
    Refused,
    /// Everything is swallowed, and nobody is told.
    Silence,
    /// Questions arrive, answers do not: half open.
    LostAnswers,
    /// Questions do not arrive: half open, the other way.
    LostQuestions,
}

const OUTAGES: [Outage; 4] =
    [Outage::Refused, Outage::Silence, Outage::LostAnswers, Outage::LostQuestions];

/// Locks behind a proxy, and others that reach the same server without it.
struct ProxiedLocks {
    outage: Outage,
    proxy: Proxy,
    /// By way of the proxy.
    address: String,
    locks: Locks,
    direct: Locks,
}

impl ProxiedLocks {
    async fn open(test_database: &TestDatabase, outage: Outage) -> ProxiedLocks {
        let proxy = proxy(test_database.server.expect("a server")).await;
        let address = test_database.through(proxy.address());
        let locks = connect(&address).await;
        let line = ProxiedLocks {
            outage,
            proxy,
            address,
            locks,
            direct: connect(&test_database.address).await,
        };
        line.warm_up().await;
        line
    }

    /// A key of its own.
    fn key(&self, name: &str) -> String {
        format!("{:?}/{name}", self.outage)
    }

    /// So that what follows finds connections that are open and know their statements.
    async fn warm_up(&self) {
        for _ in 0..2 {
            let rounds = (0..4).map(|n| async move {
                let guard = self.locks.lock(self.key(&format!("warm-{n}"))).acquire().await;
                guard.expect("a free key").release().await.expect("held");
            });
            join_all(rounds).await;
        }
    }

    async fn begin(&self) {
        match self.outage {
            Outage::Refused => {
                self.proxy.refuse().await;
                self.proxy.cut();
            }
            Outage::Silence => self.proxy.black_hole(),
            Outage::LostAnswers => self.proxy.set(Direction::ToClient, Flow::Drop),
            Outage::LostQuestions => self.proxy.set(Direction::ToServer, Flow::Drop),
        }
    }

    /// New connections work; what became of the old ones nobody tells.
    async fn end(&self) {
        self.proxy.pass().await.expect("its port");
    }

    /// Ends when an answer was lost, and what it was the answer to has therefore happened; or when
    /// the call is done all the same.
    async fn loses_one_or(&self, done: impl Fn() -> bool) {
        let before = self.proxy.counts().dropped;
        eventually("an answer is lost", async || done() || self.proxy.counts().dropped > before)
            .await;
    }

    /// A call that must come back although nobody answers.
    async fn returns<T>(&self, after: Duration, call: impl Future<Output = T>) -> T {
        let limit = after + PATIENCE;
        let out = tokio::time::timeout(limit, call).await;
        out.unwrap_or_else(|_| panic!("{:?}: no answer after {limit:?}", self.outage))
    }

    #[track_caller]
    fn is_unavailable<T>(&self, answer: Result<T>) {
        match answer {
            Ok(_) => panic!("{:?}: it went well", self.outage),
            Err(error) => {
                assert_eq!(error.code(), "lock_unavailable", "{:?}: {error}", self.outage)
            }
        }
    }

    /// Everything works, and nothing remains of these keys.
    async fn is_well(&self) {
        let key = self.key("after");
        let guard = self.locks.lock(&key).wait(secs(30)).acquire().await.expect("it is over");
        guard.refresh_with(FORCE).await.expect("held");
        guard.release().await.expect("held");
    }

    async fn is_free(&self, key: &str) {
        eventually(&format!("{key} is free"), async || {
            let seen = self.direct.inspect(key).await.expect("it answers");
            seen.holders.is_empty() && seen.waiters.is_empty()
        })
        .await;
    }
}

async fn proxy(server: SocketAddr) -> Proxy {
    Proxy::before(server).await.expect("a port")
}

/// The same under every outage, at once.
async fn under_each<F: Future<Output = ()>>(
    test_database: &TestDatabase,
    test: fn(ProxiedLocks) -> F,
) {
    let lines = join_all(OUTAGES.map(|outage| ProxiedLocks::open(test_database, outage))).await;
    join_all(lines.into_iter().map(test)).await;
}

async fn a_cut_connection_is_made_anew(test_database: TestDatabase) {
    let line = ProxiedLocks::open(&test_database, Outage::Refused).await;
    for round in 0..3 {
        let key = line.key(&format!("cut-{round}"));
        line.proxy.cut();
        let guard = line.locks.lock(&key).ttl(secs(60)).wait(secs(20)).acquire().await;
        let guard = guard.expect("it is asked again");
        line.proxy.cut();
        // Without a time to wait in, one answer may be lost; the next must not.
        if let Err(error) = guard.refresh_with(FORCE).await {
            assert_eq!(error.code(), "lock_unavailable", "{error}");
            guard.refresh_with(FORCE).await.expect("still held");
        }
        let next = waiter(&line.locks, &key);
        waiting(&line.direct, &key, 1).await;
        line.proxy.cut();
        if let Err(error) = guard.release().await {
            assert_eq!(error.code(), "lock_unavailable", "{error}");
        }
        let next = next.await.expect("no panic").expect("its turn");
        next.release().await.expect("held");
        line.is_free(&key).await;
    }
}

async fn an_outage_at_connect_says_so(test_database: TestDatabase) {
    under_each(&test_database, |line: ProxiedLocks| async move {
        line.begin().await;
        // As the first of a process would find it.
        let address = line.address.clone();
        let connecting = Locks::connect(&address);
        line.is_unavailable(line.returns(Duration::ZERO, connecting).await);
        line.end().await;
        connect(&address).await.close().await;
    })
    .await;
}

async fn an_outage_at_acquire_is_no_contention(test_database: TestDatabase) {
    under_each(&test_database, |line: ProxiedLocks| async move {
        let key = line.key("a");
        line.begin().await;
        let asking = line.locks.lock(&key).ttl(secs(2)).wait(secs(2)).acquire();
        line.is_unavailable(line.returns(secs(2), asking).await);
        let asking = line.locks.lock(&key).ttl(secs(2)).try_acquire();
        line.is_unavailable(line.returns(Duration::ZERO, asking).await);
        line.end().await;
        line.is_well().await;
        // What was granted meanwhile is given back, or its ttl ends it.
        line.is_free(&key).await;
    })
    .await;
}

async fn an_outage_at_renew_takes_nothing_away(test_database: TestDatabase) {
    under_each(&test_database, |line: ProxiedLocks| async move {
        let key = line.key("a");
        let guard = line.locks.lock(&key).ttl(secs(90)).acquire().await.expect("a free key");
        line.begin().await;
        let renewing = guard.refresh_with(FORCE);
        line.is_unavailable(line.returns(Duration::ZERO, renewing).await);
        assert!(guard.is_held(), "an outage ended the trust");
        line.end().await;
        line.is_well().await;
        guard.refresh_with(FORCE).await.expect("still held");
        let seen = line.direct.inspect(&key).await.expect("it answers");
        assert_eq!(seen.holders.len(), 1, "{seen:?}");
        assert_eq!(seen.holders[0].fence, guard.fence());
        guard.release().await.expect("held");
    })
    .await;
}

async fn an_outage_at_release_leaves_no_holder(test_database: TestDatabase) {
    under_each(&test_database, |line: ProxiedLocks| async move {
        let key = line.key("a");
        let guard = line.locks.lock(&key).ttl(secs(600)).acquire().await.expect("a free key");
        line.begin().await;
        line.is_unavailable(line.returns(Duration::ZERO, guard.release()).await);
        line.end().await;
        // Long before its ttl: giving up has queued a release.
        line.is_free(&key).await;
        line.is_well().await;
    })
    .await;
}

async fn an_outage_while_waiting_is_no_contention(test_database: TestDatabase) {
    under_each(&test_database, |line: ProxiedLocks| async move {
        let key = line.key("a");
        let held = line.direct.lock(&key).ttl(secs(600)).acquire().await.expect("a free key");
        let (locks, name) = (line.locks.clone(), key.clone());
        let asking =
            tokio::spawn(async move { locks.lock(&name).wait(secs(5)).acquire().await.map(drop) });
        waiting(&line.direct, &key, 1).await;
        line.begin().await;
        line.is_unavailable(line.returns(secs(5), asking).await.expect("no panic"));
        line.end().await;
        waiting(&line.direct, &key, 0).await;
        held.release().await.expect("not disturbed");
        line.is_well().await;
        line.is_free(&key).await;
    })
    .await;
}

async fn an_outage_that_passes_costs_nobody_their_turn(test_database: TestDatabase) {
    under_each(&test_database, |line: ProxiedLocks| async move {
        let key = line.key("a");
        let held = line.direct.lock(&key).ttl(secs(600)).acquire().await.expect("a free key");
        let next = waiter(&line.locks, &key);
        waiting(&line.direct, &key, 1).await;
        line.begin().await;
        tokio::time::sleep(secs(1)).await;
        held.release().await.expect("held");
        tokio::time::sleep(secs(1)).await;
        line.end().await;
        let next = next.await.expect("no panic").expect("its turn");
        assert!(next.is_held());
        let seen = line.direct.inspect(&key).await.expect("it answers");
        assert_eq!(seen.holders.len(), 1, "{seen:?}");
        assert_eq!(seen.holders[0].fence, next.fence());
        next.release().await.expect("held");
        line.is_free(&key).await;
    })
    .await;
}

async fn trust_ends_in_time_while_nobody_answers(test_database: TestDatabase) {
    under_each(&test_database, |line: ProxiedLocks| async move {
        let (plain, renewed) = (line.key("plain"), line.key("renewed"));
        let ttl = secs(3);
        let plain_guard = line.locks.lock(&plain).ttl(ttl).acquire().await.expect("a free key");
        let renewing = line.locks.lock(&renewed).ttl(ttl).auto_renew(secs(60)).acquire();
        let renewed_guard = renewing.await.expect("a free key");
        line.begin().await;
        // Nobody gets in for as long as it is trusted.
        for (key, guard) in [(&plain, &plain_guard), (&renewed, &renewed_guard)] {
            let asking = line.direct.lock(key).wait(secs(30)).acquire();
            let next = asking.await.expect("the ttl has ended it");
            assert!(!guard.is_held(), "{:?}: two trust {key}", line.outage);
            let lost = tokio::time::timeout(SLACK, guard.lost()).await;
            lost.expect("it is known");
            next.release().await.expect("held");
        }
        line.end().await;
        line.is_well().await;
    })
    .await;
}

/// Which of the answers is the grant only the provider knows: so each of them is lost in turn.
async fn a_grant_whose_answer_was_lost_is_found_again(test_database: TestDatabase) {
    let line = ProxiedLocks::open(&test_database, Outage::LostAnswers).await;
    let mut found_again = 0;
    for (round, answers) in each_answer() {
        let key = line.key(&format!("{round}-{answers}"));
        line.warm_up().await;
        line.proxy.pass_answers(answers);
        let asking = waiter(&line.locks, &key);
        line.loses_one_or(|| asking.is_finished()).await;
        let answered = asking.is_finished();
        let seen = line.direct.inspect(&key).await.expect("it answers");
        let granted = seen.holders.first().map(|holder| holder.fence);
        line.end().await;
        line.proxy.cut();
        let guard = asking.await.expect("no panic").expect("it was granted");
        if let Some(granted) = granted {
            assert_eq!(guard.fence(), granted, "after {answers} answers: the same grant");
            found_again += usize::from(!answered);
        }
        let seen = line.direct.inspect(&key).await.expect("it answers");
        assert_eq!((seen.holders.len(), seen.waiters.len()), (1, 0), "{seen:?}");
        assert!(line.direct.lock(&key).try_acquire().await.expect("it answers").is_none());
        guard.release().await.expect("held");
        line.is_free(&key).await;
        if answered && found_again > 0 {
            return;
        }
    }
    panic!("no answer that was lost was that of a grant");
}

async fn a_grant_whose_answer_is_never_heard_is_given_back(test_database: TestDatabase) {
    let line = ProxiedLocks::open(&test_database, Outage::LostAnswers).await;
    let key = line.key("a");
    line.begin().await;
    let asking = line.locks.lock(&key).ttl(secs(600)).wait(secs(2)).acquire();
    line.is_unavailable(line.returns(secs(2), asking).await);
    line.end().await;
    line.proxy.cut();
    // Long before its ttl.
    line.is_free(&key).await;
    line.is_well().await;
}

async fn a_release_whose_answer_was_lost_disturbs_nobody(test_database: TestDatabase) {
    let line = ProxiedLocks::open(&test_database, Outage::LostAnswers).await;
    let mut unheard = 0;
    for (round, answers) in each_answer() {
        let key = line.key(&format!("{round}-{answers}"));
        line.warm_up().await;
        let guard = line.locks.lock(&key).ttl(secs(600)).acquire().await.expect("a free key");
        let fence = guard.fence();
        line.proxy.pass_answers(answers);
        let releasing = tokio::spawn(guard.release());
        line.loses_one_or(|| releasing.is_finished()).await;
        let answered = releasing.is_finished();
        // As soon as the key is free it is another's, while the first one still asks.
        let free = !line.direct.exists(&key).await.expect("it answers");
        let next = match free {
            true => line.direct.lock(&key).ttl(secs(600)).try_acquire().await.expect("it answers"),
            false => None,
        };
        unheard += usize::from(next.is_some() && !answered);
        line.end().await;
        line.proxy.cut();
        match line.returns(Duration::ZERO, releasing).await.expect("no panic") {
            Ok(()) => {}
            // Whether it was this question that ended it cannot be told any more.
            Err(error) => assert_eq!(error.code(), "lock_unavailable", "{error}"),
        }
        let next = match next {
            Some(next) => next,
            None => {
                let asking = line.direct.lock(&key).ttl(secs(600)).wait(secs(20)).acquire();
                asking.await.expect("it is released in the end")
            }
        };
        line.locks.close().await;
        assert!(next.fence() > fence);
        let seen = line.direct.inspect(&key).await.expect("it answers");
        assert_eq!(seen.holders.len(), 1, "the next one was disturbed: {seen:?}");
        next.release().await.expect("held");
        if answered && unheard > 0 {
            return;
        }
    }
    panic!("no answer that was lost was that of a release");
}

async fn stranded_connections_are_given_up(test_database: TestDatabase) {
    let line = ProxiedLocks::open(&test_database, Outage::Refused).await;
    let key = line.key("a");
    line.proxy.silence_open();
    let guard = line.locks.lock(&key).ttl(secs(90)).wait(secs(30)).acquire().await;
    let guard = guard.expect("new connections work");
    line.proxy.silence_open();
    // Without a time to wait in, it may be told so; and then it works.
    if let Err(error) = line.returns(Duration::ZERO, guard.refresh_with(FORCE)).await {
        assert_eq!(error.code(), "lock_unavailable", "{error}");
        guard.refresh_with(FORCE).await.expect("still held");
    }
    line.proxy.silence_open();
    if let Err(error) = line.returns(Duration::ZERO, guard.release()).await {
        assert_eq!(error.code(), "lock_unavailable", "{error}");
    }
    line.is_free(&key).await;
}

async fn a_waiter_whose_notices_are_swallowed_gets_its_turn(test_database: TestDatabase) {
    let line = ProxiedLocks::open(&test_database, Outage::Refused).await;
    let key = line.key("a");
    for _ in 0..2 {
        let held = line.direct.lock(&key).ttl(secs(600)).acquire().await.expect("a free key");
        let next = waiter(&line.locks, &key);
        waiting(&line.direct, &key, 1).await;
        line.proxy.silence_open();
        held.release().await.expect("held");
        let next = next.await.expect("no panic").expect("its turn");
        next.release().await.expect("held");
        line.is_free(&key).await;
    }
}

async fn a_slow_network_is_only_slow(test_database: TestDatabase) {
    const SLOW: Duration = Duration::from_millis(150);
    let line = ProxiedLocks::open(&test_database, Outage::Refused).await;
    let key = line.key("a");
    for direction in [Direction::ToServer, Direction::ToClient] {
        line.proxy.set(direction, Flow::Delay(SLOW));
    }
    let ttl = secs(20);
    let asked = Instant::now();
    let guard = line.locks.lock(&key).ttl(ttl).acquire().await.expect("a free key");
    assert!(asked.elapsed() >= SLOW * 2, "it was not slow");
    assert!(guard.remaining() <= ttl - SLOW * 2, "trust is counted from before the question");
    guard.refresh_with(FORCE).await.expect("held");
    let next = waiter(&line.locks, &key);
    waiting(&line.direct, &key, 1).await;
    assert!(line.locks.lock(&key).try_acquire().await.expect("it answers").is_none());
    guard.release().await.expect("held");
    next.await.expect("no panic").expect("its turn").release().await.expect("held");
    line.end().await;
    line.is_free(&key).await;
}

async fn no_connection_outlives_its_provider(test_database: TestDatabase) {
    under_each(&test_database, |line: ProxiedLocks| async move {
        let key = line.key("a");
        let held = line.direct.lock(&key).ttl(secs(600)).acquire().await.expect("a free key");
        let (locks, name) = (line.locks.clone(), key.clone());
        let asking =
            tokio::spawn(async move { locks.lock(&name).wait(secs(3)).acquire().await.map(drop) });
        waiting(&line.direct, &key, 1).await;
        line.begin().await;
        line.is_unavailable(line.returns(secs(3), asking).await.expect("no panic"));
        line.end().await;
        held.release().await.expect("held");
        line.is_well().await;
        let ProxiedLocks { proxy, locks, outage, .. } = line;
        assert!(proxy.counts().open > 0, "it works without a connection?");
        locks.close().await;
        drop(locks);
        eventually(&format!("{outage:?}: all connections are closed"), async || {
            proxy.counts().open == 0
        })
        .await;
    })
    .await;
}

fn waiter(locks: &Locks, key: &str) -> tokio::task::JoinHandle<Result<Guard>> {
    let (locks, key) = (locks.clone(), key.to_owned());
    tokio::spawn(async move { locks.lock(&key).ttl(secs(30)).wait(secs(60)).acquire().await })
}
