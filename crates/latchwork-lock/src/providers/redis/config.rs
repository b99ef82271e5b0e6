//! Parses the address of a server.

use redis::{Client, ClientTlsConfig, TlsCertificates};
use url::Url;

use super::error::NAME;
use crate::{Error, Result};

/// A client for an address.
pub(super) fn client(address: &str) -> Result<Client> {
    let wrong = |reason: String| Error::invalid_argument("url", reason);
    let mut url = Url::parse(address).map_err(|e| wrong(format!("it is no address ({e})")))?;
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
    // Where redis-cli looks for it.
    if url.password().is_none()
        && !settings.iter().any(|(name, _)| name == "pass")
        && let Ok(password) = std::env::var("REDISCLI_AUTH")
        && !password.is_empty()
    {
        match url.scheme() {
            "redis+unix" => {
                url.query_pairs_mut().append_pair("pass", &password);
            }
            // It has a host, so it can have a password.
            _ => {
                let _ = url.set_password(Some(&password));
            }
        }
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

/// Whether an address names files, which may have something else in them later.
pub(super) fn names_files(address: &str) -> bool {
    Url::parse(address).is_ok_and(|url| url.query_pairs().any(|(name, _)| name.starts_with("tls-")))
}

pub(super) fn unsupported(scheme: &str) -> Error {
    let what = if scheme.contains("cluster") { "Redis Cluster" } else { "Redis Sentinel" };
    Error::not_supported(
        NAME,
        format!("{what}: give the address of one server, redis://host:port (its primary's)"),
    )
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
