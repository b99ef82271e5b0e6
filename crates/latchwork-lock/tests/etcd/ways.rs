//! The ways between the members of a cluster, each direction of each pair by itself: so one member
//! can be cut off from the others while its clients still reach it.
//!
//! A member has one address for all others. Behind it stands a door that looks which process knocks,
//! and leads it to the proxy of that pair. What the bytes say would not do: not all that members
//! tell each other has a sender in it, the renewal of a lease that is passed on to the leader has none.

use std::net::SocketAddr;
use std::sync::Arc;

use latchwork_contract::proxy::Proxy;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

pub(crate) struct Ways {
    doors: Vec<Door>,
    /// From whom, to whom.
    between: Arc<Vec<Vec<Proxy>>>,
    processes: Processes,
}

/// The process of each member, as far as they run.
type Processes = Arc<Mutex<Vec<Option<u32>>>>;

struct Door {
    port: u16,
    task: AbortHandle,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Ways {
    /// Between members that listen to each other on these ports of this machine.
    pub(crate) async fn between(ports: &[u16]) -> Self {
        let mut between = Vec::new();
        for _from in ports {
            let mut ways = Vec::new();
            for to in ports {
                let to = SocketAddr::from(([127, 0, 0, 1], *to));
                ways.push(Proxy::before(to).await.expect("a port"));
            }
            between.push(ways);
        }
        let between = Arc::new(between);
        let processes = Processes::new(Mutex::new(vec![None; ports.len()]));
        let mut doors = Vec::new();
        for to in 0..ports.len() {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let port = listener.local_addr().expect("bound").port();
            let task = tokio::spawn(open(listener, to, between.clone(), processes.clone()));
            doors.push(Door { port, task: task.abort_handle() });
        }
        Ways { doors, between, processes }
    }

    /// Where the others find a member.
    pub(crate) fn port(&self, member: usize) -> u16 {
        self.doors[member].port
    }

    /// A member has been started.
    pub(crate) fn is(&self, member: usize, process: u32) {
        self.processes.lock()[member] = Some(process);
    }

    /// Nothing comes from this member to others or from them to it, and nobody is told.
    pub(crate) fn isolate(&self, member: usize) {
        self.of(member).for_each(Proxy::black_hole);
    }

    /// Everybody reaches everybody.
    pub(crate) async fn heal(&self) {
        for way in self.between.iter().flatten() {
            // What was swallowed is missing in the connections that exist.
            way.cut();
            way.pass().await.expect("its port");
        }
    }

    /// Those that begin or end at a member.
    fn of(&self, member: usize) -> impl Iterator<Item = &Proxy> {
        let ways = self.between.iter().enumerate();
        ways.flat_map(move |(from, ways)| {
            let ends = ways.iter().enumerate();
            ends.filter(move |(to, _)| from == member || *to == member).map(|(_, way)| way)
        })
    }
}

/// Leads everybody who knocks to the way that is its own.
async fn open(
    listener: TcpListener,
    to: usize,
    between: Arc<Vec<Vec<Proxy>>>,
    processes: Processes,
) {
    loop {
        let Ok((mut knocks, peer)) = listener.accept().await else { continue };
        // Who is gone already, or unknown, is turned away; a member knocks again.
        let Some(from) = member_at(peer.port(), &processes.lock()) else { continue };
        let way = between[from][to].address();
        tokio::spawn(async move {
            if let Ok(mut way) = TcpStream::connect(way).await {
                let _ = tokio::io::copy_bidirectional(&mut knocks, &mut way).await;
            }
        });
    }
}

/// Which of the processes has the connection that begins at this port.
fn member_at(port: u16, processes: &[Option<u32>]) -> Option<usize> {
    let begins = format!("0100007F:{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
    let mut rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.get(1) == Some(&begins.as_str()))?;
    let socket = format!("socket:[{}]", row.get(9)?);
    let has = |process: u32| {
        let files = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten();
        let mut targets = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        targets.any(|target| target.to_string_lossy() == socket)
    };
    processes.iter().position(|process| process.is_some_and(has))
}
