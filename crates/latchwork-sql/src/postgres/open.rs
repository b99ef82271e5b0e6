//! From an address to a pool that is known to work.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection, Row};

use tokio::time::timeout;

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
    /// Whether a pooler stands between that may lend sessions for the length of a transaction, as
    /// pgbouncer does. Then prepared statements must not outlive a transaction, and LISTEN must
    /// not be used at all: the notifications would reach the client that has the session then, and the
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
    for (_, mode) in url.query_pairs().filter(|(name, _)| matches!(&**name, "sslmode" | "ssl-mode"))
    {
        if PgSslMode::from_str(&mode).is_err() {
            // What stands there may be a part of a password.
            let message = "postgres: knows no such sslmode; there are disable, allow, prefer, require, \
                 verify-ca and verify-full";
            return Err(Error::permanent(message, None));
        }
    }
    crate::error::check_files(&url, &FILES)?;
    let mut options = PgConnectOptions::from_str(address).map_err(explain)?;
    // As libpq does: an authority that is named is one to be checked.
    let names_authority = url
        .query_pairs()
        .any(|(name, _)| matches!(&*name, "sslrootcert" | "ssl-root-cert" | "ssl-ca"));
    if matches!(options.get_ssl_mode(), PgSslMode::Require) && names_authority {
        options = options.ssl_mode(PgSslMode::VerifyCa);
    }
    // pgbouncer refuses this parameter at the start, and no float is ever read.
    let options = options.extra_float_digits(None);
    Ok(match options.get_application_name() {
        Some(_) => options,
        None => options.application_name(settings.application_name),
    })
}

/// Compiling a plan to machine code is for queries that run for minutes: one that claims a thousand of very
/// many rows has an estimate which makes the server compile it for seconds, each time.
fn without_jit(options: PgConnectOptions) -> PgConnectOptions {
    options.options([("jit", "off")])
}

/// Opens a pool and [checks](check) the server.
///
/// # Errors
/// Temporary when the server did not answer; permanent when it is not one that can be used.
pub async fn open(options: PgConnectOptions, settings: &Settings) -> Result<(PgPool, Server)> {
    let mark = Mark::new();
    let pool = PgPoolOptions::new()
        .max_connections(settings.max_connections)
        .acquire_timeout(settings.acquire_timeout)
        // It would cost a round trip each time; who begins a transaction notices anyhow.
        .test_before_acquire(false)
        .connect_lazy_with(mark.on(without_jit(options.clone())));
    let mut modes = ssl_modes(options.get_ssl_mode()).iter().peekable();
    let (mut connection, is_refused) = loop {
        let options = match modes.next() {
            Some(mode) => options.clone().ssl_mode(*mode),
            None => options.clone(),
        };
        pool.set_connect_options(mark.on(without_jit(options.clone())));
        let opened = match first(&pool).await {
            Err(error) if is_unknown_parameter(&error) => {
                pool.set_connect_options(options);
                first(&pool).await.map(|connection| (connection, true))
            }
            opened => opened.map(|connection| (connection, false)),
        };
        match opened {
            Err(error) if modes.peek().is_some() && wants_other_mode(&error) => {}
            opened => break opened.map_err(explain)?,
        }
    };
    let asked = in_time(server_facts(&mut connection)).await;
    connection.mark_answered(&asked);
    let found = judge(asked.map_err(explain)?)?;
    // The next who asks the pool is given this connection.
    connection.return_to_pool().await;
    Ok((pool, Server { lends_sessions: is_refused || found != mark.0 }))
}

/// The modes that are tried one after the other, as libpq does; the driver knows no second try.
fn ssl_modes(mode: PgSslMode) -> &'static [PgSslMode] {
    match mode {
        PgSslMode::Allow => &[PgSslMode::Disable, PgSslMode::Require],
        PgSslMode::Prefer => &[PgSslMode::Prefer, PgSslMode::Disable],
        PgSslMode::Disable => &[PgSslMode::Disable],
        PgSslMode::Require => &[PgSslMode::Require],
        PgSslMode::VerifyCa => &[PgSslMode::VerifyCa],
        PgSslMode::VerifyFull => &[PgSslMode::VerifyFull],
    }
}

/// Whether a server refuses a connection that it may accept with TLS, or without: by its `pg_hba.conf`,
/// or as a pooler.
fn wants_other_mode(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|told| match told.code().as_deref() {
        Some("28000") => true,
        Some("08P01") => told.message().starts_with("SSL required"),
        _ => false,
    })
}

/// A pool of so many connections of its own to the server of another one, opened when they are needed.
///
/// For what must go on while all connections of a pool are in use, or while the runtime that drives
/// them is blocked: a lease is renewed also then.
pub fn separate(pool: &PgPool, connections: u32) -> PgPool {
    let options = pool.options().clone().min_connections(0).max_connections(connections);
    options.connect_lazy_with(PgConnectOptions::clone(&pool.connect_options()))
}

/// How long a pool may take for its first connection before a try of our own finds out why.
const FIRST: Duration = Duration::from_millis(50);

/// The first connection of a pool. A pool goes on trying to connect until its timeout and then tells
/// only that; one try of our own tells what is wrong.
async fn first(pool: &PgPool) -> sqlx::Result<JobConnection> {
    let mut opening = std::pin::pin!(JobConnection::open(pool));
    match timeout(FIRST, &mut opening).await {
        Ok(opened) => opened,
        Err(_) => {
            let connected = in_time(pool.connect_options().connect()).await?;
            in_time(connected.close()).await?;
            opening.await
        }
    }
}

/// A setting with a random value that a connection starts with: only a session that was opened for
/// this connection has it.
///
/// pgbouncer refuses a start with such a setting, or ignores it where it was told to. So it takes no
/// second connection to find out that the session is not ours. A pooler in session mode is treated as
/// one that lends, which is safe.
struct Mark(String);

impl Mark {
    const NAME: &str = "latchwork.session";

    fn new() -> Self {
        Mark(format!("{:016x}", rand::random::<u64>()))
    }

    fn on(&self, options: PgConnectOptions) -> PgConnectOptions {
        options.options([(Self::NAME, &self.0)])
    }
}

/// Whether a pooler does not know a setting that the connection starts with.
fn is_unknown_parameter(error: &sqlx::Error) -> bool {
    let told = error.as_database_error();
    told.is_some_and(|told| {
        told.code().as_deref() == Some("08P01")
            && told.message().starts_with("unsupported startup parameter")
    })
}

/// Refuses a server that is too old, of another kind, or read-only.
///
/// # Errors
/// As for [`open`].
pub async fn check(pool: &PgPool) -> Result<Server> {
    // On a connection of our own: those of the caller's pool have no mark.
    let mark = Mark::new();
    let options = PgConnectOptions::clone(&pool.connect_options());
    let (mut own, is_refused) = match in_time(mark.on(options.clone()).connect()).await {
        Err(error) if is_unknown_parameter(&error) => {
            (in_time(options.connect()).await.map_err(explain)?, true)
        }
        opened => (opened.map_err(explain)?, false),
    };
    let found = judge(in_time(server_facts(&mut own)).await.map_err(explain)?)?;
    in_time(own.close()).await.map_err(explain)?;
    Ok(Server { lends_sessions: is_refused || found != mark.0 })
}

/// What a server says of itself.
struct About {
    version: i32,
    read_only: bool,
    genuine: bool,
    /// The [`Mark`] of the session, or nothing.
    mark: String,
}

async fn server_facts(connection: &mut PgConnection) -> sqlx::Result<About> {
    // The simple protocol and one statement: the same through any pooler.
    let row = sqlx::raw_sql(
        "SELECT current_setting('server_version_num')::int / 10000, \
         pg_is_in_recovery() OR current_setting('transaction_read_only')::bool, \
         version() LIKE 'PostgreSQL %', coalesce(current_setting('latchwork.session', true), '')",
    );
    let row = row.fetch_one(connection).await?;
    Ok(About {
        version: row.try_get(0)?,
        read_only: row.try_get(1)?,
        genuine: row.try_get(2)?,
        mark: row.try_get(3)?,
    })
}

/// Refuses a server that cannot be used; gives the mark of the session.
fn judge(About { version, read_only, genuine, mark }: About) -> Result<String> {
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
        () => return Ok(mark),
    };
    Err(Error::permanent(refused, None))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Fault;

    #[test]
    fn servers_that_cannot_serve_are_refused_with_what_to_do() {
        let about = |version, read_only, genuine| About {
            version,
            read_only,
            genuine,
            mark: "mark".to_owned(),
        };
        assert_eq!(judge(about(OLDEST, false, true)).expect("the oldest that serves"), "mark");
        for (server, hint) in [
            (about(OLDEST - 1, false, true), "12 is the oldest"),
            (about(15, true, true), "name the primary"),
            (about(13, false, false), "another kind of server"),
        ] {
            let error = judge(server).expect_err(hint);
            assert_eq!(error.fault, Fault::Permanent);
            assert!(error.to_string().contains(hint), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_address_is_read_or_refused_without_its_password(
            user in "[a-z]{0,3}",
            host in "[a-z0-9.:\\[\\]@,-]{0,12}",
            path in "[/a-z%0-9]{0,8}",
            name in "(sslmode|application_name|options|host|[a-z]{1,4})(\\[[a-z_]{0,6}\\])?",
            value in "[ -~]{0,10}",
        ) {
            let address = format!("postgres://{user}:hushhush@{host}/{path}?{name}={value}");
            if let Err(error) = options(&address, &Settings::default()) {
                prop_assert!(!error.to_string().contains("hushhush"), "{error}");
            }
        }

        #[test]
        fn any_text_is_an_address_or_an_error(text in "(postgres:)?\\PC{0,40}") {
            let address = text;
            drop(options(&address, &Settings::default()));
        }
    }
}
