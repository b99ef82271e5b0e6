//! Listing keys. The server scans all its keys for it.

use std::collections::BTreeSet;

use super::Store;
use crate::providers::redis::error;
use crate::providers::redis::scripts::{LOCK_PREFIX, MAX_COMMANDS, pattern};
use crate::{Inspection, Key, Page, PageRequest, Result};

/// How many keys the server examines in one step of a scan.
const SCAN_COUNT: usize = 500;

impl Store {
    /// A page of the keys with this prefix.
    pub(crate) async fn list(
        &self,
        during: &'static str,
        prefix: &str,
        page: &PageRequest,
    ) -> Result<Page> {
        let names = self.names(during, prefix, page.after.as_deref()).await?;
        let mut found: Vec<Inspection> = Vec::new();
        let keys: Vec<Key> = names.into_iter().filter_map(|n| Key::try_from(n).ok()).collect();
        for keys in keys.chunks(MAX_COMMANDS) {
            let inspections = keys.iter().map(|key| self.inspect(during, key));
            for inspection in futures::future::join_all(inspections).await {
                let inspection = inspection?;
                if inspection.is_held() || !inspection.waiters.is_empty() {
                    found.push(inspection);
                }
            }
            // One more than requested tells whether there is another page.
            if found.len() > page.limit {
                break;
            }
        }
        Ok(Page::cut(found, page))
    }

    async fn names(
        &self,
        during: &'static str,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        let pattern = pattern(prefix);
        let mut cursor = String::from("0");
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_COUNT);
            let reply =
                self.connection.send_again(&scan).await.map_err(|e| error::driver(during, e))?;
            let (next, found): (String, Vec<Vec<u8>>) =
                redis::from_redis_value(reply).map_err(|_| error::unreadable(during))?;
            for name in found.into_iter().filter_map(|name| String::from_utf8(name).ok()) {
                let name = name.strip_prefix(LOCK_PREFIX).filter(|name| name.starts_with(prefix));
                let name = name.filter(|name| after.is_none_or(|after| *name > after));
                names.extend(name.map(str::to_owned));
            }
            cursor = next;
            if cursor == "0" {
                return Ok(names);
            }
        }
    }
}
