//! A real server with TLS: what is accepted, and what is refused.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use crate::doors::refused;
use crate::support::backend::mysql::{admin, place};
use crate::support::certificates::{authority, expired, signed};
use crate::support::server::OwnServer;
use crate::support::{Signal, connect};

pub(crate) async fn certificates_are_checked() {
    let mut own = OwnServer::start("mariadb");
    let files = tempfile::tempdir().expect("a directory");
    let (ca, other) = (authority(files.path(), "ca"), authority(files.path(), "other"));
    // For this name and not for 127.0.0.1.
    signed(files.path(), "server", "ca", "DNS:localhost");
    switch_on(&mut own, files.path());
    // The server lets this user in by TLS only.
    admin(&own.address, "CREATE USER tls@'127.0.0.1' IDENTIFIED BY 'hush' REQUIRE SSL").await;
    admin(&own.address, "GRANT ALL ON latchwork.* TO tls@'127.0.0.1'").await;
    let address = format!("mysql://tls:hush@{}/latchwork", place(&own.address));
    let named = address.replace("127.0.0.1", "localhost");

    let (ca, other) = (ca.display(), other.display());
    for (address, parameters) in [
        (&address, "".to_owned()),
        (&address, "?ssl-mode=REQUIRED".to_owned()),
        (&address, format!("?ssl-mode=VERIFY_CA&ssl-ca={ca}")),
        (&named, format!("?ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}")),
    ] {
        let locks = connect(&format!("{address}{parameters}")).await;
        locks.lock("key").acquire().await.expect("free").release().await.expect("held");
        locks.close().await;
    }
    // Permanent, so that nobody waits for it to pass. Who names an authority wants it checked.
    const UNKNOWN: &str = "not signed by an authority";
    for (address, parameters, why) in [
        (&named, format!("?ssl-ca={other}"), UNKNOWN),
        (&named, format!("?ssl-mode=REQUIRED&ssl-ca={other}"), UNKNOWN),
        (&named, format!("?ssl-mode=VERIFY_CA&ssl-ca={other}"), UNKNOWN),
        (&named, format!("?ssl-mode=VERIFY_IDENTITY&ssl-ca={other}"), UNKNOWN),
        (&named, "?ssl-mode=VERIFY_IDENTITY".to_owned(), UNKNOWN),
        (&address, format!("?ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"), "for another host"),
    ] {
        refused(&format!("{address}{parameters}"), "lock_backend", why).await;
    }
    // By the socket there is no host to check, and no way that somebody could listen to.
    let socket = own.data().join("mysqld.sock");
    if socket.exists() {
        let by_socket = format!("mysql://root@localhost/latchwork?socket={}", socket.display());
        connect(&by_socket).await.close().await;
    }
    refused(&format!("{address}?ssl-mode=DISABLED"), "lock_backend", "password").await;
    // Nobody else is forced.
    connect(&format!("{}?ssl-mode=DISABLED", own.address)).await.close().await;
    expired(files.path(), "server", "ca", "DNS:localhost");
    switch_on(&mut own, files.path());
    let late = format!("{named}?ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}");
    refused(&late, "lock_backend", "has expired").await;
}

/// Gives the server a certificate, and starts it anew.
fn switch_on(own: &mut OwnServer, files: &Path) {
    own.end(Signal::TERM);
    let owner = std::fs::metadata(own.data()).expect("its own");
    for name in ["server.key", "server.pem"] {
        let to = own.data().join(name);
        std::fs::copy(files.join(name), &to).expect("copied");
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o600)).expect("set");
        chown(&to, Some(owner.uid()), Some(owner.gid())).expect("given");
    }
    own.up();
}
