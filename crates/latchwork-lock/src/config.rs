//! How a lock is asked for: seed strategies and defaults.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lease::{millis, option_millis};
use crate::{Error, Result};

/// What to do when the key is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockStrategy {
    /// Take no lock at all.
    None,
    /// Fail at once.
    #[default]
    FailFast,
    /// Wait, up to [`LockConfig::wait_timeout`].
    Wait,
    /// Give up at once, and call that a success without a lock.
    Skip,
}

/// Settings of a lock: plain data, to be kept in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LockConfig {
    /// What to do when the key is taken; fail fast by default.
    pub strategy: LockStrategy,
    /// How long a grant lasts from its last renewal; 30 s by default.
    #[serde(rename = "ttl_ms", with = "millis")]
    pub ttl: Duration,
    /// How long [`LockStrategy::Wait`] waits; 10 s by default, none: for ever.
    #[serde(rename = "wait_timeout_ms", with = "option_millis")]
    pub wait_timeout: Option<Duration>,
    /// The tick where a backend has no notification; 100 ms by default.
    #[serde(rename = "retry_interval_ms", with = "millis")]
    pub retry_interval: Duration,
}

impl Default for LockConfig {
    fn default() -> Self {
        LockConfig {
            strategy: LockStrategy::default(),
            ttl: Duration::from_secs(30),
            wait_timeout: Some(Duration::from_secs(10)),
            retry_interval: Duration::from_millis(100),
        }
    }
}

impl LockConfig {
    /// Checks the settings, for those who keep them before they lock anything.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a ttl that is too short
    /// or too long.
    pub fn check(&self) -> Result<()> {
        check_ttl(self.ttl)
    }
}

/// The shortest ttl: below it the time to ask would eat the time to hold.
pub const MIN_TTL: Duration = Duration::from_millis(10);

/// The longest ttl: a year and a day.
pub const MAX_TTL: Duration = Duration::from_secs(366 * 24 * 60 * 60);

#[inline]
pub(crate) fn check_ttl(ttl: Duration) -> Result<()> {
    if ttl < MIN_TTL || ttl > MAX_TTL {
        return Err(Error::invalid_argument(
            "ttl",
            format!("{ttl:?} is not between {MIN_TTL:?} and 366 days"),
        ));
    }
    Ok(())
}

/// How long to wait for a taken key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// At most this long.
    For(Duration),
    /// Until it is free.
    Forever,
}

/// What the closure form does when the lease is lost meanwhile (L14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// Drop the closure's future at its next await and answer `LockLost`.
    #[default]
    Cancel,
    /// Let it finish: its writes are guarded by the fence.
    Finish,
}

/// How much earlier than its ttl a lease stops being trusted (L9): a tenth of
/// the ttl, one second at most. It pays for clocks that run at different
/// speeds and for the time between looking at a lease and acting on it.
pub fn trust_margin(ttl: Duration) -> Duration {
    (ttl / 10).min(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_seed() {
        let config = LockConfig::default();
        assert_eq!(config.strategy, LockStrategy::FailFast);
        assert_eq!(config.ttl, Duration::from_secs(30));
        assert_eq!(config.wait_timeout, Some(Duration::from_secs(10)));
        assert_eq!(config.retry_interval, Duration::from_millis(100));
    }

    #[test]
    fn a_configuration_reads_from_data() {
        let config: LockConfig =
            serde_json::from_str(r#"{"strategy":"wait","ttl_ms":60000,"wait_timeout_ms":null}"#)
                .expect("reads");
        assert_eq!(config.strategy, LockStrategy::Wait);
        assert_eq!(config.wait_timeout, None);
        let error = serde_json::from_str::<LockConfig>(r#"{"tll_ms":1}"#).expect_err("a typo");
        assert!(error.to_string().contains("tll_ms"), "{error}");
    }

    #[test]
    fn ttls_are_checked() {
        for bad in [Duration::ZERO, Duration::from_millis(9), Duration::MAX] {
            assert_eq!(check_ttl(bad).expect_err("bad").code(), "invalid_argument");
        }
        assert!(check_ttl(MIN_TTL).is_ok() && check_ttl(MAX_TTL).is_ok());
    }
}
