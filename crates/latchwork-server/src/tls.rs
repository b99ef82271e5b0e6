//! TLS by certificate files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};
use tokio_rustls::TlsAcceptor;

use crate::serve_error::ServeError;

/// A certificate and its key, with which connections are encrypted. Clones share them.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    certificates: PathBuf,
    key: PathBuf,
    in_force: Mutex<InForce>,
}

/// What new connections get.
struct InForce {
    config: Arc<ServerConfig>,
    /// Of the files that it was read from.
    hash: [u8; 32],
}

impl Tls {
    /// Reads a chain of certificates and the key of its first one, both in PEM.
    ///
    /// # Errors
    /// [`ServeError::Tls`], which names the file.
    pub fn from_files(certificates: &Path, key: &Path) -> Result<Self, ServeError> {
        let (certificates, key) = (certificates.to_owned(), key.to_owned());
        let in_force = Mutex::new(Files::read(&certificates, &key)?.load()?);
        Ok(Tls(Arc::new(Inner { certificates, key, in_force })))
    }

    /// Reads the files again, and says whether they have changed. New connections get what is in them;
    /// those that there are go on with what they have.
    ///
    /// # Errors
    /// [`ServeError::Tls`]; then what was in force before stays.
    pub fn reload(&self) -> Result<bool, ServeError> {
        let Inner { certificates, key, in_force } = &*self.0;
        let files = Files::read(certificates, key)?;
        if files.hash() == in_force.lock().hash {
            return Ok(false);
        }
        let loaded = files.load()?;
        *in_force.lock() = loaded;
        Ok(true)
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.in_force.lock().config.clone())
    }
}

/// What is in the files.
struct Files<'a> {
    certificates: (&'a Path, Vec<u8>),
    key: (&'a Path, Vec<u8>),
}

impl<'a> Files<'a> {
    fn read(certificates: &'a Path, key: &'a Path) -> Result<Self, ServeError> {
        let read = |path: &'a Path| match std::fs::read(path) {
            Ok(bytes) => Ok((path, bytes)),
            Err(error) => Err(unusable(path, &error)),
        };
        Ok(Files { certificates: read(certificates)?, key: read(key)? })
    }

    fn hash(&self) -> [u8; 32] {
        let lengths = (self.certificates.1.len() as u64).to_be_bytes();
        let hash = Sha256::new().chain_update(lengths).chain_update(&self.certificates.1);
        hash.chain_update(&self.key.1).finalize().into()
    }

    fn load(&self) -> Result<InForce, ServeError> {
        let ((certificates, chain), (key, private)) = (&self.certificates, &self.key);
        let chain = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| unusable(certificates, &error))?;
        if chain.is_empty() {
            return Err(unusable(certificates, &"there is no certificate in it"));
        }
        let private =
            PrivateKeyDer::from_pem_slice(private).map_err(|error| unusable(key, &error))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
            .map_err(|error| unusable(key, &error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(InForce { config: Arc::new(config), hash: self.hash() })
    }
}

fn unusable(file: &Path, error: &dyn std::fmt::Display) -> ServeError {
    ServeError::Tls { message: format!("{}: {error}", file.display()) }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(…)")
    }
}
