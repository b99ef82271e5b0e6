//! A server that is not there yet: the time to wait covers it, but not what nobody will repair.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use latchwork_contract::proxy::Proxy;

use crate::support::{
    LockDirectory, Running, assert_code, eventually, latchwork, server, text, unique_key,
};

/// Starts a run while nobody listens, and the server once the run has failed to connect.
fn is_waited_for(variable: &str) {
    let Some(address) = server(variable) else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (at, proxy) = runtime.block_on(async {
        let host = host_of(&address);
        let proxy = Proxy::before(host).await.expect("a port");
        proxy.refuse().await;
        (address.replace(&host.to_string(), &proxy.address().to_string()), proxy)
    });
    let place = LockDirectory::new();
    let key = unique_key("late");
    let mut command = latchwork();
    command.args(["lock", &key, "--at", &at, "--wait", "30s", "--", "sh", "-c", "exit 7"]);
    command.env("LATCHWORK_LOG", "latchwork_lock=info");
    let log = place.path("log");
    command.stderr(File::create(&log).expect("made"));
    let run = Running::start(&mut command);
    let said = || fs::read_to_string(&log).expect("read");
    eventually("its second try", || said().contains("trying again"));
    runtime.block_on(proxy.pass()).expect("the port is still ours");
    let out = run.output();
    assert_eq!(out.status.code(), Some(7), "{}", said());
}

fn host_of(address: &str) -> SocketAddr {
    let rest = address.split("://").nth(1).expect("an address");
    let rest = rest.rsplit('@').next().expect("a host");
    rest.split('/').next().expect("a host").parse().expect("a loopback address")
}

#[test]
fn postgres_is_waited_for() {
    is_waited_for("LATCHWORK_TEST_POSTGRES");
}

#[test]
fn pgbouncer_is_waited_for() {
    is_waited_for("LATCHWORK_TEST_PGBOUNCER");
}

#[test]
fn mariadb_is_waited_for() {
    is_waited_for("LATCHWORK_TEST_MARIADB");
}

#[test]
fn redis_is_waited_for() {
    is_waited_for("LATCHWORK_TEST_REDIS");
}

#[test]
fn etcd_is_waited_for() {
    is_waited_for("LATCHWORK_TEST_ETCD");
}

/// Fails at once, although there is time to wait, and shows no password.
fn fails_at_once(at: &str) {
    let started = Instant::now();
    let out = latchwork()
        .args(["lock", "k", "--at", at, "--wait", "60s", "--", "sh", "-c", "exit 7"])
        .output()
        .expect("it runs");
    let text = text(&out);
    assert!(matches!(out.status.code(), Some(64 | 69)), "{:?}: {text}", out.status);
    assert!(started.elapsed() < Duration::from_secs(30), "{text}");
    assert!(!text.contains("hush"), "{text}");
}

/// The same address with another password and user.
fn with_wrong_password(address: &str, user: &str) -> String {
    let (scheme, rest) = address.split_once("://").expect("an address");
    let rest = rest.rsplit('@').next().expect("a host");
    format!("{scheme}://{user}:hush@{rest}")
}

#[test]
fn a_wrong_password_fails_at_once() {
    for (variable, user) in [
        ("LATCHWORK_TEST_POSTGRES", "postgres"),
        ("LATCHWORK_TEST_PGBOUNCER", "postgres"),
        ("LATCHWORK_TEST_MARIADB", "latchwork"),
        ("LATCHWORK_TEST_REDIS", ""),
        ("LATCHWORK_TEST_ETCD", "root"),
    ] {
        let Some(address) = server(variable) else { continue };
        fails_at_once(&with_wrong_password(&address, user));
    }
}

#[test]
fn a_wrong_database_or_certificate_fails_at_once() {
    for (variable, parameter) in
        [("LATCHWORK_TEST_POSTGRES", "sslrootcert"), ("LATCHWORK_TEST_MARIADB", "ssl-ca")]
    {
        let Some(address) = server(variable) else { continue };
        let (server, _) = address.rsplit_once('/').expect("a database");
        fails_at_once(&format!("{server}/there_is_no_such_database"));
        fails_at_once(&format!("{address}?{parameter}=/there/is/no/such/file"));
    }
}

#[test]
fn without_time_to_wait_there_is_one_try() {
    let started = Instant::now();
    let out = latchwork()
        .args(["lock", "k", "--at", "redis://127.0.0.1:1", "--no-wait", "--", "true"])
        .output()
        .expect("it runs");
    assert_code(&out, 69);
    assert!(text(&out).contains("no server listens"), "{}", text(&out));
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_host_that_nobody_knows_is_named_as_that() {
    for at in [
        "redis://no-such-host.invalid",
        "postgres://no-such-host.invalid/x",
        "mysql://no-such-host.invalid/x",
        "etcd://no-such-host.invalid:1",
    ] {
        let args = ["lock", "k", "--at", at, "--no-wait", "--", "true"];
        let out = latchwork().args(args).output().expect("it runs");
        assert_code(&out, 69);
        assert!(text(&out).contains("lookup address information"), "{at}: {}", text(&out));
    }
}

#[test]
fn a_server_that_does_not_come_is_named_with_the_tries() {
    for at in [
        "redis://127.0.0.1:1",
        "postgres://127.0.0.1:1/x",
        "mysql://127.0.0.1:1/x",
        "etcd://127.0.0.1:1",
        #[cfg(feature = "temporal")]
        "temporal://127.0.0.1:1",
    ] {
        let started = Instant::now();
        let out = latchwork()
            .args(["lock", "k", "--at", at, "--wait", "1s", "--", "true"])
            .output()
            .expect("it runs");
        assert_code(&out, 69);
        assert!(text(&out).contains(" times in "), "{}", text(&out));
        assert!(started.elapsed() > Duration::from_millis(900), "{}", text(&out));
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}
