//! The server's errors, told apart by SQLSTATE and never by text, which is translated.

use std::io;

use sqlx::Error as Driver;

use super::is_silence;
use crate::{Error, Fault};

/// What went wrong and what to do. The message holds no part of the address: neither does the
/// driver's text, which names users and databases only inside the source.
pub fn explain(error: Driver) -> Error {
    let (fault, message) = verdict(&error);
    Error { fault, message, source: Some(error) }
}

/// Whether statements of others were found where ours should be, as behind a pooler that lends
/// sessions. Nothing was done then.
pub fn is_mixed_up(error: &Driver) -> bool {
    let told = error.as_database_error().and_then(|told| told.code());
    matches!(told.as_deref(), Some("26000" | "42P05"))
}

/// Whether the connection is gone, perhaps long before it was used, so that what was asked of it may
/// not have been heard. Silence is none: a server that does not answer on one connection will not on
/// another.
pub fn is_broken(error: &Driver) -> bool {
    match error {
        silent if is_silence(silent) => false,
        Driver::Io(io) => io.kind() != io::ErrorKind::ConnectionRefused,
        Driver::Database(told) => {
            matches!(told.code().as_deref(), Some("57P01" | "57P02" | "08006" | "08003"))
                || is_unheard(error)
        }
        _ => false,
    }
}

/// Whether the session was ended because it idled, before it heard what was asked of it. So nothing
/// was done, and the same can be asked on another connection.
pub fn is_unheard(error: &Driver) -> bool {
    let Some(told) = error.as_database_error() else { return false };
    match told.code().as_deref() {
        Some("57P05") => true,
        Some("08P01") => told.message() == CLIENT_IDLE,
        _ => false,
    }
}

/// What pgbouncer says before it ends a connection that has idled for its `client_idle_timeout`.
const CLIENT_IDLE: &str = "client_idle_timeout";

const NO_TLS: &str = "no TLS connection was made; check sslmode and sslrootcert, and the server's \
    certificate: who signed it, for which host, until when";

fn no_tls(error: &Driver) -> String {
    crate::tls::fault(error, "sslrootcert", "sslmode", "prefer").unwrap_or_else(|| NO_TLS.into())
}

fn verdict(error: &Driver) -> (Fault, String) {
    use Fault::{Permanent, Temporary};
    match error {
        Driver::Database(told) => {
            let code = told.code().unwrap_or_default();
            let pooler = (code == "08P01").then(|| by_pooler(told.message())).flatten();
            let (fault, what) = pooler.unwrap_or_else(|| by_code(&code));
            (fault, format!("{what} (SQLSTATE {code})"))
        }
        Driver::PoolTimedOut => (
            Temporary,
            "no connection became free in time; the server is slow, or the pool too small".into(),
        ),
        Driver::Io(io) if io.kind() == io::ErrorKind::ConnectionRefused => (
            Temporary,
            "no server listens there; check the host and the port, and that the server runs".into(),
        ),
        Driver::Tls(_) => (Permanent, no_tls(error)),
        // What rustls has against a certificate comes as this.
        Driver::Io(io) if io.kind() == io::ErrorKind::InvalidData => (Permanent, no_tls(error)),
        Driver::Io(io) if io.kind() == io::ErrorKind::NotFound => (
            Temporary,
            "the socket that the address names is not there; check that the server runs".into(),
        ),
        Driver::Io(io) if io.kind() == io::ErrorKind::TimedOut => {
            (Temporary, "the server did not answer in time".into())
        }
        Driver::Io(io) => (Temporary, crate::error::connection_failed(io)),
        Driver::Protocol(_) => (
            Permanent,
            "the server that answered does not speak PostgreSQL's protocol; check the host and the port"
                .into(),
        ),
        Driver::Configuration(_) => {
            (Permanent, "the address has a part that cannot be used; check its parameters".into())
        }
        Driver::PoolClosed => (Permanent, "the pool was closed".into()),
        Driver::WorkerCrashed | Driver::BeginFailed => {
            (Temporary, "the connection was left in a state that cannot be used".into())
        }
        _ => (Permanent, "the answer was not understood".into()),
    }
}

/// What pgbouncer refuses by itself has one code for all, at least before 1.21; its text is never
/// translated.
fn by_pooler(message: &str) -> Option<(Fault, &'static str)> {
    use Fault::{Permanent, Temporary};
    let begins = |starts: &[&str]| starts.iter().any(|start| message.starts_with(start));
    Some(match () {
        // In the server's own words, which the pooler passes on.
        () if begins(&["password authentication failed for user"]) => (
            Permanent,
            "the server behind the pooler refused the user or the password that the pooler has for it",
        ),
        () if begins(&["password authentication failed", "SASL authentication failed"])
            || begins(&["no such user"]) =>
        {
            (
                Permanent,
                "the pooler refused the user or the password; check both, and its auth_file or auth_query",
            )
        }
        () if begins(&["no such database", "database \""]) => (
            Permanent,
            "the pooler knows no such database, or the server behind it has none; create it, or name \
             another",
        ),
        () if begins(&["SSL required"]) => (
            Permanent,
            "the pooler demands TLS; write sslmode=require, or verify-full and sslrootcert",
        ),
        () if begins(&["transaction blocks not allowed in statement pooling mode"]) => (
            Permanent,
            "the pooler lends the server for one statement at a time, and an edit is a transaction; set \
             its pool_mode to transaction or session",
        ),
        () if begins(&[CLIENT_IDLE]) => (
            Temporary,
            "the pooler has ended the connection, which has idled for its client_idle_timeout",
        ),
        () if begins(&["query_wait_timeout"]) => (
            Temporary,
            "the pooler had no connection to the server in time: its pool is too small for its clients \
             (default_pool_size, query_wait_timeout), or it cannot log in at the server (see its log)",
        ),
        () if begins(&["no more connections allowed"]) => (
            Temporary,
            "the pooler takes no more clients; raise its max_client_conn, or use fewer connections",
        ),
        () if begins(&["server login", "pgbouncer cannot connect", "server conn crashed"]) => (
            Temporary,
            "the pooler cannot reach the server behind it, or not log in there; see its log",
        ),
        () => return None,
    })
}

fn by_code(code: &str) -> (Fault, &'static str) {
    use Fault::{Permanent, Temporary};
    match code {
        "28P01" | "28000" => {
            (Permanent, "the server refused the user or the password; check both, and pg_hba.conf")
        }
        "3D000" => (Permanent, "there is no such database; create it, or name another"),
        "3F000" => (Permanent, "there is no such schema; create it, or change the search_path"),
        "42501" => (
            Permanent,
            "the user lacks a right; the tables of Latchwork need CREATE on the schema the first \
             time, then SELECT, INSERT, UPDATE and DELETE, and USAGE, SELECT and UPDATE on the \
             sequences, and EXECUTE on the functions; `latchwork locks schema --role NAME` prints \
             what locks need",
        ),
        "25006" => (
            Temporary,
            "the server is read-only, as a replica is; name the primary \
             (and check default_transaction_read_only)",
        ),
        "42P01" | "42883" | "42703" => (
            Permanent,
            "a table of Latchwork is missing or of another version; was it dropped, or the \
             search_path changed?",
        ),
        "26000" | "42P05" => (
            Permanent,
            "prepared statements got mixed up, as behind pgbouncer in transaction mode; add \
             statement-cache-capacity=0 to the address",
        ),
        "55P03" => (Temporary, "another transaction has kept the key locked for too long"),
        "25P03" => (Temporary, "this process was too slow in the middle of an edit"),
        "40001" | "40P01" => (Temporary, "the transaction collided with another"),
        "53300" => (
            Temporary,
            "no connection is left: of the server (max_connections), or of the role or the database \
             (their CONNECTION LIMIT); raise that, or put pgbouncer before it",
        ),
        "57P01" | "57P02" | "57P03" => (Temporary, "the server is starting or stopping"),
        "57P05" => (
            Temporary,
            "the server has ended the connection, which has idled for its idle_session_timeout",
        ),
        "57014" => (Temporary, "the statement was cancelled, perhaps by statement_timeout"),
        _ => match code.get(..2).unwrap_or_default() {
            "08" => (Temporary, "the connection broke"),
            "53" => (Temporary, "the server is out of a resource (disk, memory, connections)"),
            "58" | "XX" => (Temporary, "the server has an inner fault; see its log"),
            "28" => (Permanent, "the server refused the user"),
            _ => (Permanent, "the server refused"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pooler_refuses_is_told_from_a_broken_connection() {
        for message in [
            "SASL authentication failed",
            "no such user",
            "no such database: x",
            "transaction blocks not allowed in statement pooling mode",
        ] {
            assert_eq!(by_pooler(message).map(|told| told.0), Some(Fault::Permanent), "{message}");
        }
        for message in [
            "server login has been failing, try again later",
            "pgbouncer cannot connect to server",
            "client_idle_timeout",
            "query_wait_timeout",
            "no more connections allowed (max_client_conn)",
        ] {
            assert_eq!(by_pooler(message).map(|told| told.0), Some(Fault::Temporary), "{message}");
        }
        assert_eq!(by_pooler("server conn crashed?").map(|told| told.0), Some(Fault::Temporary));
        assert_eq!(by_pooler("something new"), None);
    }

    #[test]
    fn what_passes_by_itself_is_temporary() {
        for code in ["08006", "53300", "57P01", "57P03", "40001", "40P01", "25006", "55P03"] {
            assert_eq!(by_code(code).0, Fault::Temporary, "{code}");
        }
        for code in ["28P01", "3D000", "42501", "42P01", "26000", "22001", ""] {
            assert_eq!(by_code(code).0, Fault::Permanent, "{code}");
        }
    }
}
