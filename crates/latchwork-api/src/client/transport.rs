//! Requests on the wire.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};

use super::error::{Error, ErrorKind, Result};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);

/// A connection that nobody uses is closed before the server, or something between, drops it.
const IDLE: Duration = Duration::from_secs(20);

/// The largest answer, in bytes.
const MAX_ANSWER: usize = 64 << 20;

/// The address of a server.
#[derive(Debug)]
pub(super) struct Base {
    address: String,
    https: bool,
}

impl Base {
    pub(super) fn parse(address: &str) -> Result<Self> {
        let invalid =
            |reason: &str| Error::invalid("address", format!("{reason}; write http://HOST:PORT"));
        let uri: Uri = address.parse().map_err(|_| invalid("it is no URL"))?;
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(invalid("it begins with neither http:// nor https://")),
        };
        let authority = uri.authority().ok_or_else(|| invalid("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("it holds a name or password, and a token is given otherwise"));
        }
        if authority.host().is_empty() {
            return Err(invalid("it names no host"));
        }
        if uri.query().is_some() {
            return Err(invalid("it holds a query"));
        }
        Ok(Base { address: address.trim_end_matches('/').to_owned(), https })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn is_https(&self) -> bool {
        self.https
    }

    /// The address of an operation.
    pub(super) fn uri(&self, path: &str) -> Result<Uri> {
        let uri = format!("{}{path}", self.address).parse();
        uri.map_err(|_| Error::invalid("path", "it cannot be part of a URL"))
    }

    pub(super) fn unreachable(&self, reason: impl Into<String>) -> Error {
        ErrorKind::Unreachable { address: self.address.clone(), reason: reason.into() }.into()
    }
}

/// The connections to a server.
#[derive(Clone)]
pub(super) struct Http(legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl Http {
    pub(super) fn new(https: bool) -> Result<Self> {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_nodelay(true);
        connector.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(https)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let mut client = legacy::Client::builder(TokioExecutor::new());
        client.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE);
        Ok(Http(client.build(connector)))
    }

    /// Sends a request, and gives the answer as soon as its head is there.
    pub(super) async fn send(
        &self,
        base: &Base,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>> {
        self.0.request(request).await.map_err(|error| base.unreachable(reasons(&error)))
    }
}

/// The whole body of an answer.
pub(super) async fn body_of(base: &Base, body: Incoming) -> Result<Bytes> {
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    Ok(body.map_err(|error| base.unreachable(reasons(&*error)))?.to_bytes())
}

/// An error with what caused it, since the outer one alone says little.
pub(super) fn reasons(error: &(dyn std::error::Error + 'static)) -> String {
    let (mut text, mut source) = (error.to_string(), error.source());
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// The certificates of the system are read for `https://` only: it takes a while.
fn tls(https: bool) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    if https {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let reason = "this system has no certificates to trust; SSL_CERT_FILE may name a file";
            return Err(Error::invalid("address", reason));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid("address", format!("TLS cannot be used: {error}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_of_servers_only() {
        for (address, uri) in [
            ("http://127.0.0.1:8420", "http://127.0.0.1:8420/v1/x"),
            ("http://[::1]:1/", "http://[::1]:1/v1/x"),
            ("https://example.org/work/", "https://example.org/work/v1/x"),
        ] {
            let base = Base::parse(address).expect(address);
            assert_eq!(base.uri("/v1/x").expect("a path").to_string(), uri);
        }
        for address in [
            "",
            "localhost:8420",
            "ftp://x",
            "http://",
            "http://a:b@c",
            "http://x/?y",
            "http://a b",
            "x",
        ] {
            let error =
                Base::parse(address).err().unwrap_or_else(|| panic!("{address:?} was taken"));
            assert_eq!(error.code(), "invalid_argument", "{address}");
            assert!(error.to_string().contains("http://HOST:PORT"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_an_error_that_repeats_no_password(
            text in prop_oneof!["\\PC{0,30}", "https?://[a-z0-9.:@\\[\\]/?#-]{0,24}"],
        ) {
            if let Ok(base) = Base::parse(&text) {
                prop_assert!(base.uri("/v1/x").is_ok(), "{text}");
            }
            let address = format!("http://me:hushhush@{text}");
            let refused = Base::parse(&address).map(|base| base.address().to_owned());
            prop_assert!(refused.is_err_and(|error| !error.to_string().contains("hushhush")));
        }
    }
}
