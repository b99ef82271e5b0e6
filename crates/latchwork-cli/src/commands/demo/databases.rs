//! The chapters in a database: the same promises, and the gate beside the data.

use std::path::Path;

use latchwork::Locks;
use latchwork::lock::provider::Token;
use latchwork::lock::{Fence, Lease, StaleFence};

use super::processes::count_to_five;
use super::transcript::Transcript;
use crate::exit::Failure;

/// In a file that processes share. Whether a write with a fence would pass is asked of the gate,
/// in a transaction that is then committed or not.
#[cfg(feature = "sqlite")]
pub(super) async fn in_sqlite(
    transcript: &mut Transcript,
    directory: &Path,
) -> Result<(), Failure> {
    use latchwork::lock::SqliteFenceGate;
    use sqlx::sqlite::SqliteConnectOptions;
    use sqlx::{ConnectOptions, Connection};

    transcript.section(
        "In a database file",
        "SQLite: the locks beside the data, for all processes of a machine.",
    );
    let file = directory.join("app.db");
    let address = format!("sqlite://{}", file.display());
    demonstrate(transcript, &address, directory, async |key, fence| {
        let options = SqliteConnectOptions::new().filename(&file);
        let mut own = options.connect().await.map_err(failed)?;
        let mut transaction = own.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
        let passed = SqliteFenceGate::check(&mut transaction, key, fence).await?;
        match &passed {
            Ok(()) => transaction.commit().await.map_err(failed)?,
            Err(_) => transaction.rollback().await.map_err(failed)?,
        }
        Ok(passed)
    })
    .await
}

/// On a server that machines share.
#[cfg(feature = "postgres")]
pub(super) async fn in_postgres(
    transcript: &mut Transcript,
    address: &str,
    directory: &Path,
) -> Result<(), Failure> {
    use latchwork::lock::PostgresFenceGate;
    use sqlx::{Connection, PgConnection};

    transcript.section(
        "In PostgreSQL",
        "The same between machines. It uses keys of its own, and leaves its tables (latchwork_…).",
    );
    demonstrate(transcript, address, directory, async |key, fence| {
        let mut own = PgConnection::connect(address).await.map_err(failed)?;
        let mut transaction = own.begin().await.map_err(failed)?;
        let passed =
            PostgresFenceGate::check(&mut transaction, key, fence).await.map_err(failed)?;
        match &passed {
            Ok(()) => transaction.commit().await.map_err(failed)?,
            Err(_) => transaction.rollback().await.map_err(failed)?,
        }
        Ok(passed)
    })
    .await
}

/// The same, in MariaDB or MySQL.
#[cfg(feature = "mysql")]
pub(super) async fn in_mysql(
    transcript: &mut Transcript,
    address: &str,
    directory: &Path,
) -> Result<(), Failure> {
    use latchwork::lock::MySqlFenceGate;
    use sqlx::{Connection, MySqlConnection};

    transcript.section(
        "In MariaDB or MySQL",
        "The same between machines. It uses keys of its own, and leaves its tables (latchwork_…).",
    );
    demonstrate(transcript, address, directory, async |key, fence| {
        let mut own = MySqlConnection::connect(address).await.map_err(failed)?;
        let mut transaction = own.begin().await.map_err(failed)?;
        let passed = MySqlFenceGate::check(&mut transaction, key, fence).await.map_err(failed)?;
        match &passed {
            Ok(()) => transaction.commit().await.map_err(failed)?,
            Err(_) => transaction.rollback().await.map_err(failed)?,
        }
        Ok(passed)
    })
    .await
}

async fn demonstrate(
    transcript: &mut Transcript,
    address: &str,
    directory: &Path,
    write: impl AsyncFn(&str, Fence) -> Result<Result<(), StaleFence>, Failure>,
) -> Result<(), Failure> {
    // Before the processes: so the tables are there, and a bad address is told once.
    let locks = latchwork::connect(address).await?;
    // Nobody else's, also where the database is somebody's.
    let key = format!("latchwork-demo-{:032x}", Token::random().expose());
    let counted = count_to_five(directory, address, &key)?;
    transcript.promise(
        &format!("five processes add one to a number under the lock: {counted}"),
        counted == "5",
    )?;
    let ana = locks.lock(&key).acquire().await?;
    let old = ana.fence();
    let stored = ana.into_lease().await?;
    locks.close().await;
    drop(locks);
    let resumed = resumed_by_another(transcript, address, &key, stored).await?;
    transcript.promise(
        "a transaction with the new fence passes the gate",
        write(&key, resumed).await?.is_ok(),
    )?;
    transcript.promise(
        "a late one with Ana's fence is refused, and rolled back",
        write(&key, old).await?.is_err(),
    )
}

/// Ana's program ends, the lease does not; the fence of who goes on with it.
async fn resumed_by_another(
    transcript: &mut Transcript,
    address: &str,
    key: &str,
    stored: Lease,
) -> Result<Fence, Failure> {
    let locks: Locks = latchwork::connect(address).await?;
    let taken = locks.lock(key).try_acquire().await?.is_none();
    transcript.promise("Ana's connection is gone, and her lease is still there", taken)?;
    let old = stored.fence;
    let ben = locks.resume(stored).await?;
    let fence = ben.fence();
    transcript.promise("Ben resumes it, with a higher fence", fence > old)?;
    ben.release().await?;
    locks.close().await;
    Ok(fence)
}

fn failed(error: sqlx::Error) -> Failure {
    // Its text may name the address.
    let _ = error;
    Failure::internal("the demonstration failed: the database did not answer as it should")
}
