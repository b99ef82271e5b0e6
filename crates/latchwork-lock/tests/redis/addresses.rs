//! Addresses, passwords, rights, certificates: what is accepted, and what a refusal says.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::{Arc, Mutex};

use latchwork_lock::{Locks, RedisLockProvider};
use tracing_subscriber::fmt::MakeWriter;

use crate::server::{Server, admin_command, free_port};
use crate::support::certificates::{authority, expired, signed};
use crate::{eventually, locks, shared, unique};

/// Opening fails with this code, a message that has the word, and no secret.
async fn refused(address: &str, code: &str, word: &str) {
    let error = match Locks::connect(address).await {
        Ok(_) => panic!("{address} was opened"),
        Err(error) => error,
    };
    let mut said = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        said += &format!(" / {cause}");
        source = cause.source();
    }
    assert_eq!(error.code(), code, "{address}: {said}");
    assert!(said.contains(word), "{address}: no {word:?} in {said}");
    assert!(!said.contains("hush") && !format!("{error:?}").contains("hush"), "a secret: {said}");
}

pub(crate) async fn bad_addresses_say_what_is_wrong() {
    refused("redis://", "invalid_argument", "host").await;
    refused("redis://me:hush@localhost/words", "invalid_argument", "database").await;
    refused("redis://me:hush@localhost/0?tls=yes", "invalid_argument", "tls").await;
    refused("rediss://me:hush@localhost/#insecure", "invalid_argument", "tls-ca").await;
    refused("rediss://me:hush@localhost/?tls-ca=/nowhere.pem", "invalid_argument", "nowhere").await;
    refused("rediss://me:hush@localhost/?tls-cert=/dev/null", "invalid_argument", "go together")
        .await;
    refused("redis+sentinel://me:hush@a,b/primary", "not_supported", "Sentinel").await;
    refused("redis://:hush@a,b/0", "not_supported", "Sentinel").await;
    refused("redis-cluster://me:hush@a:7000", "not_supported", "Cluster").await;
    refused("redis://:hush@127.0.0.1:1", "lock_unavailable", "port").await;
    refused("redis://:hush@no-such-host.invalid", "lock_unavailable", "").await;
    refused("redis+unix:///nowhere/redis.sock?pass=hush", "lock_unavailable", "").await;

    // Another kind of server: it answers, and not in Redis's words.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    refused(&format!("redis://:hush@127.0.0.1:{port}"), "lock_backend", "protocol").await;
}

pub(crate) async fn rights_and_passwords_are_checked() {
    let server = Server::start(&[]);
    let (address, place) = (server.address(), format!("127.0.0.1:{}", server.port));
    let user = |name: &str, rights: &[&str]| {
        let mut words = vec!["ACL", "SETUSER", name, "on", ">hush"];
        words.extend(rights);
        admin_command::<()>(&address, &words);
        format!("redis://{name}:hush@{place}")
    };
    let enough: Vec<&str> =
        "~latchwork:* &latchwork:* +@read +@write +@scripting +@pubsub +@connection +time +info"
            .split(' ')
            .collect();
    let good = locks(&user("good", &enough)).await;
    let guard = good.lock("key").acquire().await.expect("a free key");
    let waits = crate::waiter(&good, "key");
    crate::waiting(&good, "key", 1).await;
    guard.release().await.expect("held");
    waits.await.expect("no panic").release().await.expect("held");
    assert!(good.list("", Default::default()).await.expect("it answers").keys.is_empty());

    refused(&user("none", &["+@connection"]), "lock_backend", "right").await;
    refused(&user("reader", &["~*", "+@read", "+@connection", "+info"]), "lock_backend", "right")
        .await;
    // Without its channels all goes well until somebody waits.
    let no_channels = ["~latchwork:*", "resetchannels", "+@all"];
    refused(&user("silent", &no_channels), "lock_backend", "&latchwork:*").await;
    refused(&user("mute", &["~*", "&*", "+@all", "-publish"]), "lock_backend", "ACL SETUSER").await;
    // The script asks for the time, where the server words a missing right differently.
    let no_time = ["~latchwork:*", "&latchwork:*", "+@all", "-time"];
    refused(&user("timeless", &no_time), "lock_backend", "ACL SETUSER").await;
    let no_keys = ["~else:*", "&*", "+@all"];
    refused(&user("elsewhere", &no_keys), "lock_backend", "right").await;
    refused(&format!("redis://nobody:hush@{place}"), "lock_backend", "password").await;
    admin_command::<()>(&address, &["CONFIG", "SET", "requirepass", "hush"]);
    refused(&format!("redis://{place}"), "lock_backend", "password").await;
    refused(&format!("redis://:hushed@{place}"), "lock_backend", "password").await;
    locks(&format!("redis://:hush@{place}")).await;
}

pub(crate) async fn commands_under_other_names_are_missed_by_name() {
    for command in ["EVALSHA", "SCRIPT", "INFO", "TIME", "PUBLISH"] {
        let server = Server::start(&["--rename-command", command, "another"]);
        refused(&server.address(), "lock_backend", "rename-command").await;
    }
}

/// Where redis-cli looks for it. In a process of its own, since the environment is of the whole process.
pub(crate) async fn a_password_may_be_in_the_environment() {
    let server = Server::start(&[]);
    admin_command::<()>(&server.address(), &["CONFIG", "SET", "requirepass", "hush"]);
    refused(&server.address(), "lock_backend", "password").await;
    let this = std::env::current_exe().expect("this program");
    let run = |password: &str| {
        let mut run = Command::new(&this);
        run.env(CHILD, server.address()).env("REDISCLI_AUTH", password);
        run.status().expect("it runs").success()
    };
    assert!(run("hush"));
    assert!(!run("wrong"));
}

/// In which a child finds the address to connect to.
const CHILD: &str = "LATCHWORK_TEST_CONNECT_TO";

/// What such a child does.
pub(crate) fn child() {
    let Ok(address) = std::env::var(CHILD) else { return };
    let opened = crate::block_on(async { Locks::connect(&address).await });
    std::process::exit(i32::from(opened.is_err()));
}

/// A client certificate that is replaced is used for the next connection, without a new start.
pub(crate) async fn a_rotated_certificate_is_read_again() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let files = directory.path();
    let (first, second) = (authority(files, "ca"), authority(files, "second"));
    for name in ["server", "client"] {
        signed(files, name, "ca", "DNS:localhost");
    }
    let path = |name: &str| files.join(name).display().to_string();
    let port = free_port().to_string();
    let server = Server::start(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        &path("server.pem"),
        "--tls-key-file",
        &path("server.key"),
        "--tls-ca-cert-file",
        &first.display().to_string(),
        "--tls-auth-clients",
        "yes",
    ]);
    let address = format!(
        "rediss://localhost:{port}/?tls-ca={}&tls-cert={}&tls-key={}",
        first.display(),
        path("client.pem"),
        path("client.key"),
    );
    let locks = locks(&address).await;
    let key = unique("rotated");
    let guard = locks.lock(&key).ttl(crate::secs(60)).acquire().await.expect("a free key");
    // From now on the server trusts the second authority only, and all connections end.
    let admin = |words: &[&str]| admin_command::<()>(&server.address(), words);
    admin(&["CONFIG", "SET", "tls-ca-cert-file", &second.display().to_string()]);
    signed(files, "client", "second", "DNS:localhost");
    admin_command::<i64>(&server.address(), &["CLIENT", "KILL", "TYPE", "normal"]);
    eventually("it comes back with what the files have now", async || {
        locks.inspect(&key).await.is_ok_and(|seen| seen.is_held())
    })
    .await;
    guard.release().await.expect("held");
}

pub(crate) async fn a_replica_and_a_cluster_are_refused() {
    let primary = Server::start(&[]);
    let replica = Server::start(&["--replicaof", "127.0.0.1", &primary.port.to_string()]);
    refused(&replica.address(), "lock_backend", "primary").await;
    let node = Server::start(&["--cluster-enabled", "yes"]);
    refused(&node.address(), "lock_backend", "Cluster").await;

    // One that is demoted while it is used is away, until it is not.
    let locks = locks(&primary.address()).await;
    admin_command::<()>(&primary.address(), &["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    let error = locks.lock("key").acquire().await.expect_err("it may not write");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    admin_command::<()>(&primary.address(), &["REPLICAOF", "NO", "ONE"]);
    eventually("it may write again", async || locks.lock("key").acquire().await.is_ok()).await;
}

/// No server that old can be installed here, so a few lines play one: they only tell their version.
pub(crate) async fn a_server_that_is_too_old_is_refused() {
    const INFO: &str = "# Server\r\nredis_version:6.0.16\r\nredis_mode:standalone\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut heard = [0; 4096];
                while let Ok(got @ 1..) = stream.read(&mut heard) {
                    for command in String::from_utf8_lossy(&heard[..got]).split('*').skip(1) {
                        let answer = match command.contains("$4\r\nINFO\r\n") {
                            true => format!("${}\r\n{INFO}\r\n", INFO.len()),
                            false => "+OK\r\n".to_owned(),
                        };
                        let _ = stream.write_all(answer.as_bytes());
                    }
                }
            });
        }
    });
    let address = format!("redis://:hush@127.0.0.1:{port}");
    refused(&address, "lock_backend", "6.0.16").await;
    refused(&address, "lock_backend", "6.2 is the oldest").await;
}

pub(crate) async fn a_server_that_may_evict_is_warned_of() {
    let said = Said::default();
    let all = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
    // Only this test of the program listens: the provider speaks on a thread of its own.
    all.with_writer(said.clone()).with_ansi(false).init();
    let warned = || said.text().contains("maxmemory-policy noeviction");
    let server = Server::start(&[]);
    let set = |name: &str, value: &str| {
        admin_command::<()>(&server.address(), &["CONFIG", "SET", name, value]);
    };
    // Without a limit nothing is evicted, whatever the policy says.
    set("maxmemory-policy", "allkeys-lru");
    locks(&server.address()).await;
    assert!(!warned(), "{}", said.text());
    set("maxmemory-policy", "noeviction");
    set("maxmemory", "100mb");
    locks(&server.address()).await;
    assert!(!warned(), "{}", said.text());
    set("maxmemory-policy", "allkeys-lru");
    locks(&server.address()).await;
    assert!(warned() && said.text().contains("allkeys-lru"), "{}", said.text());
}

/// What was logged by anybody in this process.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no panic")).into_owned()
    }
}

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Said {
    type Writer = Said;

    fn make_writer(&self) -> Said {
        self.clone()
    }
}

pub(crate) async fn certificates_are_checked() {
    let port = free_port().to_string();
    let directory = tempfile::tempdir().expect("a directory");
    let (ca, other) = (authority(directory.path(), "ca"), authority(directory.path(), "no"));
    let at = |name: &str| directory.path().join(name).display().to_string();
    signed(directory.path(), "server", "ca", "DNS:localhost");
    signed(directory.path(), "client", "ca", "DNS:somebody");
    let ca_file = ca.display().to_string();
    let server = Server::start(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        &at("server.pem"),
        "--tls-key-file",
        &at("server.key"),
        "--tls-ca-cert-file",
        &ca_file,
        "--tls-auth-clients",
        "optional",
    ]);
    let place = format!("localhost:{port}");
    let trusted = format!("rediss://{place}/?tls-ca={ca_file}");
    eventually("it listens", async || Locks::connect(&trusted).await.is_ok()).await;
    let own = format!("{trusted}&tls-cert={}&tls-key={}", at("client.pem"), at("client.key"));
    for address in [&trusted, &own] {
        let locks = locks(address).await;
        let guard = locks.lock("key").acquire().await.expect("a free key");
        // Notices come by TLS too.
        let waits = crate::waiter(&locks, "key");
        crate::waiting(&locks, "key", 1).await;
        guard.release().await.expect("held");
        waits.await.expect("no panic").release().await.expect("held");
    }
    let wrong = format!("rediss://{place}/?tls-ca={}", other.display());
    refused(&wrong, "lock_backend", "not signed by an authority").await;
    refused(&format!("rediss://{place}"), "lock_backend", "not signed by an authority").await;
    // The certificate is for another name.
    let named = format!("rediss://127.0.0.1:{port}/?tls-ca={ca_file}");
    refused(&named, "lock_backend", "for another host").await;
    let plain = format!("rediss://127.0.0.1:{}", server.port);
    refused(&plain, "lock_unavailable", "without TLS").await;
    admin_command::<()>(&server.address(), &["CONFIG", "SET", "tls-auth-clients", "yes"]);
    refused(&trusted, "lock_backend", "client certificate").await;
    locks(&own).await;
    expired(directory.path(), "server", "ca", "DNS:localhost");
    for (name, file) in [("tls-cert-file", "server.pem"), ("tls-key-file", "server.key")] {
        admin_command::<()>(&server.address(), &["CONFIG", "SET", name, &at(file)]);
    }
    refused(&own, "lock_backend", "has expired").await;
}

pub(crate) async fn the_callers_own_client_and_connection_will_do() {
    let client = redis::Client::open(shared()).expect("an address");
    let connection = client.get_multiplexed_async_connection().await.expect("there");
    let ours = RedisLockProvider::from_client(client.clone()).await.expect("there");
    let theirs = RedisLockProvider::from_connection(connection, client).await.expect("there");
    let (ours, theirs) = (Locks::new(ours), Locks::new(theirs));
    let key = unique("own");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    assert!(theirs.lock(&key).try_acquire().await.expect("it answers").is_none());
    let waits = crate::waiter(&theirs, &key);
    crate::waiting(&ours, &key, 1).await;
    guard.release().await.expect("held");
    waits.await.expect("no panic").release().await.expect("held");
}

pub(crate) async fn a_blocked_runtime_of_the_callers_connection_keeps_its_lease() {
    let (address, key) = (shared(), unique("blocked"));
    let direct = crate::locks(&address).await;
    crate::support::a_blocked_thread_keeps_its_lease(&direct, &key, async move || {
        let client = redis::Client::open(address).expect("an address");
        let connection = client.get_multiplexed_async_connection().await.expect("there");
        let provider = RedisLockProvider::from_connection(connection, client).await;
        (Locks::new(provider.expect("there")), async || ())
    })
    .await;
}
