//! The first look at a directory after a reboot.
//!
//! Records are not synced: within one boot they need not be, since what was written outlives
//! its process anyhow, and after a reboot none of them holds. But a power cut may have left them
//! in any state, and a damaged record counts as taken. So the first process of a boot
//! removes the damaged ones, before anybody of this boot has written any.

use std::io::Write;

use super::error;
use super::shard::Shard;
use super::store::Store;
use crate::Result;

use super::error::OPENING as DURING;

const MARKER: &str = "boot";

/// Makes sure that the directory has been looked through in this boot.
pub(super) fn begin(store: &Store) -> Result<()> {
    let boot_id = store.here.clock.boot_id.as_str();
    if named(store) == boot_id {
        return Ok(());
    }
    // One looks, the others wait for it.
    let _lock = Shard::lock(&store.shards, MARKER, &*store.clock, boot_id)?;
    match named(store) {
        same if same == boot_id => return Ok(()),
        // New, or somebody removed it: then the records may be of this boot and in use.
        none if none.is_empty() => {}
        _ => store.remove_all_damaged()?,
    }
    mark(store, boot_id)
}

/// The boot that the marker names; empty if there is none.
fn named(store: &Store) -> String {
    let text = store.root.read(MARKER).unwrap_or_default();
    String::from_utf8_lossy(&text).trim().to_owned()
}

/// Synced, so that after the next power cut it names this boot and not nothing.
fn mark(store: &Store, boot_id: &str) -> Result<()> {
    const ASIDE: &str = "boot.tmp";
    let written = (|| {
        let mut file = store.shards.create(ASIDE)?;
        writeln!(file, "{boot_id}")?;
        file.sync_data()?;
        store.shards.rename(ASIDE, &store.root, MARKER)
    })();
    written.map_err(|e| {
        let _ = store.shards.remove(ASIDE);
        error::io(DURING, &store.root.path(MARKER), e)
    })
}
