//! Drains a queue with awa, and prints jobs per second, and bytes of WAL and transactions per job:
//! `latchwork-peer-awa JOBS WORKERS URL`. The clock stops when the last completion is stored, which is
//! asked of the database.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use awa::{Client, InsertOpts, JobArgs, JobResult, JobState, QueueConfig};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};

#[derive(Serialize, Deserialize, JobArgs)]
struct Noop {
    n: u64,
    body: String,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let told: Vec<String> = std::env::args().skip(1).collect();
    let [jobs, workers, url] = &told[..] else { return Err("JOBS WORKERS URL".into()) };
    let (jobs, workers): (u64, u32) = (jobs.parse()?, workers.parse()?);
    let pool = PgPoolOptions::new().max_connections(workers.min(30) + 8).connect(url).await?;
    awa::migrations::run(&pool).await?;
    let body = "x".repeat(1000);
    let options = || InsertOpts { queue: "noop".into(), ..Default::default() };
    for from in (0..jobs).step_by(1000) {
        let some: Result<Vec<_>, _> = (from..jobs.min(from + 1000))
            .map(|n| {
                awa::awa_model::insert::params_with(&Noop { n, body: body.clone() }, options())
            })
            .collect();
        awa::insert_many_copy_from_pool(&pool, &some?).await?;
    }
    sqlx::raw_sql("VACUUM ANALYZE").execute(&pool).await?;
    sqlx::raw_sql("CHECKPOINT").execute(&pool).await?;
    let before = cost(&pool).await?;
    let done = Arc::new(AtomicU64::new(0));
    let counted = done.clone();
    let client = Client::builder(pool.clone())
        .queue("noop", QueueConfig { max_workers: workers, ..Default::default() })
        .register::<Noop, _, _>(move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { Ok(JobResult::Completed) }
        })
        .build()?;
    let begin = Instant::now();
    client.start().await?;
    while done.load(Ordering::Relaxed) < jobs {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while completed(&pool).await? < jobs {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let rate = jobs as f64 / begin.elapsed().as_secs_f64();
    let status = awa::storage::status(&pool).await?;
    eprintln!("awa: storage engine {}, {}", status.active_engine, status.state);
    client.shutdown(Duration::from_secs(5)).await;
    let options = (*pool.connect_options()).clone();
    pool.close().await; // sessions tell what they did at their end
    let admin = PgPoolOptions::new().max_connections(1).connect_with(options).await?;
    let after = cost(&admin).await?;
    let each = |n: usize| (after[n] - before[n]) / jobs as f64;
    println!("{rate:.0} {:.0} {:.2}", each(0), each(1));
    Ok(())
}

async fn completed(pool: &PgPool) -> Result<u64, Box<dyn Error>> {
    let counts = awa::admin::state_counts(pool).await?;
    Ok(counts.get(&JobState::Completed).copied().unwrap_or(0).unsigned_abs())
}

/// Bytes of WAL and transactions of the database until now.
async fn cost(pool: &PgPool) -> Result<[f64; 2], sqlx::Error> {
    tokio::time::sleep(Duration::from_millis(300)).await;
    let ask = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8, \
               (xact_commit + xact_rollback)::float8 FROM pg_stat_database \
               WHERE datname = current_database()";
    let (wal, transactions) = sqlx::query_as(ask).fetch_one(pool).await?;
    Ok([wal, transactions])
}
