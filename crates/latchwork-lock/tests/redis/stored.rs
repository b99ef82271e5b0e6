//! What goes over the wire, and what is stored.

use latchwork_lock::provider::{AcquireRequest, Acquired, LockProvider, Proof, Token, Wait};
use latchwork_lock::{Clock, Key, Mode, SystemClock};

use crate::server::{Server, StallingProxy, admin_command, count};
use crate::{eventually, locks, millis, provider, secs, shared, unique, until, waiter, waiting};

pub(crate) async fn acquire_and_release_are_one_message_each() {
    let server = Server::start(&[]);
    let locks = locks(&server.address()).await;
    let before = count(&server.address(), "evalsha");
    for i in 0..25 {
        let key = format!("key-{i}");
        let guard = locks.lock(&key).wait(secs(5)).acquire().await.expect("a free key");
        guard
            .refresh_with(latchwork_lock::Refresh { ttl: None, threshold: Some(millis(0)) })
            .await
            .expect("held");
        guard.release().await.expect("held");
    }
    assert_eq!(count(&server.address(), "evalsha") - before, 75);
    for other in ["eval", "subscribe", "scan"] {
        assert_eq!(count(&server.address(), other), 0, "{other}");
    }
}

pub(crate) async fn many_share_a_message() {
    let server = Server::start(&[]);
    let locks = locks(&server.address()).await;
    let before = count(&server.address(), "evalsha");
    let asks = (0..500).map(|i| {
        let locks = locks.clone();
        async move { locks.lock(format!("key-{i}")).acquire().await.expect("a free key") }
    });
    let guards = futures::future::join_all(asks).await;
    let mut fences: Vec<_> = guards.iter().map(|guard| guard.fence()).collect();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 500, "each has its own");
    drop(guards);
    locks.close().await;
    let sent = count(&server.address(), "evalsha") - before;
    assert!(sent < 500, "{sent} messages for 1000 operations");
    let left: Vec<String> = admin_command(&server.address(), &["KEYS", "latchwork:[khqd]:*"]);
    assert!(left.is_empty(), "{left:?}");
}

/// What is the same for all of a message is told once; who differs keeps what is its own.
pub(crate) async fn those_of_a_message_keep_what_is_their_own() {
    let server = Server::start(&[]);
    let locks = locks(&server.address()).await;
    // So that none waits for the connection.
    drop(locks.lock("first").acquire().await.expect("free"));
    let before = count(&server.address(), "evalsha");
    let minutes = |i: u64| if i.is_multiple_of(3) { 60 + i } else { 1 };
    let asks = (0..90).map(|i| {
        let request = locks.lock(format!("key-{i}")).ttl(secs(60 * minutes(i)));
        let request = if i % 4 == 0 { request.note(format!("note {i}")) } else { request };
        let request = if i % 5 == 0 { request.owner(format!("owner-{i}")) } else { request };
        let request = if i % 7 == 0 { request.shared() } else { request };
        async move { request.acquire().await.expect("a free key") }
    });
    let guards = futures::future::join_all(asks).await;
    let sent = count(&server.address(), "evalsha") - before;
    assert!(sent < 20, "{sent} messages for 90 questions");
    for (i, guard) in (0..).zip(&guards) {
        let held = locks.inspect(&format!("key-{i}")).await.expect("it answers").holders.remove(0);
        let left = held.expires_in.as_secs().div_ceil(60);
        assert_eq!((left, held.fence), (minutes(i), guard.fence()), "{i}");
        assert_eq!(held.note, (i % 4 == 0).then(|| format!("note {i}")), "{i}");
        let owner = held.owner.map(|owner| owner.as_str().to_owned());
        assert_eq!(owner, (i % 5 == 0).then(|| format!("owner-{i}")), "{i}");
        let mode = if i % 7 == 0 { Mode::Shared } else { Mode::Exclusive };
        assert_eq!(held.mode, mode, "{i}");
    }
}

/// Within a message too: who comes first is served first, and nobody gets past a shared request.
pub(crate) async fn the_order_of_a_message_is_kept() {
    let provider = provider(&shared()).await;
    let key = Key::new(&unique("order")).expect("legal");
    let ask =
        |mode, number: usize| request(&key, mode, Wait::Forever).with_note(format!("{number:03}"));
    let mode = |number| if number % 3 == 0 { Mode::Shared } else { Mode::Exclusive };
    let requests: Vec<_> = (0..60).map(|number| ask(mode(number), number)).collect();
    // The connection is open then: who must wait for that has no place yet.
    let first = provider.acquire(&requests[0]).await.expect("it answers");
    assert!(matches!(first, Acquired::Granted(_)), "{first:?}");
    let asks = requests[1..].iter().map(|request| provider.acquire(request));
    let asks = futures::future::join_all(asks);
    let all_wait = eventually("all wait but one", async || {
        provider.inspect(&key).await.expect("it answers").waiters.len() == 59
    });
    // They are asked together.
    futures::future::select(std::pin::pin!(asks), std::pin::pin!(all_wait)).await;
    let seen = provider.inspect(&key).await.expect("it answers");
    let told: Vec<_> = seen.holders.iter().map(|h| h.note.clone()).collect();
    assert_eq!(told, [Some("000".to_owned())]);
    let told: Vec<_> = seen.waiters.iter().map(|w| w.note.clone().expect("named")).collect();
    assert!(told.is_sorted(), "{told:?}");
    for request in &requests {
        provider.release_later(Proof { key: &key, token: request.token });
    }
    provider.close().await;
    assert!(!provider.inspect(&key).await.expect("it answers").is_held());
}

/// Two releases of one lease in one message: one of them has ended it.
pub(crate) async fn a_lease_ends_once() {
    let provider = provider(&shared()).await;
    let requests: Vec<_> = (0..30)
        .map(|_| request(&Key::new(&unique("once")).expect("legal"), Mode::Exclusive, Wait::No))
        .collect();
    for request in &requests {
        let answer = provider.acquire(request).await.expect("it answers");
        assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
    }
    let end = |request: &AcquireRequest| {
        let (provider, request) = (provider.clone(), request.clone());
        async move {
            let proof = Proof { key: &request.key, token: request.token };
            provider.release(proof).await.expect("it answers")
        }
    };
    let both = requests.iter().flat_map(|request| [end(request), end(request)]);
    let ended = futures::future::join_all(both).await;
    for pair in ended.chunks(2) {
        assert_eq!(pair.iter().filter(|ended| **ended).count(), 1, "{ended:?}");
    }
}

/// Releases come first in a message. That of a requester that gives up must not come before its
/// request, which would then be granted a lease for nobody.
pub(crate) async fn a_release_does_not_overtake_its_request() {
    let server = Server::start(&[]);
    let locks = locks(&server.address()).await;
    for round in 0..60 {
        let ask = |i| Box::pin(locks.lock(format!("key-{i}")).ttl(secs(600)).acquire());
        let mut asks: Vec<_> = (0..150).map(ask).collect();
        for ask in &mut asks {
            let _ = futures::poll!(ask);
        }
        // Some were sent by then, some wait to be, and some are answered.
        for _ in 0..round % 6 {
            tokio::task::yield_now().await;
        }
        drop(asks);
        locks.close().await;
        let left: Vec<String> = admin_command(&server.address(), &["KEYS", "latchwork:[khqd]:*"]);
        assert!(left.is_empty(), "round {round}: {left:?}");
    }
}

/// A message whose connection was lost is sent once more, but not for those who have gone since.
pub(crate) async fn a_request_that_was_dropped_is_not_sent_again() {
    let server = Server::start(&[]);
    let way = StallingProxy::to(server.port);
    let locks = locks(&format!("redis://127.0.0.1:{}", way.port)).await;
    for round in 0..10 {
        let opens = locks.lock("other").acquire().await.expect("a free key");
        opens.release().await.expect("held");
        let connection = way.newest();
        let (came, held_up) = (connection.pieces(), connection.hold_up());
        let ask = |i| Box::pin(locks.lock(format!("key-{i}")).ttl(secs(600)).acquire());
        let mut asks: Vec<_> = (0..50).map(ask).collect();
        for ask in &mut asks {
            assert!(futures::poll!(ask).is_pending(), "it needs an answer");
        }
        // The first ones by themselves, and the others in messages of many.
        eventually("they are sent", async || connection.pieces() > came).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        drop(asks);
        connection.cut();
        drop(held_up);
        locks.close().await;
        eventually("all are released", async || {
            let left: Vec<String> =
                admin_command(&server.address(), &["KEYS", "latchwork:[khqd]:*"]);
            left.is_empty()
        })
        .await;
        let asked = locks.lock("key-49").ttl(secs(1)).try_acquire().await.expect("it answers");
        assert!(asked.is_some(), "round {round}");
    }
}

/// A server that forgot the script is asked again with it, and a release comes after its request then, too.
pub(crate) async fn a_release_does_not_overtake_the_script() {
    let server = Server::start(&[]);
    let way = StallingProxy::to(server.port);
    let locks = locks(&format!("redis://127.0.0.1:{}", way.port)).await;
    let opens = locks.lock("other").acquire().await.expect("a free key");
    opens.release().await.expect("held");
    let connection = way.newest();
    admin_command::<()>(&server.address(), &["SCRIPT", "FLUSH"]);
    // So many that not all are sent by their own tasks.
    let ask = |i| Box::pin(locks.lock(format!("key-{i}")).ttl(secs(600)).acquire());
    let mut asks: Vec<_> = (0..6).map(ask).collect();
    let answers = connection.hold_up_answers();
    for ask in &mut asks {
        assert!(futures::poll!(ask).is_pending(), "it needs an answer");
    }
    eventually("the server does not know the script", async || {
        let stats: String = admin_command(&server.address(), &["INFO", "errorstats"]);
        stats.contains("errorstat_NOSCRIPT:count=6") || stats.contains("errorstat_NOSCRIPT:count=5")
    })
    .await;
    let (came, held_up) = (connection.pieces(), connection.hold_up());
    drop(answers);
    eventually("the script is sent", async || connection.pieces() > came).await;
    drop(asks);
    // The releases are sent.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    drop(held_up);
    locks.close().await;
    let left: Vec<String> = admin_command(&server.address(), &["KEYS", "latchwork:[khqd]:*"]);
    assert!(left.is_empty(), "taken for nobody: {left:?}");
}

/// Dropped outside of its runtime, a question has its release sent on another connection.
pub(crate) async fn a_release_from_elsewhere_does_not_overtake_its_request() {
    let server = Server::start(&[]);
    let way = StallingProxy::to(server.port);
    let locks = locks(&format!("redis://127.0.0.1:{}", way.port)).await;
    let elsewhere = std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        let is_free = |key| {
            let asked = runtime.block_on(locks.lock(key).ttl(secs(600)).try_acquire());
            asked.expect("it answers").is_some()
        };
        assert!(is_free("other"), "nobody has it, and this runtime has a connection now");
        let connection = way.newest();
        let (came, held_up) = (connection.pieces(), connection.hold_up());
        let mut question = Box::pin(locks.lock("key").ttl(secs(600)).acquire());
        {
            let _there = runtime.enter();
            let mut looks = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(question.as_mut().poll(&mut looks).is_pending(), "it needs an answer");
        }
        until("it is sent", || connection.pieces() > came);
        let before = count(&server.address(), "evalsha");
        drop(question);
        until("a release", || count(&server.address(), "evalsha") > before);
        drop(held_up);
        assert!(is_free("other"), "all that was sent before is done by then");
        runtime.block_on(locks.close());
        assert!(is_free("key"), "nobody has it");
    });
    elsewhere.join().expect("no panic");
}

pub(crate) async fn nothing_is_left_of_a_key() {
    let server = Server::start(&[]);
    let locks = locks(&server.address()).await;
    let guard = locks.lock("key").acquire().await.expect("a free key");
    let waiters = (0..3).map(|_| {
        let turn = waiter(&locks, "key");
        tokio::spawn(async move { turn.await.expect("no panic").release().await.expect("held") })
    });
    let waiters: Vec<_> = waiters.collect();
    waiting(&locks, "key", 3).await;
    guard.release().await.expect("held");
    for waiter in waiters {
        waiter.await.expect("no panic");
    }
    let shared = locks.lock("key").shared().acquire().await.expect("a free key");
    shared.release().await.expect("held");
    // What says that this process lives goes by itself.
    eventually("only the fence is left", async || {
        admin_command::<Vec<String>>(&server.address(), &["KEYS", "*"]) == ["latchwork:fence"]
    })
    .await;
}

/// What another version has stored is refused by every operation, and never overwritten.
pub(crate) async fn a_layout_that_is_unknown_is_refused() {
    let server = Server::start(&[]);
    let address = server.address();
    let provider = provider(&address).await;
    let locks = latchwork_lock::Locks::new(provider.clone());
    let (id, moment) = ("AAAAAAAAAAAAAAAAAAAAAA", "4102444800000000");
    let rest = "30000000\n7\n6\n1794867139981773\nx\n30000000\n0123456789abcdef\n\nvm:1\n";
    let unknown = [
        format!("*{moment}"),
        format!("*{id}c{moment}\n1794867139981773\n{rest}"),
        format!("*{moment}\n7\n{id}\nz\n{moment}\n{rest}"),
        format!("{id}n00x\n30000000\n\n\n1794867139981773\n\nvm:1\nmore"),
    ];
    let name = "latchwork:k:lock/key";
    for value in unknown {
        admin_command::<()>(&address, &["SET", name, &value]);
        let other = request(&Key::new("lock/key").expect("legal"), Mode::Shared, Wait::No);
        let proof = Proof { key: &other.key, token: other.token };
        let waits = other.clone().with_wait(Wait::For(secs(20))).with_mode(Mode::Exclusive);
        let refused = [
            provider.acquire(&other).await.expect_err("unknown"),
            provider.acquire(&waits).await.expect_err("unknown"),
            provider.rotate(proof, Token::random(), secs(30)).await.expect_err("unknown"),
            provider.renew(proof, secs(30)).await.expect_err("unknown"),
            provider.hand_over(proof).await.expect_err("unknown"),
            locks.inspect("key").await.expect_err("unknown"),
            locks.break_lock("key").await.expect_err("unknown"),
            locks.lock("key").acquire().await.expect_err("unknown"),
        ];
        for error in refused {
            assert_eq!(error.code(), "lock_backend", "{value}: {error}");
            assert!(error.to_string().contains("not from this version"), "{value}: {error}");
        }
        // Nobody has it by this token, whatever it is.
        let _ = provider.release(proof).await;
        assert_eq!(admin_command::<String>(&address, &["GET", name]), value);
        let left: Vec<String> = admin_command(&address, &["KEYS", "latchwork:[khqd]:*"]);
        assert_eq!(left, [name], "{value}");
    }
}

/// Every key but the fence has a ttl, in every layout.
pub(crate) async fn what_is_left_of_the_dead_goes_away() {
    let server = Server::start(&[]);
    let locks = locks(&server.address()).await;
    let lean = locks.lock("lean").acquire().await.expect("a free key");
    let shared = locks.lock("shared").shared().acquire().await.expect("a free key");
    let full = locks.lock("full").acquire().await.expect("a free key");
    let waits = waiter(&locks, "full");
    waiting(&locks, "full", 1).await;
    let more = waiter(&locks, "full");
    waiting(&locks, "full", 2).await;
    let keys: Vec<String> = admin_command(&server.address(), &["KEYS", "*"]);
    assert!(keys.len() >= 7, "{keys:?}");
    for key in keys.iter().filter(|key| *key != "latchwork:fence") {
        let left: i64 = admin_command(&server.address(), &["PTTL", key]);
        assert!(left > 0, "{key} would stay for ever");
    }
    drop((lean, shared, full));
    waits.await.expect("no panic").release().await.expect("held");
    more.await.expect("no panic").release().await.expect("held");
}

pub(crate) async fn a_token_is_nowhere() {
    let server = Server::start(&["--appendonly", "yes"]);
    let provider = provider(&server.address()).await;
    let request = request(&Key::new("key").expect("legal"), Mode::Exclusive, Wait::No);
    let answer = provider.acquire(&request).await.expect("it answers");
    assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
    let value: String = admin_command(&server.address(), &["GET", "latchwork:k:key"]);
    let token = request.token.expose();
    let forms = [format!("{token:032x}"), format!("{token:x}"), token.to_string()];
    assert!(forms.iter().all(|form| !value.contains(form)), "{value}");
    assert!(!format!("{provider:?}").contains("127.0.0.1"), "{provider:?}");
}

pub(crate) async fn a_foreign_value_harms_its_own_key_only() {
    let locks = locks(&shared()).await;
    // The last one is of a version that wrote longer ids.
    let before = format!("{:032x}n00x\n30000000\n\n\n1794867139981773\n\nvm:1", 7);
    for (command, value) in [("LPUSH", "x"), ("SET", "x"), ("SET", "*x"), ("SET", &before)] {
        let (bad, good) = (unique("bad"), unique("good"));
        let name = format!("latchwork:k:lock/{bad}");
        admin_command::<()>(&shared(), &[command, &name, value]);
        let asks = (0..64).map(|i| {
            let key = if i == 7 { bad.clone() } else { format!("{good}-{i}") };
            let locks = locks.clone();
            async move { locks.lock(&key).acquire().await }
        });
        let answers = futures::future::join_all(asks).await;
        for (i, answer) in answers.iter().enumerate() {
            assert_eq!(answer.is_err(), i == 7, "{i}: {answer:?}");
        }
        let error = answers[7].as_ref().expect_err("no lock");
        assert_eq!(error.code(), "lock_backend", "{error}");
        assert!(error.to_string().contains("not from this version"), "{value}: {error}");
        admin_command::<()>(&shared(), &["DEL", &name]);
    }
}

/// The same with what stands beside the lock itself, where a message takes its short ways.
pub(crate) async fn foreign_data_beside_a_key_harms_that_key_only() {
    let server = Server::start(&[]);
    let locks = locks(&server.address()).await;
    for name in ["q", "d"] {
        let guard = locks.lock("bad").shared().acquire().await.expect("a free key");
        let foreign = format!("latchwork:{name}:lock/bad");
        admin_command::<()>(&server.address(), &["SET", &foreign, "x"]);
        let asks = (0..64).map(|i| {
            let key = if i == 7 { "bad".to_owned() } else { format!("good-{i}") };
            let locks = locks.clone();
            async move { locks.lock(&key).wait(secs(5)).acquire().await }
        });
        let answers = futures::future::join_all(asks).await;
        for (i, answer) in answers.iter().enumerate() {
            assert_eq!(answer.is_err(), i == 7, "{name}, {i}: {answer:?}");
        }
        let error = answers[7].as_ref().expect_err("a string is none of ours");
        assert_eq!(error.code(), "lock_backend", "{error}");
        // Its holder is told where it concerns it, and all others are released.
        let bad = guard.release();
        let good = answers.into_iter().flatten().map(|guard| guard.release());
        let (bad, good) = futures::join!(bad, futures::future::join_all(good));
        if name == "q" {
            assert_eq!(bad.expect_err("nobody can tell").code(), "lock_backend");
        }
        assert!(good.iter().all(Result::is_ok), "{good:?}");
        admin_command::<()>(&server.address(), &["FLUSHALL"]);
    }
}

fn request(key: &Key, mode: Mode, wait: Wait) -> AcquireRequest {
    AcquireRequest::new(key.clone(), secs(30), SystemClock.now()).with_mode(mode).with_wait(wait)
}
