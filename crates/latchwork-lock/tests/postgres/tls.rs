//! A real server with TLS: what is accepted, and what is refused.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use latchwork_lock::Locks;
use sqlx::{Connection, PgConnection, Row};

use crate::refused;
use crate::support::backend::postgres::{admin, place};
use crate::support::server::OwnServer;
use crate::support::{connect, eventually};

pub(crate) async fn certificates_are_checked() {
    let own = OwnServer::start("postgres");
    let certificates = tempfile::tempdir().expect("a directory");
    let (ca, other) = (authority(certificates.path(), "ca"), authority(certificates.path(), "no"));
    // For this name and not for 127.0.0.1.
    switch_on(&own, certificates.path(), &ca).await;
    let named = own.address.replace("127.0.0.1", "localhost");

    let addresses = [
        (&own.address, "sslmode=require".to_owned()),
        (&own.address, format!("sslmode=verify-ca&sslrootcert={}", ca.display())),
        (&named, format!("sslmode=verify-full&sslrootcert={}", ca.display())),
    ];
    for (address, parameters) in addresses {
        let address = format!("{address}?{parameters}&application_name=tls");
        let locks = connect(&address).await;
        locks.lock("key").acquire().await.expect("free").release().await.expect("held");
        assert!(encrypted(&own).await, "not with {parameters}");
        locks.close().await;
    }
    for (address, parameters) in [
        (&own.address, format!("sslmode=verify-full&sslrootcert={}", ca.display())),
        (&named, format!("sslmode=verify-full&sslrootcert={}", other.display())),
        (&named, format!("sslmode=verify-ca&sslrootcert={}", other.display())),
        (&named, "sslmode=verify-full".to_owned()),
    ] {
        refused(&format!("{address}?{parameters}"), "lock_backend", "certificate").await;
    }
    let missing = format!("{named}?sslmode=verify-full&sslrootcert=/nowhere/ca.pem");
    refused(&missing, "invalid_argument", "sslrootcert").await;
    assert_eq!(place(&named).split(':').next(), Some("localhost"));
    // Nobody is forced.
    let plain = Locks::connect(&format!("{}?sslmode=disable", own.address)).await;
    plain.expect("without TLS").close().await;
}

/// Whether our connections are encrypted, as the server sees it.
async fn encrypted(own: &OwnServer) -> bool {
    let mut admin = PgConnection::connect(&own.address).await.expect("there");
    let seen = sqlx::raw_sql(
        "SELECT coalesce(bool_and(ssl), false) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
         WHERE application_name = 'tls'",
    );
    seen.fetch_one(&mut admin).await.expect("a row").try_get(0).expect("a truth")
}

/// Gives the server a certificate, and waits until it uses it.
async fn switch_on(own: &OwnServer, certificates: &Path, ca: &Path) {
    let (key, certificate) = signed(certificates, ca);
    let data = own.data().join("data");
    let owner = std::fs::metadata(&data).expect("its own");
    for (from, name) in [(key, "server.key"), (certificate, "server.crt")] {
        let to = data.join(name);
        std::fs::copy(from, &to).expect("copied");
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o600)).expect("set");
        chown(&to, Some(owner.uid()), Some(owner.gid())).expect("given");
    }
    admin(&own.address, "ALTER SYSTEM SET ssl = on").await;
    admin(&own.address, "SELECT pg_reload_conf()").await;
    let address = format!("{}?sslmode=require", own.address);
    eventually("it speaks TLS", async || PgConnection::connect(&address).await.is_ok()).await;
}

/// A certificate authority: the file with its certificate.
fn authority(directory: &Path, name: &str) -> PathBuf {
    let certificate = directory.join(format!("{name}.pem"));
    openssl(
        directory,
        &[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            &format!("/CN={name}"),
            "-keyout",
            &format!("{name}.key"),
            "-out",
            &format!("{name}.pem"),
        ],
    );
    certificate
}

/// A key, and a certificate for localhost.
fn signed(directory: &Path, ca: &Path) -> (PathBuf, PathBuf) {
    let ca_key = ca.with_extension("key");
    std::fs::write(directory.join("names"), "subjectAltName=DNS:localhost").expect("written");
    openssl(
        directory,
        &[
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            "/CN=localhost",
            "-keyout",
            "server.key",
            "-out",
            "server.csr",
        ],
    );
    openssl(
        directory,
        &[
            "x509",
            "-req",
            "-in",
            "server.csr",
            "-CA",
            &ca.display().to_string(),
            "-CAkey",
            &ca_key.display().to_string(),
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            "names",
            "-out",
            "server.pem",
        ],
    );
    (directory.join("server.key"), directory.join("server.pem"))
}

fn openssl(directory: &Path, arguments: &[&str]) {
    let out = Command::new("openssl").args(arguments).current_dir(directory).output();
    let out = out.expect("openssl is installed");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
