//! Serving a router: connections with limits, and an end that loses nothing.

use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;

use crate::app::Shutdown;

/// How long a client may take to send its headers: a slow one must not hold a connection for ever.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);

/// The largest headers, in bytes.
const MAX_HEADERS: usize = 64 << 10;

/// How long requests under way are waited for when the server ends.
const GRACE: Duration = Duration::from_secs(20);

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
         everything; listen on 127.0.0.1 or [::1]"
    )]
    NotLoopback {
        /// The address.
        address: std::net::SocketAddr,
    },
}

/// Serves until [`Shutdown::begin`]: then it takes no new connections, and ends when the requests under
/// way are answered, at the latest after twenty seconds.
///
/// Cancel safety: dropped, it cuts the connections; every operation is done or not done.
///
/// # Errors
/// [`ServeError::NotLoopback`] for an address that other machines can reach.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: &Shutdown,
) -> Result<(), ServeError> {
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        return Err(ServeError::NotLoopback { address });
    }
    let mut ending = shutdown.watch();
    let connections = GracefulShutdown::new();
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(MAX_HEADERS);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = ending.wait_for(|ending| *ending) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, most likely: connections that end give some back.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let connection = connections.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended with an error");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(GRACE, connections.shutdown()).await.is_err() {
        tracing::warn!("requests were still under way at the end of the grace, and were cut");
    }
    Ok(())
}
