//! One connection, and the bytes in it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use latchwork_lock::provider::Moment;
use latchwork_lock::{Clock, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use super::control::{Direction, Flow, Shared};

/// How many pieces may be under way: what is delayed must not stop what is read.
const UNDER_WAY: usize = 1_024;

/// Carries bytes to and fro until both sides have ended, or it is cut.
pub(super) async fn run_connection(mut client: TcpStream, shared: Arc<Shared>) {
    let mut cuts = shared.cuts.subscribe();
    let open = Open::count(&shared);
    let mut server = None;
    tokio::select! {
        _ = forward(&mut client, &mut server, &shared, &open) => {}
        _ = cuts.changed() => {
            // Without lingering a close is a reset: the other side is told at once, and what was
            // under way is lost.
            let _ = client.set_zero_linger();
            if let Some(server) = server {
                let _ = server.set_zero_linger();
            }
        }
    }
}

/// A connection that its client has not closed.
struct Open<'a> {
    shared: &'a Shared,
    closed: AtomicBool,
    /// How many silencings there had been when it came.
    silencings: u64,
}

impl<'a> Open<'a> {
    fn count(shared: &'a Shared) -> Self {
        shared.open.fetch_add(1, Ordering::Relaxed);
        let silencings = shared.silencings.load(Ordering::Relaxed);
        Open { shared, closed: AtomicBool::new(false), silencings }
    }

    fn flow(&self, direction: Direction) -> Flow {
        if self.shared.silencings.load(Ordering::Relaxed) > self.silencings {
            return Flow::Drop;
        }
        if direction == Direction::ToClient && self.shared.is_one_too_many() {
            return Flow::Drop;
        }
        self.shared.rules.borrow().flow(direction)
    }

    fn close(&self) {
        if !self.closed.swap(true, Ordering::Relaxed) {
            self.shared.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

async fn forward(
    client: &mut TcpStream,
    server: &mut Option<TcpStream>,
    shared: &Shared,
    open: &Open<'_>,
) -> io::Result<()> {
    if shared.rules.borrow().unrouted {
        return swallow(client, shared, open).await;
    }
    let server = server.insert(TcpStream::connect(shared.target).await?);
    // The proxy adds no waiting of its own.
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::try_join!(
        pipe(from_client, to_server, Direction::ToServer, shared, open),
        pipe(from_server, to_client, Direction::ToClient, shared, open),
    )?;
    Ok(())
}

/// Reads and throws away, for ever: who is led nowhere is not told so.
async fn swallow(client: &mut TcpStream, shared: &Shared, open: &Open<'_>) -> io::Result<()> {
    let mut piece = vec![0; 16 * 1024];
    loop {
        match client.read(&mut piece).await? {
            0 => {
                open.close();
                return std::future::pending().await;
            }
            read => shared.dropped.fetch_add(read as u64, Ordering::Relaxed),
        };
    }
}

async fn pipe(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    direction: Direction,
    shared: &Shared,
    open: &Open<'_>,
) -> io::Result<()> {
    let (pieces, queue) = mpsc::channel(UNDER_WAY);
    tokio::try_join!(
        read(from, pieces, direction, shared, open),
        write(to, queue, direction, shared),
    )?;
    Ok(())
}

/// A piece and when it is due; an empty one is the end.
type Piece = (Moment, Vec<u8>);

async fn read(
    mut from: ReadHalf<'_>,
    pieces: mpsc::Sender<Piece>,
    direction: Direction,
    shared: &Shared,
    open: &Open<'_>,
) -> io::Result<()> {
    let mut piece = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut piece).await?;
        if read == 0 && direction == Direction::ToServer {
            open.close();
        }
        // After the reading: what counts is the rule when the bytes come by.
        let flow = open.flow(direction);
        let due = match flow {
            Flow::Pass => SystemClock.now(),
            Flow::Delay(span) => SystemClock.now().after(span),
            Flow::Drop if read == 0 => return std::future::pending().await,
            Flow::Drop => {
                shared.dropped.fetch_add(read as u64, Ordering::Relaxed);
                continue;
            }
        };
        let gone = pieces.send((due, piece[..read].to_vec())).await.is_err();
        if gone || read == 0 {
            return Ok(());
        }
    }
}

async fn write(
    mut to: WriteHalf<'_>,
    mut queue: mpsc::Receiver<Piece>,
    direction: Direction,
    shared: &Shared,
) -> io::Result<()> {
    let count = match direction {
        Direction::ToServer => &shared.to_server,
        Direction::ToClient => &shared.to_client,
    };
    while let Some((due, piece)) = queue.recv().await {
        SystemClock.sleep_until(due).await;
        if piece.is_empty() {
            return to.shutdown().await;
        }
        to.write_all(&piece).await?;
        count.fetch_add(piece.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}
