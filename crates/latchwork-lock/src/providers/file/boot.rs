//! The first look at a directory after a reboot.
//!
//! Records are not synced: within one boot they need not be, since what was written outlives
//! its process anyhow, and after a reboot none of them holds. But a power cut may have left them
//! in any state, and a damaged record counts as taken. So the first process of a boot
//! removes the damaged ones, before anybody of this boot has written any.

use std::fs;
use std::io::Write;
use std::path::Path;

use super::fault;
use super::shard::Shard;
use super::store::{Store, create};
use crate::Result;

use super::fault::OPENING as DURING;

/// Makes sure that the directory has been looked through in this boot.
pub(super) fn begin(store: &Store) -> Result<()> {
    let marker = store.keys.with_file_name("boot");
    let boot_id = store.here.boot_id.as_str();
    if named(&marker) == boot_id {
        return Ok(());
    }
    // One looks, the others wait for it.
    let _lock = Shard::lock(store.shards.join("boot"), &*store.clock)?;
    match named(&marker) {
        same if same == boot_id => return Ok(()),
        // New, or somebody removed it: then the records may be of this boot and in use.
        none if none.is_empty() => {}
        _ => store.remove_all_damaged()?,
    }
    mark(store, &marker, boot_id)
}

/// The boot that the marker names; empty if there is none.
fn named(marker: &Path) -> String {
    fs::read_to_string(marker).unwrap_or_default().trim().to_owned()
}

/// Synced, so that after the next power cut it names this boot and not nothing.
fn mark(store: &Store, marker: &Path, boot_id: &str) -> Result<()> {
    let aside = store.shards.join("boot.tmp");
    let written = (|| {
        let mut file = create(&aside)?;
        writeln!(file, "{boot_id}")?;
        file.sync_data()?;
        fs::rename(&aside, marker)
    })();
    written.map_err(|e| {
        let _ = fs::remove_file(&aside);
        fault::io(DURING, marker, e)
    })
}
