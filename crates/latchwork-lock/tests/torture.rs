//! Kills, stops, breaks and dropped futures over the providers of this crate, for some seconds
//! each; see `latchwork_contract::torture` for how to run it longer.
#![cfg_attr(not(target_os = "linux"), allow(unused, reason = "it needs Linux"))]
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what went wrong by panicking")]
#![allow(
    clippy::print_stdout,
    reason = "the seed and what was done are for the reader of a failure"
)]

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() {
    // Ends this process if it was started as one of the workers.
    latchwork_contract::torture::worker();
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), linux::trials()).exit()
}

#[cfg(target_os = "linux")]
mod linux {
    use latchwork_contract::torture::{self, Torture};
    use latchwork_lock::{InMemoryLockProvider, Locks};
    use libtest_mimic::{Failed, Trial};

    pub(crate) fn trials() -> Vec<Trial> {
        vec![
            Trial::test("memory", || {
                memory();
                Ok(())
            }),
            #[cfg(feature = "file")]
            Trial::test("file", || {
                in_directory(|path| format!("file://{path}"));
                Ok(())
            }),
            #[cfg(feature = "sqlite")]
            Trial::test("sqlite", || {
                in_directory(|path| format!("sqlite://{path}/locks.db"));
                Ok(())
            }),
            #[cfg(feature = "postgres")]
            server("postgres", "LATCHWORK_TEST_POSTGRES", "postgres", 1),
            #[cfg(feature = "redis")]
            server("redis", "LATCHWORK_TEST_REDIS", "redis", 1),
            #[cfg(feature = "mysql")]
            server("mysql", "LATCHWORK_TEST_MARIADB", "mariadb", 1),
            // Its leases count in seconds, so a key stays long with a killed process.
            #[cfg(feature = "etcd")]
            server("etcd", "LATCHWORK_TEST_ETCD", "etcd", 2),
        ]
    }

    /// No other process sees these locks, so there are tasks only.
    fn memory() {
        let torture = Torture::at("memory:");
        println!("{torture}");
        let locks = Locks::new(InMemoryLockProvider::new());
        println!("{:?}", torture::run_here(&locks, torture));
    }

    /// Where syncing costs nothing there are many more edits, and other users of the disk do not
    /// matter.
    #[cfg(any(feature = "file", feature = "sqlite"))]
    fn in_directory(address: impl FnOnce(&str) -> String) {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let directory = directory.expect("a temporary directory");
        run(Torture::at(address(&directory.path().display().to_string())));
    }

    /// A missing server is named as skipped on a laptop, and is a failure in CI.
    #[cfg(any(feature = "postgres", feature = "redis", feature = "mysql", feature = "etcd"))]
    fn server(name: &str, variable: &'static str, service: &'static str, keys: u32) -> Trial {
        let address = std::env::var(variable).ok();
        let is_skipped = address.is_none() && std::env::var_os("CI").is_none();
        let trial = Trial::test(name, move || match address {
            Some(address) => {
                let mut torture = Torture::at(&address);
                torture.keys *= keys;
                run(torture);
                Ok(())
            }
            None => {
                let advice = format!("no server; `scripts/services up {service}` starts one");
                Err(Failed::from(advice))
            }
        });
        trial.with_ignored_flag(is_skipped)
    }

    fn run(torture: Torture) {
        println!("{torture}");
        println!("{:?}", torture::run(torture));
    }
}
