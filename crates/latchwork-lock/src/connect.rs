//! From an address to locks.

use std::time::Duration;

use futures::future::{Either, select};
use url::Url;

use crate::retry::Backoff;
use crate::{
    Clock, Error, ErrorKind, InMemoryLockProvider, Locks, NoOpLockProvider, Result, SystemClock,
};

/// How [`Locks::connect_with`] connects.
///
/// ```no_run
/// # async fn example() -> latchwork_lock::Result<()> {
/// use latchwork_lock::{ConnectOptions, Locks};
/// use std::time::Duration;
///
/// let options = ConnectOptions::default().connect_timeout(Duration::from_secs(30));
/// let locks = Locks::connect_with("redis://localhost", &options).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    connect_timeout: Option<Duration>,
}

impl ConnectOptions {
    /// Connects again and again for this long while the backend cannot be reached: a server that is
    /// being restarted, a name that is not known yet. What does not pass by itself (a wrong password,
    /// database or certificate) fails at once. Without a timeout there is one try.
    ///
    /// The timeout is for all tries together, and also ends one that gets no answer.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }
}

/// What is left of a timeout when another try is no longer worth while.
const SHORTEST_TRY: Duration = Duration::from_millis(20);

/// Opens the backend at an address, and tries again as the options say.
pub(crate) async fn connect_with(address: &str, options: &ConnectOptions) -> Result<Locks> {
    open_with(address, options, || connect(address)).await
}

/// The same for any way to open it.
pub(crate) async fn open_with<F: Future<Output = Result<Locks>>>(
    address: &str,
    options: &ConnectOptions,
    open: impl Fn() -> F,
) -> Result<Locks> {
    let Some(timeout) = options.connect_timeout else { return open().await };
    let clock = SystemClock;
    let started = clock.now();
    let deadline = started.after(timeout);
    let mut backoff = Backoff::first();
    let mut tries = 0_u32;
    let mut last = None;
    loop {
        tries += 1;
        let attempt = std::pin::pin!(open());
        let error = match select(attempt, clock.sleep_until(deadline)).await {
            Either::Left((Ok(locks), _)) => return Ok(locks),
            Either::Left((Err(error), _)) if !error.is_temporary() => return Err(error),
            Either::Left((Err(error), _)) => error,
            Either::Right(_) => {
                return Err(last.unwrap_or_else(|| silent(address)).after(tries, timeout));
            }
        };
        let now = clock.now();
        let left = deadline.since(now);
        if left < SHORTEST_TRY {
            return Err(error.after(tries, now.since(started)));
        }
        // Half of what is left at most, so that tries go on until the timeout.
        let next = now.after(backoff.pause().min(left / 2));
        tracing::info!(%error, "connecting failed; trying again");
        last = Some(error);
        clock.sleep_until(next).await;
    }
}

/// That the only try got no answer.
fn silent(address: &str) -> Error {
    let scheme = address.split_once(':').map_or(address, |(scheme, _)| scheme);
    let known = ELSEWHERE.iter().find(|(known, _)| *known == scheme);
    let provider = known.map_or("lock", |(_, feature)| feature);
    Error::unavailable(provider, "connecting", "it did not answer in time", None)
}

impl Error {
    /// The same, with how often and for how long it was tried.
    fn after(self, tries: u32, span: Duration) -> Self {
        match self.into_kind() {
            ErrorKind::Unavailable { provider, during, reason, source } if tries > 1 => {
                let reason = format!("{reason}; tried {tries} times in {span:.1?}");
                Error::from(ErrorKind::Unavailable { provider, during, reason, source })
            }
            kind => kind.into(),
        }
    }
}

/// Schemes of providers that other builds have, with the feature that brings them.
const ELSEWHERE: [(&str, &str); 13] = [
    ("file", "file"),
    ("sqlite", "sqlite"),
    ("postgres", "postgres"),
    ("postgresql", "postgres"),
    ("mysql", "mysql"),
    ("mariadb", "mysql"),
    ("redis", "redis"),
    ("rediss", "redis"),
    ("redis+unix", "redis"),
    ("etcd", "etcd"),
    ("etcds", "etcd"),
    ("temporal", "temporal"),
    ("temporals", "temporal"),
];

const KINDS: &str = "write memory:, file:///directory, sqlite:///file.db, postgres://…, mysql://…, redis://… or etcd://…";

/// Opens the backend at an address.
pub(crate) async fn connect(address: &str) -> Result<Locks> {
    #[cfg(feature = "etcd")]
    if is_etcd(address) {
        return crate::EtcdLockProvider::connect(address).await.map(Locks::new);
    }
    let url = parse(address)?;
    match url.scheme() {
        "memory" => bare(&url).map(|()| Locks::new(InMemoryLockProvider::new())),
        "noop" => bare(&url).map(|()| Locks::new(NoOpLockProvider::new())),
        #[cfg(all(feature = "file", target_os = "linux"))]
        "file" => crate::providers::file::connect(&url, address).await.map(Locks::new),
        #[cfg(feature = "sqlite")]
        "sqlite" => crate::SqliteLockProvider::open(address).await.map(Locks::new),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            crate::PostgresLockProvider::connect(address).await.map(Locks::new)
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => crate::MySqlLockProvider::connect(address).await.map(Locks::new),
        #[cfg(feature = "redis")]
        scheme if is_redis(scheme) => {
            crate::RedisLockProvider::connect(address).await.map(Locks::new)
        }
        scheme => Err(unknown(scheme)),
    }
}

/// Also the forms that name several servers: the provider says why it does not take them.
#[cfg(feature = "redis")]
fn is_redis(scheme: &str) -> bool {
    let base = scheme.strip_prefix("redis").map(|rest| rest.strip_prefix('s').unwrap_or(rest));
    matches!(base, Some("" | "+unix" | "+cluster" | "-cluster" | "+sentinel" | "-sentinel"))
}

/// The tables that the backend at an address needs, as SQL; nothing is connected to.
pub(crate) fn schema(address: &str) -> Result<String> {
    #[cfg(feature = "etcd")]
    if is_etcd(address) {
        return Err(no_tables("etcd"));
    }
    match parse(address)?.scheme() {
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(crate::SqliteLockProvider::schema().to_owned()),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(crate::PostgresLockProvider::schema()),
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => Ok(crate::MySqlLockProvider::schema()),
        scheme @ ("memory" | "noop" | "file" | "redis" | "rediss" | "redis+unix") => {
            Err(no_tables(scheme))
        }
        scheme => Err(unknown(scheme)),
    }
}

pub(crate) fn grants(address: &str, role: &str) -> Result<String> {
    if role.is_empty() || crate::key::has_control(role) {
        return Err(Error::invalid_argument("role", "it is empty, or has control characters"));
    }
    // Whatever has no tables, or is not built, is refused there.
    schema(address)?;
    match parse(address)?.scheme() {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(crate::PostgresLockProvider::grants(role)),
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => Ok(crate::MySqlLockProvider::grants(role)),
        scheme => {
            let reason = format!("{scheme}: has no roles; the rights of the file decide");
            Err(Error::invalid_argument("role", reason))
        }
    }
}

fn no_tables(scheme: &str) -> Error {
    Error::invalid_argument("url", format!("{scheme}: has no tables, and so no schema to show"))
}

/// Before an address is parsed: one that names several members is none to others.
fn is_etcd(address: &str) -> bool {
    matches!(address.split_once("://"), Some(("etcd" | "etcds", _)))
}

fn parse(address: &str) -> Result<Url> {
    if is_etcd(address) {
        return Err(unknown("etcd"));
    }
    // The address may carry a password, so no message repeats it.
    let url = Url::parse(address).map_err(|error| {
        // A sign in a password that ends it: what follows is taken for a port, or for no host at all.
        let more = if address.contains('@') { format!("; {ENCODE}") } else { String::new() };
        Error::invalid_argument("url", format!("it is no address ({error}); {KINDS}{more}"))
    })?;
    // The same where a part of the password passes for a port: the host stands behind it.
    let is_server = url.has_host() && !matches!(url.scheme(), "file" | "sqlite");
    if is_server && (url.path().contains('@') || url.fragment().is_some_and(|f| f.contains('@'))) {
        return Err(Error::invalid_argument(
            "url",
            format!("its host stands behind its path; {ENCODE}"),
        ));
    }
    Ok(url)
}

const ENCODE: &str = "in a user or a password write @ as %40, / as %2F, : as %3A, ? as %3F, # as %23 \
    and % as %25";

fn unknown(scheme: &str) -> Error {
    match ELSEWHERE.iter().find(|(known, _)| *known == scheme) {
        Some((_, feature)) => ErrorKind::NotBuilt { scheme: scheme.to_owned(), feature }.into(),
        None => {
            Error::invalid_argument("url", format!("{scheme}: is no kind of lock backend; {KINDS}"))
        }
    }
}

/// A scheme that has nothing behind it.
fn bare(url: &Url) -> Result<()> {
    if url.path().is_empty() && url.host().is_none() && url.query().is_none() {
        return Ok(());
    }
    Err(Error::invalid_argument(
        "url",
        format!("{0}: takes nothing behind the colon; write {0}:", url.scheme()),
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_an_address_or_an_error(
            text in "(memory|noop|file|sqlite|postgres|mysql|redis|etcd|[a-z]{0,5}):?\\PC{0,30}",
        ) {
            if let Err(error) = schema(&text) {
                prop_assert!(["invalid_argument", "not_built"].contains(&error.code()), "{error}");
            }
        }

        #[test]
        fn no_refusal_repeats_a_password(
            scheme in "[a-z+]{0,12}",
            host in "[ -~]{0,12}",
            rest in "[ -~]{0,20}",
        ) {
            let address = format!("{scheme}://me:hushhush@{host}/{rest}");
            if let Err(error) = schema(&address) {
                prop_assert!(!error.to_string().contains("hushhush"), "{error}");
            }
        }
    }

    #[tokio::test]
    async fn addresses_are_told_apart() {
        assert_eq!(connect("memory:").await.expect("there").provider_name(), "memory");
        assert_eq!(connect("noop:").await.expect("there").provider_name(), "noop");
        for (bad, code) in [
            ("", "invalid_argument"),
            ("/tmp/locks", "invalid_argument"),
            ("carrier-pigeon://x", "invalid_argument"),
            ("memory:x", "invalid_argument"),
            #[cfg(not(feature = "postgres"))]
            ("postgres://me:secret@host/db", "not_built"),
            #[cfg(feature = "postgres")]
            ("postgres://me:secret@host/db?passwort=secret", "invalid_argument"),
            #[cfg(not(feature = "mysql"))]
            ("mysql://me:secret@host/db", "not_built"),
            #[cfg(feature = "mysql")]
            ("mysql://me:secret@host/db?passwort=secret", "invalid_argument"),
            #[cfg(not(feature = "etcd"))]
            ("etcd://me:secret@a:2379,b:2379", "not_built"),
            #[cfg(feature = "etcd")]
            ("etcd://me:secret@a:2379,b:2379?passwort=secret", "invalid_argument"),
            #[cfg(feature = "redis")]
            ("redis://me:secret@host/db", "invalid_argument"),
            #[cfg(feature = "redis")]
            ("rediss://me:secret@host/0?passwort=secret", "invalid_argument"),
            #[cfg(feature = "redis")]
            ("redis-cluster://me:secret@host", "not_supported"),
            #[cfg(feature = "redis")]
            ("redis+sentinel://me:secret@a,b/primary", "not_supported"),
            ("temporal://x", "not_built"),
            ("http://me:secret@host", "invalid_argument"),
        ] {
            let error = connect(bad).await.expect_err(bad);
            assert_eq!(error.code(), code, "{bad}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    /// A port of this machine on which nobody listens.
    #[cfg(feature = "redis")]
    fn closed_port() -> u16 {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("bound").port()
    }

    #[cfg(feature = "redis")]
    #[tokio::test]
    async fn a_backend_that_is_away_is_tried_again_until_the_timeout() {
        let address = format!("redis://127.0.0.1:{}", closed_port());
        let error = connect(&address).await.expect_err("nobody listens");
        assert!(error.is_temporary() && !error.to_string().contains("tried"), "{error}");
        for timeout in [400, 1_000].map(Duration::from_millis) {
            let options = ConnectOptions::default().connect_timeout(timeout);
            let started = SystemClock.now();
            let error = connect_with(&address, &options).await.expect_err("nobody listens");
            assert!(error.is_temporary() && error.to_string().contains("tried"), "{error}");
            // The last try comes at the end of the timeout, and not half of it before.
            assert!(SystemClock.now().since(started) > timeout.mul_f64(0.9), "{error}");
        }
    }

    /// Somebody accepts connections and never answers.
    #[cfg(feature = "redis")]
    #[tokio::test]
    async fn the_timeout_ends_a_try_that_gets_no_answer() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("redis://{}", silent.local_addr().expect("bound"));
        let options = ConnectOptions::default().connect_timeout(Duration::from_millis(50));
        let error = connect_with(&address, &options).await.expect_err("no answer");
        assert!(error.is_temporary() && error.to_string().contains("in time"), "{error}");
    }

    #[tokio::test]
    async fn what_does_not_pass_by_itself_is_tried_once() {
        let options = ConnectOptions::default().connect_timeout(Duration::MAX);
        let error = connect_with("carrier-pigeon://x", &options).await.expect_err("no backend");
        assert_eq!(error.code(), "invalid_argument");
    }
}
