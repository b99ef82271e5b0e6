//! Serving a router: connections with limits, and an end that loses nothing.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::app::Shutdown;
use crate::serve_error::ServeError;
use crate::tls::Tls;
use crate::write_timeout::WriteTimeout;

/// How long a client may take to send its headers: a slow one must not hold a connection for ever.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a client may take nothing of an answer: the same, for one that does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest headers, in bytes.
const MAX_HEADERS: usize = 64 << 10;

/// How long requests under way are waited for when the server ends.
const GRACE: Duration = Duration::from_secs(20);

/// How a router is served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Encrypts connections; none for plain HTTP.
    pub tls: Option<Tls>,
    /// Listens also on an address that other machines can reach. Say so only where every caller needs a
    /// token.
    pub any_address: bool,
    /// How many connections there may be at once; further ones wait to be accepted.
    pub max_connections: usize,
}

impl Default for ServeOptions {
    /// Plain HTTP on loopback.
    fn default() -> Self {
        ServeOptions { tls: None, any_address: false, max_connections: 10_000 }
    }
}

/// Serves on loopback until [`Shutdown::begin`]; see [`serve_with`].
///
/// Cancel safety: as for [`serve_with`].
///
/// # Errors
/// [`ServeError::NotLoopback`] for an address that other machines can reach.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: &Shutdown,
) -> Result<(), ServeError> {
    serve_with(listener, router, shutdown, ServeOptions::default()).await
}

/// Serves until [`Shutdown::begin`]: then it takes no new connections, and ends when the requests under
/// way are answered, at the latest after twenty seconds.
///
/// Cancel safety: dropped, it cuts the connections; every operation is done or not done.
///
/// # Errors
/// [`ServeError::NotLoopback`] for an address that other machines can reach, unless the options allow it.
pub async fn serve_with(
    listener: TcpListener,
    router: Router,
    shutdown: &Shutdown,
    options: ServeOptions,
) -> Result<(), ServeError> {
    let address = listener.local_addr()?;
    if !options.any_address && !address.ip().is_loopback() {
        return Err(ServeError::NotLoopback { address });
    }
    let mut ending = shutdown.watch();
    let connections = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(options.max_connections));
    loop {
        let accepted = async {
            // Never closed, so there is always a place some time.
            let place = places.clone().acquire_owned().await.ok();
            listener.accept().await.map(|(stream, _)| (stream, place))
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            _ = ending.wait_for(|ending| *ending) => break,
        };
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely: connections that end give some back.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let (router, watcher) = (router.clone(), connections.watcher());
        let tls = options.tls.clone();
        let stream = WriteTimeout::new(stream, WRITE_TIMEOUT);
        tokio::spawn(async move {
            let _place = place;
            let Some(tls) = tls else { return converse(stream, router, watcher).await };
            match tokio::time::timeout(HEADER_TIMEOUT, tls.acceptor().accept(stream)).await {
                Ok(Ok(stream)) => converse(stream, router, watcher).await,
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(GRACE, connections.shutdown()).await.is_err() {
        tracing::warn!("requests were still under way at the end of the grace, and were cut");
    }
    Ok(())
}

/// Answers the requests of one connection. A client that takes longer than [`HEADER_TIMEOUT`] for its next
/// request is cut off, so idle connections do not stay.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    watcher: Watcher,
) {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(MAX_HEADERS);
    let service = TowerToHyperService::new(router);
    let connection = watcher.watch(http.serve_connection(TokioIo::new(stream), service));
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection ended with an error");
    }
}
