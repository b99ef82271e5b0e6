//! A real server with TLS: what is accepted, and what is refused.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use latchwork_lock::Locks;
use sqlx::{Connection, PgConnection, Row};

use crate::refused;
use crate::support::backend::postgres::{admin, place};
use crate::support::certificates::{authority, expired, signed};
use crate::support::server::OwnServer;
use crate::support::{connect, eventually};

pub(crate) async fn certificates_are_checked() {
    let own = OwnServer::start("postgres");
    let files = tempfile::tempdir().expect("a directory");
    let (ca, other) = (authority(files.path(), "ca"), authority(files.path(), "no"));
    // For this name and not for 127.0.0.1.
    signed(files.path(), "server", "ca", "DNS:localhost");
    let plain = own.address.clone();
    refused(&format!("{plain}?sslmode=require"), "lock_backend", "offers no TLS").await;
    switch_on(&own, files.path()).await;
    let named = own.address.replace("127.0.0.1", "localhost");
    let (ca, other) = (ca.display(), other.display());

    let addresses = [
        (&own.address, "sslmode=require".to_owned()),
        (&own.address, format!("sslmode=require&sslrootcert={ca}")),
        (&own.address, format!("sslmode=verify-ca&sslrootcert={ca}")),
        (&named, format!("sslmode=verify-full&sslrootcert={ca}")),
    ];
    for (address, parameters) in addresses {
        assert!(is_encrypted(&own, address, &parameters).await, "not with {parameters}");
    }
    const UNKNOWN: &str = "not signed by an authority";
    for (address, parameters, why) in [
        // As psql does: who names an authority wants it checked.
        (&named, format!("sslmode=require&sslrootcert={other}"), UNKNOWN),
        (&named, format!("sslmode=verify-full&sslrootcert={other}"), UNKNOWN),
        (&named, format!("sslmode=verify-ca&sslrootcert={other}"), UNKNOWN),
        (&named, "sslmode=verify-full".to_owned(), UNKNOWN),
        (&own.address, format!("sslmode=verify-full&sslrootcert={ca}"), "for another host"),
    ] {
        refused(&format!("{address}?{parameters}"), "lock_backend", why).await;
    }
    let missing = format!("{named}?sslmode=verify-full&sslrootcert=/nowhere/ca.pem");
    refused(&missing, "invalid_argument", "sslrootcert").await;
    assert_eq!(place(&named).split(':').next(), Some("localhost"));
    // Nobody is forced.
    let plain = Locks::connect(&format!("{}?sslmode=disable", own.address)).await;
    plain.expect("without TLS").close().await;

    // The server takes some with TLS only, and others without.
    let hba = own.data().join("data/pg_hba.conf");
    let before = std::fs::read_to_string(&hba).expect("reads");
    for (rule, mode, encrypted) in
        [("hostssl", "allow", true), ("hostnossl", "allow", false), ("hostnossl", "prefer", false)]
    {
        let rules = before.replace("\nhost ", &format!("\n{rule} "));
        assert_ne!(rules, before);
        std::fs::write(&hba, format!("{rules}\nlocal all all trust\n")).expect("written");
        reload(&own, rule != "hostnossl", rule != "hostssl").await;
        let seen = is_encrypted(&own, &own.address, &format!("sslmode={mode}")).await;
        assert_eq!(seen, encrypted, "{rule}, {mode}");
    }
    std::fs::write(&hba, before).expect("written");
    reload(&own, true, true).await;

    expired(files.path(), "server", "ca", "DNS:localhost");
    switch_on(&own, files.path()).await;
    let late = format!("{named}?sslmode=verify-full&sslrootcert={ca}");
    eventually("the server has the new one", async || {
        Locks::connect(&late).await.is_err_and(|error| error.to_string().contains("has expired"))
    })
    .await;
    refused(&late, "lock_backend", "has expired").await;
}

/// Whether our connections are encrypted, as the server sees it.
async fn is_encrypted(own: &OwnServer, address: &str, parameters: &str) -> bool {
    let locks = connect(&format!("{address}?{parameters}&application_name=tls")).await;
    locks.lock("key").acquire().await.expect("free").release().await.expect("held");
    let mut admin = by_any_way(own).await;
    let seen = sqlx::raw_sql(
        "SELECT coalesce(bool_and(ssl), false) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
         WHERE application_name = 'tls'",
    );
    let seen = seen.fetch_one(&mut admin).await.expect("a row").try_get(0).expect("a truth");
    locks.close().await;
    drop(locks);
    eventually("these connections are gone", async || {
        let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tls'";
        let left: i64 = sqlx::query_scalar(left).fetch_one(&mut admin).await.expect("a number");
        left == 0
    })
    .await;
    seen
}

/// With TLS or without, as the server has it.
async fn by_any_way(own: &OwnServer) -> PgConnection {
    for mode in ["require", "disable"] {
        if let Ok(open) = PgConnection::connect(&format!("{}?sslmode={mode}", own.address)).await {
            return open;
        }
    }
    panic!("the server takes no connection");
}

/// Makes the server read its settings, and waits until it takes connections with TLS and without as
/// they say.
async fn reload(own: &OwnServer, with: bool, without: bool) {
    let mut admin = by_any_way(own).await;
    sqlx::raw_sql("SELECT pg_reload_conf()").execute(&mut admin).await.expect("told");
    let opens = async |mode| {
        PgConnection::connect(&format!("{}?sslmode={mode}", own.address)).await.is_ok()
    };
    eventually("it is as it was told", async || {
        opens("require").await == with && opens("disable").await == without
    })
    .await;
}

/// Gives the server a certificate, and waits until it uses one.
async fn switch_on(own: &OwnServer, files: &Path) {
    let data = own.data().join("data");
    let owner = std::fs::metadata(&data).expect("its own");
    for (from, name) in [("server.key", "server.key"), ("server.pem", "server.crt")] {
        let to = data.join(name);
        std::fs::copy(files.join(from), &to).expect("copied");
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o600)).expect("set");
        chown(&to, Some(owner.uid()), Some(owner.gid())).expect("given");
    }
    admin(&own.address, "ALTER SYSTEM SET ssl = on").await;
    admin(&own.address, "SELECT pg_reload_conf()").await;
    let address = format!("{}?sslmode=require", own.address);
    eventually("it speaks TLS", async || PgConnection::connect(&address).await.is_ok()).await;
}
