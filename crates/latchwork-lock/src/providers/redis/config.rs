//! Parses the address of a server, and checks that the server can be used.

use redis::{Client, ClientTlsConfig, TlsCertificates};
use url::Url;

use super::connection::Connection;
use super::error::{self, NAME};
use crate::{Error, Result};

/// The oldest server that has what the script needs (`SET … GET`).
const MIN_VERSION: (u32, u32) = (6, 2);

/// A client for an address.
pub(super) fn client(address: &str) -> Result<Client> {
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
    let client = if ca.is_some() || client_tls.is_some() {
        Client::build_with_tls(url, TlsCertificates { client_tls, root_cert: ca })
    } else {
        Client::open(url)
    };
    // The driver's messages do not repeat the address.
    client.map_err(|e| wrong(e.to_string()))
}

fn unsupported(scheme: &str) -> Error {
    let what = if scheme.contains("cluster") { "Redis Cluster" } else { "Redis Sentinel" };
    Error::not_supported(
        NAME,
        format!("{what}: give the address of one server, redis://host:port (its primary's)"),
    )
}

/// Rejects a server that cannot be used.
pub(super) async fn check(connection: &Connection, during: &'static str) -> Result<()> {
    let info = match connection.send(&redis::cmd("INFO")).await {
        Ok(info) => redis::from_redis_value::<String>(info).unwrap_or_default(),
        Err(failure) if failure.code() == Some("NOPERM") => {
            tracing::debug!("the server's version is not checked: INFO is not allowed");
            return Ok(());
        }
        Err(failure) => return Err(error::driver(during, failure)),
    };
    let rejected = |reason: String| Err(Error::backend(NAME, during, reason, None));
    let Some(version) = value(&info, "redis_version") else {
        return rejected("it reports no version: it is no Redis server".to_owned());
    };
    let mut numbers = version.split('.').map(|n| n.parse().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < MIN_VERSION {
        let (major, minor) = MIN_VERSION;
        return rejected(format!(
            "it is version {version}, and {major}.{minor} is the oldest that can be used"
        ));
    }
    if value(&info, "cluster_enabled") == Some("1") {
        return rejected(error::CLUSTER.to_owned());
    }
    if value(&info, "redis_mode") == Some("sentinel") {
        return Err(unsupported("sentinel"));
    }
    if value(&info, "role") == Some("slave") {
        return rejected("it is a replica; give the address of its primary".to_owned());
    }
    let policy = value(&info, "maxmemory_policy").unwrap_or("noeviction");
    if policy != "noeviction" && value(&info, "maxmemory") != Some("0") {
        tracing::warn!(
            policy,
            "the Redis server may evict locks when its memory is full, and then two clients hold \
             one; set maxmemory-policy noeviction"
        );
    }
    Ok(())
}

fn value<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_address_is_read_or_refused_without_its_password(
            scheme in "redis(s|\\+unix|-cluster)?",
            host in "[a-z0-9.:,\\[\\]-]{0,16}",
            rest in "[/?#=&%a-z0-9]{0,16}",
        ) {
            if let Err(error) = client(&format!("{scheme}://me:hushhush@{host}{rest}")) {
                prop_assert!(!error.to_string().contains("hushhush"), "{error}");
            }
        }

        #[test]
        fn any_text_is_an_address_or_an_error(text in "(rediss?:)?\\PC{0,40}") {
            drop(client(&text));
        }
    }
}
