//! TLS by certificate files.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::serve_error::ServeError;

/// A certificate and its key, with which connections are encrypted.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

impl Tls {
    /// Reads a chain of certificates and the key of its first one, both in PEM. They are read once: a
    /// renewed certificate counts after a restart.
    ///
    /// # Errors
    /// [`ServeError::Tls`], which names the file.
    pub fn from_files(certificates: &Path, key: &Path) -> Result<Self, ServeError> {
        let unreadable = |file: &Path, error: &dyn std::fmt::Display| ServeError::Tls {
            message: format!("{}: {error}", file.display()),
        };
        let chain = CertificateDer::pem_file_iter(certificates)
            .and_then(|found| found.collect::<Result<Vec<_>, _>>())
            .map_err(|error| unreadable(certificates, &error))?;
        if chain.is_empty() {
            return Err(unreadable(certificates, &"there is no certificate in it"));
        }
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
            .map_err(|error| unreadable(key, &error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls(Arc::new(config)))
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.clone())
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(…)")
    }
}
