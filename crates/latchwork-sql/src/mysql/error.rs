//! The server's errors, told apart by number and never by text, which is translated.

use std::io;

use sqlx::Error as Driver;
use sqlx::mysql::MySqlDatabaseError;

use crate::{Error, Fault};

/// What went wrong and what to do. The message holds no part of the address: neither does the
/// driver's text, which names users and databases only inside the source.
pub fn explain(error: Driver) -> Error {
    let (fault, message) = verdict(&error);
    Error { fault, message, source: Some(error) }
}

/// Whether the transaction met another one, and the same may go well if it is tried again: a
/// deadlock, or a [lock that was waited for too long](is_timeout).
pub fn is_collision(error: &Driver) -> bool {
    matches!(number(error), Some(1213 | 1205))
}

/// Whether a lock was waited for too long. The transaction is still open then.
pub fn is_timeout(error: &Driver) -> bool {
    number(error) == Some(1205)
}

/// Whether the server has no connection left to open.
pub(super) fn is_full(error: &Driver) -> bool {
    matches!(number(error), Some(1040 | 1203 | 1226))
}

/// Whether there is no such table.
pub(super) fn is_missing_table(error: &Driver) -> bool {
    number(error) == Some(1146)
}

/// Whether a row with this key was there already.
pub fn is_duplicate(error: &Driver) -> bool {
    number(error) == Some(1062)
}

/// Whether the connection is gone. It may have died long before, so what was asked of it may not
/// have been heard.
pub fn is_broken(error: &Driver) -> bool {
    match error {
        // To ask the next one after a silence would take as long again.
        Driver::Io(io) => {
            !matches!(io.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::TimedOut)
        }
        _ => matches!(number(error), Some(1053 | 1927 | 1158..=1161 | 4031)),
    }
}

fn number(error: &Driver) -> Option<u16> {
    let told = error.as_database_error()?;
    Some(told.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

const NO_TLS: &str = "no TLS connection was made; check ssl-mode and ssl-ca, and the server's \
    certificate: who signed it, for which host, until when";

fn no_tls(error: &Driver) -> String {
    crate::tls::fault(error, "ssl-ca", "ssl-mode", "PREFERRED").unwrap_or_else(|| NO_TLS.into())
}

fn verdict(error: &Driver) -> (Fault, String) {
    use Fault::{Permanent, Temporary};
    match error {
        Driver::Database(_) => {
            let number = number(error).unwrap_or_default();
            let (fault, what) = by_number(number);
            (fault, format!("{what} (error {number})"))
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
            "the socket that the address names is not there; check that the server runs"
                .into(),
        ),
        Driver::Io(io) if io.kind() == io::ErrorKind::TimedOut => {
            (Temporary, "the server did not answer in time".into())
        }
        Driver::Io(io) => (Temporary, crate::error::connection_failed(io)),
        Driver::Protocol(_) => (
            Permanent,
            "the server that answered does not speak MySQL's protocol; check the host and the port".into(),
        ),
        Driver::Configuration(_) => (
            Permanent,
            "the address has a part that cannot be used, or the server wants a password to be sent \
             in a way that needs TLS; check the parameters, and say ssl-mode=REQUIRED"
                .into(),
        ),
        Driver::PoolClosed => (Permanent, "the pool was closed".into()),
        Driver::WorkerCrashed | Driver::BeginFailed => {
            (Temporary, "the connection was left in a state that cannot be used".into())
        }
        _ => (Permanent, "the answer was not understood".into()),
    }
}

fn by_number(number: u16) -> (Fault, &'static str) {
    use Fault::{Permanent, Temporary};
    match number {
        1045 | 1698 | 1251 | 1524 => (
            Permanent,
            "the server refused the user or the password; check both, and from which hosts the \
             user may come",
        ),
        1130 => (
            Permanent,
            "the server accepts no connection from this host; check the user's host part",
        ),
        1129 => (Temporary, "the server blocks this host after many failures; say FLUSH HOSTS"),
        1049 => (Permanent, "there is no such database; create it, or name another"),
        1044 | 1142 | 1143 | 1227 | 1370 => (
            Permanent,
            "the user lacks a right; the tables of Latchwork need CREATE on the database the first \
             time, then SELECT, INSERT, UPDATE and DELETE",
        ),
        1290 | 1792 | 1836 => {
            (Temporary, "the server is read-only, as a replica is; name the primary")
        }
        1146 | 1054 | 1136 => (
            Permanent,
            "a table of Latchwork is missing or of another version; was it dropped, or another \
             database named?",
        ),
        1665 => (
            Permanent,
            "the server logs statements only (binlog_format = STATEMENT), which READ COMMITTED \
             cannot do; set it to ROW or MIXED",
        ),
        1205 => (Temporary, "another transaction has kept the row locked for too long"),
        1213 => (Temporary, "the transaction collided with another"),
        1040 | 1203 | 1226 => (
            Temporary,
            "the server has no connection left for this user; raise max_connections or \
             max_user_connections, or make the pools smaller",
        ),
        1053 | 1927 | 1317 | 4031 => {
            (Temporary, "the server is stopping, or has ended the connection")
        }
        1158..=1161 => (Temporary, "the connection broke"),
        1047 => (Temporary, "this node of the cluster is not ready"),
        1969 | 3024 => (Temporary, "the statement took longer than the server lets it"),
        1021 | 1037 | 1038 | 1041 | 1114 | 1180 => {
            (Temporary, "the server is out of a resource (disk, memory)")
        }
        1064 | 1193 | 1305 => (
            Permanent,
            "the server does not know a statement; it is too old, or another kind of server",
        ),
        _ => (Permanent, "the server refused"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_by_itself_is_temporary() {
        for number in [1205, 1213, 1040, 1203, 1053, 1927, 1290, 1047, 1161] {
            assert_eq!(by_number(number).0, Fault::Temporary, "{number}");
        }
        for number in [1045, 1049, 1142, 1146, 1064, 1665, 1406, 0] {
            assert_eq!(by_number(number).0, Fault::Permanent, "{number}");
        }
    }
}
