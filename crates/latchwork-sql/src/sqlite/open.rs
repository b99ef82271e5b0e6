//! From a file to connections.

use std::fs;
use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, Sqlite as Driver, Transaction};

use super::error::explain;
use super::network;
use super::options::{Options, Synchronous};
use crate::{Error, Fault, Result};

/// How every write begins: as a writer from the first statement on.
pub const BEGIN: &str = "BEGIN IMMEDIATE";

/// How long a writer waits for another one.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

const READERS: u32 = 4;

/// An open database: one writer and a few readers, which never wait for it.
#[derive(Clone, Debug)]
pub struct Sqlite {
    options: SqliteConnectOptions,
    /// Which file that was, whatever is found under its name later.
    file: Option<Identity>,
    writer: SqlitePool,
    readers: SqlitePool,
}

impl Sqlite {
    /// Opens a file, and makes it where it is missing and the options allow it.
    ///
    /// # Errors
    /// When the file is none that can be used; the message says what to do.
    pub async fn open(options: &Options) -> Result<Self> {
        check(options)?;
        // A later change of the working directory must not change the database.
        let path = std::path::absolute(&options.path)
            .map_err(|e| Error::permanent("the file's path is none", Some(e.into())))?;
        if !options.allow_network {
            network::refuse(&path)?;
        }
        if options.create {
            // SQLite would make it writable for its owner only; its other files get the rights of this
            // one. So the umask decides, as it does for other files, and a group can share a directory.
            // What is there already stays as it is, and what fails here SQLite itself explains.
            let _ = fs::OpenOptions::new().write(true).create_new(true).open(&path);
        }
        let synchronous = match options.synchronous {
            Synchronous::Full => SqliteSynchronous::Full,
            Synchronous::Normal => SqliteSynchronous::Normal,
        };
        let connect = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(options.create)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(synchronous)
            .busy_timeout(BUSY_TIMEOUT)
            .foreign_keys(true)
            .disable_statement_logging();
        Self::with(connect).await
    }

    /// The database of the user's own pool, over connections of our own with the pool's settings:
    /// so neither takes the other's connections.
    ///
    /// # Errors
    /// When it is a database in memory, or cannot be opened once more.
    pub async fn from_pool(pool: &SqlitePool) -> Result<Self> {
        let options = (*pool.connect_options()).clone();
        let file = options.get_filename();
        if file.as_os_str().is_empty()
            || file.to_string_lossy().contains("memory") && !file.exists()
        {
            return Err(Error::permanent(
                "the pool's database is in memory, where no other connection sees it; use a file",
                None,
            ));
        }
        Self::with(options.disable_statement_logging()).await
    }

    async fn with(options: SqliteConnectOptions) -> Result<Self> {
        first_look(&options).await?;
        let pool = |size| {
            // A file does not go away as a server does: nothing to test and nothing to renew.
            SqlitePoolOptions::new()
                .max_connections(size)
                .test_before_acquire(false)
                .idle_timeout(None)
                .max_lifetime(None)
                .connect_lazy_with(options.clone())
        };
        let file = identity(options.get_filename());
        Ok(Sqlite { file, writer: pool(1), readers: pool(READERS), options })
    }

    pub(super) fn file_name(&self) -> &Path {
        self.options.get_filename()
    }

    /// The same file over connections of its own.
    ///
    /// # Errors
    /// When the file can no longer be opened.
    pub async fn again(&self) -> Result<Self> {
        self.still_there()?;
        Self::with(self.options.clone()).await
    }

    /// A connection that belongs to the caller alone.
    ///
    /// # Errors
    /// When the file can no longer be opened.
    pub async fn connect(&self) -> Result<SqliteConnection> {
        self.options.connect().await.map_err(explain)
    }

    /// A write transaction, on the one writer.
    ///
    /// # Errors
    /// When another process keeps writing for longer than the timeout.
    pub async fn begin(&self) -> Result<Transaction<'static, Driver>> {
        self.writer.begin_with(BEGIN).await.map_err(explain)
    }

    /// For a change that is one statement, which needs no transaction around it.
    pub fn writer(&self) -> &SqlitePool {
        &self.writer
    }

    /// Whether the open file is still the one that others find under its name. SQLite goes on with
    /// a file that was removed, and so would not see later processes.
    ///
    /// # Errors
    /// When it was moved, removed or replaced.
    pub fn still_there(&self) -> Result<()> {
        if self.file == identity(self.options.get_filename()) {
            return Ok(());
        }
        Err(Error::permanent(
            "the database file was moved, removed or replaced while it was open; stop all programs \
             that use it and start them again",
            None,
        ))
    }

    /// For reading.
    pub fn readers(&self) -> &SqlitePool {
        &self.readers
    }

    /// Closes all connections; the last one tidies up the log.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

/// Device and number.
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Elsewhere an open file cannot be removed.
#[cfg(not(unix))]
fn identity(_: &Path) -> Option<Identity> {
    None
}

/// What SQLite itself would say less clearly.
fn check(options: &Options) -> Result<()> {
    let wrong = |message: &str| Err(Error::permanent(message, None));
    match fs::metadata(&options.path) {
        Ok(found) if found.is_dir() => wrong("it is a directory; name a file in it"),
        Ok(found) if found.permissions().readonly() => {
            wrong("the file is read-only; let this user write it, or name another one")
        }
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let parent = options.path.parent().filter(|p| !p.as_os_str().is_empty());
            if !parent.unwrap_or(Path::new(".")).is_dir() {
                return wrong("the file's directory does not exist; make it first");
            }
            if !options.create {
                return wrong("the file does not exist, and mode=rw makes none; write mode=rwc");
            }
            Ok(())
        }
        Err(e) => {
            let message = format!("the file cannot be read ({e}); check its permissions");
            Err(Error::permanent(message, Some(e.into())))
        }
    }
}

/// Opens once and reads, so that what is wrong is told now. Turning the log on needs the file
/// alone and does not wait for it, so it is tried again while others open it too.
async fn first_look(options: &SqliteConnectOptions) -> Result<()> {
    const TRIES: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(25);
    // As often as that, it must not also wait long each time.
    let options = options.clone().busy_timeout(PAUSE);
    let mut tries = 0;
    loop {
        tries += 1;
        match probe(&options).await {
            Err(error) if error.fault == Fault::Temporary && tries < TRIES => {
                tokio::time::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

async fn probe(options: &SqliteConnectOptions) -> Result<()> {
    let mut connection = options.connect().await.map_err(explain)?;
    let read = sqlx::query("SELECT count(*) FROM sqlite_schema").fetch_one(&mut connection).await;
    let _ = connection.close().await;
    read.map(|_| ()).map_err(explain)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn number(sqlite: &Sqlite, pragma: &'static str) -> i64 {
        let mut connection = sqlite.connect().await.expect("connected");
        sqlx::query_scalar(pragma).fetch_one(&mut connection).await.expect("a number")
    }

    #[tokio::test]
    async fn it_is_opened_as_it_is_said() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut options = Options::at(dir.path().join("a.db"));
        let sqlite = Sqlite::open(&options).await.expect("opened");
        let mut connection = sqlite.connect().await.expect("connected");
        let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
            .fetch_one(&mut connection)
            .await
            .expect("one");
        assert_eq!(mode, "wal");
        assert_eq!(number(&sqlite, "PRAGMA synchronous").await, 2, "FULL");
        assert_eq!(number(&sqlite, "PRAGMA foreign_keys").await, 1);
        assert_eq!(number(&sqlite, "PRAGMA busy_timeout").await, 5_000);
        options.synchronous = Synchronous::Normal;
        let sqlite = Sqlite::open(&options).await.expect("opened");
        assert_eq!(number(&sqlite, "PRAGMA synchronous").await, 1, "NORMAL");
    }

    #[tokio::test]
    async fn readers_do_not_wait_for_a_writer_and_writers_do() {
        let dir = tempfile::tempdir().expect("a directory");
        let sqlite = Sqlite::open(&Options::at(dir.path().join("a.db"))).await.expect("opened");
        let mut writing = sqlite.begin().await.expect("begun");
        sqlx::raw_sql("CREATE TABLE latchwork_x (x)").execute(&mut *writing).await.expect("made");
        sqlx::query("SELECT 1").fetch_one(sqlite.readers()).await.expect("read");
        let mut other = sqlite.connect().await.expect("connected");
        sqlx::raw_sql("PRAGMA busy_timeout = 1").execute(&mut other).await.expect("set");
        let busy = other.begin_with(BEGIN).await.map(|_| ()).map_err(explain).expect_err("busy");
        assert_eq!(busy.fault, Fault::Temporary);
        writing.commit().await.expect("committed");
        drop(other.begin_with(BEGIN).await.expect("free"));
    }

    #[tokio::test]
    async fn a_file_that_went_is_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.db");
        let sqlite = Sqlite::open(&Options::at(&path)).await.expect("opened");
        sqlite.still_there().expect("there");
        fs::rename(&path, dir.path().join("b.db")).expect("moved");
        assert_eq!(sqlite.still_there().expect_err("moved").fault, Fault::Permanent);
    }
}
