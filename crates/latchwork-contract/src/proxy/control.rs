//! The handle by which a test tells the proxy what to do.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::listen::{Listen, listen};

/// A proxy that forwards to one server. It ends, and all its connections, when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    commands: mpsc::Sender<Listen>,
    task: JoinHandle<()>,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// What clients ask.
    ToServer,
    /// What the server answers.
    ToClient,
}

/// What happens to bytes on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// They arrive.
    #[default]
    Pass,
    /// They arrive this much later, in order.
    Delay(Duration),
    /// They are read and thrown away, and so is the end of the connection: its sender believes
    /// that they have arrived.
    Drop,
}

/// What the proxy has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Connections that were accepted.
    pub connections: u64,
    /// Those of them that their client has not closed yet.
    pub open: u64,
    /// Bytes that were forwarded to the server.
    pub to_server: u64,
    /// Bytes that were forwarded to clients.
    pub to_client: u64,
    /// Bytes of both directions that were thrown away.
    pub dropped: u64,
}

/// What every connection looks at.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) target: SocketAddr,
    pub(super) rules: watch::Sender<Rules>,
    /// Counts the cuts; a connection ends when it changes.
    pub(super) cuts: watch::Sender<u64>,
    /// Counts the silencings; a connection that is older than the last one is lost.
    pub(super) silencings: AtomicU64,
    /// How many answers may still pass; negative when they are not counted.
    pub(super) answers: AtomicI64,
    pub(super) connections: AtomicU64,
    pub(super) open: AtomicU64,
    pub(super) to_server: AtomicU64,
    pub(super) to_client: AtomicU64,
    pub(super) dropped: AtomicU64,
}

impl Shared {
    /// Counts one answer, where they are counted; whether it must not pass.
    pub(super) fn is_one_too_many(&self) -> bool {
        let count = |left: i64| (left > 0).then(|| left - 1);
        let before = self.answers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
        before == Err(0)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rules {
    pub(super) to_server: Flow,
    pub(super) to_client: Flow,
    /// New connections are accepted and led nowhere.
    pub(super) unrouted: bool,
}

impl Rules {
    pub(super) fn flow(&self, direction: Direction) -> Flow {
        match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
        }
    }
}

impl Proxy {
    /// Starts a proxy on a free loopback port that forwards to this server.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn before(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target,
            rules: watch::Sender::default(),
            cuts: watch::Sender::default(),
            silencings: AtomicU64::new(0),
            answers: AtomicI64::new(-1),
            connections: AtomicU64::new(0),
            open: AtomicU64::new(0),
            to_server: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        });
        let (commands, told) = mpsc::channel(1);
        let task = tokio::spawn(listen(listener, shared.clone(), told));
        Ok(Proxy { address, shared, commands, task })
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everything passes, and new connections are welcome. Those that were led nowhere stay lost.
    ///
    /// # Errors
    /// When connections were refused and the port has meanwhile gone to another.
    pub async fn pass(&self) -> io::Result<()> {
        self.shared.answers.store(-1, Ordering::Relaxed);
        self.shared.rules.send_replace(Rules::default());
        self.set_listening(Listen::Open).await
    }

    /// Says what happens to the bytes of one direction from now on.
    pub fn set(&self, direction: Direction, flow: Flow) {
        self.shared.rules.send_modify(|rules| match direction {
            Direction::ToServer => rules.to_server = flow,
            Direction::ToClient => rules.to_client = flow,
        });
    }

    /// Lets so many answers pass, of all connections together, and throws those after them away:
    /// so the one that is lost can be any of those that a client waits for.
    pub fn pass_answers(&self, count: u32) {
        self.shared.answers.store(i64::from(count), Ordering::Relaxed);
    }

    /// Throws everything away, and accepts new connections without ever forwarding them: what
    /// a firewall does that drops packets.
    pub fn black_hole(&self) {
        let rules = Rules { to_server: Flow::Drop, to_client: Flow::Drop, unrouted: true };
        self.shared.rules.send_replace(rules);
    }

    /// Throws away whatever comes on the connections that exist, for ever, and tells nobody: what
    /// a router does that has forgotten them. New ones are not concerned.
    pub fn silence_open(&self) {
        self.shared.silencings.fetch_add(1, Ordering::Relaxed);
    }

    /// Resets every connection. New ones are not concerned.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Refuses new connections, as where no server runs. Those that exist are not concerned.
    pub async fn refuse(&self) {
        // To close a port cannot fail.
        let _ = self.set_listening(Listen::Closed).await;
    }

    /// What was seen so far.
    pub fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            connections: read(&self.shared.connections),
            open: read(&self.shared.open),
            to_server: read(&self.shared.to_server),
            to_client: read(&self.shared.to_client),
            dropped: read(&self.shared.dropped),
        }
    }

    async fn set_listening(
        &self,
        wanted: fn(oneshot::Sender<io::Result<()>>) -> Listen,
    ) -> io::Result<()> {
        let (tell, told) = oneshot::channel();
        let gone = |_| io::Error::other("the proxy's runtime has ended");
        self.commands.send(wanted(tell)).await.map_err(|_| gone(()))?;
        told.await.map_err(|_| gone(()))?
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        self.task.abort();
    }
}
