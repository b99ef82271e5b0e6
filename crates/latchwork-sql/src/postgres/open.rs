//! From an address to a pool that is known to work.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, Row};

use super::{JobConnection, explain, in_time};
use crate::{Error, Result};

/// The oldest server that is tested for: 12 is what the oldest supported distributions have.
const OLDEST: i32 = 12;

/// How a pool is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The most connections that the pool opens.
    pub max_connections: u32,
    /// How long to wait for a connection, new or free.
    pub acquire_timeout: Duration,
    /// What the server shows of us in `pg_stat_activity`, unless the address says something.
    pub application_name: &'static str,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_connections: 10,
            acquire_timeout: Duration::from_secs(5),
            application_name: "latchwork",
        }
    }
}

/// What was found out about the server.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Server {
    /// Whether a pooler stands between that lends sessions for the length of a transaction, as
    /// pgbouncer does. Then prepared statements must not outlive a transaction, and LISTEN must
    /// not be said at all: the notices would reach whoever has the session then, and the
    /// driver takes such a surprise for a broken protocol.
    pub lends_sessions: bool,
}

/// The parameters that an address may have; the driver would log another one with its value.
const PARAMETERS: [&str; 19] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
    "options[search_path]",
];

/// Those of them that name a file.
const FILES: [&str; 7] =
    ["sslrootcert", "ssl-root-cert", "ssl-ca", "sslcert", "ssl-cert", "sslkey", "ssl-key"];

/// What an address says, with our defaults.
///
/// # Errors
/// Permanent, and without the address, which may hold a password.
pub fn options(address: &str, settings: &Settings) -> Result<PgConnectOptions> {
    let url = url::Url::parse(address)
        .map_err(|e| Error::permanent(format!("it is no address ({e})"), None))?;
    if let Some((name, _)) = url.query_pairs().find(|(name, _)| !PARAMETERS.contains(&&**name)) {
        return Err(Error::permanent(
            format!("postgres: knows no parameter {name:?}; there are {}", PARAMETERS.join(", ")),
            None,
        ));
    }
    crate::error::check_files(&url, &FILES)?;
    let options = PgConnectOptions::from_str(address).map_err(explain)?;
    // pgbouncer refuses this parameter at the start, and no float is ever read.
    let options = options.extra_float_digits(None);
    Ok(match options.get_application_name() {
        Some(_) => options,
        None => options.application_name(settings.application_name),
    })
}

/// Opens a pool and [checks](check) the server.
///
/// # Errors
/// Temporary when the server did not answer; permanent when it is not one that can be used.
pub async fn open(options: PgConnectOptions, settings: &Settings) -> Result<(PgPool, Server)> {
    let pool = PgPoolOptions::new()
        .max_connections(settings.max_connections)
        .acquire_timeout(settings.acquire_timeout)
        // It would cost a round trip each time; who begins a transaction notices anyhow.
        .test_before_acquire(false)
        .connect_lazy_with(options);
    let server = check(&pool).await?;
    Ok((pool, server))
}

/// Refuses a server that is too old, of another kind, or read-only.
///
/// # Errors
/// As for [`open`].
pub async fn check(pool: &PgPool) -> Result<Server> {
    // A pool goes on trying to connect until its timeout and then tells only that; one try of our
    // own tells what is wrong.
    let options = pool.connect_options();
    let (mut own, row) = in_time(async {
        let mut own = options.connect().await?;
        // The simple protocol and one statement: the same through any pooler.
        let row = sqlx::raw_sql(
            "SELECT current_setting('server_version_num')::int / 10000, \
             pg_is_in_recovery() OR current_setting('transaction_read_only')::bool, \
             version() LIKE 'PostgreSQL %'",
        );
        let row = row.fetch_one(&mut own).await?;
        Ok((own, row))
    })
    .await
    .map_err(explain)?;
    let told = (|| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))();
    let (version, read_only, genuine) = told.map_err(explain)?;
    judge(version, read_only, genuine)?;
    let lends_sessions = in_time(lends_sessions(&mut own, pool)).await.map_err(explain)?;
    in_time(own.close()).await.map_err(explain)?;
    Ok(Server { lends_sessions })
}

/// Whether such a server can be used.
fn judge(version: i32, read_only: bool, genuine: bool) -> Result<()> {
    let refused = match () {
        () if !genuine => {
            "it speaks PostgreSQL's protocol but is another kind of server; name a real one".into()
        }
        () if version < OLDEST => format!(
            "the server is PostgreSQL {version}, and {OLDEST} is the oldest that serves; upgrade it"
        ),
        () if read_only => "the server is read-only, as a replica is; name the primary \
             (and check default_transaction_read_only)"
            .into(),
        () => return Ok(()),
    };
    Err(Error::permanent(refused, None))
}

/// Whether two connections of ours were ever served by one session, or one by two. Asked more than
/// once, since a busy pooler may happen to look honest.
async fn lends_sessions(own: &mut PgConnection, pool: &PgPool) -> sqlx::Result<bool> {
    const WHO: &str = "SELECT pg_backend_pid()";
    let mut first = None;
    // One for all rounds: to give one back takes a while, and a server may have few.
    let mut line = JobConnection::open(pool).await?;
    for _ in 0..4 {
        let mine: i32 = sqlx::raw_sql(WHO).fetch_one(&mut *own).await?.try_get(0)?;
        let mut tx = line.begin().await?;
        let other: i32 = sqlx::raw_sql(WHO).fetch_one(&mut *tx).await?.try_get(0)?;
        let again: i32 = sqlx::raw_sql(WHO).fetch_one(&mut *own).await?.try_get(0)?;
        let ended = tx.rollback().await;
        line.mark_answered(&ended);
        ended?;
        if other == mine || again != mine || *first.get_or_insert(mine) != mine {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fault;

    #[test]
    fn servers_that_cannot_serve_are_refused_with_what_to_do() {
        judge(OLDEST, false, true).expect("the oldest that serves");
        for (server, hint) in [
            ((OLDEST - 1, false, true), "12 is the oldest"),
            ((15, true, true), "name the primary"),
            ((13, false, false), "another kind of server"),
        ] {
            let error = judge(server.0, server.1, server.2).expect_err(hint);
            assert_eq!(error.fault, Fault::Permanent);
            assert!(error.to_string().contains(hint), "{error}");
        }
    }
}
