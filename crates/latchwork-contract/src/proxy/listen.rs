//! The port, open or closed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

use super::connection::run_connection;
use super::control::Shared;

/// What the port should be; the answer comes when it is.
pub(super) enum Listen {
    Open(oneshot::Sender<io::Result<()>>),
    Closed(oneshot::Sender<io::Result<()>>),
}

/// Accepts connections for as long as the port is open.
pub(super) async fn listen(
    listener: TcpListener,
    shared: Arc<Shared>,
    mut told: mpsc::Receiver<Listen>,
) {
    let Ok(address) = listener.local_addr() else { return };
    let mut listener = Some(listener);
    loop {
        tokio::select! {
            wanted = told.recv() => match wanted {
                Some(Listen::Open(done)) => {
                    let _ = done.send(open(&mut listener, address).await);
                }
                Some(Listen::Closed(done)) => {
                    // Only a closed port refuses; one that nobody accepts from still connects.
                    listener = None;
                    let _ = done.send(Ok(()));
                }
                None => return,
            },
            client = accept(listener.as_ref()) => {
                shared.connections.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(run_connection(client, shared.clone()));
            }
        }
    }
}

async fn open(listener: &mut Option<TcpListener>, address: SocketAddr) -> io::Result<()> {
    if listener.is_none() {
        *listener = Some(TcpListener::bind(address).await?);
    }
    Ok(())
}

async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        // A client that has gone before it was accepted is none of ours.
        if let Ok((client, _)) = listener.accept().await {
            return client;
        }
    }
}
