//! One error type, with a code that is the same in Rust, HTTP and the shell.

use std::fmt;
use std::time::Duration;

use crate::{Fence, Holder};

/// The result of a lock operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// What went wrong with a lock.
///
/// Match [`kind`](Error::kind), or hand [`code`](Error::code) on; retry layers ask
/// [`is_temporary`](Error::is_temporary). No message ever shows a token.
///
/// It is one pointer wide, because every lock that goes well carries room for it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<ErrorKind>);

/// The kinds of [`Error`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Somebody else has the key, and the time to wait is over.
    #[error("{}", Taken { key, waited: *waited, holder: holder.as_deref() })]
    #[non_exhaustive]
    LockAcquisition {
        /// The key that was asked for.
        key: String,
        /// How long was waited for it.
        waited: Duration,
        /// One of those who hold it, where the backend told.
        holder: Option<Box<Holder>>,
    },
    /// The lease ran out before it was renewed.
    #[error("{}", Expired { key, fence: *fence, renewal: renewal.as_deref() })]
    #[non_exhaustive]
    LockExpired {
        /// The key of the lease.
        key: String,
        /// Its fence.
        fence: Fence,
        /// Why the last renewal in the background failed, where one did.
        renewal: Option<String>,
    },
    /// The lease is no longer ours: broken, taken over, resumed elsewhere, or forgotten by the backend;
    /// or it was given back before this was asked of it.
    #[error("{}", Lost { key, fence: *fence, released: *released })]
    #[non_exhaustive]
    LockLost {
        /// The key of the lease.
        key: String,
        /// Its fence, where it is known.
        fence: Option<Fence>,
        /// Whether the caller itself gave it back.
        released: bool,
    },
    /// The request could never be granted: it waits for work that waits for it (L22).
    #[error("{}", Deadlock(keys))]
    #[non_exhaustive]
    LockDeadlock {
        /// The key that was asked for; then, where others wait too, what the holder of each key
        /// waits for. The last one is held by the work that asked for the first.
        keys: Vec<String>,
    },
    /// The backend did not answer. Whether anybody holds the key is not known.
    #[error("the {provider} lock backend is unavailable ({during}): {reason}")]
    #[non_exhaustive]
    Unavailable {
        /// Which backend.
        provider: &'static str,
        /// What was tried.
        during: &'static str,
        /// What came back instead.
        reason: String,
        /// The driver's error.
        #[source]
        source: Option<Source>,
    },
    /// The backend answered, and trying again will not help until somebody repairs it.
    #[error("the {provider} lock backend refused ({during}): {reason}")]
    #[non_exhaustive]
    Backend {
        /// Which backend.
        provider: &'static str,
        /// What was tried.
        during: &'static str,
        /// What is wrong and what to do.
        reason: String,
        /// The driver's error.
        #[source]
        source: Option<Source>,
    },
    /// The key's name is not legal.
    #[error("invalid lock key {key:?}: {reason}")]
    #[non_exhaustive]
    InvalidKey {
        /// The beginning of the name.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Another argument is not legal.
    #[error("invalid {name}: {reason}")]
    #[non_exhaustive]
    InvalidArgument {
        /// Which argument.
        name: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The provider cannot do this at all.
    #[error("the {provider} lock provider does not support {operation}")]
    #[non_exhaustive]
    NotSupported {
        /// Which provider.
        provider: &'static str,
        /// What it cannot do.
        operation: String,
    },
    /// The program was built without this provider.
    #[error(
        "this program was not built with the lock provider for `{scheme}:`; \
         build it with the feature `{feature}` of {}{}",
        crate_of(feature),
        needs(feature)
    )]
    #[non_exhaustive]
    NotBuilt {
        /// The scheme of the url.
        scheme: String,
        /// The cargo feature to enable.
        feature: &'static str,
    },
}

/// Which crate has the feature.
fn crate_of(feature: &str) -> &'static str {
    match feature {
        "temporal" => "latchwork, and connect by `latchwork::connect`",
        _ => "latchwork-lock",
    }
}

/// What the build of a feature needs besides Rust and a C compiler.
fn needs(feature: &str) -> &'static str {
    match feature {
        "etcd" => {
            "; that needs protoc and its files (on Debian: apt-get install protobuf-compiler \
             libprotobuf-dev)"
        }
        _ => "",
    }
}

impl Error {
    /// Every code that [`code`](Self::code) can give, with what it means and
    /// whether trying again may help. The documentation's table is made of it.
    pub const CODES: [(&'static str, &'static str, bool); 10] = [
        ("lock_taken", "another holder has the key, and the time to wait is over", true),
        ("lock_expired", "the lease ran out before it was renewed", false),
        ("lock_lost", "the lease is no longer ours", false),
        ("lock_deadlock", "the request waits for work that waits for it", false),
        ("lock_unavailable", "the backend did not answer", true),
        ("lock_backend", "the backend rejected the request; an operator has to act", false),
        ("invalid_key", "the key's name is not legal", false),
        ("invalid_argument", "another argument is not legal", false),
        ("not_supported", "the provider cannot do this", false),
        ("not_built", "the program was built without this provider", false),
    ];

    /// What kind of error it is.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    pub(crate) fn into_kind(self) -> ErrorKind {
        *self.0
    }

    /// Whether the lease did not hold to the end: it expired or was lost.
    pub fn is_loss(&self) -> bool {
        matches!(self.kind(), ErrorKind::LockExpired { .. } | ErrorKind::LockLost { .. })
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        self.row().0
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_temporary(&self) -> bool {
        self.row().2
    }

    fn row(&self) -> &'static (&'static str, &'static str, bool) {
        let at = match self.kind() {
            ErrorKind::LockAcquisition { .. } => 0,
            ErrorKind::LockExpired { .. } => 1,
            ErrorKind::LockLost { .. } => 2,
            ErrorKind::LockDeadlock { .. } => 3,
            ErrorKind::Unavailable { .. } => 4,
            ErrorKind::Backend { .. } => 5,
            ErrorKind::InvalidKey { .. } => 6,
            ErrorKind::InvalidArgument { .. } => 7,
            ErrorKind::NotSupported { .. } => 8,
            ErrorKind::NotBuilt { .. } => 9,
        };
        &Self::CODES[at]
    }

    /// An [`ErrorKind::Unavailable`], for providers.
    pub fn unavailable(
        provider: &'static str,
        during: &'static str,
        reason: impl Into<String>,
        source: Option<Source>,
    ) -> Self {
        ErrorKind::Unavailable { provider, during, reason: reason.into(), source }.into()
    }

    /// An [`ErrorKind::Backend`], for providers.
    pub fn backend(
        provider: &'static str,
        during: &'static str,
        reason: impl Into<String>,
        source: Option<Source>,
    ) -> Self {
        ErrorKind::Backend { provider, during, reason: reason.into(), source }.into()
    }

    /// An [`ErrorKind::NotSupported`], for providers.
    pub fn not_supported(provider: &'static str, operation: impl Into<String>) -> Self {
        ErrorKind::NotSupported { provider, operation: operation.into() }.into()
    }

    /// An [`ErrorKind::InvalidArgument`].
    pub fn invalid_argument(name: &'static str, reason: impl Into<String>) -> Self {
        ErrorKind::InvalidArgument { name, reason: reason.into() }.into()
    }

    pub(crate) fn invalid_key(key: &str, reason: impl Into<String>) -> Self {
        const SHOWN: usize = 40;
        let mut shown: String = key.chars().take(SHOWN).collect();
        if shown.len() < key.len() {
            shown.push('…');
        }
        ErrorKind::InvalidKey { key: shown, reason: reason.into() }.into()
    }

    /// An [`ErrorKind::LockLost`], for those who resume leases.
    pub fn lost(key: &str, fence: Fence) -> Self {
        ErrorKind::LockLost { key: key.to_owned(), fence: Some(fence), released: false }.into()
    }

    /// The same for a lease that the caller itself gave back.
    pub(crate) fn released(key: &str, fence: Fence) -> Self {
        ErrorKind::LockLost { key: key.to_owned(), fence: Some(fence), released: true }.into()
    }

    /// The same where a lease should be kept and none is, for those who keep leases.
    pub fn not_kept(key: &str) -> Self {
        ErrorKind::LockLost { key: key.to_owned(), fence: None, released: false }.into()
    }

    /// An [`ErrorKind::LockExpired`], for those who keep leases.
    pub fn expired(key: &str, fence: Fence) -> Self {
        ErrorKind::LockExpired { key: key.to_owned(), fence, renewal: None }.into()
    }

    /// The same where the last renewal in the background had failed.
    pub(crate) fn not_renewed(key: &str, fence: Fence, renewal: Option<String>) -> Self {
        ErrorKind::LockExpired { key: key.to_owned(), fence, renewal }.into()
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Error(Box::new(kind))
    }
}

struct Expired<'a> {
    key: &'a str,
    fence: Fence,
    renewal: Option<&'a str>,
}

impl fmt::Display for Expired<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Expired { key, fence, renewal } = self;
        write!(f, "the lease on {key:?} (fence {fence}) ran out before it was renewed")?;
        match renewal {
            Some(why) => write!(
                f,
                ", since renewing it failed: {why}; check what was already done, and take the lock again"
            ),
            None => f.write_str(
                ": check what was already done, take the lock again, and use a longer ttl or renewal",
            ),
        }
    }
}

struct Lost<'a> {
    key: &'a str,
    fence: Option<Fence>,
    released: bool,
}

impl fmt::Display for Lost<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key;
        match self.fence {
            Some(fence) if self.released => write!(
                f,
                "the lease on {key:?} (fence {fence}) is not held any more: its holder released it; \
                 take the lock again to go on"
            ),
            Some(fence) => write!(
                f,
                "the lease on {key:?} (fence {fence}) was lost: it was broken, taken over, resumed \
                 elsewhere or expired; check what was already done before taking the lock again"
            ),
            None => write!(
                f,
                "no lease on {key:?} is kept any more: it was released by hand, or lost before; \
                 check what was already done before taking the lock again"
            ),
        }
    }
}

struct Deadlock<'a>(&'a [String]);

impl fmt::Display for Deadlock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [key] => write!(
                f,
                "waiting for {key:?} would never end: the work that asks for it runs under that \
                 very lock; ask for it once only, or name the holder's owner to take it over"
            ),
            keys => {
                f.write_str(
                    "waiting would never end, since others of this process wait in turn: ",
                )?;
                for (place, key) in keys.iter().enumerate() {
                    let before = if place == 0 { "for" } else { ", whose holder waits for" };
                    write!(f, "{before} {key:?}")?;
                }
                f.write_str(
                    ", which the work that asks holds; take the keys in one order everywhere, or \
                     together by `lock_all`",
                )
            }
        }
    }
}

struct Taken<'a> {
    key: &'a str,
    waited: Duration,
    holder: Option<&'a Holder>,
}

impl fmt::Display for Taken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is taken", self.key)?;
        if let Some(holder) = self.holder {
            write!(f, " by {} ({}, fence {})", holder.who(), holder.mode, holder.fence)?;
            if let Some(note) = &holder.note {
                write!(f, ", note {note:?}")?;
            }
            write!(
                f,
                ", whose lease ends in {:?} unless renewed",
                Duration::from_millis(
                    u64::try_from(holder.expires_in.as_millis()).unwrap_or(u64::MAX)
                ),
            )?;
        }
        if self.waited.is_zero() {
            f.write_str("; no waiting was asked for")
        } else {
            write!(f, "; waited {:.1?}", self.waited)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct() {
        let mut codes: Vec<_> = Error::CODES.iter().map(|row| row.0).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), Error::CODES.len());
    }

    #[test]
    fn a_provider_that_was_left_out_says_what_its_build_needs() {
        let told = |scheme: &str, feature| {
            Error::from(ErrorKind::NotBuilt { scheme: scheme.to_owned(), feature }).to_string()
        };
        let etcd = told("etcd", "etcd");
        assert!(etcd.contains("`etcd`") && etcd.contains("protobuf-compiler"), "{etcd}");
        assert!(!told("sqlite", "sqlite").contains("protoc"));
    }

    #[test]
    fn the_table_in_the_documentation_is_this_list() {
        let page = include_str!("../../../docs/errors.md");
        let rows = Error::CODES.iter().copied().chain([crate::StaleFence::ROW]);
        let mut table = String::from("| code | meaning | temporary |\n| --- | --- | --- |\n");
        for (code, meaning, temporary) in rows {
            let temporary = if temporary { "yes" } else { "no" };
            table += &format!("| `{code}` | {meaning} | {temporary} |\n");
        }
        assert!(page.contains(&table), "docs/errors.md should have:\n{table}");
    }

    #[test]
    fn a_long_key_is_shown_in_part() {
        let error = Error::invalid_key(&"ü".repeat(600), "too long");
        assert!(error.to_string().chars().count() < 100, "{error}");
    }
}
