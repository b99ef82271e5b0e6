//! Why a server could not serve.

/// Why a server could not serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address could not be bound, or the listener failed.
    #[error("the server cannot listen: {0}")]
    Listen(#[from] std::io::Error),
    /// The address is reachable from other machines, and there are no tokens.
    #[error(
        "{address} can be reached from other machines, and without tokens every caller may do \
         everything; make a token first (latchwork tokens create NAME --role admin), or listen on \
         127.0.0.1 or [::1]"
    )]
    NotLoopback {
        /// The address.
        address: std::net::SocketAddr,
    },
    /// A certificate or key cannot be used.
    #[error("TLS cannot be used: {message}")]
    Tls {
        /// Which file, and what is wrong with it.
        message: String,
    },
}
