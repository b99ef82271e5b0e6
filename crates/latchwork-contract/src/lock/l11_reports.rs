//! L11 Who holds it: inspect, list and exists. Never a token.

use std::sync::Arc;
use std::time::Duration;

use latchwork_lock::provider::{LockProvider, Wait};
use latchwork_lock::{Mode, PageRequest};

use super::case::case;
use super::fixture::{SLACK, code};
use super::{Case, Fixture, eventually};

pub(super) const CASES: &[Case] = &[
    case!(l11_a_holder_is_shown, [Inspect]),
    case!(l11_an_owner_is_shown, [Inspect, TakeOver]),
    case!(l11_all_readers_are_shown_oldest_first, [Inspect, Shared]),
    case!(l11_waiters_are_shown_in_order, [Inspect, Wait, Fairness, Exclusion]),
    case!(l11_a_waiter_is_told_how_long_it_may_take, [Inspect, List, Wait, Fairness, Exclusion]),
    case!(l11_a_free_key_shows_nobody, [Inspect]),
    case!(l11_an_ended_lease_is_not_shown, [Inspect, Expiry]),
    case!(l11_a_listing_comes_in_pages, [List]),
    case!(l11_a_listing_keeps_to_its_prefix, [List]),
    case!(l11_a_listing_matches_beginnings_only, [List]),
    case!(l11_a_listings_limit_is_checked, [List]),
    case!(l11_a_refusal_names_the_holder, [Inspect, Exclusion]),
    case!(l11_no_token_is_shown, [Inspect, List, Wait, Break, Exclusion]),
];

async fn l11_a_holder_is_shown(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let ttl = Duration::from_secs(20);
    let before = ours.clock().wall();
    let guard = ours.lock(&key).ttl(ttl).note("nightly job").acquire().await.expect("a free key");
    let found = theirs.inspect(&key).await.expect("it answers");
    assert_eq!(found.key, key, "as it was asked for, without the prefix");
    assert!(found.is_held() && theirs.exists(&key).await.expect("it answers"));
    assert_eq!((found.holders.len(), found.waiters.len()), (1, 0));
    let holder = &found.holders[0];
    assert_eq!(holder.mode, Mode::Exclusive);
    assert_eq!(holder.fence, guard.fence());
    assert_eq!(holder.note.as_deref(), Some("nightly job"));
    assert_eq!(holder.owner, None);
    assert!(holder.process.contains(':'), "host:pid, and not {:?}", holder.process);
    assert_eq!(holder.who(), holder.process);
    assert!(holder.expires_in <= ttl && holder.expires_in + SLACK > ttl, "{holder:?}");
    // The backend's wall clock is its own: only spans are compared, and loosely.
    let lasts = (holder.expires_at - holder.since).to_std().expect("it ends after its start");
    assert!(lasts <= ttl + SLACK && lasts + SLACK >= ttl, "{holder:?}");
    let apart = (holder.since - before).abs().to_std().expect("a span");
    assert!(apart < Duration::from_secs(60), "{holder:?}, asked for at {before}");
    guard.release().await.expect("held");
}

async fn l11_an_owner_is_shown(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let _guard = locks.lock(&key).owner("größe 7").acquire().await.expect("a free key");
    let found = locks.inspect(&key).await.expect("it answers");
    assert_eq!(found.holders[0].who(), "größe 7");
}

async fn l11_all_readers_are_shown_oldest_first(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let mut guards = Vec::new();
    for locks in [&ours, &theirs, &ours] {
        guards.push(locks.lock(&key).shared().acquire().await.expect("readers coexist"));
    }
    let found = theirs.inspect(&key).await.expect("it answers");
    assert!(found.holders.iter().all(|holder| holder.mode == Mode::Shared));
    let shown: Vec<_> = found.holders.iter().map(|holder| holder.fence).collect();
    let held: Vec<_> = guards.iter().map(|guard| guard.fence()).collect();
    assert_eq!(shown, held);
}

async fn l11_waiters_are_shown_in_order(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let mut tasks = Vec::new();
    for (i, mode) in [Mode::Exclusive, Mode::Exclusive, Mode::Exclusive].into_iter().enumerate() {
        let locks = if i % 2 == 0 { theirs.clone() } else { ours.clone() };
        let name = key.clone();
        tasks.push(tokio::spawn(async move {
            let note = format!("waiter {}", i + 1);
            let request = locks.lock(&name).mode(mode).note(note).wait(Duration::from_secs(30));
            request.acquire().await.map(drop)
        }));
        f.queued(&ours, &key, i + 1).await;
    }
    let found = theirs.inspect(&key).await.expect("it answers");
    assert_eq!(found.holders.len(), 1);
    for (i, waiter) in found.waiters.iter().enumerate() {
        assert_eq!(waiter.position, i + 1);
        assert_eq!(waiter.note, Some(format!("waiter {}", i + 1)));
        assert_eq!(waiter.mode, Mode::Exclusive);
        assert!(waiter.process.contains(':'), "host:pid, and not {:?}", waiter.process);
        assert_eq!(waiter.who(), waiter.process);
    }
    assert!(found.waiters.is_sorted_by_key(|waiter| waiter.since), "{:?}", found.waiters);
    guard.release().await.expect("held");
    for task in tasks {
        f.soon("everybody is served", task).await.expect("its turn comes");
    }
}

async fn l11_a_waiter_is_told_how_long_it_may_take(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).ttl(Duration::from_secs(60)).acquire().await.expect("a free key");
    let granted = f.now();
    let tasks = [
        f.enqueue(&theirs, &key, Mode::Exclusive).await,
        f.enqueue(&ours, &key, Mode::Exclusive).await,
    ];
    f.pass(f.ttl()).await;
    let lasted = f.now().since(granted);
    let found = theirs.inspect(&key).await.expect("it answers");
    let waits: Vec<_> = found.waiters.iter().map(|waiter| waiter.expected_wait).collect();
    let [Some(first), Some(second)] = waits[..] else { panic!("{found:?}") };
    // As long again as it has lasted, as far as its lease allows; a backend may count in less
    // than this clock.
    assert!(first + Duration::from_millis(50) >= lasted, "{first:?} after {lasted:?}");
    assert!(first <= found.holders[0].expires_in, "{found:?}");
    assert!(second >= first * 2, "one more turn: {second:?} after {first:?}");
    let listed = theirs.list(&key, PageRequest::default()).await.expect("it answers");
    assert!(listed.keys[0].waiters.iter().all(|waiter| waiter.expected_wait.is_some()));
    guard.release().await.expect("held");
    for task in tasks {
        f.soon("everybody is served", task).await.release().await.expect("held");
    }
}

async fn l11_a_free_key_shows_nobody(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    for _ in 0..2 {
        let found = locks.inspect(&key).await.expect("it answers");
        assert_eq!(found.key, key);
        assert!(!found.is_held() && found.waiters.is_empty(), "{found:?}");
        assert!(!locks.exists(&key).await.expect("it answers"));
        // And again after it was used.
        locks.lock(&key).acquire().await.expect("free").release().await.expect("held");
    }
}

async fn l11_an_ended_lease_is_not_shown(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let dead = locks.lock(&key).ttl(f.ttl()).acquire().await.expect("a free key");
    assert!(locks.exists(&key).await.expect("it answers") || !dead.is_held());
    f.pass(f.ttl() + f.capabilities().granularity()).await;
    eventually("it is shown as free", async || !locks.exists(&key).await.expect("it answers"))
        .await;
    drop(dead);
}

async fn l11_a_listing_comes_in_pages(f: Fixture) {
    let locks = f.open().await;
    let mut guards = Vec::new();
    // Taken in another order than they are listed in.
    for name in ["c", "a", "e", "b", "d"] {
        guards.push(locks.lock(f.key(name)).acquire().await.expect("a free key"));
    }
    let mut after = None;
    let mut seen = Vec::new();
    let mut sizes = Vec::new();
    loop {
        let page = PageRequest { limit: 2, after };
        let page = locks.list(f.names(), page).await.expect("it answers");
        sizes.push(page.keys.len());
        seen.extend(page.keys.into_iter().map(|found| found.key));
        after = page.next;
        if after.is_none() {
            break;
        }
        assert!(sizes.len() < 10, "the listing does not end");
    }
    assert_eq!(seen, ["a", "b", "c", "d", "e"].map(|name| f.key(name)));
    assert_eq!(sizes, [2, 2, 1]);
    let whole = PageRequest { limit: 5, after: None };
    let whole = locks.list(f.names(), whole).await.expect("it answers");
    assert_eq!((whole.keys.len(), whole.next), (5, None), "a full last page is the last");
    assert_eq!(whole.keys[0].holders[0].fence, guards[1].fence());
}

async fn l11_a_listing_keeps_to_its_prefix(f: Fixture) {
    let locks = f.open().await;
    let other = locks.with_prefix("other/").expect("a legal prefix");
    // Signs that stand for anything in SQL or in a pattern are only themselves here.
    let names = ["x_1", "xy1", "x%2", "x*3", "X_1"].map(|name| f.key(name));
    let mut guards = Vec::new();
    for name in &names {
        guards.push(locks.lock(name).acquire().await.expect("a free key"));
    }
    guards.push(other.lock(f.key("x_2")).acquire().await.expect("a free key"));
    for (prefix, expected) in [("x_", 0), ("x%", 2), ("x*", 3), ("X", 4)] {
        let found = locks.list(&f.key(prefix), PageRequest::default()).await.expect("it answers");
        let found: Vec<_> = found.keys.into_iter().map(|found| found.key).collect();
        assert_eq!(found, [names[expected].clone()], "{prefix}");
    }
    assert_eq!(f.listed(&locks).await.len(), 5);
    assert_eq!(f.listed(&other).await, [f.key("x_2")]);
}

async fn l11_a_listing_matches_beginnings_only(f: Fixture) {
    let locks = f.open().await;
    let bare = locks.with_prefix("").expect("a prefix may be empty");
    let inside = [format!("x{}a", f.names()), format!("x{}{}a", locks.prefix(), f.names())];
    let mut guards = vec![bare.lock(f.key("a")).acquire().await.expect("a free key")];
    guards.push(locks.lock(f.key("b")).acquire().await.expect("a free key"));
    for name in &inside {
        guards.push(bare.lock(name).acquire().await.expect("a free key"));
        guards.push(locks.lock(name).acquire().await.expect("a free key"));
    }
    assert_eq!(f.listed(&bare).await, [f.key("a")]);
    assert_eq!(f.listed(&locks).await, [f.key("b")]);
}

async fn l11_a_listings_limit_is_checked(f: Fixture) {
    let locks = f.open().await;
    for limit in [0, 1_001] {
        let page = PageRequest { limit, after: None };
        assert_eq!(code(locks.list("", page).await), "invalid_argument", "{limit}");
    }
}

async fn l11_a_refusal_names_the_holder(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).note("nightly job").acquire().await.expect("a free key");
    let refused = locks.lock(&key).acquire().await.expect_err("it is taken");
    let latchwork_lock::ErrorKind::LockAcquisition { key: named, holder, .. } = refused.kind()
    else {
        panic!("{refused:?}");
    };
    assert_eq!(*named, key, "without the prefix");
    // "Where that cost nothing to know": if it is told, it is right.
    if let Some(holder) = holder {
        assert_eq!(holder.fence, guard.fence());
        assert_eq!(holder.note.as_deref(), Some("nightly job"));
    }
}

async fn l11_no_token_is_shown(f: Fixture) {
    let client = f.client().await;
    let locks = f.open().await;
    let mut holder = f.request("a", Duration::from_secs(30));
    holder.note = Some(Arc::from("a note"));
    client.acquire(&holder).await.expect("it answers");
    let mut waiter = holder.clone();
    waiter.token = latchwork_lock::provider::Token::random();
    waiter.wait = Wait::For(Duration::from_secs(30));
    let bare = locks.with_prefix("").expect("a prefix may be empty");
    let key = holder.key.as_str();
    let token = waiter.token;
    let waiting = tokio::spawn(async move { client.acquire(&waiter).await.expect("it answers") });
    f.queued(&bare, key, 1).await;

    let mut shown = Vec::new();
    let inspection = bare.inspect(key).await.expect("it answers");
    shown.push(format!("{inspection:?}"));
    shown.push(serde_json::to_string(&inspection).expect("it serialises"));
    let page = bare.list(f.names(), PageRequest::default()).await.expect("it answers");
    shown.push(format!("{page:?}"));
    shown.push(serde_json::to_string(&page).expect("it serialises"));
    let refused = bare.lock(key).acquire().await.expect_err("it is taken");
    shown.push(format!("{refused} {refused:?}"));
    let guard = bare.lock(f.key("b")).acquire().await.expect("a free key");
    shown.push(format!("{guard:?} {:?} {:?}", guard.state(), bare));
    shown.push(format!("{holder:?}"));
    shown.push(format!("{:?}", bare.break_lock(key).await.expect("it answers")));
    shown.push(format!("{:?}", f.soon("the waiter is let in", waiting).await));

    let shown = shown.join("\n").to_lowercase();
    for secret in [holder.token.expose(), token.expose()] {
        for form in [format!("{secret:032x}"), format!("{secret}")] {
            assert!(!shown.contains(&form), "a token is shown: {form} in {shown}");
        }
    }
}
