//! L18 Keys are checked, before any round trip; and every legal key is a key of its own.

use latchwork_lock::{LockStrategy, MAX_KEY_BYTES, MAX_OWNER_BYTES, MAX_PREFIX_BYTES};

use super::case::case;
use super::fixture::code;
use super::{Case, Fixture, Operation};

pub(super) const CASES: &[Case] = &[
    case!(l18_a_bad_key_is_refused_before_any_call, []),
    case!(l18_a_bad_key_cannot_be_looked_at, [Inspect, Break]),
    case!(l18_the_longest_key_works, [Exclusion]),
    case!(l18_odd_keys_work, [Exclusion]),
    case!(l18_similar_keys_are_distinct, [Exclusion]),
    case!(l18_other_names_are_checked, []),
];

const BAD: [&str; 6] = ["", "a\nb", "a\0b", "\t", "\u{7f}", "c1\u{85}"];

async fn l18_a_bad_key_is_refused_before_any_call(f: Fixture) {
    let (locks, faults) = f.open_flaky().await;
    let long = "x".repeat(MAX_KEY_BYTES + 1);
    let umlauts = "ü".repeat(MAX_KEY_BYTES / 2 + 1);
    for bad in BAD.into_iter().chain([long.as_str(), umlauts.as_str()]) {
        assert_eq!(code(locks.lock(bad).acquire().await), "invalid_key", "{bad:?}");
        assert_eq!(code(locks.lock(bad).try_acquire().await), "invalid_key", "{bad:?}");
        assert_eq!(code(locks.lock(bad).run(|_| async {}).await), "invalid_key", "{bad:?}");
        let none = locks.lock(bad).strategy(LockStrategy::None).attempt().await;
        assert_eq!(code(none), "invalid_key", "{bad:?}");
        let all = locks.lock_all([f.key("good").as_str(), bad]).acquire().await;
        assert_eq!(code(all), "invalid_key", "{bad:?}");
    }
    assert_eq!(faults.calls(Operation::Acquire), 0);
}

async fn l18_a_bad_key_cannot_be_looked_at(f: Fixture) {
    let locks = f.open().await;
    for bad in BAD {
        assert_eq!(code(locks.inspect(bad).await), "invalid_key", "{bad:?}");
        assert_eq!(code(locks.exists(bad).await), "invalid_key", "{bad:?}");
        assert_eq!(code(locks.break_lock(bad).await), "invalid_key", "{bad:?}");
    }
}

async fn l18_the_longest_key_works(f: Fixture) {
    // The longest prefix before the longest key, in letters of one byte and of two.
    let prefix = format!("{:p>MAX_PREFIX_BYTES$}", "/");
    let locks = f.open().await.with_prefix(&prefix).expect("a legal prefix");
    for letter in ["x", "ü"] {
        let mut key = f.key("");
        while key.len() + letter.len() <= MAX_KEY_BYTES {
            key.push_str(letter);
        }
        let guard = locks.lock(&key).acquire().await.expect("it is legal");
        assert_eq!(guard.key(), key);
        assert!(locks.lock(&key).try_acquire().await.expect("it answers").is_none());
        guard.release().await.expect("held");
    }
}

async fn l18_odd_keys_work(f: Fixture) {
    let locks = f.open().await;
    let odd = [
        "a b",
        " ",
        "a/b",
        "../..",
        ".",
        "{a}",
        "{}{",
        "a*?[b]",
        "100%",
        "_",
        "'; --",
        "\"",
        "\\",
        "größe",
        "鍵",
        "🔑",
        "a:b::",
        "#?&=",
        "\u{202e}rtl",
        "e\u{301}",
        "-",
        "NULL",
        "0",
    ];
    let mut guards = Vec::new();
    for name in odd {
        let key = f.key(name);
        let guard = locks.lock(&key).try_acquire().await.expect("it answers");
        guards.push((key, guard.unwrap_or_else(|| panic!("{name:?} is another's key too"))));
    }
    for (key, guard) in guards {
        assert_eq!(guard.key(), key);
        assert!(locks.lock(&key).try_acquire().await.expect("it answers").is_none(), "{key:?}");
        guard.release().await.expect("held");
    }
}

async fn l18_similar_keys_are_distinct(f: Fixture) {
    // What a database may take for the same: case, accents, spaces at the end, forms of one letter.
    let locks = f.open().await;
    let stem = "a".repeat(300);
    let similar =
        ["a", "A", "a ", "á", "a\u{301}", "ａ", "ß", "ss", "a/", "a//", &stem, &format!("{stem}b")]
            .map(|name| f.key(name));
    let mut guards = Vec::new();
    for key in &similar {
        let guard = locks.lock(key).try_acquire().await.expect("it answers");
        guards.push(guard.unwrap_or_else(|| panic!("{key:?} is taken by a similar one")));
    }
    for guard in guards {
        guard.release().await.expect("held");
    }
}

async fn l18_other_names_are_checked(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let long = "x".repeat(MAX_OWNER_BYTES + 1);
    for bad in ["", "a\nb", &long] {
        assert_eq!(code(locks.lock(&key).owner(bad).acquire().await), "invalid_argument");
        assert_eq!(code(locks.with_owner(bad)), "invalid_argument");
    }
    for bad in ["a\nb", &long] {
        assert_eq!(code(locks.lock(&key).note(bad).acquire().await), "invalid_argument");
    }
    for bad in ["a\nb", &"x".repeat(MAX_PREFIX_BYTES + 1)] {
        assert_eq!(code(locks.with_prefix(bad)), "invalid_argument");
    }
    locks.lock(&key).acquire().await.expect("nothing was taken").release().await.expect("held");
}
