//! The proof of one grant, and the words it is made of.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::key::has_control;
use crate::{Error, Result};

/// Who may be in at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Alone: the default, because it is the safe one.
    #[default]
    Exclusive,
    /// Together with other shared leases.
    Shared,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
        })
    }
}

/// A number per key that only grows: every grant gets a higher one (L4).
///
/// Send it with each write, and let the store refuse a lower one than it has
/// seen ([`FenceGate`](crate::FenceGate)): that stops a holder that was
/// paused past its lease and does not know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(u64);

impl Fence {
    /// A fence of this value, as read back from wherever it was sent to.
    pub const fn new(value: u64) -> Self {
        Fence(value)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The secret of one grant: its bearer may renew and release.
///
/// Made by the client before it asks, so that an answer lost on the way can be
/// asked for again. It appears in no `Debug` and in no message.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(u128);

impl Token {
    /// A fresh random token of 128 bits.
    pub fn random() -> Self {
        Token(rand::random())
    }

    /// The token's value, for a provider to store or to hash. Keep it secret.
    pub const fn expose(self) -> u128 {
        self.0
    }

    /// The token of a value that [`expose`](Self::expose) gave.
    pub const fn from_exposed(value: u128) -> Self {
        Token(value)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

// As text: JSON numbers of 128 bits do not survive most readers.
impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{:032x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        // The text is a secret, so the message does not show it.
        if text.len() != 32 {
            return Err(serde::de::Error::custom("a token is 32 hexadecimal digits"));
        }
        u128::from_str_radix(&text, 16)
            .map(Token)
            .map_err(|_| serde::de::Error::custom("a token is 32 hexadecimal digits"))
    }
}

/// The longest name of an owner and the longest note, in bytes.
pub const MAX_OWNER_BYTES: usize = 255;

/// Who asks, where the caller chose a name.
///
/// Without one every request is its own owner, so that two tasks of one
/// process exclude each other. Naming an owner is a choice with a consequence:
/// a request of the same owner *takes over* what it already holds (L7).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Owner(Arc<str>);

impl Owner {
    /// Checks a name and makes an owner of it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when it is empty, longer than
    /// [`MAX_OWNER_BYTES`], or has control characters.
    pub fn new(name: &str) -> Result<Self> {
        if name.is_empty() {
            return Err(Error::invalid_argument("owner", "it is empty"));
        }
        check_text("owner", name)?;
        Ok(Owner(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Owner {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Owner::new(&name)
    }
}

impl From<Owner> for String {
    fn from(owner: Owner) -> String {
        owner.0.as_ref().to_owned()
    }
}

/// Checks the text of an owner or a note.
pub(crate) fn check_text(what: &'static str, text: &str) -> Result<()> {
    if text.len() > MAX_OWNER_BYTES {
        return Err(Error::invalid_argument(
            what,
            format!("it has {} bytes, and {MAX_OWNER_BYTES} are allowed", text.len()),
        ));
    }
    if has_control(text) {
        return Err(Error::invalid_argument(what, "it has control characters"));
    }
    Ok(())
}

/// `host:pid` of this process: shown as the holder where nobody chose a name.
pub fn process_label() -> &'static str {
    static LABEL: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let host: String = host.chars().filter(|c| !c.is_control()).take(200).collect();
        format!("{host}:{}", std::process::id())
    });
    &LABEL
}

/// The proof of one grant: what a [`Guard`](crate::Guard) becomes to travel.
///
/// It serialises with its token, so a stored lease is a secret. Give it to
/// [`Locks::resume`](crate::Locks::resume) wherever the work goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The prefix of the [`Locks`](crate::Locks) that took it.
    pub prefix: String,
    /// The key, without the prefix.
    pub key: String,
    /// Alone or shared.
    pub mode: Mode,
    /// The owner, where one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The secret.
    pub token: Token,
    /// The number to send with each write.
    pub fence: Fence,
    /// How long a grant lasts from its last renewal.
    #[serde(rename = "ttl_ms", with = "millis")]
    pub ttl: Duration,
    /// When it was granted, by the wall clock of the machine that asked.
    pub acquired_at: DateTime<Utc>,
    /// When it ends unless renewed, by the same clock. The backend decides by its own.
    pub expires_at: DateTime<Utc>,
}

/// What can be shown of a lock to anybody: a lease without its secret.
///
/// What a paused transition will show of its lock: whether something is
/// locked, since when and for how long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockState {
    /// What is locked, if anything.
    pub key: Option<String>,
    /// The fence of the grant.
    pub fence: Option<Fence>,
    /// When it was granted.
    pub acquired_at: Option<DateTime<Utc>>,
    /// How long a grant lasts from its last renewal.
    #[serde(rename = "ttl_ms", default, with = "option_millis")]
    pub ttl: Option<Duration>,
    /// When it ends unless renewed.
    pub expires_at: Option<DateTime<Utc>>,
}

impl LockState {
    /// Nothing is locked.
    pub fn unlocked() -> Self {
        Self::default()
    }

    /// Whether a lock was taken. Whether it still stands, only the backend knows.
    pub fn is_locked(&self) -> bool {
        self.key.is_some()
    }

    /// How long until the lease ends unless renewed, by this machine's wall clock: an estimate to
    /// show, while the backend decides by its own clock. None when nothing is locked.
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.expires_at? - crate::SystemClock::shared().wall();
        Some(left.to_std().unwrap_or_default())
    }
}

impl From<&Lease> for LockState {
    fn from(lease: &Lease) -> Self {
        LockState {
            key: Some(lease.key.clone()),
            fence: Some(lease.fence),
            acquired_at: Some(lease.acquired_at),
            ttl: Some(lease.ttl),
            expires_at: Some(lease.expires_at),
        }
    }
}

/// A [`Duration`] as a whole number of milliseconds.
pub(crate) mod millis {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        u64::deserialize(d).map(Duration::from_millis)
    }
}

/// The same for a duration that may be missing.
pub(crate) mod option_millis {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(d: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        d.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(d)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> Lease {
        let at = DateTime::from_timestamp(1_767_225_600, 0).expect("in range");
        Lease {
            prefix: "lock/".into(),
            key: "order:1".into(),
            mode: Mode::Exclusive,
            owner: None,
            token: Token::from_exposed(0xabc),
            fence: Fence::new(7),
            ttl: Duration::from_secs(30),
            acquired_at: at,
            expires_at: at + Duration::from_secs(30),
        }
    }

    #[test]
    fn a_state_says_how_long_it_lasts() {
        assert_eq!(LockState::unlocked().remaining(), None);
        assert_eq!(LockState::from(&lease()).remaining(), Some(Duration::ZERO), "long over");
        let expires_at = DateTime::from_timestamp(32_503_680_000, 0).expect("in range");
        let lasting = LockState::from(&Lease { expires_at, ..lease() });
        assert!(lasting.remaining() > Some(Duration::from_secs(3_600)));
    }

    #[test]
    fn a_lease_survives_the_journey() {
        let text = serde_json::to_string(&lease()).expect("serialises");
        assert_eq!(serde_json::from_str::<Lease>(&text).expect("reads"), lease());
    }

    #[test]
    fn the_token_is_in_the_stored_form_and_nowhere_else() {
        let secret = "00000000000000000000000000000abc";
        assert!(serde_json::to_string(&lease()).expect("serialises").contains(secret));
        let shown = format!("{:?} {:?}", lease(), LockState::from(&lease()));
        assert!(!shown.contains("abc"), "{shown}");
    }

    #[test]
    fn a_corrupt_token_is_refused_without_showing_it() {
        let error = serde_json::from_str::<Token>("\"secret\"").expect_err("not hexadecimal");
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn no_token_is_given_twice() {
        let made = || (0..100).map(|_| Token::random().expose()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(made)).collect();
        let all = threads.into_iter().flat_map(|thread| thread.join().expect("no panic"));
        let all: std::collections::HashSet<u128> = all.chain(made()).collect();
        assert_eq!(all.len(), 500);
        assert!(!all.contains(&0));
    }

    #[test]
    fn owners_are_checked() {
        assert!(Owner::new("web-1").is_ok());
        for bad in ["", "a\nb", &"x".repeat(256)] {
            assert_eq!(Owner::new(bad).expect_err("bad").code(), "invalid_argument");
        }
    }
}
