//! Checks, when a provider is opened, that the server can be used.

use super::config::unsupported;
use super::connection::Connection;
use super::error::{self, NAME};
use crate::{Error, Result};

/// The oldest server that has what the script needs (`SET … GET`).
const MIN_VERSION: (u32, u32) = (6, 2);

/// Rejects a server that cannot be used.
pub(super) async fn check(connection: &Connection, during: &'static str) -> Result<()> {
    let info = match connection.send(&redis::cmd("INFO")).await {
        Ok(info) => redis::from_redis_value::<String>(info).unwrap_or_default(),
        Err(failure) if failure.code() == Some("NOPERM") => {
            tracing::debug!("the server's version is not checked: INFO is not allowed");
            return Ok(());
        }
        Err(failure) => return Err(error::driver(during, failure)),
    };
    let rejected = |reason: String| Err(Error::backend(NAME, during, reason, None));
    let Some(version) = value(&info, "redis_version") else {
        return rejected("it reports no version: it is no Redis server".to_owned());
    };
    let mut numbers = version.split('.').map(|n| n.parse().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < MIN_VERSION {
        let (major, minor) = MIN_VERSION;
        return rejected(format!(
            "it is version {version}, and {major}.{minor} is the oldest that can be used"
        ));
    }
    if value(&info, "cluster_enabled") == Some("1") {
        return rejected(error::CLUSTER.to_owned());
    }
    if value(&info, "redis_mode") == Some("sentinel") {
        return Err(unsupported("sentinel"));
    }
    if value(&info, "role") == Some("slave") {
        return rejected("it is a replica; give the address of its primary".to_owned());
    }
    let policy = value(&info, "maxmemory_policy").unwrap_or("noeviction");
    if policy != "noeviction" && value(&info, "maxmemory") != Some("0") {
        tracing::warn!(
            policy,
            "the Redis server may evict locks when its memory is full, and then two clients hold \
             one; set maxmemory-policy noeviction"
        );
    }
    Ok(())
}

fn value<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}
