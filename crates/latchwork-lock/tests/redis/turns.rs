//! How a key goes from one holder to the next, and what is cut meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use latchwork_lock::{Fence, Guard, Locks, Refresh, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::{JoinHandle, yield_now};

use crate::server::{Connection, Server, StallingProxy, admin_command, count};
use crate::{eventually, locks, millis, secs, waiter, waiting};

const TTL: Duration = Duration::from_secs(60);

/// Lets everything happen that needs no answer.
async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

fn wants(locks: &Locks) -> JoinHandle<Guard> {
    let locks = locks.clone();
    let wants =
        async move { locks.lock("key").ttl(TTL).wait(TTL).acquire().await.expect("its turn") };
    tokio::spawn(wants)
}

/// The server knows this lease, and all of its ttl is left.
async fn is_whole(guard: &Guard, theirs: &Locks) {
    assert!(guard.remaining() > TTL / 2, "{:?} are left", guard.remaining());
    let seen = theirs.inspect("key").await.expect("it answers");
    assert_eq!(seen.holders.len(), 1);
    assert_eq!(seen.holders[0].fence, guard.fence());
    assert!(seen.holders[0].expires_in > TTL / 2, "{seen:?}");
}

pub(crate) async fn a_turn_is_used_when_its_claim_is_answered() {
    let server = Server::start(&[]);
    let way = StallingProxy::to(server.port);
    let theirs = locks(&format!("redis://127.0.0.1:{}", way.port)).await;
    // What claims; this runtime asks by one of its own.
    let claims = way.newest();
    let ours = locks(&server.address()).await;
    let guard = ours.lock("key").acquire().await.expect("a free key");
    let waits = wants(&theirs);
    waiting(&theirs, "key", 1).await;
    eventually("it listens", async || count(&server.address(), "subscribe") > 0).await;
    let (before, held_up) = (claims.pieces(), claims.hold_up());
    let fence = guard.fence();
    guard.release().await.expect("held");
    eventually("it claims", async || claims.pieces() > before).await;
    settle().await;
    assert!(!waits.is_finished(), "nobody has confirmed it");
    drop(held_up);
    let next = waits.await.expect("no panic");
    assert_eq!(next.previous_fence(), Some(fence));
    is_whole(&next, &ours).await;
    next.release().await.expect("held");
}

/// A notice of a turn that is none, such as one that was long under way.
pub(crate) async fn a_turn_that_is_none_lets_nobody_in() {
    // Every message is told of in its log, so that a claim can be told from a look.
    let log = ["--slowlog-log-slower-than", "0", "--slowlog-max-len", "100000"];
    let server = Server::start(&log);
    let address = server.address();
    let (theirs, ours) = (locks(&address).await, locks(&address).await);
    let guard = ours.lock("key").ttl(TTL).acquire().await.expect("a free key");
    let waits = waiter(&theirs, "key");
    waiting(&ours, "key", 1).await;
    eventually("it listens", async || count(&address, "subscribe") > 0).await;
    let ids: Vec<String> = admin_command(&address, &["LRANGE", "latchwork:q:lock/key", "0", "-1"]);
    let channels: Vec<String> = admin_command(&address, &["PUBSUB", "CHANNELS", "latchwork:c:*"]);
    let notice = format!("{}:", ids[0]);
    let heard: i64 = admin_command(&address, &["PUBLISH", &channels[0], &notice]);
    assert_eq!((channels.len(), heard), (1, 1));
    eventually("it claims in vain", async || has_sent(&address, "c", &ids[0])).await;
    eventually("it asks again", async || has_sent(&address, "a", &ids[0])).await;
    waiting(&ours, "key", 1).await;
    assert!(!waits.is_finished(), "two at once");
    guard.release().await.expect("held");
    waits.await.expect("no panic").release().await.expect("held");
}

/// Whether the server was sent this operation for this request, other than as a first question.
fn has_sent(address: &str, operation: &str, id: &str) -> bool {
    type Logged = (i64, i64, i64, Vec<String>, String, String);
    let log: Vec<Logged> = admin_command(address, &["SLOWLOG", "GET", "-1"]);
    log.iter().any(|logged| logged.3.windows(2).any(|pair| pair == [operation, id]))
}

/// One has the key, and one of its process stands in line.
struct Scene {
    server: Server,
    ours: Locks,
    /// Those of another process.
    theirs: Locks,
    /// What goes by it is all that ours ask for, but for the looks after those who wait.
    lane: Arc<Connection>,
    first: Guard,
    second: JoinHandle<Guard>,
    _way: StallingProxy,
}

impl Scene {
    async fn new() -> Self {
        let server = Server::start(&[]);
        let way = StallingProxy::to(server.port);
        let ours = locks(&format!("redis://127.0.0.1:{}", way.port)).await;
        let theirs = locks(&server.address()).await;
        let first = ours.lock("key").ttl(TTL).acquire().await.expect("a free key");
        let lane = way.newest();
        let second = wants(&ours);
        waiting(&ours, "key", 1).await;
        Scene { server, ours, theirs, lane, first, second, _way: way }
    }
}

fn releases(guard: Guard) -> JoinHandle<Result<()>> {
    tokio::spawn(guard.release())
}

pub(crate) async fn the_next_one_begins_with_the_answer_to_the_release() {
    let Scene { server: _server, ours, theirs, lane, first, second, _way } = Scene::new().await;
    let (fence, before, held_up) = (first.fence(), lane.pieces(), lane.hold_up());
    let released = releases(first);
    eventually("it is sent", async || lane.pieces() > before).await;
    settle().await;
    assert!(!second.is_finished(), "the server does not know");
    drop(held_up);
    let second = second.await.expect("no panic");
    released.await.expect("no panic").expect("held to the end");
    assert_eq!(second.previous_fence(), Some(fence));
    is_whole(&second, &theirs).await;
    // In the next process the turns go on as ever.
    let next = wants(&theirs);
    waiting(&ours, "key", 1).await;
    let fence = second.fence();
    second.release().await.expect("held to the end");
    let next = next.await.expect("no panic");
    assert!(next.fence() > fence);
    is_whole(&next, &theirs).await;
}

pub(crate) async fn the_next_one_has_its_turn_where_a_release_was_lost() {
    let scene = Scene::new().await;
    let (before, held_up) = (scene.lane.pieces(), scene.lane.hold_up());
    let released = releases(scene.first);
    eventually("it is sent", async || scene.lane.pieces() > before).await;
    scene.lane.cut();
    drop(held_up);
    released.await.expect("no panic").expect("asked again");
    let second = scene.second.await.expect("no panic");
    is_whole(&second, &scene.theirs).await;
    second.release().await.expect("held to the end");
}

/// The server has handed the key on, and nobody has heard of it.
pub(crate) async fn the_next_one_has_its_turn_where_an_answer_was_lost() {
    let scene = Scene::new().await;
    let fence = scene.first.fence();
    let held_up = scene.lane.hold_up_answers();
    let released = releases(scene.first);
    eventually("the server knows", async || {
        let seen = scene.theirs.inspect("key").await.expect("it answers");
        seen.holders[0].fence > fence
    })
    .await;
    scene.lane.cut();
    drop(held_up);
    let error = released.await.expect("no panic").expect_err("it cannot be told");
    assert!(error.is_temporary(), "{error}");
    let second = scene.second.await.expect("no panic");
    is_whole(&second, &scene.theirs).await;
    second.release().await.expect("held to the end");
}

pub(crate) async fn a_turn_that_the_server_forgot_is_asked_for_again() {
    let scene = Scene::new().await;
    let (before, held_up) = (scene.lane.pieces(), scene.lane.hold_up());
    let fence = scene.first.fence();
    let released = releases(scene.first);
    eventually("it is sent", async || scene.lane.pieces() > before).await;
    let _: String = admin_command(&scene.server.address(), &["FLUSHALL"]);
    let other = scene.theirs.lock("key").ttl(TTL).acquire().await.expect("all is forgotten");
    assert!(other.fence() > fence, "its late writes are refused");
    drop(held_up);
    assert_eq!(released.await.expect("no panic").expect_err("forgotten").code(), "lock_lost");
    waiting(&scene.theirs, "key", 1).await;
    assert!(!scene.second.is_finished() && other.is_held(), "two at once");
    other.release().await.expect("held to the end");
    scene.second.await.expect("no panic").release().await.expect("held to the end");
}

/// A task that slept while it was granted the key wakes up just when its process returns the grant.
/// What it is given then must not end by that.
pub(crate) async fn a_grant_that_is_being_returned_is_not_given_out() {
    let server = Server::start(&[]);
    let way = StallingProxy::to(server.port);
    let ours = locks(&format!("redis://127.0.0.1:{}", way.port)).await;
    // The provider's own connection; this runtime opens another one.
    let own = way.newest();
    let theirs = locks(&server.address()).await;
    let first = ours.lock("key").ttl(TTL).acquire().await.expect("a free key");
    let mut second =
        Box::pin(async { ours.lock("key").ttl(TTL).wait(TTL).acquire().await.expect("its turn") });
    // The process refreshes its waiters once a second, and returns what is a second old then.
    let refreshed = async || {
        let before = own.pieces();
        eventually("a refresh", async || own.pieces() > before).await;
    };
    // Polled until its process knows that it waits, and then not until its grant is returned.
    tokio::select! {
        _ = &mut second => panic!("two at once"),
        () = refreshed() => {}
    }
    first.release().await.expect("held");
    refreshed().await;
    let held_up = own.hold_up();
    refreshed().await;
    let early = tokio::time::timeout(millis(500), &mut second).await.ok();
    let before = count(&server.address(), "evalsha");
    drop(held_up);
    eventually("it is returned", async || count(&server.address(), "evalsha") > before).await;
    let second = match early {
        Some(guard) => guard,
        None => second.await,
    };
    is_whole(&second, &theirs).await;
    second.release().await.expect("held to the end");
}

/// Those who are in, and the last fence of one who was.
#[derive(Default)]
struct Inside {
    guards: Vec<Arc<Guard>>,
    last: Option<Fence>,
    entered: usize,
    /// Of those the ones that were lost before they left.
    lost: usize,
}

/// Two processes and many tasks want one key, on a way that is held up and cut again and again.
pub(crate) async fn no_two_are_trusted_at_once_whatever_is_cut() {
    let seed = std::env::var("LATCHWORK_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(rand::random);
    println!("LATCHWORK_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let server = Server::start(&[]);
    let stop = Arc::new(AtomicBool::new(false));
    let inside: Arc<Mutex<Inside>> = Arc::default();
    let (mut tasks, mut ways) = (Vec::new(), Vec::new());
    for process in 0..2 {
        let way = StallingProxy::to(server.port);
        let locks = locks(&format!("redis://127.0.0.1:{}", way.port)).await;
        ways.push(way);
        for task in 0..8 {
            let random = StdRng::seed_from_u64(seed ^ (1 + process * 8 + task));
            let (inside, stop) = (inside.clone(), stop.clone());
            tasks.push(tokio::spawn(goes_in_and_out(locks.clone(), inside, stop, random)));
        }
    }
    let long = std::env::var("LATCHWORK_CUTS_SECONDS").ok().and_then(|text| text.parse().ok());
    let over = Instant::now() + secs(long.unwrap_or(8));
    while Instant::now() < over {
        tokio::time::sleep(millis(random.random_range(0..60))).await;
        let connections = ways[random.random_range(0..2)].connections();
        // The newest: others may have ended.
        let newest = connections.len().saturating_sub(4);
        let one = connections[random.random_range(newest..connections.len())].clone();
        let held_up = match random.random_range(0..3) {
            0 => Some(one.hold_up()),
            1 => Some(one.hold_up_answers()),
            _ => None,
        };
        // Now and then for longer than leases last.
        let longest = if random.random_range(0..20) == 0 { 4_000 } else { 100 };
        tokio::time::sleep(millis(random.random_range(0..longest))).await;
        if random.random_range(0..3) == 0 {
            one.cut();
        }
        drop(held_up);
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no panic");
    }
    let inside = inside.lock().expect("no panic");
    println!("{} were in, {} of them lost it", inside.entered, inside.lost);
    assert!(inside.entered > 100, "too few to say anything");
    assert!(inside.lost * 10 < inside.entered, "{} of {} lost it", inside.lost, inside.entered);
}

async fn goes_in_and_out(
    locks: Locks,
    inside: Arc<Mutex<Inside>>,
    stop: Arc<AtomicBool>,
    mut random: StdRng,
) {
    while !stop.load(Ordering::Relaxed) {
        let asks = locks.lock("key").ttl(millis(random.random_range(1_000..3_000))).wait(secs(60));
        let acquire = tokio::time::timeout(millis(random.random_range(5..2_000)), asks.acquire());
        // Who has lost patience leaves the queue; an outage is no fault.
        let Ok(Ok(guard)) = acquire.await else { continue };
        let guard = Arc::new(guard);
        {
            let mut inside = inside.lock().expect("no panic");
            if guard.is_held() {
                for other in &inside.guards {
                    assert!(!other.is_held(), "two at once: {other:?} and {guard:?}");
                }
                assert!(inside.last.is_none_or(|last| last < guard.fence()), "{guard:?}");
                inside.last = Some(guard.fence());
                inside.entered += 1;
            }
            inside.guards.push(guard.clone());
        }
        match random.random_range(0..100) {
            0 => tokio::time::sleep(millis(random.random_range(0..3_000))).await,
            1..10 => tokio::time::sleep(millis(random.random_range(0..20))).await,
            10..20 => {
                let sooner = Refresh { ttl: Some(secs(1)), threshold: Some(Duration::ZERO) };
                drop(guard.refresh_with(sooner).await);
            }
            _ => yield_now().await,
        }
        {
            let mut inside = inside.lock().expect("no panic");
            inside.lost += usize::from(!guard.is_held());
            inside.guards.retain(|other| !Arc::ptr_eq(other, &guard));
        }
        let guard = Arc::into_inner(guard).expect("nobody else has it");
        if random.random_range(0..2) == 0 {
            drop(guard);
        } else {
            let _ = guard.release().await; // it may be lost
        }
    }
}
