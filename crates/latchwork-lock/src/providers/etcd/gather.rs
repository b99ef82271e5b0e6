//! The way out to a member, on which what belongs together goes together.
//!
//! The driver's HTTP/2 writes the head of a question as soon as it has it, and then its body, and of
//! a longer one the end by itself. Each of these is a packet for which the server wakes up. So a
//! write waits for one turn of whatever else is ready, and takes along what came meanwhile.

use std::io::Result;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::ServiceExt;

/// The way to a member, by such a connection. It opens none yet.
pub(super) fn channel(endpoint: &Endpoint) -> Channel {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false); // TLS goes through it, too
    connector.set_nodelay(true);
    connector.set_connect_timeout(endpoint.get_connect_timeout());
    let gathering = ServiceExt::<Uri>::map_response(connector, |socket: TokioIo<TcpStream>| {
        TokioIo::new(Gather::new(socket.into_inner()))
    });
    endpoint.connect_with_connector_lazy(gathering)
}

/// A socket whose writes wait for one turn.
struct Gather<T> {
    socket: T,
    /// Whether this write has waited.
    waited: bool,
}

impl<T> Gather<T> {
    fn new(socket: T) -> Self {
        Gather { socket, waited: false }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Gather<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, into)
    }
}

/// Not vectored, and says so: then HTTP/2 gathers bodies of up to a kilobyte, and not of a quarter.
impl<T: AsyncWrite + Unpin> AsyncWrite for Gather<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        words: &[u8],
    ) -> Poll<Result<usize>> {
        if !std::mem::replace(&mut self.waited, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.socket).poll_write(cx, words);
        self.waited = written.is_pending();
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn a_write_takes_along_what_comes_in_its_turn() {
        let (socket, mut there) = tokio::io::duplex(64);
        let mut gather = Gather::new(socket);
        for words in [b"one".as_slice(), b"two"] {
            let mut offered = vec![];
            let written = poll_fn(|cx| {
                // What is offered grows while it waits, as the buffer of HTTP/2 does.
                offered.extend_from_slice(words);
                Pin::new(&mut gather).poll_write(cx, &offered)
            });
            assert_eq!(written.await.expect("written"), 2 * words.len());
        }
        drop(gather);
        let mut all = String::new();
        there.read_to_string(&mut all).await.expect("read");
        assert_eq!(all, "oneonetwotwo");
    }
}
