//! Removing what is left of keys that nobody uses any more.

use sqlx::Row as _;

use super::schema;
use super::store::Store;
use super::transaction::Transaction;
use crate::Key;

/// How many keys are looked at each time: more than were made since the last time.
const AT_ONCE: usize = 2 * EVERY as usize;

/// After this many requests somebody looks.
pub(super) const EVERY: u32 = 1_000;

/// Looks at the next keys, removes the rows of those that are not used, and ends what the killed
/// have left.
pub(super) async fn sweep(store: &Store) {
    if let Err(error) = try_sweep(store).await {
        tracing::debug!(%error, "what is left of some keys was not removed");
    }
}

async fn try_sweep(store: &Store) -> sqlx::Result<()> {
    store.execute(sqlx::raw_sql(schema::FORGET)).await?;
    let after = store.swept.lock().clone();
    let rows = store.read(schema::sweep(&after, AT_ONCE)).await?;
    let mut unused: Vec<(Vec<u8>, i64)> = Vec::new();
    let mut dead: Vec<Vec<u8>> = Vec::new();
    let mut last = Vec::new();
    for row in &rows {
        let name: Vec<u8> = row.try_get_unchecked(0)?;
        last.clone_from(&name);
        if row.try_get_unchecked::<i64, _>(3)? != 0 {
            dead.push(name);
        } else if row.try_get_unchecked::<i64, _>(2)? != 0 {
            unused.push((name, row.try_get_unchecked(1)?));
        }
    }
    // From the beginning again when the end was reached.
    *store.swept.lock() = if rows.len() < AT_ONCE { Vec::new() } else { last };
    if let Some(highest) = unused.iter().map(|(_, fence)| *fence).max() {
        let names: Vec<&[u8]> = unused.iter().map(|(name, _)| name.as_slice()).collect();
        Transaction::whole(&store.connections, schema::remove(&names, highest)).await?;
    }
    for name in dead {
        let Some(key) = String::from_utf8(name).ok().and_then(|name| Key::try_from(name).ok())
        else {
            continue;
        };
        if let Err(error) = store.edit("sweeping", &key, |_, _| ()).await {
            tracing::debug!(%key, %error, "what is left of a key was not removed");
        }
    }
    Ok(())
}
