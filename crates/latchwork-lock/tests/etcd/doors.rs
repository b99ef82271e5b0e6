//! Who is let in: passwords, certificates, rights, and servers that are none.

use std::io::{Read, Write};
use std::net::TcpListener;

use etcd_client::{Client, GetOptions, Permission};
use latchwork_lock::provider::{AcquireRequest, LockProvider, Token, Wait};
use latchwork_lock::{Clock, Key, Locks, SystemClock};

use crate::cluster::{Cluster, provider};
use crate::support::certificates::{authority, expired, signed};
use crate::support::{connect, eventually, millis, secs};

/// It is refused with this code, says this, and shows no secret.
async fn refused(address: &str, code: &str, told: &str) {
    let error = Locks::connect(address).await.expect_err(address);
    let shown = format!("{error} {error:?}");
    assert_eq!(error.code(), code, "{shown}");
    assert!(shown.contains(told), "not {told:?}: {shown}");
    assert!(!shown.contains("secret"), "{shown}");
}

/// Users, and the right of one of them to a prefix.
pub(crate) async fn switch_on_users(client: &mut Client) {
    client.user_add("root", "secret-root", None).await.expect("added");
    client.user_grant_role("root", "root").await.expect("granted");
    client.role_add("locker").await.expect("added");
    let right = Permission::read_write("app/").with_prefix();
    client.role_grant_permission("locker", right).await.expect("granted");
    client.user_add("me", "secret%1", None).await.expect("added");
    client.user_grant_role("me", "locker").await.expect("granted");
    client.auth_enable().await.expect("enabled");
}

pub(crate) async fn a_password_opens() {
    let cluster = Cluster::start(1).await;
    let place = cluster.place(0);
    // Before there are users, a password is one too many.
    refused(&format!("etcd://me:secret%251@{place}/app"), "lock_backend", "knows no users").await;
    switch_on_users(&mut cluster.client(0).await).await;
    refused(&format!("etcd://{place}/app"), "lock_backend", "demands a user").await;
    refused(&format!("etcd://me:secret@{place}/app"), "lock_backend", "wrong user or password")
        .await;
    refused(&format!("etcd://you:secret%251@{place}/app"), "lock_backend", "wrong user").await;
    let locks = connect(&format!("etcd://me:secret%251@{place}/app")).await;
    assert!(!format!("{locks:?}").contains("secret"));
    let guard = locks.lock("key").ttl(secs(5)).acquire().await.expect("free");
    guard.refresh().await.expect("held");
    let next = crate::support::waiter(&locks, "key");
    crate::support::waiting(&locks, "key", 1).await;
    guard.release().await.expect("held");
    next.await.expect("no panic").release().await.expect("held");
}

pub(crate) async fn rights_that_are_missing_are_named() {
    let cluster = Cluster::start(1).await;
    switch_on_users(&mut cluster.client(0).await).await;
    // It may use app/ and nothing else.
    let locks = connect(&format!("etcd://me:secret%251@{}/other", cluster.place(0))).await;
    let error = locks.lock("key").wait(secs(5)).acquire().await.expect_err("no right");
    assert_eq!(error.code(), "lock_backend", "{error}");
    assert!(error.to_string().contains("grant-permission"), "{error}");
    assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    let error = locks.inspect("key").await.expect_err("no right");
    assert_eq!(error.code(), "lock_backend", "{error}");
}

pub(crate) async fn certificates_are_checked() {
    let files = tempfile::tempdir().expect("a directory");
    let at = |name: &str| files.path().join(name).display().to_string();
    for name in ["ca", "stranger"] {
        authority(files.path(), name);
    }
    for (name, ca) in [("server", "ca"), ("me", "ca"), ("spy", "stranger")] {
        signed(files.path(), name, ca, "DNS:localhost,IP:127.0.0.1");
    }
    let words = [
        ("--cert-file", "server.pem"),
        ("--key-file", "server.key"),
        ("--trusted-ca-file", "trusted.pem"),
    ];
    std::fs::copy(at("ca.pem"), at("trusted.pem")).expect("copied");
    let mut words: Vec<String> =
        words.iter().flat_map(|(word, file)| [(*word).to_owned(), at(file)]).collect();
    words.push("--client-cert-auth".to_owned());
    let mut cluster = Cluster::begin(1, "https", &words);
    let place = cluster.place(0);
    let (ca, stranger) = (at("ca.pem"), at("stranger.pem"));
    let me = format!("tls-cert={}&tls-key={}", at("me.pem"), at("me.key"));
    let spy = format!("tls-cert={}&tls-key={}", at("spy.pem"), at("spy.key"));

    let good = format!("etcds://{place}/app?tls-ca={ca}&{me}");
    eventually("it is up", async || Locks::connect(&good).await.is_ok()).await;
    let locks = connect(&good).await;
    locks.lock("key").acquire().await.expect("free").release().await.expect("held");
    // By their old names.
    let old = me.replace("tls-", "");
    let named = format!("etcds://{place}?ca={ca}&{old}&domain=localhost");
    connect(&named).await.lock("key").acquire().await.expect("free").release().await.expect("held");

    const UNKNOWN: &str = "not signed by an authority";
    refused(&format!("etcds://{place}?tls-ca={stranger}&{me}"), "lock_backend", UNKNOWN).await;
    refused(&format!("etcds://{place}?{me}"), "lock_backend", UNKNOWN).await;
    let elsewhere = format!("etcds://{place}?tls-ca={ca}&{me}&tls-server-name=elsewhere");
    refused(&elsewhere, "lock_backend", "for another host").await;
    for address in
        [format!("etcds://{place}?tls-ca={ca}&{spy}"), format!("etcds://{place}?tls-ca={ca}")]
    {
        // With TLS 1.3 the refusal comes after the handshake, and the connection may be closed
        // before it is read: then it cannot be told from an outage.
        let error = Locks::connect(&address).await.expect_err("it demands a certificate");
        assert!(["lock_unavailable", "lock_backend"].contains(&error.code()), "{error}");
        assert!(error.to_string().contains("client certificate"), "{error}");
    }

    // A client certificate is read again for each new connection: here the server has another authority.
    let guard = locks.lock("rotated").ttl(secs(60)).acquire().await.expect("free");
    std::fs::copy(at("stranger.pem"), at("trusted.pem")).expect("copied");
    cluster.kill(0);
    cluster.up(0);
    eventually("the server takes the old one no more", async || {
        locks.inspect("rotated").await.is_err_and(|error| error.to_string().contains("certificate"))
    })
    .await;
    signed(files.path(), "me", "stranger", "DNS:localhost,IP:127.0.0.1");
    eventually("it comes back with what the files have now", async || {
        locks.inspect("rotated").await.is_ok_and(|seen| seen.is_held())
    })
    .await;
    guard.release().await.expect("held");
    // The server reads its own for each connection, too.
    expired(files.path(), "server", "ca", "DNS:localhost,IP:127.0.0.1");
    refused(&good, "lock_backend", "has expired").await;

    let plain = Locks::connect(&format!("etcd://{place}")).await.expect_err("it speaks TLS");
    assert!(["lock_unavailable", "lock_backend"].contains(&plain.code()), "{plain}");
    let plain = Cluster::start(1).await;
    let address = format!("etcds://{}?tls-ca={ca}", plain.place(0));
    refused(&address, "lock_unavailable", "write etcd://").await;
}

pub(crate) async fn strangers_are_recognised() {
    // One that speaks HTTP of another century, and one that speaks something else.
    for answer in
        ["HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n", "-ERR unknown command\r\n"]
    {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = listener.local_addr().expect("bound");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut heard = [0; 1024];
                let _ = stream.read(&mut heard);
                let _ = stream.write_all(answer.as_bytes());
                std::thread::sleep(millis(200));
            }
        });
        refused(&format!("etcd://me:secret@{place}"), "lock_backend", "2379").await;
    }
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    refused(&format!("etcd://me:secret@{nobody}"), "lock_unavailable", "refused").await;
    // One of several is enough.
    let cluster = Cluster::start(1).await;
    let locks = connect(&format!("etcd://{nobody},{}", cluster.place(0))).await;
    locks.lock("key").acquire().await.expect("free").release().await.expect("held");
}

pub(crate) async fn a_token_is_in_no_entry() {
    let cluster = Cluster::start(1).await;
    let provider = provider(&cluster.address(0)).await;
    let key = Key::new("key").expect("legal");
    let mut request = AcquireRequest::new(key, secs(30), SystemClock.now()).with_note("a note");
    provider.acquire(&request).await.expect("it answers");
    let holder = request.token;
    request.token = Token::random();
    request.wait = Wait::For(secs(20));
    let waiter = request.token;
    let waiting = tokio::spawn({
        let provider = provider.clone();
        async move { provider.acquire(&request).await }
    });
    let mut client = cluster.client(0).await;
    let all = async |client: &mut Client| {
        client.get("", Some(GetOptions::new().with_all_keys())).await.expect("it answers")
    };
    eventually("both are there", async || all(&mut client).await.kvs().len() == 2).await;
    for entry in all(&mut client).await.kvs() {
        let shown = [entry.key(), entry.value()].concat();
        let shown = String::from_utf8_lossy(&shown).to_lowercase();
        for secret in [holder, waiter].map(Token::expose) {
            let bytes = secret.to_be_bytes();
            for form in [format!("{secret:032x}"), secret.to_string(), format!("{bytes:?}")] {
                assert!(!shown.contains(&form), "{shown}");
            }
        }
        assert!(shown.contains("a note"), "{shown}");
    }
    waiting.abort();
}
