//! The thread behind it all: one runtime for every provider of this process.
//!
//! Drops happen in any runtime or in none (L21), a connection belongs to the runtime that opened
//! it, and a future that is dropped must not leave a transaction half done. So all work on the
//! database is done here, as tasks that run to their end.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Row as _};
use tokio::runtime::Handle;
use tokio::sync::watch::Receiver;
use tokio::time::sleep;

use super::error::NAME;
use super::schema;
use super::store::{ALIVE, Store};
use crate::coordination::deferred_release::patiently;
use crate::desk::Standing;
use crate::rules::Id;
use crate::{Error, Moment, Result};

/// The pause between two looks at the most: a hand-off must be seen well within its claim window.
const LONGEST: Duration = Duration::from_millis(500);

/// And at the least.
const SHORTEST: Duration = Duration::from_millis(5);

/// How long a lease lies on the desk for a waiter that does not look. With the pause between two
/// looks, that is less than the claim window.
const UNCLAIMED: Duration = Duration::from_millis(800);

/// Runs a job to its end. Dropping the future does not stop a job that has begun.
pub(super) async fn run<T: Send + 'static>(
    during: &'static str,
    job: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    match runtime()?.spawn(job).await {
        Ok(out) => out,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(Error::unavailable(
                NAME,
                during,
                "the runtime is shutting down",
                Some(Box::new(error)),
            )),
        },
    }
}

/// Where jobs run.
pub(super) fn runtime() -> Result<&'static Handle> {
    static RUNTIME: LazyLock<std::io::Result<Handle>> = LazyLock::new(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new()
            .name("latchwork-mysql".into())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
        Ok(handle)
    });
    RUNTIME.as_ref().map_err(|e| {
        Error::unavailable(NAME, "starting", format!("there is no thread for it ({e})"), None)
    })
}

/// Looks after the waiters of a provider until that is gone.
pub(super) async fn watch(store: Arc<Store>, mut gone: Receiver<()>) {
    let mut failing = false;
    let mut seen = Seen { places: Vec::new(), changed_at: store.clock.now() };
    loop {
        // First the word, then the look at the seats: who comes after that rings.
        store.desk.idle.store(true, Ordering::Release);
        let pause = match store.desk.tick() {
            None => Duration::MAX,
            Some(tick) => {
                store.desk.idle.store(false, Ordering::Release);
                seen.pause(tick, store.clock.now())
            }
        };
        tokio::select! {
            _ = gone.changed() => break,
            () = store.desk.bell.notified() => {}
            () = sleep(pause) => {}
        }
        store.desk.idle.store(false, Ordering::Release);
        for (key, id) in store.desk.take_back(store.clock.now(), UNCLAIMED) {
            let store = store.clone();
            tokio::spawn(async move {
                patiently(&*store, &key, id).await;
                store.desk.taken_back(id);
            });
        }
        let asked = store.desk.seated();
        if asked.is_empty() {
            continue;
        }
        match look(&store).await {
            Ok((standings, places)) => {
                failing = false;
                let now = store.clock.now();
                store.desk.update(&standings, &asked, now);
                seen.update(places, now);
            }
            Err(error) => {
                // They will be told at the end of their wait, or it passes before.
                if !std::mem::replace(&mut failing, true) {
                    let error = latchwork_sql::mysql::explain(error);
                    tracing::warn!(%error, "lock waiters cannot look at their places");
                }
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// What the last look has shown, which says how soon the next one is worth while.
struct Seen {
    places: Vec<Place>,
    changed_at: Moment,
}

/// A waiter, and how many may be ahead of it: some of them may have left the queue.
type Place = (Id, u32);

impl Seen {
    fn update(&mut self, places: Vec<Place>, now: Moment) {
        if places != self.places {
            self.changed_at = now;
        }
        self.places = places;
    }

    /// A quarter of the time for which nothing has changed, so that who holds a key for a short time is
    /// followed quickly and who holds it for long costs little; half of the tick that was asked for
    /// at the most; and longer the more others are ahead of all of ours.
    fn pause(&self, tick: Duration, now: Moment) -> Duration {
        let most = (tick / 2).clamp(SHORTEST, LONGEST);
        let quiet = (now.since(self.changed_at) / 4).clamp(SHORTEST, most);
        let ahead = self.places.iter().map(|(_, ahead)| *ahead).min().unwrap_or(0);
        // Within a process a key goes on much sooner than anybody looks.
        (quiet + (quiet / 4).saturating_mul(ahead)).min(LONGEST)
    }
}

async fn look(store: &Store) -> sqlx::Result<(Vec<Standing<Vec<u8>>>, Vec<Place>)> {
    if store.must_beat() {
        let before = store.clock.now();
        let beat = schema::beat(store.client, ALIVE.as_micros());
        store.execute(sqlx::raw_sql(AssertSqlSafe(beat))).await?;
        store.was_alive_at(before);
    }
    let sent_at = store.clock.now();
    let rows = store.read(schema::look(store.client)).await?;
    if let Some(row) = rows.first() {
        store.heard_time(row.try_get_unchecked(5)?, sent_at);
    }
    let (mut standings, mut places) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        let id: Vec<u8> = row.try_get_unchecked(0)?;
        let ahead: Option<i64> = row.try_get_unchecked(3)?;
        let left: i64 = row.try_get_unchecked(4)?;
        let id = Id::from_be_bytes(id.try_into().unwrap_or_default());
        let ahead = ahead.map_or(0, |ahead| u32::try_from(ahead.max(0)).unwrap_or(u32::MAX));
        places.push((id, ahead));
        standings.push(Standing {
            id,
            key: row.try_get_unchecked(1)?,
            granted: row.try_get_unchecked::<i64, _>(2)? != 0,
            left: Duration::from_micros(left.max(0).unsigned_abs()),
        });
    }
    Ok((standings, places))
}
