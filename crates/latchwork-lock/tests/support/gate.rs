//! A store with a fence gate before it, named by an address, so that a child can write to it too.

use std::path::Path;

use latchwork_contract::torture::FileGate;
use latchwork_lock::{Fence, StaleFence};

/// Makes the store.
pub async fn prepare(place: &str) {
    match scheme(place) {
        #[cfg(feature = "sqlite")]
        "sqlite" => sqlite::prepare(place).await,
        #[cfg(feature = "postgres")]
        "postgres" => postgres::prepare(place).await,
        #[cfg(feature = "mysql")]
        "mysql" => mysql::prepare(place).await,
        _ => drop(file(place)),
    }
}

/// A user's write, guarded by the fence of the lease that it is made under; the code of the
/// refusal otherwise.
pub async fn write(place: &str, key: &str, fence: Fence) -> Result<(), &'static str> {
    match scheme(place) {
        #[cfg(feature = "sqlite")]
        "sqlite" => sqlite::write(place, key, fence).await.map_err(|_| StaleFence::CODE),
        #[cfg(feature = "postgres")]
        "postgres" => postgres::write(place, key, fence).await.map_err(|_| StaleFence::CODE),
        #[cfg(feature = "mysql")]
        "mysql" => mysql::write(place, key, fence).await.map_err(|_| StaleFence::CODE),
        _ => {
            let written = file(place).write(key, fence, 0, 0).expect("the gate can be written");
            written.map(drop).map_err(|_| StaleFence::CODE)
        }
    }
}

/// The fences of all writes that were let through, in order.
pub async fn written(place: &str, key: &str) -> Vec<Fence> {
    match scheme(place) {
        #[cfg(feature = "sqlite")]
        "sqlite" => sqlite::written(place).await,
        #[cfg(feature = "postgres")]
        "postgres" => postgres::written(place).await,
        #[cfg(feature = "mysql")]
        "mysql" => mysql::written(place).await,
        _ => {
            let log = file(place).log(key).expect("the gate can be read");
            log.iter().map(|line| line.fence).collect()
        }
    }
}

fn scheme(place: &str) -> &str {
    place.split_once(':').map_or("", |(scheme, _)| scheme)
}

/// For whatever has no gate of its own.
fn file(place: &str) -> FileGate {
    let directory = place.strip_prefix("file://").expect("a directory");
    FileGate::new(Path::new(directory)).expect("a directory")
}

const TABLE: &str = "CREATE TABLE written (fence bigint)";
const ALL: &str = "SELECT fence FROM written ORDER BY 1";

fn fences(numbers: Vec<i64>) -> Vec<Fence> {
    numbers.into_iter().map(|number| Fence::new(number.unsigned_abs())).collect()
}

fn number(fence: Fence) -> i64 {
    i64::try_from(fence.get()).expect("a fence")
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use latchwork_lock::{Fence, SqliteFenceGate, StaleFence};
    use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

    use super::{ALL, TABLE, fences, number};

    async fn pool(place: &str) -> SqlitePool {
        let options: SqliteConnectOptions = place.parse().expect("an address");
        SqlitePool::connect_with(options.create_if_missing(true)).await.expect("a pool")
    }

    pub(super) async fn prepare(place: &str) {
        let pool = pool(place).await;
        sqlx::raw_sql(SqliteFenceGate::SCHEMA).execute(&pool).await.expect("made");
        sqlx::raw_sql(TABLE).execute(&pool).await.expect("made");
        pool.close().await;
    }

    pub(super) async fn write(place: &str, key: &str, fence: Fence) -> Result<(), StaleFence> {
        let pool = pool(place).await;
        let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await.expect("begun");
        SqliteFenceGate::check(&mut transaction, key, fence).await.expect("asked")?;
        let write = sqlx::query("INSERT INTO written VALUES (?1)").bind(number(fence));
        write.execute(&mut *transaction).await.expect("written");
        transaction.commit().await.expect("committed");
        pool.close().await;
        Ok(())
    }

    pub(super) async fn written(place: &str) -> Vec<Fence> {
        let all = sqlx::query_scalar(ALL).fetch_all(&pool(place).await).await;
        fences(all.expect("read"))
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use latchwork_lock::{Fence, PostgresFenceGate, StaleFence};
    use sqlx::{Connection, PgConnection};

    use super::{ALL, TABLE, fences, number};

    async fn open(place: &str) -> PgConnection {
        PgConnection::connect(place).await.expect("the server is there")
    }

    pub(super) async fn prepare(place: &str) {
        let mut connection = open(place).await;
        sqlx::raw_sql(PostgresFenceGate::SCHEMA).execute(&mut connection).await.expect("made");
        sqlx::raw_sql(TABLE).execute(&mut connection).await.expect("made");
    }

    pub(super) async fn write(place: &str, key: &str, fence: Fence) -> Result<(), StaleFence> {
        let mut connection = open(place).await;
        let mut transaction = connection.begin().await.expect("begun");
        PostgresFenceGate::check(&mut transaction, key, fence).await.expect("asked")?;
        let write = sqlx::query("INSERT INTO written VALUES ($1)").bind(number(fence));
        write.execute(&mut *transaction).await.expect("written");
        transaction.commit().await.expect("committed");
        Ok(())
    }

    pub(super) async fn written(place: &str) -> Vec<Fence> {
        let all = sqlx::query_scalar(ALL).fetch_all(&mut open(place).await).await;
        fences(all.expect("read"))
    }
}

#[cfg(feature = "mysql")]
mod mysql {
    use latchwork_lock::{Fence, MySqlFenceGate, StaleFence};
    use sqlx::{Connection, MySqlConnection};

    use super::{ALL, TABLE, fences, number};

    async fn open(place: &str) -> MySqlConnection {
        MySqlConnection::connect(place).await.expect("the server is there")
    }

    pub(super) async fn prepare(place: &str) {
        let mut connection = open(place).await;
        sqlx::raw_sql(MySqlFenceGate::SCHEMA).execute(&mut connection).await.expect("made");
        sqlx::raw_sql(TABLE).execute(&mut connection).await.expect("made");
    }

    pub(super) async fn write(place: &str, key: &str, fence: Fence) -> Result<(), StaleFence> {
        let mut connection = open(place).await;
        let mut transaction = connection.begin().await.expect("begun");
        MySqlFenceGate::check(&mut transaction, key, fence).await.expect("asked")?;
        let write = sqlx::query("INSERT INTO written VALUES (?)").bind(number(fence));
        write.execute(&mut *transaction).await.expect("written");
        transaction.commit().await.expect("committed");
        Ok(())
    }

    pub(super) async fn written(place: &str) -> Vec<Fence> {
        let all = sqlx::query_scalar(ALL).fetch_all(&mut open(place).await).await;
        fences(all.expect("read"))
    }
}
