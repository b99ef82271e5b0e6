//! How many connections a start takes, and that a pooler is recognised.

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use latchwork_contract::proxy::Proxy;
use latchwork_lock::provider::Token;
use latchwork_lock::{Capability, Locks};
use sqlx::{Connection, PgConnection};

use crate::support::backend::postgres::{admin, place, test_database};
use crate::support::certificates::{authority, signed};
use crate::support::server::ports;
use crate::support::{connect, until};
use crate::{refused, server};

/// A pgbouncer of one test, with one connection to the server, in transaction mode unless told.
pub(crate) struct Pooler {
    process: Child,
    _directory: tempfile::TempDir,
    pub(crate) address: String,
}

impl Pooler {
    /// With more settings; before a database that only this test uses.
    pub(crate) async fn start(settings: &str) -> Self {
        let name = format!("room_{:x}", Token::random().expose());
        let server = server();
        admin(&server, &format!("CREATE DATABASE {name}")).await;
        let user = server.rsplit_once('@').expect("a user").0;
        let password = user.rsplit_once(':').expect("a password").1;
        let (host, port) = place(&server).split_once(':').expect("a port");
        // Not one of those that the system gives away: who connects to such a port of its own machine
        // while nobody listens there may be connected to itself.
        let own = ports();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (users, file) = (directory.path().join("users"), directory.path().join("pooler.ini"));
        std::fs::write(&users, format!("\"postgres\" \"{password}\"\n")).expect("written");
        let text = format!(
            "[databases]\n* = host={host} port={port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {own}\nunix_socket_dir =\nauth_type = md5\nauth_file = {}\n\
             default_pool_size = 1\n{}{settings}\n",
            users.display(),
            if settings.contains("pool_mode") { "" } else { "pool_mode = transaction\n" },
        );
        std::fs::write(&file, text).expect("written");
        // It refuses to be root.
        for path in [directory.path(), &users, &file] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("ours");
        }
        let mut run = if rustix::process::geteuid().is_root() {
            let mut run = Command::new("setpriv");
            run.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups", "pgbouncer"]);
            run
        } else {
            Command::new("pgbouncer")
        };
        let run = run.arg("-q").arg(&file).stderr(Stdio::null());
        let process = run.spawn().expect("pgbouncer is installed");
        until("it listens", || std::net::TcpStream::connect(("127.0.0.1", own)).is_ok());
        let address = format!("{user}@127.0.0.1:{own}/{name}");
        Pooler { process, _directory: directory, address }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// As a command does it: a runtime with one thread has no connections of its own.
pub(crate) async fn a_start_takes_two_connections_at_most() {
    let address = test_database().await;
    connect(&address).await.close().await; // the tables are made
    let proxy = Proxy::before(place(&address).parse().expect("an address")).await.expect("a port");
    let address = address.replace(place(&address), &proxy.address().to_string());
    let run = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let locks = connect(&address).await;
            let guard = locks.lock("key").acquire().await.expect("free");
            guard.release().await.expect("held");
        });
    });
    tokio::task::spawn_blocking(|| run.join().expect("no panic")).await.expect("no panic");
    let counts = proxy.counts();
    // One start in sixteen looks for what the killed have left, on a second connection.
    assert!(counts.connections <= 2, "{counts:?}");
    println!("{counts:?}");
}

/// More starts at once than the pooler has connections.
pub(crate) async fn a_pooler_with_one_connection_serves_many_starts() {
    let pooler = Pooler::start("").await;
    let starts = (0..12).map(|n| {
        let address = pooler.address.clone();
        tokio::spawn(async move {
            let locks = connect(&address).await;
            let guard = locks.lock(format!("key-{n}")).acquire().await.expect("free");
            guard.release().await.expect("held");
        })
    });
    for start in starts.collect::<Vec<_>>() {
        start.await.expect("no panic");
    }
}

/// A session is ours if it has the setting that its connection started with. A pooler refuses the
/// setting, or ignores it.
pub(crate) async fn a_pooler_is_recognised() {
    let hears = |locks: &Locks| locks.capabilities().has(Capability::Notification);
    assert!(hears(&connect(&test_database().await).await));
    for settings in ["", "ignore_startup_parameters = options"] {
        let pooler = Pooler::start(settings).await;
        assert!(!hears(&connect(&pooler.address).await), "{settings:?}");
    }
}

/// What the pooler itself refuses has its own words, since what is to be done is done there.
pub(crate) async fn what_a_pooler_refuses_is_told_in_its_own_words() {
    let pooler = Pooler::start("").await;
    let (_, place) = pooler.address.rsplit_once('@').expect("a user");
    for user in ["postgres", "nobody"] {
        let address = format!("postgres://{user}:hush@{place}");
        refused(&address, "lock_backend", "the pooler refused the user").await;
    }
    refused(&format!("{}x", pooler.address), "lock_backend", "no such database").await;
    refused(&format!("{}?sslmode=require", pooler.address), "lock_backend", "offers no TLS").await;
    drop(pooler);

    let files = tempfile::tempdir().expect("a directory");
    authority(files.path(), "ca");
    signed(files.path(), "server", "ca", "DNS:localhost");
    let path = |name: &str| files.path().join(name).display().to_string();
    // It is another user.
    for file in [files.path().to_owned(), path("server.key").into(), path("server.pem").into()] {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).expect("ours");
    }
    let pooler = Pooler::start(&format!(
        "client_tls_sslmode = require\nclient_tls_key_file = {}\nclient_tls_cert_file = {}",
        path("server.key"),
        path("server.pem"),
    ))
    .await;
    refused(&format!("{}?sslmode=disable", pooler.address), "lock_backend", "demands TLS").await;
    for mode in ["allow", "prefer", "require"] {
        let locks = connect(&format!("{}?sslmode={mode}", pooler.address)).await;
        locks.lock("key").acquire().await.expect("free").release().await.expect("held");
    }
    drop(pooler);

    // Others have all that there is.
    const PLAIN: &str = "ignore_startup_parameters = extra_float_digits";
    let pooler = Pooler::start(&format!("{PLAIN}\nquery_wait_timeout = 1")).await;
    let mut busy = PgConnection::connect(&pooler.address).await.expect("there");
    let tx = busy.begin().await.expect("begun");
    refused(&pooler.address, "lock_unavailable", "default_pool_size").await;
    tx.rollback().await.expect("it was open");
    connect(&pooler.address).await;
    let pooler = Pooler::start(&format!("{PLAIN}\nmax_client_conn = 1")).await;
    let _only = PgConnection::connect(&pooler.address).await.expect("there");
    refused(&pooler.address, "lock_unavailable", "max_client_conn").await;

    let pooler = Pooler::start("pool_mode = statement").await;
    refused(&pooler.address, "lock_backend", "pool_mode").await;
}
