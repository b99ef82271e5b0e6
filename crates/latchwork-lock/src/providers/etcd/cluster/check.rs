//! Checks, when a provider is opened, that the cluster can be used.

use std::sync::Arc;

use super::{Cluster, Member, Source};
use crate::providers::etcd::error::{NAME, RequestError};
use crate::{Error, ErrorKind, Result};

/// The oldest server that can compare ranges and lets clients choose watch ids.
const MIN_VERSION: (u32, u32) = (3, 4);

impl Cluster {
    /// Rejects a server that is not etcd, is too old, or does not accept the credentials.
    pub(crate) async fn check(&self, during: &'static str) -> Result<()> {
        let status = self.request_with_retry(during, async |member: Arc<Member>| {
            member.client.clone().status().await
        });
        let (status, _) =
            status.await.map_err(|error| self.with_tls_hint(error.into_error(during)))?;
        check_version(during, status.version())?;
        // Anybody may read the status, but not a key.
        let probe = self.request_with_retry(during, async |member: Arc<Member>| {
            member.kv.clone().get("latchwork", None).await
        });
        match probe.await {
            // The user may have rights on other keys; those are checked when they are used.
            Err(RequestError::Rejected(error))
                if error.to_string().contains("permission denied") =>
            {
                Ok(())
            }
            other => other.map(drop).map_err(|error| error.into_error(during)),
        }
    }

    /// Adds a hint to an error that wrong TLS settings can cause: a server may just close the
    /// connection then, which looks like an outage.
    fn with_tls_hint(&self, error: Error) -> Error {
        let tls = matches!(&self.source, Source::Address(address) if address.is_tls());
        let ErrorKind::Unavailable { during, reason, .. } = error.kind() else { return error };
        const PLAIN: &str = "does the server speak TLS? If not, write etcd:// and not etcds://";
        const CERTIFICATE: &str = "a server that demands a client certificate does this too: give it \
            one with tls-cert=FILE and tls-key=FILE, signed by its own authority";
        let hint = match reason {
            _ if !tls => return error,
            reason if reason.contains("handshake eof") => PLAIN.to_owned(),
            // A plain server may reset the connection before its answer arrives.
            reason if reason.contains("reset") => format!("{PLAIN}; {CERTIFICATE}"),
            reason if reason.contains("closed") => CERTIFICATE.to_owned(),
            _ => return error,
        };
        Error::unavailable(NAME, during, format!("{reason}; {hint}"), None)
    }
}

fn check_version(during: &'static str, version: &str) -> Result<()> {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let found: (u32, u32) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if found >= MIN_VERSION {
        return Ok(());
    }
    let (major, minor) = MIN_VERSION;
    let reason = format!("it is etcd {version}, and {major}.{minor} or newer is needed");
    Err(Error::backend(NAME, during, reason, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_server_is_rejected() {
        for old in ["3.3.27", "2.3.8", "0.4", ""] {
            let error = check_version("connecting", old).expect_err(old);
            assert_eq!(error.code(), "lock_backend");
            assert!(error.to_string().contains("3.4 or newer"), "{error}");
        }
        for new in ["3.4.23", "3.5.1", "3.6.0-rc.1", "4.0"] {
            check_version("connecting", new).expect(new);
        }
    }
}
