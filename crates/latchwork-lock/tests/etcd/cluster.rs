//! Clusters that only one test uses, so that their members may be stopped and killed.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use etcd_client::{Client, ConnectOptions};
use latchwork_contract::process::{self, Signal};
use latchwork_lock::provider::Token;
use latchwork_lock::{EtcdLockProvider, Locks};

use crate::support::{SOON, eventually, millis, secs};
use crate::ways::Ways;

/// The program; Debian's unless told.
fn program() -> String {
    std::env::var("LATCHWORK_ETCD_BIN").unwrap_or_else(|_| "etcd".to_owned())
}

pub(crate) fn is_installed() -> bool {
    let asked = Command::new(program()).arg("--version").stdout(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

pub(crate) struct Cluster {
    directory: tempfile::TempDir,
    members: Vec<Member>,
    /// What all of them are told besides.
    extra: Vec<String>,
    scheme: &'static str,
}

struct Member {
    client: u16,
    peer: u16,
    /// Where the other members find it.
    advertised: u16,
    process: Option<Child>,
}

impl Cluster {
    /// So many members, which have a leader.
    pub(crate) async fn start(size: usize) -> Self {
        Self::start_with(size, &[]).await
    }

    /// The same, with other words for each member.
    pub(crate) async fn start_with(size: usize, extra: &[String]) -> Self {
        let cluster = Self::begin(size, "http", extra);
        for member in 0..size {
            cluster.is_healthy(member).await;
        }
        cluster
    }

    /// The same, whose members reach each other by ways that can be cut.
    pub(crate) async fn start_apart(size: usize) -> (Self, Ways) {
        let (mut cluster, held) = Self::plan(size, "http", &[]);
        let peers: Vec<u16> = cluster.members.iter().map(|member| member.peer).collect();
        let ways = Ways::between(&peers).await;
        drop(held);
        for (n, member) in cluster.members.iter_mut().enumerate() {
            member.advertised = ways.port(n);
        }
        for member in 0..size {
            ways.is(member, cluster.up(member));
        }
        for member in 0..size {
            cluster.is_healthy(member).await;
        }
        (cluster, ways)
    }

    /// The same, with other words for each member, and not waited for.
    pub(crate) fn begin(size: usize, scheme: &'static str, extra: &[String]) -> Self {
        let (mut cluster, held) = Self::plan(size, scheme, extra);
        drop(held);
        for member in 0..size {
            cluster.up(member);
        }
        cluster
    }

    /// Members that do not run yet, and what keeps their ports free.
    fn plan(size: usize, scheme: &'static str, extra: &[String]) -> (Self, Vec<TcpListener>) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        // All at once, so that they differ.
        let ports: Vec<TcpListener> =
            (0..2 * size).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let port = |at: usize| ports[at].local_addr().expect("bound").port();
        let member = |n| {
            let (client, peer) = (port(2 * n), port(2 * n + 1));
            Member { client, peer, advertised: peer, process: None }
        };
        let members = (0..size).map(member).collect();
        (Cluster { directory, members, extra: extra.to_vec(), scheme }, ports)
    }

    /// Starts a member, with its data where it had some, and tells its process.
    pub(crate) fn up(&mut self, member: usize) -> u32 {
        let at = |port: u16| format!("http://127.0.0.1:{port}");
        let all = self.members.iter().enumerate();
        let all = all.map(|(n, member)| format!("m{n}={}", at(member.advertised)));
        let all = all.collect::<Vec<_>>().join(",");
        let own = &self.members[member];
        let client = format!("{}://127.0.0.1:{}", self.scheme, own.client);
        let log = std::fs::File::options().create(true).append(true).open(self.log(member));
        let process = Command::new(program())
            .args(["--name", &format!("m{member}"), "--logger", "zap", "--log-level", "error"])
            .arg("--data-dir")
            .arg(self.directory.path().join(format!("m{member}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &at(own.peer)])
            .args(["--initial-advertise-peer-urls", &at(own.advertised)])
            .args(["--initial-cluster", &all, "--initial-cluster-state", "new"])
            .args(&self.extra)
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            .spawn()
            .expect("it starts");
        let id = process.id();
        self.members[member].process = Some(process);
        id
    }

    /// Where a member's clients knock.
    pub(crate) fn place(&self, member: usize) -> String {
        format!("127.0.0.1:{}", self.members[member].client)
    }

    /// All members, this one first, under a prefix of its own.
    pub(crate) fn address(&self, first: usize) -> String {
        let size = self.members.len();
        let members: Vec<usize> = (first..first + size).map(|member| member % size).collect();
        self.address_of(&members, &test_database())
    }

    /// Only these members, and the prefix of a database.
    pub(crate) fn address_of(&self, members: &[usize], test_database: &str) -> String {
        let places: Vec<String> = members.iter().map(|member| self.place(*member)).collect();
        format!("etcd://{}/{test_database}", places.join(","))
    }

    pub(crate) async fn locks(&self) -> Locks {
        Locks::connect(&self.address(0)).await.expect("it is there")
    }

    pub(crate) async fn client(&self, member: usize) -> Client {
        let options = ConnectOptions::new().with_timeout(secs(3));
        Client::connect([self.place(member)], Some(options)).await.expect("an address")
    }

    pub(crate) async fn is_healthy(&self, member: usize) {
        let mut client = self.client(member).await;
        let began = Instant::now();
        while let Err(error) = client.get("x", None).await {
            let late = began.elapsed() > SOON;
            assert!(!late, "member {member} is never well: {error}\n{}", self.last_words(member));
            tokio::time::sleep(millis(10)).await;
        }
    }

    /// The end of a member's log.
    fn last_words(&self, member: usize) -> String {
        let log = std::fs::read(self.log(member)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    fn log(&self, member: usize) -> PathBuf {
        self.directory.path().join(format!("m{member}.log"))
    }

    /// Which one leads, as a member that lives tells.
    pub(crate) async fn leader(&self) -> usize {
        let mut leader = None;
        eventually("somebody leads", async || {
            for member in 0..self.members.len() {
                let status = self.client(member).await.status().await;
                let leads = status.is_ok_and(|status| {
                    status.header().is_some_and(|header| header.member_id() == status.leader())
                });
                if leads {
                    leader = Some(member);
                }
            }
            leader.is_some()
        })
        .await;
        leader.expect("the condition held")
    }

    pub(crate) fn kill(&mut self, member: usize) {
        let mut process = self.members[member].process.take().expect("it runs");
        process.kill().expect("killed");
        process.wait().expect("ended");
    }

    pub(crate) fn signal(&self, member: usize, signal: Signal) {
        let process = self.members[member].process.as_ref().expect("it runs");
        process::send(process, signal).expect("signalled");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(mut process) = member.process.take() {
                let _ = process.kill();
                let _ = process.wait();
            }
        }
    }
}

/// A name that nobody else has.
pub(crate) fn test_database() -> String {
    format!("room-{:x}", Token::random().expose())
}

/// The provider itself, where locks are not enough.
pub(crate) async fn provider(address: &str) -> EtcdLockProvider {
    EtcdLockProvider::connect(address).await.expect("it is there")
}
