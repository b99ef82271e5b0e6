//! From an address or a client to a provider, and whether the server can be used.

use std::sync::Arc;

use redis::{Client, ClientTlsConfig, TlsCertificates};
use url::Url;

use super::connection::{Connection, Line};
use super::error::NAME;
use super::provider::RedisLockProvider;
use super::store::Store;
use super::{error, watcher};
use crate::{Error, Key, Result, SystemClock};

const OPENING: &str = "opening the connection";

/// The oldest server that has what the script needs (`SET … GET`).
const OLDEST: (u32, u32) = (6, 2);

/// Opens what `redis://…` names.
pub(super) async fn connect(address: &str) -> Result<RedisLockProvider> {
    open(client(address)?, None).await
}

/// Uses a client that the caller has made, and its connection, if it gives one.
pub(super) async fn open(
    client: Client,
    given: Option<Box<dyn Connection>>,
) -> Result<RedisLockProvider> {
    // Rustls asks for a choice where a program has several sets of algorithms, or none.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    watcher::run(OPENING, async move {
        let line = Arc::new(Line::new(client, given));
        check(&line).await?;
        line.load().await.map_err(|e| error::driver(OPENING, e))?;
        let store = Store::new(line, SystemClock::shared())?;
        // A write that is gone by itself: whoever may not write should learn it now.
        store.poke(OPENING, &Key::new("latchwork")?, &[]).await?;
        Ok(RedisLockProvider::of(store))
    })
    .await
}

fn client(address: &str) -> Result<Client> {
    let wrong = |reason: String| Error::invalid_argument("url", reason);
    let url = Url::parse(address).map_err(|e| wrong(format!("it is no address ({e})")))?;
    let known: &[&str] = match url.scheme() {
        "redis" => &["protocol"],
        "rediss" => &["protocol", "tls-ca", "tls-cert", "tls-key"],
        "redis+unix" => &["protocol", "db", "user", "pass"],
        scheme => return Err(unsupported(scheme)),
    };
    let settings: Vec<(String, String)> = url.query_pairs().into_owned().collect();
    if let Some((name, _)) = settings.iter().find(|(name, _)| !known.contains(&&**name)) {
        return Err(wrong(format!("unknown setting {name:?}; known are {}", known.join(", "))));
    }
    if url.fragment().is_some() {
        let advice = "name a certificate authority with ?tls-ca=FILE";
        return Err(wrong(format!("nothing may stand behind a #; {advice}")));
    }
    if url.host_str().is_some_and(|host| host.contains(',')) {
        return Err(unsupported("redis-sentinel"));
    }
    let file = |name: &str| {
        let path = settings.iter().find(|(known, _)| known == name).map(|(_, path)| path);
        let read = |path| {
            std::fs::read(path).map_err(|e| wrong(format!("{name}={path:?} is not readable: {e}")))
        };
        path.map(read).transpose()
    };
    let (ca, cert, key) = (file("tls-ca")?, file("tls-cert")?, file("tls-key")?);
    let client_tls = match (cert, key) {
        (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
        (None, None) => None,
        _ => return Err(wrong("tls-cert and tls-key go together".to_owned())),
    };
    let made = if ca.is_some() || client_tls.is_some() {
        Client::build_with_tls(url, TlsCertificates { client_tls, root_cert: ca })
    } else {
        Client::open(url)
    };
    // Its messages do not repeat the address.
    made.map_err(|e| wrong(e.to_string()))
}

fn unsupported(scheme: &str) -> Error {
    let what = if scheme.contains("cluster") { "Redis Cluster" } else { "Redis Sentinel" };
    Error::not_supported(
        NAME,
        format!("{what}: give the address of one server, redis://host:port (its primary's)"),
    )
}

/// Looks at the server before anybody counts on it.
async fn check(line: &Line) -> Result<()> {
    let info = match line.send(&redis::cmd("INFO")).await {
        Ok(info) => redis::from_redis_value::<String>(info).unwrap_or_default(),
        Err(failure) if failure.code() == Some("NOPERM") => {
            tracing::debug!("the server's version is not checked: INFO is not allowed");
            return Ok(());
        }
        Err(failure) => return Err(error::driver(OPENING, failure)),
    };
    let refused = |reason: String| Err(Error::backend(NAME, OPENING, reason, None));
    let Some(version) = said(&info, "redis_version") else {
        return refused("it does not tell its version: it is no Redis server".to_owned());
    };
    let mut numbers = version.split('.').map(|n| n.parse().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < OLDEST {
        let (major, minor) = OLDEST;
        return refused(format!(
            "it is version {version}, and {major}.{minor} is the oldest that can be used"
        ));
    }
    if said(&info, "cluster_enabled") == Some("1") {
        return refused(error::CLUSTER.to_owned());
    }
    if said(&info, "redis_mode") == Some("sentinel") {
        return Err(unsupported("sentinel"));
    }
    if said(&info, "role") == Some("slave") {
        return refused("it is a replica; give the address of its primary".to_owned());
    }
    let policy = said(&info, "maxmemory_policy").unwrap_or("noeviction");
    if policy != "noeviction" && said(&info, "maxmemory") != Some("0") {
        tracing::warn!(
            policy,
            "the Redis server may evict locks when its memory is full, and then two hold one; \
             set maxmemory-policy noeviction"
        );
    }
    Ok(())
}

fn said<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}
