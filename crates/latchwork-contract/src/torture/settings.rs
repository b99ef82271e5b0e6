//! How long, how many, and from which seed.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long a run takes in the test suite. The variable `LATCHWORK_TORTURE_SECONDS` says
/// otherwise.
const SECONDS: u64 = 8;

/// A torture run. Every field but the address has a default, which the environment may change.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Torture {
    /// Where the locks are, as for `Locks::connect`.
    pub url: String,
    /// How long faults are made; `LATCHWORK_TORTURE_SECONDS`. Some seconds of tidying follow.
    pub duration: Duration,
    /// What all chance comes from; `LATCHWORK_SEED`, else a random one. The schedule of the
    /// system is not in it, so the same seed gives the same kinds of faults and no more.
    pub seed: u64,
    /// How many worker processes; `LATCHWORK_TORTURE_PROCESSES`.
    pub processes: u32,
    /// How many tasks in each; `LATCHWORK_TORTURE_TASKS`.
    pub tasks: u32,
    /// How many keys; `LATCHWORK_TORTURE_KEYS`.
    pub keys: u32,
    /// The shortest ttl. Others are up to three times as long.
    pub unit: Duration,
    /// How much later than its patience a waiter may have its answer. It covers a busy machine,
    /// and whoever was stopped while it had the backend to itself.
    pub slack: Duration,
}

impl Torture {
    /// A run over the locks at this address.
    ///
    /// # Panics
    /// When one of the variables is not a number.
    pub fn at(url: impl Into<String>) -> Self {
        Torture {
            url: url.into(),
            duration: Duration::from_secs(var("LATCHWORK_TORTURE_SECONDS").unwrap_or(SECONDS)),
            seed: var("LATCHWORK_SEED").unwrap_or_else(rand::random),
            processes: var("LATCHWORK_TORTURE_PROCESSES").unwrap_or(4),
            tasks: var("LATCHWORK_TORTURE_TASKS").unwrap_or(4),
            keys: var("LATCHWORK_TORTURE_KEYS").unwrap_or(8),
            unit: Duration::from_millis(400),
            slack: Duration::from_secs(10),
        }
    }

    /// The longest ttl that is asked for.
    pub(super) fn longest_ttl(&self) -> Duration {
        self.unit * 3
    }

    /// The longest that anybody waits.
    pub(super) fn longest_wait(&self) -> Duration {
        Duration::from_secs(4).max(self.unit * 4)
    }

    pub(super) fn key_names(&self) -> Vec<String> {
        (0..self.keys.max(1)).map(|i| format!("key-{i}")).collect()
    }

    /// What stands before the keys, so that runs over one backend are apart.
    pub(super) fn prefix(&self) -> String {
        format!("torture-{:016x}/", self.seed)
    }
}

fn var<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value:?}")))
}
