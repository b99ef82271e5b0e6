use std::path::Path;
use std::time::Duration;

use latchwork_lock::SqliteFenceGate;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
};
use sqlx::{ConnectOptions as _, Connection as _};

use super::error::failed;
use super::{error, record, schema};
use crate::application::Result;
use crate::application::ports::{
    CaptureRepository, Changes, Fences, PaymentRepository, TransferRepository, UnitOfWork,
};
use crate::domain::{Capture, IdempotencyKey, Payment, PaymentId, Transfer};

/// Keeps everything in an SQLite file.
///
/// The fences are checked in the transaction that they guard, so that no other process comes in
/// between.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    /// One, since SQLite has one writer at a time: who waits for it waits here and not in a loop.
    writer: SqlitePool,
    readers: SqlitePool,
}

/// A writer from the first statement on: one that begins as a reader may find at its first write
/// that it cannot become one.
const BEGIN: &str = "BEGIN IMMEDIATE";

impl SqliteStore {
    /// Opens a file, and makes it and its tables where they are missing. A lock provider may live
    /// in the same one.
    ///
    /// # Errors
    /// When the file is none that can be used.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        const READERS: u32 = 4;
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(5))
            .foreign_keys(true);
        let pool = |size| SqlitePoolOptions::new().max_connections(size);
        let store = SqliteStore {
            writer: pool(1).connect_lazy_with(options.clone()),
            readers: pool(READERS).connect_lazy_with(options.clone()),
        };
        let opened = async {
            first_look(&options).await?;
            let mut tx = store.writer.begin_with(BEGIN).await?;
            sqlx::raw_sql(schema::SCHEMA).execute(&mut *tx).await?;
            sqlx::raw_sql(SqliteFenceGate::SCHEMA).execute(&mut *tx).await?;
            tx.commit().await
        };
        opened.await.map_err(error::not_opened(path.as_ref()))?;
        Ok(store)
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

/// Makes the file and turns its log on. That needs the file alone and does not wait for it, so who
/// opens a new file together with others tries again.
async fn first_look(options: &SqliteConnectOptions) -> sqlx::Result<()> {
    const TRIES: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(25);
    let options = options.clone().busy_timeout(PAUSE);
    let mut tries = 0;
    loop {
        tries += 1;
        match options.connect().await {
            Ok(connection) => return connection.close().await,
            Err(error) if error::is_temporary(&error) && tries < TRIES => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

impl PaymentRepository for SqliteStore {
    async fn payment(&self, id: PaymentId) -> Result<Option<Payment>> {
        let row: Option<record::PaymentRow> = sqlx::query_as(
            "SELECT amount_cents, currency, state, capture_expires_at, captured_cents
             FROM payments WHERE id = ?1",
        )
        .bind(id.to_string())
        .fetch_optional(&self.readers)
        .await
        .map_err(failed("reading a payment"))?;
        row.map(|row| record::payment(id, row)).transpose()
    }
}

impl CaptureRepository for SqliteStore {
    async fn capture_by_key(
        &self,
        payment: PaymentId,
        key: &IdempotencyKey,
    ) -> Result<Option<Capture>> {
        let row: Option<record::CaptureRow> = sqlx::query_as(
            "SELECT idempotency_key, id, amount_cents, captured_at
             FROM captures WHERE payment_id = ?1 AND idempotency_key = ?2",
        )
        .bind(payment.to_string())
        .bind(key.as_str())
        .fetch_optional(&self.readers)
        .await
        .map_err(failed("reading a capture"))?;
        row.map(|row| record::capture(payment, row)).transpose()
    }

    async fn captures_of(&self, payment: PaymentId) -> Result<Vec<Capture>> {
        let rows: Vec<record::CaptureRow> = sqlx::query_as(
            "SELECT idempotency_key, id, amount_cents, captured_at
             FROM captures WHERE payment_id = ?1 ORDER BY captured_at",
        )
        .bind(payment.to_string())
        .fetch_all(&self.readers)
        .await
        .map_err(failed("reading captures"))?;
        rows.into_iter().map(|row| record::capture(payment, row)).collect()
    }
}

impl TransferRepository for SqliteStore {
    async fn transfer_by_key(
        &self,
        from: PaymentId,
        key: &IdempotencyKey,
    ) -> Result<Option<Transfer>> {
        let row: Option<record::TransferRow> = sqlx::query_as(
            "SELECT id, to_payment_id, amount_cents, transferred_at
             FROM transfers WHERE from_payment_id = ?1 AND idempotency_key = ?2",
        )
        .bind(from.to_string())
        .bind(key.as_str())
        .fetch_optional(&self.readers)
        .await
        .map_err(failed("reading a transfer"))?;
        row.map(|row| record::transfer(from, key, row)).transpose()
    }
}

impl UnitOfWork for SqliteStore {
    async fn advance(&self, fences: &Fences) -> Result<()> {
        self.commit(fences, Changes::default()).await
    }

    async fn commit(&self, fences: &Fences, changes: Changes) -> Result<()> {
        const DURING: &str = "saving";
        let mut tx = self.writer.begin_with(BEGIN).await.map_err(failed(DURING))?;
        for (key, fence) in fences.iter() {
            SqliteFenceGate::check(&mut tx, key, fence).await??;
        }
        write(&mut tx, changes).await.map_err(failed(DURING))?;
        tx.commit().await.map_err(failed(DURING))
    }
}

async fn write(tx: &mut SqliteConnection, changes: Changes) -> sqlx::Result<()> {
    for payment in changes.payments {
        let data = payment.data();
        sqlx::query(
            "INSERT INTO payments
                 (id, amount_cents, currency, state, capture_expires_at, captured_cents)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (id) DO UPDATE SET amount_cents = ?2, currency = ?3, state = ?4,
                 capture_expires_at = ?5, captured_cents = ?6",
        )
        .bind(data.id.to_string())
        .bind(data.amount.cents())
        .bind(data.currency.to_string())
        .bind(data.state.as_str())
        .bind(data.capture_expires_at.map(record::text))
        .bind(data.captured.map(|amount| amount.cents()))
        .execute(&mut *tx)
        .await?;
    }
    for capture in changes.captures {
        sqlx::query(
            "INSERT INTO captures (payment_id, idempotency_key, id, amount_cents, captured_at)
             VALUES (?1, ?2, ?3, ?4, ?5)",
        )
        .bind(capture.payment_id.to_string())
        .bind(capture.idempotency_key.as_str())
        .bind(capture.id.to_string())
        .bind(capture.amount.cents())
        .bind(record::text(capture.captured_at))
        .execute(&mut *tx)
        .await?;
    }
    for transfer in changes.transfers {
        sqlx::query(
            "INSERT INTO transfers
                 (from_payment_id, idempotency_key, id, to_payment_id, amount_cents, transferred_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )
        .bind(transfer.from.to_string())
        .bind(transfer.idempotency_key.as_str())
        .bind(transfer.id.to_string())
        .bind(transfer.to.to_string())
        .bind(transfer.amount.cents())
        .bind(record::text(transfer.transferred_at))
        .execute(&mut *tx)
        .await?;
    }
    Ok(())
}
