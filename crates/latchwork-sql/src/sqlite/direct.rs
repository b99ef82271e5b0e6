//! A connection for callers that have a thread of their own for it.

use std::path::PathBuf;

use rusqlite::{Connection, OpenFlags};
use sqlx::Connection as _;

use super::error::{explain, explain_direct};
use super::open::Sqlite;
use crate::{Error, Result};

/// How to open the file without the driver's own thread, to which and back a call takes longer
/// than a transaction that need not be synced.
#[derive(Clone, Debug)]
pub struct Direct {
    file: PathBuf,
    synchronous: i64,
}

impl Sqlite {
    /// The same file, as durable as the other connections are. What else they were told is theirs.
    ///
    /// # Errors
    /// When the file can no longer be opened.
    pub async fn direct(&self) -> Result<Direct> {
        let file = std::path::absolute(self.file_name())
            .map_err(|e| Error::permanent("the file's path is none", Some(e.into())))?;
        let mut connection = self.connect().await?;
        let synchronous = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut connection).await;
        let _ = connection.close().await;
        Ok(Direct { file, synchronous: synchronous.map_err(explain)? })
    }
}

impl Direct {
    /// A connection that waits for nobody: the caller sets how long it does.
    ///
    /// # Errors
    /// When the file can no longer be opened.
    pub fn connect(&self) -> Result<Connection> {
        // It was made before. One thread has it at a time.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || {
            let connection = Connection::open_with_flags(&self.file, flags)?;
            connection.busy_timeout(std::time::Duration::ZERO)?;
            connection.pragma_update(None, "synchronous", self.synchronous)?;
            Ok(connection)
        };
        open().map_err(explain_direct)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqliteSynchronous};

    use crate::sqlite::{BEGIN, Options, Synchronous, is_busy};

    #[tokio::test]
    async fn it_is_as_durable_as_the_others() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut options = Options::at(dir.path().join("a.db"));
        for (synchronous, number) in [(Synchronous::Full, 2), (Synchronous::Normal, 1)] {
            options.synchronous = synchronous;
            let sqlite = Sqlite::open(&options).await.expect("opened");
            let connection = sqlite.direct().await.expect("a file").connect().expect("connected");
            let asked = |pragma| connection.pragma_query_value(None, pragma, |row| row.get(0));
            assert_eq!(asked("synchronous"), Ok(number));
            let mode = connection.pragma_query_value(None, "journal_mode", |row| row.get(0));
            assert_eq!(mode, Ok("wal".to_owned()));
        }
    }

    #[tokio::test]
    async fn it_is_as_durable_as_the_users_pool() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = SqliteConnectOptions::new().filename(dir.path().join("a.db"));
        let options = options.create_if_missing(true).synchronous(SqliteSynchronous::Extra);
        let pool = SqlitePool::connect_with(options).await.expect("a pool");
        let sqlite = Sqlite::from_pool(&pool).await.expect("its file");
        let connection = sqlite.direct().await.expect("a file").connect().expect("connected");
        let synchronous = connection.pragma_query_value(None, "synchronous", |row| row.get(0));
        assert_eq!(synchronous, Ok(3));
    }

    #[tokio::test]
    async fn its_errors_are_told_apart_like_the_drivers() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.db");
        let sqlite = Sqlite::open(&Options::at(&path)).await.expect("opened");
        let direct = sqlite.direct().await.expect("a file");
        let connection = direct.connect().expect("connected");
        let writing = sqlite.begin().await.expect("begun");
        let busy = explain_direct(connection.execute_batch(BEGIN).expect_err("another writes"));
        assert!(is_busy(&busy) && busy.fault == crate::Fault::Temporary, "{busy}");
        drop(writing);
        let wrong = explain_direct(connection.execute_batch("NONSENSE").expect_err("no SQL"));
        assert!(!is_busy(&wrong) && wrong.fault == crate::Fault::Permanent, "{wrong}");
        std::fs::remove_file(path).expect("removed");
        let gone = direct.connect().expect_err("no file is made");
        assert!(gone.message.contains("cannot be opened"), "{gone}");
    }
}
