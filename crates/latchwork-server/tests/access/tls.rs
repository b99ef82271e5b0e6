//! TLS, with a certificate that lives as long as the test.

use std::path::Path;
use std::process::Command;

use latchwork_server::{Role, ServeOptions, Tls, serve_with};
use tokio::net::TcpListener;

use crate::support::Fixture;

fn certificate(files: &Path) {
    let words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let names = "subjectAltName=DNS:localhost,IP:127.0.0.1";
    let more = ["-days", "2", "-subj", "/CN=localhost", "-addext", names];
    let files_of = ["-keyout", "key.pem", "-out", "cert.pem"];
    let mut openssl = Command::new("openssl");
    openssl.args(words).args(more).args(files_of).current_dir(files);
    let out = openssl.output().expect("openssl is installed");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_encrypted_with_the_files() {
    let dir = tempfile::tempdir().expect("a directory");
    certificate(dir.path());
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let tls = Tls::from_files(&cert, &key).expect("legal");
    let before = std::fs::read(&cert).expect("it is there");
    let f = Fixture::new().await;
    let token = f.plain("ada", Role::Reader).await;
    // With tokens any address will do.
    let listener = TcpListener::bind("0.0.0.0:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let options =
        ServeOptions { tls: Some(tls.clone()), any_address: true, ..ServeOptions::default() };
    let (router, shutdown) = (f.router.clone(), f.shutdown.clone());
    let server =
        tokio::spawn(async move { serve_with(listener, router, &shutdown, options).await });

    let curl = async |words: Vec<String>| {
        let run = move || Command::new("curl").args(["-sS", "-m", "20"]).args(words).output();
        tokio::task::spawn_blocking(run).await.expect("no panic").expect("curl is installed")
    };
    let trusted = ["--cacert".to_owned(), cert.display().to_string()];
    let call = |more: &[&str]| {
        let more = more.iter().map(|&word| word.to_owned());
        trusted.iter().cloned().chain(more).collect::<Vec<_>>()
    };
    let bearer = format!("Authorization: Bearer {token}");
    let orders = format!("https://localhost:{port}/v1/orders");
    let answer = curl(call(&[&orders, "-H", &bearer])).await;
    assert!(answer.stdout.starts_with(b"{\"orders\":[]"), "{answer:?}");
    for version in ["1.2", "1.3"] {
        let one = [&*orders, "-H", &bearer, &format!("--tlsv{version}"), "--tls-max", version];
        assert!(curl(call(&one)).await.status.success());
    }
    // Nothing is answered without encryption, or to one who does not know the certificate.
    let plain = curl(vec![format!("http://localhost:{port}/healthz")]).await;
    assert!(!plain.status.success(), "{plain:?}");
    let stranger = curl(vec![orders.clone()]).await;
    assert_eq!(stranger.status.code(), Some(60), "{stranger:?}");
    // A client that never begins its handshake does not hold up others.
    let _silent = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("connected");
    assert!(curl(call(&[&orders, "-H", &bearer])).await.status.success());

    // A renewed certificate is taken from the same files; files that make no sense change nothing.
    assert!(!tls.reload().expect("the same files"));
    std::fs::write(&cert, "-----BEGIN CERTIFICATE-----\n").expect("written");
    tls.reload().expect_err("half a file");
    let old = dir.path().join("old.pem");
    std::fs::write(&old, &before).expect("written");
    let with_old =
        ["--cacert", &*old.display().to_string(), &orders, "-H", &bearer].map(str::to_owned);
    assert!(curl(with_old.to_vec()).await.status.success());
    certificate(dir.path());
    assert!(tls.reload().expect("legal"));
    assert!(curl(call(&[&orders, "-H", &bearer])).await.status.success());
    assert_eq!(curl(with_old.to_vec()).await.status.code(), Some(60));
    f.shutdown.begin();
    drop(_silent);
    server.await.expect("no panic").expect("no error");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    certificate(dir.path());
    let file = |name: &str| dir.path().join(name);
    std::fs::write(file("empty.pem"), "").expect("written");
    for (cert, key, named) in [
        ("none.pem", "key.pem", "none.pem"),
        ("empty.pem", "key.pem", "empty.pem"),
        ("cert.pem", "none.pem", "none.pem"),
        ("cert.pem", "cert.pem", "cert.pem"),
    ] {
        let error = Tls::from_files(&file(cert), &file(key)).expect_err("not usable").to_string();
        assert!(error.contains(named), "{error}");
    }
}
