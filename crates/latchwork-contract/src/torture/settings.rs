//! How long, how many, and from which seed.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long a run takes in the test suite. The variable `LATCHWORK_TORTURE_SECONDS` says
/// otherwise.
const SECONDS: u64 = 30;

/// A torture run. Every field but the address has a default, which the environment may change.
#[derive(Clone, Serialize, Deserialize)]
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
    /// Where the run makes a directory for its histories, which it keeps when something was found.
    pub directory: PathBuf,
    /// How much later than its patience a waiter may have its answer: longer than a backend takes
    /// to say that it is unavailable, which is some seconds, and a busy machine besides.
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
            directory: std::env::temp_dir(),
            slack: Duration::from_secs(12),
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

    /// When everybody must have had an answer, counted from the end of the run.
    pub(super) fn longest_end(&self) -> Duration {
        self.longest_wait() + self.slack + Duration::from_secs(3)
    }

    pub(super) fn key_names(&self) -> Vec<String> {
        (0..self.keys.max(1)).map(|i| format!("key-{i}")).collect()
    }

    /// What stands before the keys, so that runs over one backend are apart.
    pub(super) fn prefix(&self) -> String {
        format!("torture-{:016x}/", self.seed)
    }
}

/// The address, and the variables that repeat the run.
impl fmt::Display for Torture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Torture { duration, seed, processes, tasks, keys, .. } = self;
        let url = without_secrets(&self.url);
        write!(
            f,
            "torture of {url}: LATCHWORK_SEED={seed} LATCHWORK_TORTURE_SECONDS={} \
             LATCHWORK_TORTURE_PROCESSES={processes} LATCHWORK_TORTURE_TASKS={tasks} \
             LATCHWORK_TORTURE_KEYS={keys}",
            duration.as_secs()
        )
    }
}

/// The address without whom it names and what it sets: there passwords are.
fn without_secrets(url: &str) -> String {
    let url = url.split_once('?').map_or(url, |(url, _)| url);
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
            format!("{scheme}://{place}")
        }
        None => url.to_owned(),
    }
}

fn var<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_its_seed_and_no_password() {
        let mut torture = Torture::at("postgres://me:secret@localhost:5432/locks?password=secret");
        torture.seed = 7;
        let told = torture.to_string();
        assert!(told.starts_with("torture of postgres://localhost:5432/locks: LATCHWORK_SEED=7 "));
        assert!(!told.contains("secret"), "{told}");
        assert_eq!(without_secrets("file:///tmp/x"), "file:///tmp/x");
        assert_eq!(without_secrets("memory:"), "memory:");
    }
}
