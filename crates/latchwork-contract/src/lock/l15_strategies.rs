//! L15 Strategies: what to do when the key is taken.

use std::time::Duration;

use latchwork_lock::{Attempt, LockConfig, LockStrategy};

use super::case::case;
use super::fixture::{SLACK, code};
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(l15_none_takes_no_lock, []),
    case!(l15_none_has_no_guard_to_give, []),
    case!(l15_fail_fast_fails_at_once, [Exclusion]),
    case!(l15_fail_fast_is_the_default, [Exclusion]),
    case!(l15_wait_waits, [Exclusion, Wait, Inspect]),
    case!(l15_skip_skips, [Exclusion]),
    case!(l15_a_free_key_is_held_under_each, [Wait]),
];

fn config(strategy: LockStrategy) -> LockConfig {
    LockConfig { strategy, ..LockConfig::default() }
}

async fn l15_none_takes_no_lock(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let attempt = locks.lock(&key).strategy(LockStrategy::None).attempt().await;
    assert!(matches!(attempt.expect("it answers"), Attempt::Unlocked));
    let guard = locks.lock(&key).acquire().await.expect("nothing was locked");
    let attempt = locks.lock(&key).config(config(LockStrategy::None)).attempt().await;
    assert!(matches!(attempt.expect("it answers"), Attempt::Unlocked));
    guard.release().await.expect("held");
    // The name is checked all the same.
    let attempt = locks.lock("").strategy(LockStrategy::None).attempt().await;
    assert_eq!(code(attempt), "invalid_key");
}

async fn l15_none_has_no_guard_to_give(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let none = || locks.lock(&key).strategy(LockStrategy::None);
    assert_eq!(code(none().acquire().await), "invalid_argument");
    assert_eq!(code(none().try_acquire().await), "invalid_argument");
    assert_eq!(code(none().run(|_| async {}).await), "invalid_argument");
    let all = locks.lock_all([&key]).strategy(LockStrategy::None).acquire().await;
    let refused = all.expect_err("there are no guards to give");
    assert_eq!(refused.code(), "invalid_argument");
    assert!(!refused.to_string().contains("attempt"), "{refused}: there is no such call");
}

async fn l15_fail_fast_fails_at_once(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let _guard = locks.lock(&key).acquire().await.expect("a free key");
    let asked = f.now();
    let attempt = locks.lock(&key).config(config(LockStrategy::FailFast)).attempt();
    assert_eq!(code(f.within(SLACK, "it fails", attempt).await), "lock_taken");
    assert!(f.now().since(asked) < SLACK * f.slowness());
}

async fn l15_fail_fast_is_the_default(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let _guard = locks.lock(&key).acquire().await.expect("a free key");
    let refused = f.within(SLACK, "it fails", locks.lock(&key).acquire()).await;
    let refused = refused.expect_err("it is taken");
    assert_eq!(refused.code(), "lock_taken");
    assert!(refused.is_temporary());
    assert_eq!(code(locks.lock(&key).attempt().await), "lock_taken");
}

async fn l15_wait_waits(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    let (own, name) = (locks.clone(), key.clone());
    let waiting = tokio::spawn(async move {
        own.lock(&name).config(config(LockStrategy::Wait)).attempt().await.expect("its turn comes")
    });
    f.queued(&locks, &key, 1).await;
    guard.release().await.expect("held");
    let attempt = f.soon("it is let in", waiting).await;
    assert!(matches!(attempt, Attempt::Held(guard) if guard.waited()));
}

async fn l15_skip_skips(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    let asked = f.now();
    let attempt = locks.lock(&key).strategy(LockStrategy::Skip).attempt();
    let attempt = f.within(SLACK, "it skips", attempt).await;
    assert!(matches!(attempt.expect("skipping is no error"), Attempt::Skipped));
    assert!(f.now().since(asked) < SLACK * f.slowness());
    guard.release().await.expect("held");
}

async fn l15_a_free_key_is_held_under_each(f: Fixture) {
    let locks = f.open().await;
    for strategy in [LockStrategy::FailFast, LockStrategy::Wait, LockStrategy::Skip] {
        let mut config = config(strategy);
        config.ttl = Duration::from_secs(7);
        let attempt = locks.lock(f.key("a")).config(&config).attempt().await.expect("a free key");
        let Attempt::Held(guard) = attempt else { panic!("{strategy:?} gave {attempt:?}") };
        assert_eq!(guard.ttl(), config.ttl, "the configuration's ttl");
        guard.release().await.expect("held");
    }
}
