//! From an address to a pool that is known to work.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::str::FromStr;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions, MySqlSslMode};
use sqlx::{ConnectOptions, Connection, Executor, Row};

use super::{explain, in_time};
use crate::{Error, Result};

/// The oldest servers that are meant to work: what the oldest supported distributions have.
const OLDEST_MARIADB: (u32, u32) = (10, 5);
const OLDEST_MYSQL: (u32, u32) = (8, 0);

/// How a pool is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The most connections that the pool opens.
    pub max_connections: u32,
    /// How long to wait for a connection, new or free.
    pub acquire_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { max_connections: 10, acquire_timeout: Duration::from_secs(5) }
    }
}

/// The parameters that an address may have; the driver would pass over another one in silence.
const PARAMETERS: [&str; 10] = [
    "ssl-mode",
    "sslmode",
    "ssl-ca",
    "sslca",
    "ssl-cert",
    "sslcert",
    "ssl-key",
    "sslkey",
    "statement-cache-capacity",
    "socket",
];

/// Those of them that name a file.
const FILES: [&str; 6] = ["ssl-ca", "sslca", "ssl-cert", "sslcert", "ssl-key", "sslkey"];

/// What an address says: `mysql://user:password@host:port/database?ssl-mode=VERIFY_IDENTITY`.
///
/// # Errors
/// Permanent, and without the address, which may hold a password.
pub fn options(address: &str) -> Result<MySqlConnectOptions> {
    let url = url::Url::parse(address)
        .map_err(|e| Error::permanent(format!("it is no address ({e})"), None))?;
    if let Some((name, _)) = url.query_pairs().find(|(name, _)| !PARAMETERS.contains(&&**name)) {
        return Err(Error::permanent(
            format!("mysql: knows no parameter {name:?}; there are {}", PARAMETERS.join(", ")),
            None,
        ));
    }
    if url.path().trim_matches('/').is_empty() {
        return Err(Error::permanent(
            "it names no database; write mysql://user@host/database",
            None,
        ));
    }
    let value = |names: [&str; 2]| {
        url.query_pairs().find(|(name, _)| names.contains(&&**name)).map(|(_, value)| value)
    };
    let mode = value(["ssl-mode", "sslmode"]);
    if mode.as_ref().is_some_and(|mode| MySqlSslMode::from_str(mode).is_err()) {
        // What stands there may be a part of a password.
        let message = "mysql: knows no such ssl-mode; there are DISABLED, PREFERRED, REQUIRED, VERIFY_CA \
             and VERIFY_IDENTITY";
        return Err(Error::permanent(message, None));
    }
    crate::error::check_files(&url, &FILES)?;
    let mut options = MySqlConnectOptions::from_str(address).map_err(explain)?;
    if url.password().is_none()
        && let Ok(password) = std::env::var("MYSQL_PWD")
    {
        options = options.password(&password);
    }
    // An authority that is named is one to be checked: as MySQL does where no mode is named, and also
    // where TLS is only required. Nobody names one to have it ignored.
    let is_open =
        matches!(options.get_ssl_mode(), MySqlSslMode::Preferred | MySqlSslMode::Required);
    if is_open && value(["ssl-ca", "sslca"]).is_some() {
        options = options.ssl_mode(MySqlSslMode::VerifyCa);
    }
    // A socket is on this machine: TLS there is only what somebody asks for, as MySQL has it.
    if mode.is_none() && options.get_socket().is_some() {
        options = options.ssl_mode(MySqlSslMode::Disabled);
    }
    Ok(options)
}

/// Said on every new connection: each statement sees what was committed before it, is a
/// transaction of its own unless one was begun, waits for a lock for a bounded time, and means what it
/// says whatever dialect the server has for others (`sql_mode=ORACLE`).
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
    SET SESSION autocommit = 1, SESSION innodb_lock_wait_timeout = 4, \
    SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'";

/// Opens a pool and [checks](check) the server.
///
/// # Errors
/// Temporary when the server did not answer; permanent when it is not one that can be used.
pub async fn open(options: MySqlConnectOptions, settings: &Settings) -> Result<MySqlPool> {
    let pool = MySqlPoolOptions::new()
        .max_connections(settings.max_connections)
        .acquire_timeout(settings.acquire_timeout)
        // It would cost a round trip each time; who begins a transaction notices anyhow.
        .test_before_acquire(false)
        .after_connect(|connection, _| {
            Box::pin(async move { connection.execute(sqlx::raw_sql(SESSION)).await.map(drop) })
        })
        .connect_lazy_with(options);
    check_for(&pool, true).await?;
    Ok(pool)
}

/// A pool of so many connections of its own to the server of another one, opened when they are needed.
///
/// For what must go on while all connections of a pool are in use, or while the runtime that drives
/// them is blocked: a lease is renewed also then.
pub fn separate(pool: &MySqlPool, connections: u32) -> MySqlPool {
    let options = pool.options().clone().min_connections(0).max_connections(connections);
    options.connect_lazy_with(MySqlConnectOptions::clone(&pool.connect_options()))
}

const KIND: &str = "check that it is MariaDB or MySQL, and not another kind of server";

/// Refuses a server that is too old, of another kind, read-only, or set up so that nothing of ours
/// could work.
///
/// # Errors
/// As for [`open`].
pub async fn check(pool: &MySqlPool) -> Result<()> {
    check_for(pool, false).await
}

/// `sets_up` tells whether each session of the pool says what it needs.
async fn check_for(pool: &MySqlPool, sets_up: bool) -> Result<()> {
    // A pool goes on trying to connect until its timeout and then tells only that; one try of our
    // own tells what is wrong.
    let options = pool.connect_options();
    let wait = pool.options().get_acquire_timeout();
    let mut own = tokio::time::timeout(wait, options.connect())
        .await
        // A server of this kind speaks first; others wait for us to, or end it soon.
        .map_err(|_| Error::temporary(format!("the server did not answer in time; {KIND}"), None))?
        .map_err(|error| match error {
            sqlx::Error::Io(ref io) if io.kind() == ErrorKind::UnexpectedEof => {
                let message = format!("the server has ended the connection; {KIND}");
                Error::temporary(message, Some(error))
            }
            error => explain(error),
        })?;
    let rows = in_time(own.fetch_all(sqlx::raw_sql(VARIABLES))).await.map_err(explain)?;
    in_time(own.close()).await.map_err(explain)?;
    let mut found = HashMap::new();
    for row in &rows {
        let read = |at| row.try_get_unchecked::<String, _>(at).map_err(explain);
        found.insert(read(0)?.to_ascii_lowercase(), read(1)?);
    }
    if sets_up {
        found.remove("sql_mode");
    }
    judge(|name| found.get(name).map_or("", String::as_str))
}

/// By name, since not every kind and version has all of them.
const VARIABLES: &str = "SHOW SESSION VARIABLES WHERE Variable_name IN \
    ('version', 'version_comment', 'read_only', 'super_read_only', 'innodb_read_only', \
     'tx_read_only', 'transaction_read_only', 'log_bin', 'binlog_format', 'autocommit', 'sql_mode')";

fn judge<'a>(variable: impl Fn(&str) -> &'a str) -> Result<()> {
    let refuse = |message: String| Err(Error::permanent(message, None));
    let is_on = |name: &str| matches!(variable(name), "ON" | "1");
    let version = variable("version");
    let mariadb = version.contains("MariaDB") || variable("version_comment").contains("MariaDB");
    let (kind, oldest) =
        if mariadb { ("MariaDB", OLDEST_MARIADB) } else { ("MySQL", OLDEST_MYSQL) };
    let mut parts = version.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if found < oldest {
        return refuse(format!(
            "the server is {kind} {}.{}, and {}.{} is the oldest that serves",
            found.0, found.1, oldest.0, oldest.1
        ));
    }
    const READ_ONLY: [&str; 5] = [
        "read_only",
        "super_read_only",
        "innodb_read_only",
        "tx_read_only",
        "transaction_read_only",
    ];
    if let Some(name) = READ_ONLY.into_iter().find(|name| is_on(name)) {
        return refuse(format!(
            "the server is read-only ({name} is on), as a replica is; name the primary"
        ));
    }
    if is_on("log_bin") && variable("binlog_format").eq_ignore_ascii_case("STATEMENT") {
        return refuse(
            "the server logs statements only (binlog_format = STATEMENT), which READ COMMITTED \
             cannot do; set it to ROW or MIXED"
                .into(),
        );
    }
    if variable("sql_mode").contains("ORACLE") {
        return refuse(
            "sql_mode is ORACLE, in which statements mean something else; set another one for the \
             sessions of this pool"
                .into(),
        );
    }
    if !is_on("autocommit") {
        return refuse(
            "autocommit is off for new sessions, so nothing would ever be committed; switch it on \
             (look for init_connect, too)"
                .into(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn told(variables: &[(&'static str, &'static str)]) -> Result<()> {
        let all = [("version", "10.11.6-MariaDB"), ("autocommit", "ON")];
        judge(|name| {
            let known = variables.iter().chain(&all).find(|(known, _)| *known == name);
            known.map_or("", |(_, value)| value)
        })
    }

    #[test]
    fn servers_that_cannot_be_used_are_refused_with_the_reason() {
        told(&[]).expect("MariaDB");
        told(&[("version", "8.0.11")]).expect("MySQL");
        told(&[("version", "8.4.2-debug")]).expect("MySQL");
        for (variable, word) in [
            (("version", "10.4.1-MariaDB-log"), "oldest"),
            (("version", "5.7.44-log"), "oldest"),
            (("version", "garbage"), "oldest"),
            (("read_only", "ON"), "read-only"),
            (("tx_read_only", "ON"), "read-only"),
            (("autocommit", "OFF"), "autocommit"),
            (("sql_mode", "PIPES_AS_CONCAT,ORACLE,NO_KEY_OPTIONS"), "sql_mode"),
        ] {
            let error = told(&[variable]).expect_err(word);
            assert!(error.message.contains(word), "{error}");
        }
        told(&[("binlog_format", "STATEMENT")]).expect("there is no log");
        let error = told(&[("binlog_format", "STATEMENT"), ("log_bin", "ON")]).expect_err("a log");
        assert!(error.message.contains("MIXED"), "{error}");
    }

    #[test]
    fn an_address_is_looked_at_before_anybody_is_asked() {
        options("mysql://me:hush@host/db?ssl-mode=REQUIRED").expect("an address");
        options("mariadb://me@host/db").expect("an address");
        for bad in [
            "nothing",
            "mysql://me:hush@host",
            "mysql://me:hush@host/db?sslmod=REQUIRED",
            "mysql://me:hush@host/db?ssl-ca=/there/is/no/such/file",
        ] {
            let error = options(bad).expect_err(bad);
            assert!(!error.message.contains("hush"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_address_is_read_or_refused_without_its_password(
            user in "[a-z]{0,3}",
            host in "[a-z0-9.:\\[\\]@,-]{0,12}",
            path in "[/a-z%0-9]{0,8}",
            name in "(ssl-mode|charset|socket|[a-z]{1,4})(\\[[a-z_]{0,6}\\])?",
            value in "[ -~]{0,10}",
        ) {
            let address = format!("mysql://{user}:hushhush@{host}/{path}?{name}={value}");
            if let Err(error) = options(&address) {
                prop_assert!(!error.to_string().contains("hushhush"), "{error}");
            }
        }

        #[test]
        fn any_text_is_an_address_or_an_error(text in "(mysql:)?\\PC{0,40}") {
            let address = text;
            drop(options(&address));
        }
    }
}
