//! A key that goes from hand to hand inside of a process, while its server is out of reach.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use latchwork_lock::{Fence, Guard, Locks, Refresh, Result};
use tokio::task::{JoinHandle, yield_now};

use crate::server::{Connection, HeldUp, Server, Way, tell};
use crate::{eventually, locks, millis, secs, waiting};

const TTL: Duration = Duration::from_secs(60);

/// One has the key, handed to it by the server, and two of its process stand in line.
struct Scene {
    server: Server,
    ours: Locks,
    /// Those of another process.
    theirs: Locks,
    /// What goes by it is all that ours ask for, but for the looks after those who wait.
    lane: Arc<Connection>,
    first: Guard,
    second: JoinHandle<Guard>,
    third: JoinHandle<Guard>,
    since: Instant,
    way: Way,
}

impl Scene {
    async fn new() -> Self {
        let server = Server::start(&[]);
        let way = Way::to(server.port);
        let ours = locks(&format!("redis://127.0.0.1:{}", way.port)).await;
        let theirs = locks(&server.address()).await;
        let before = ours.lock("key").acquire().await.expect("a free key");
        let (lane, since) = (way.newest(), Instant::now());
        let mut queue = Vec::new();
        for count in 1..=3 {
            queue.push(wants(&ours));
            waiting(&ours, "key", count).await;
        }
        let Ok([first, second, third]) = <[_; 3]>::try_from(queue) else { panic!("three") };
        before.release().await.expect("held");
        let first = first.await.expect("no panic");
        Scene { server, ours, theirs, lane, first, second, third, since, way }
    }
}

/// The second one has begun, and the server does not know.
struct Begun {
    server: Server,
    ours: Locks,
    theirs: Locks,
    lane: Arc<Connection>,
    held_up: HeldUp,
    /// The release of the first.
    released: JoinHandle<Result<()>>,
    second: Guard,
    third: JoinHandle<Guard>,
    _way: Way,
}

impl Begun {
    async fn new(hold_up: impl Fn(&Connection) -> HeldUp) -> Self {
        for _ in 0..20 {
            let scene = Scene::new().await;
            let Scene { server, ours, theirs, lane, first, mut second, third, since, way } = scene;
            let (held_up, fence) = (hold_up(&lane), first.fence());
            let released = releases(first);
            // Who has waited for long is not let in before the server knows.
            let Ok(begun) = tokio::time::timeout(secs(1), &mut second).await else {
                assert!(since.elapsed() > millis(1_400), "nobody has begun");
                continue;
            };
            let second = begun.expect("no panic");
            assert!(!released.is_finished(), "nobody was answered");
            assert_eq!(second.previous_fence(), Some(fence));
            let left = second.remaining();
            assert!(left > Duration::ZERO && left < secs(2), "trusted for {left:?}");
            return Begun {
                server,
                ours,
                theirs,
                lane,
                held_up,
                released,
                second,
                third,
                _way: way,
            };
        }
        panic!("this machine is too slow for it")
    }
}

fn wants(locks: &Locks) -> JoinHandle<Guard> {
    let locks = locks.clone();
    let wants =
        async move { locks.lock("key").ttl(TTL).wait(TTL).acquire().await.expect("its turn") };
    tokio::spawn(wants)
}

fn releases(guard: Guard) -> JoinHandle<Result<()>> {
    tokio::spawn(guard.release())
}

/// The server has made a lease of it, with the fence that it has begun with.
async fn is_confirmed(guard: &Guard, theirs: &Locks) {
    eventually("it is confirmed", async || guard.remaining() > TTL / 2).await;
    let seen = theirs.inspect("key").await.expect("it answers");
    assert_eq!(seen.holders.len(), 1);
    assert_eq!(seen.holders[0].fence, guard.fence());
}

pub(crate) async fn the_next_one_begins_before_the_server_knows() {
    let begun = Begun::new(Connection::hold_up).await;
    let fence = begun.second.fence();
    let again = releases(begun.second);
    let third = begun.third.await.expect("no panic");
    assert_eq!(third.previous_fence(), Some(fence));
    assert!(third.fence() > fence && third.is_held());
    assert!(!begun.released.is_finished() && !again.is_finished());
    drop(begun.held_up);
    begun.released.await.expect("no panic").expect("held to the end");
    again.await.expect("no panic").expect("held to the end");
    is_confirmed(&third, &begun.theirs).await;
    // In the next process the turns go on as ever.
    let theirs = wants(&begun.theirs);
    waiting(&begun.ours, "key", 1).await;
    let fence = third.fence();
    third.release().await.expect("held to the end");
    let theirs = theirs.await.expect("no panic");
    assert!(theirs.fence() > fence);
}

pub(crate) async fn what_the_server_forgot_is_lost_by_who_has_begun() {
    let begun = Begun::new(Connection::hold_up).await;
    let _: String = tell(&begun.server.address(), &["FLUSHALL"]);
    let other = begun.theirs.lock("key").ttl(TTL).acquire().await.expect("all is forgotten");
    assert!(other.fence() > begun.second.fence(), "its late writes are refused");
    drop(begun.held_up);
    begun.second.lost().await;
    let error = begun.second.release().await.expect_err("it is another's");
    assert_eq!(error.code(), "lock_lost");
    assert!(other.is_held());
    let seen = begun.theirs.inspect("key").await.expect("it answers");
    assert_eq!(seen.holders[0].fence, other.fence());
    other.release().await.expect("held to the end");
    begun.third.await.expect("no panic").release().await.expect("held to the end");
}

pub(crate) async fn who_has_begun_behind_a_broken_lease_keeps_it() {
    let begun = Begun::new(Connection::hold_up).await;
    let broken = begun.theirs.break_lock("key").await.expect("it answers");
    assert_eq!(broken.len(), 1);
    drop(begun.held_up);
    let error = begun.released.await.expect("no panic").expect_err("it was broken");
    assert_eq!(error.code(), "lock_lost");
    is_confirmed(&begun.second, &begun.theirs).await;
    begun.second.release().await.expect("held to the end");
    begun.third.await.expect("no panic").release().await.expect("held to the end");
}

pub(crate) async fn who_has_begun_keeps_it_where_a_release_was_lost() {
    let begun = Begun::new(Connection::hold_up).await;
    begun.lane.cut();
    drop(begun.held_up);
    begun.released.await.expect("no panic").expect("asked again");
    is_confirmed(&begun.second, &begun.theirs).await;
    begun.second.release().await.expect("held to the end");
    begun.third.await.expect("no panic").release().await.expect("held to the end");
}

pub(crate) async fn who_has_begun_keeps_it_where_an_answer_was_lost() {
    let begun = Begun::new(Connection::hold_up_answers).await;
    let theirs = &begun.theirs;
    eventually("the server knows", async || {
        let seen = theirs.inspect("key").await.expect("it answers");
        seen.holders[0].fence == begun.second.fence()
    })
    .await;
    begun.lane.cut();
    drop(begun.held_up);
    let error = begun.released.await.expect("no panic").expect_err("it cannot be told");
    assert!(error.is_temporary(), "{error}");
    is_confirmed(&begun.second, theirs).await;
    begun.second.release().await.expect("held to the end");
    begun.third.await.expect("no panic").release().await.expect("held to the end");
}

pub(crate) async fn who_has_begun_keeps_it_where_the_script_was_forgotten() {
    for _ in 0..20 {
        let begun = Begun::new(Connection::hold_up).await;
        tell::<()>(&begun.server.address(), &["SCRIPT", "FLUSH"]);
        let answers = begun.lane.hold_up_answers();
        drop(begun.held_up);
        eventually("the server does not know it", async || {
            let stats: String = tell(&begun.server.address(), &["INFO", "errorstats"]);
            stats.contains("NOSCRIPT")
        })
        .await;
        let (came, held_up) = (begun.lane.pieces(), begun.lane.hold_up());
        drop(answers);
        eventually("it is told, or answers", async || {
            begun.lane.pieces() > came || begun.released.is_finished()
        })
        .await;
        if begun.released.is_finished() {
            continue; // it was told by a look after those who wait
        }
        let again = releases(begun.second);
        let third = begun.third.await.expect("no panic");
        drop(held_up);
        begun.released.await.expect("no panic").expect("held to the end");
        again.await.expect("no panic").expect("held to the end, and told in this order");
        is_confirmed(&third, &begun.theirs).await;
        return third.release().await.expect("held to the end");
    }
    panic!("others have told it each time");
}

pub(crate) async fn nobody_begins_behind_a_lease_that_was_renewed() {
    let scene = Scene::new().await;
    // From now on it may be over before the ones behind it think.
    let sooner = Refresh { ttl: Some(secs(1)), threshold: Some(Duration::ZERO) };
    scene.first.refresh_with(sooner).await.expect("held");
    let held_up = scene.lane.hold_up();
    let before = scene.lane.pieces();
    let released = releases(scene.first);
    eventually("it is sent", async || scene.lane.pieces() > before).await;
    for _ in 0..100 {
        yield_now().await;
    }
    assert!(!scene.second.is_finished(), "the server does not know");
    drop(held_up);
    let _ = released.await.expect("no panic"); // it may be over
    scene.second.await.expect("no panic").release().await.expect("held to the end");
    scene.third.await.expect("no panic").release().await.expect("held to the end");
    drop((scene.server, scene.ours, scene.theirs, scene.way));
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
    let server = Server::start(&[]);
    let stop = Arc::new(AtomicBool::new(false));
    let inside: Arc<Mutex<Inside>> = Arc::default();
    let (mut tasks, mut ways) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let way = Way::to(server.port);
        let locks = locks(&format!("redis://127.0.0.1:{}", way.port)).await;
        ways.push(way);
        for _ in 0..8 {
            tasks.push(tokio::spawn(goes_in_and_out(locks.clone(), inside.clone(), stop.clone())));
        }
    }
    let long = std::env::var("LATCHWORK_RELAY_SECONDS").ok().and_then(|text| text.parse().ok());
    let over = Instant::now() + secs(long.unwrap_or(8));
    while Instant::now() < over {
        tokio::time::sleep(millis(rand::random_range(0..60))).await;
        let connections = ways[rand::random_range(0..2)].connections();
        // The newest: others may have ended.
        let newest = connections.len().saturating_sub(4);
        let one = connections[rand::random_range(newest..connections.len())].clone();
        let held_up = match rand::random_range(0..3) {
            0 => Some(one.hold_up()),
            1 => Some(one.hold_up_answers()),
            _ => None,
        };
        // Now and then for longer than leases last.
        let longest = if rand::random_range(0..20) == 0 { 4_000 } else { 100 };
        tokio::time::sleep(millis(rand::random_range(0..longest))).await;
        if rand::random_range(0..3) == 0 {
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

async fn goes_in_and_out(locks: Locks, inside: Arc<Mutex<Inside>>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let asks = locks.lock("key").ttl(millis(rand::random_range(1_000..3_000))).wait(secs(60));
        let acquire = tokio::time::timeout(millis(rand::random_range(5..2_000)), asks.acquire());
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
        match rand::random_range(0..100) {
            0 => tokio::time::sleep(millis(rand::random_range(0..3_000))).await,
            1..10 => tokio::time::sleep(millis(rand::random_range(0..20))).await,
            10..20 => drop(guard.refresh_with(Refresh { ttl: Some(secs(1)), ..always() }).await),
            _ => yield_now().await,
        }
        {
            let mut inside = inside.lock().expect("no panic");
            inside.lost += usize::from(!guard.is_held());
            inside.guards.retain(|other| !Arc::ptr_eq(other, &guard));
        }
        let guard = Arc::into_inner(guard).expect("nobody else has it");
        if rand::random_range(0..2) == 0 {
            drop(guard);
        } else {
            let _ = guard.release().await; // it may be lost
        }
    }
}

fn always() -> Refresh {
    Refresh { ttl: None, threshold: Some(Duration::ZERO) }
}
