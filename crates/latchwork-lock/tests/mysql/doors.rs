//! What is refused, and in which words: addresses, strangers, rights.

use std::io::Write;
use std::net::TcpListener;

use latchwork_lock::{Locks, MySqlLockProvider};
use sqlx::Row;

use crate::open;
use crate::support::backend::mysql::{
    self, admin, database, place, test_database, test_database_in,
};
use crate::support::server::OwnServer;
use crate::support::{connect, secs};

pub(crate) async fn refused(address: &str, code: &str, word: &str) {
    let error = Locks::connect(address).await.expect_err(word);
    let text = error.to_string();
    assert_eq!(error.code(), code, "{text}");
    assert!(text.contains(word), "{text:?} should say {word:?}");
    assert!(!text.contains("hush") && !text.contains("127.0.0.1"), "it tells too much: {text}");
}

pub(crate) async fn bad_addresses_say_what_is_wrong() {
    let good = mysql::server().expect("looked at before");
    let place = place(&good);
    refused(&format!("mysql://latchwork:hush@{place}/latchwork"), "lock_backend", "password").await;
    refused(&format!("mysql://nobody:hush@{place}/latchwork"), "lock_backend", "password").await;
    let (base, _) = good.rsplit_once('/').expect("a database");
    refused(&format!("{base}/nowhere"), "lock_backend", "no such database").await;
    refused(base, "invalid_argument", "names no database").await;
    refused("mysql://u:hush@127.0.0.1:1/d", "lock_unavailable", "port").await;
    refused(&format!("mysql://u:hush@{place}/d?sslmod=x"), "invalid_argument", "sslmod").await;
    let maybe = format!("mysql://u:hush@{place}/d?ssl-mode=maybe");
    refused(&maybe, "invalid_argument", "VERIFY_IDENTITY").await;
    for open in ["mysql://u:hu@sh/d@h/d", "mysql://u:9/hush@h/d", "mysql://u:a#hush@h/d"] {
        refused(open, "invalid_argument", "%40").await;
    }
    let by_tls = format!("{good}?ssl-mode=REQUIRED");
    if speaks_tls(&good).await {
        connect(&by_tls).await;
    } else {
        refused(&by_tls, "lock_backend", "TLS").await;
    }
    // By its other name it is the same.
    let named = good.replacen("mysql:", "mariadb:", 1);
    assert_eq!(connect(&named).await.provider_name(), "mysql");
}

/// MySQL makes certificates for itself, MariaDB does so only lately.
async fn speaks_tls(address: &str) -> bool {
    let mut connection = open(address).await;
    let cipher = sqlx::raw_sql("SHOW STATUS LIKE 'Ssl_cipher'").fetch_one(&mut connection).await;
    !cipher.expect("it answers").try_get_unchecked::<String, _>(1).expect("text").is_empty()
}

/// One that speaks first, but not in MySQL's words, and one that waits for us to speak.
pub(crate) async fn another_kind_of_server_is_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.write_all(b"220 mail.example ESMTP\r\n");
        }
    });
    let other = format!("mysql://u:hush@127.0.0.1:{port}/d");
    refused(&other, "lock_unavailable", "another kind of server").await;

    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("bound").port();
    let other = format!("mysql://u:hush@127.0.0.1:{port}/d");
    refused(&other, "lock_unavailable", "another kind of server").await;
}

/// A user with a password of its own, and the address of a database for it.
pub(crate) async fn poor_user(address: &str) -> (String, String) {
    let name = format!("poor_{:x}", rand::random::<u64>());
    admin(address, &format!("CREATE USER {name}@'127.0.0.1' IDENTIFIED BY 'hush'")).await;
    let theirs = format!("mysql://{name}:hush@{}/{}", place(address), database(address));
    (format!("{name}@'127.0.0.1'"), theirs)
}

pub(crate) async fn a_user_without_rights_is_told_so() {
    let address = test_database().await;
    let (user, theirs) = poor_user(&address).await;
    refused(&theirs, "lock_backend", "right").await;
    let test_database = database(&address);
    admin(&address, &format!("GRANT SELECT ON {test_database}.* TO {user}")).await;
    refused(&theirs, "lock_backend", "right").await;

    // Who may only read gets no lease.
    connect(&address).await;
    let poor = connect(&theirs).await;
    let error = poor.lock("key").try_acquire().await.expect_err("it may not write");
    assert_eq!(error.code(), "lock_backend", "{error}");
    assert!(error.to_string().contains("right"), "{error}");
    assert!(poor.inspect("key").await.expect("it may read").holders.is_empty());

    // What is granted by the printed statements is enough, and no right to create is needed.
    admin(&address, &format!("REVOKE SELECT ON {test_database}.* FROM {user}")).await;
    admin(&address, &MySqlLockProvider::grants(&user.replace('\'', ""))).await;
    let modest = connect(&theirs).await;
    modest.lock("key").acquire().await.expect("a free key").release().await.expect("held");

    // With a part of it all would go well until somebody waits.
    for (right, table) in [
        ("DELETE", "latchwork_lock"),
        ("INSERT", "latchwork_lock_client"),
        ("UPDATE", "latchwork_lock_floor"),
    ] {
        admin(&address, &format!("REVOKE {right} ON {test_database}.{table} FROM {user}")).await;
        refused(&theirs, "lock_backend", &format!("{right} on {table}; let the owner")).await;
        admin(&address, &format!("GRANT {right} ON {test_database}.{table} TO {user}")).await;
    }
    connect(&theirs).await;
    admin(&address, &format!("DROP USER {user}")).await;
}

pub(crate) async fn a_read_only_server_is_refused() {
    let own = OwnServer::start("mariadb");
    let address = test_database_in(&own.address).await;
    let (user, theirs) = poor_user(&address).await;
    admin(&address, &format!("GRANT ALL ON {}.* TO {user}", database(&address))).await;
    let locks = connect(&theirs).await;
    let guard = locks.lock("key").ttl(secs(90)).acquire().await.expect("a free key");
    admin(&address, "SET GLOBAL read_only = 1").await;
    refused(&theirs, "lock_backend", "read-only").await;
    // Who was there before may wait for it to pass: a primary may be made a replica, and back.
    let error = locks.lock("other").try_acquire().await.expect_err("read-only");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
    assert_eq!(locks.inspect("key").await.expect("it may read").holders.len(), 1);
    admin(&address, "SET GLOBAL read_only = 0").await;
    guard.release().await.expect("held");
}
