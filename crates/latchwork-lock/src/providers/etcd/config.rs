//! Parses the address of a cluster.

use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use percent_encoding::percent_decode_str;
use url::{Url, form_urlencoded};

use crate::connect::ENCODE;
use crate::key::has_control;
use crate::{Error, Result};

/// etcd's default client port.
const PORT: u16 = 2379;

const FORM: &str = "write etcd://host:2379,host:2379/prefix, or etcds://… for TLS";

/// A parsed address. It may contain a password, so it has no `Debug`.
pub(super) struct Address {
    pub(super) endpoints: Vec<String>,
    options: ConnectOptions,
    /// None without TLS.
    certificates: Option<Certificates>,
    /// The prefix of all entries' names.
    pub(super) root: String,
}

impl Address {
    pub(super) fn is_tls(&self) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.starts_with("https:"))
    }

    /// How to connect, with the certificates as their files have them now: a client certificate is
    /// replaced while the process runs.
    pub(super) fn options(&self) -> Result<ConnectOptions> {
        Ok(match &self.certificates {
            Some(certificates) => self.options.clone().with_tls(certificates.load()?),
            None => self.options.clone(),
        })
    }

    /// No error message repeats the address, since it may contain a password.
    pub(super) fn parse(address: &str) -> Result<Self> {
        let (scheme, rest) = address.split_once("://").ok_or_else(|| bad(FORM))?;
        let tls = match scheme {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(bad(FORM)),
        };
        if rest.contains('#') {
            return Err(bad(format!("it has a #; {ENCODE}")));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match place.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, place),
        };
        let scheme = if tls { "https" } else { "http" };
        let endpoints: Result<Vec<_>> =
            hosts.split(',').map(|host| endpoint(scheme, host)).collect();
        // A sign in a password that ends it: the beginning is taken for hosts, and the hosts for a prefix.
        let endpoints =
            endpoints.map_err(|error| match path.contains('@') || query.contains('@') {
                true => bad(format!("a host or its port is not legal; {ENCODE}")),
                false => error,
            })?;
        let mut options = ConnectOptions::new()
            .with_connect_timeout(Duration::from_secs(2))
            // At least five seconds apart, or the server closes the connection as abusive.
            .with_keep_alive(Duration::from_secs(10), Duration::from_secs(3))
            .with_keep_alive_while_idle(true)
            // A member that is cut off from the others must say so, instead of staying silent.
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some(user) = user {
            let (name, password) = match user.split_once(':') {
                Some((name, password)) => (name, decoded(password)?),
                // Where etcdctl looks for it.
                None => {
                    let password = std::env::var("ETCDCTL_PASSWORD").map_err(|_| {
                        bad("a user needs a password: write etcd://user:password@host/, or put it \
                             into the variable ETCDCTL_PASSWORD")
                    })?;
                    (user, password)
                }
            };
            options = options.with_user(decoded(name)?, password);
        }
        let certificates = Certificates::parse(query)?;
        if !tls && certificates.any() {
            return Err(bad("certificates are for etcds://, which is etcd over TLS"));
        }
        let certificates = tls.then_some(certificates);
        // A file that cannot be read is told now.
        certificates.as_ref().map(Certificates::load).transpose()?;
        let mut root = decoded(path)?;
        if has_control(&root) {
            return Err(bad("its prefix has control characters"));
        }
        if !root.is_empty() && !root.ends_with('/') {
            root.push('/');
        }
        Ok(Address { endpoints, options, certificates, root })
    }
}

/// The TLS options of an address: files in PEM form.
#[derive(Default)]
pub(super) struct Certificates {
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
    domain: Option<String>,
}

impl Certificates {
    fn parse(query: &str) -> Result<Self> {
        let mut found = Certificates::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let place = match &*name {
                "tls-ca" | "ca" => &mut found.ca,
                "tls-cert" | "cert" => &mut found.cert,
                "tls-key" | "key" => &mut found.key,
                "tls-server-name" | "domain" => &mut found.domain,
                other => {
                    return Err(bad(format!(
                        "there is no option {other:?}; there are tls-ca=FILE, tls-cert=FILE, \
                         tls-key=FILE and tls-server-name=NAME"
                    )));
                }
            };
            if let "ca" | "cert" | "key" | "domain" = &*name {
                let new = if name == "domain" { "server-name" } else { &name };
                tracing::warn!("the option `{name}` of an etcd address is now called `tls-{new}`");
            }
            *place = Some(value.into_owned());
        }
        Ok(found)
    }

    fn any(&self) -> bool {
        [&self.ca, &self.cert, &self.key, &self.domain].into_iter().any(Option::is_some)
    }

    fn load(&self) -> Result<TlsOptions> {
        let mut tls = match &self.ca {
            Some(file) => TlsOptions::new().ca_certificate(Certificate::from_pem(pem(file)?)),
            None => TlsOptions::new().with_enabled_roots(),
        };
        tls = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => tls.identity(Identity::from_pem(pem(cert)?, pem(key)?)),
            (None, None) => tls,
            _ => return Err(bad("tls-cert=FILE and tls-key=FILE go together")),
        };
        if let Some(domain) = &self.domain {
            tls = tls.domain_name(domain);
        }
        Ok(tls)
    }
}

fn pem(file: &str) -> Result<Vec<u8>> {
    let bytes =
        std::fs::read(file).map_err(|error| bad(format!("{file:?} cannot be read ({error})")))?;
    // Checked here, since the driver would only fail to connect.
    if !bytes.windows(10).any(|part| part == b"-----BEGIN") {
        return Err(bad(format!("{file:?} is not in PEM form")));
    }
    Ok(bytes)
}

fn endpoint(scheme: &str, host: &str) -> Result<String> {
    if host.is_empty() {
        return Err(bad(format!("a host is missing; {FORM}")));
    }
    let wrong = || bad(format!("a host or its port is not legal; {FORM}"));
    // Parsed with a scheme that has no default port, since the parser drops a default one.
    let url = Url::parse(&format!("etcd://{host}")).map_err(|_| wrong())?;
    let name = url.host_str().filter(|name| !name.is_empty()).ok_or_else(wrong)?;
    Ok(format!("{scheme}://{name}:{}", url.port().unwrap_or(PORT)))
}

fn decoded(part: &str) -> Result<String> {
    let text = percent_decode_str(part).decode_utf8();
    text.map(|text| text.into_owned()).map_err(|_| bad("a %XX in it is not UTF-8"))
}

fn bad(reason: impl Into<String>) -> Error {
    Error::invalid_argument("url", reason)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(address: &str) -> (Vec<String>, String) {
        let address = Address::parse(address).expect(address);
        (address.endpoints, address.root)
    }

    #[test]
    fn an_address_names_members_and_a_prefix() {
        assert_eq!(
            parsed("etcd://a:2379,b,[::1]:80/app/x"),
            (
                vec!["http://a:2379".into(), "http://b:2379".into(), "http://[::1]:80".into()],
                "app/x/".into()
            )
        );
        assert_eq!(parsed("etcds://a"), (vec!["https://a:2379".into()], String::new()));
        assert_eq!(parsed("etcd://me:p%40ss@a/").0, ["http://a:2379"]);
    }

    #[test]
    fn a_bad_address_gets_a_reason_that_shows_no_secret() {
        for (bad, reason) in [
            ("etcd://", "a host is missing"),
            ("etcd://a,,b", "a host is missing"),
            ("etcd://a:port", "not legal"),
            ("etcd://a:99999", "not legal"),
            ("etcd://secret@a", "needs a password"),
            ("etcd://me:secret@a?ca=/x", "etcds://"),
            ("etcd://me:secret@a?passwort=secret", "no option"),
            ("etcds://a?cert=/x", "go together"),
            ("etcds://a?tls-cert=/x", "go together"),
            ("etcds://a?tls-ca=/nowhere/ca.pem", "cannot be read"),
            ("etcds://a?ca=/nowhere/ca.pem", "cannot be read"),
            ("etcds://a?ca=/proc/self/comm", "not in PEM form"),
            ("etcd://a/x%00y", "control characters"),
            ("etcd://a/x#y", "%23"),
            ("etcd://me:secret#x@a", "# as %23"),
            ("etcd://me:secret/x@a", "/ as %2F"),
            ("etcd://me:secret?x@a", "? as %3F"),
        ] {
            let error = Address::parse(bad).err().expect(bad);
            assert_eq!(error.code(), "invalid_argument", "{bad}: {error}");
            assert!(error.to_string().contains(reason), "{bad}: {error}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_address_is_read_or_refused_without_its_password(
            scheme in "etcds?",
            hosts in "[a-z0-9.:,\\[\\]-]{0,20}",
            rest in "[/?#=&%a-z0-9]{0,20}",
        ) {
            match Address::parse(&format!("{scheme}://me:hushhush@{hosts}{rest}")) {
                Ok(read) => {
                    prop_assert!(!read.endpoints.is_empty());
                    prop_assert!(read.root.is_empty() || read.root.ends_with('/'));
                }
                Err(error) => prop_assert!(!error.to_string().contains("hushhush"), "{error}"),
            }
        }

        #[test]
        fn any_text_is_an_address_or_an_error(text in "(etcds?://)?\\PC{0,40}") {
            drop(Address::parse(&text));
        }
    }
}
