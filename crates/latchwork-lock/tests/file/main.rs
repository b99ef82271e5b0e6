//! The file provider: what only real processes and real files can show.
#![cfg(all(feature = "file", target_os = "linux"))]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the helpers of a test fail it, and a child speaks by its output"
)]

mod namespaces;
mod owners;
mod processes;
mod records;
mod requests;
#[path = "../support/mod.rs"]
mod support;
mod trouble;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use latchwork_lock::{FileLockProvider, Locks, PageRequest, blocking};
use support::child::{hold, print_line, read_line};
use support::{Child, Part, secs};

// ---- the other process -------------------------------------------------------------------------

/// Not a test of its own: what [`Child`] runs.
#[test]
fn child_process() {
    support::child::play(|part| {
        let dir = Path::new(part.address.strip_prefix("file://").expect("a directory"));
        match part.name.as_str() {
            "companion" => {
                let pid = part.place.parse().expect("a number");
                let builder = FileLockProvider::builder(dir).companion(pid);
                let locks = blocking::Locks::new(builder.open().expect("a directory"));
                hold(locks.lock(&part.key).ttl(part.ttl).acquire().expect("acquired"));
            }
            "open" => {
                let answer = blocking::Locks::connect(&part.address).and_then(|locks| {
                    locks.lock(&part.key).acquire().map(|guard| drop(guard.release()))
                });
                print_line(&match answer {
                    Ok(()) => "opened ok".to_owned(),
                    Err(error) => format!("opened {} {error}", error.code()),
                });
            }
            "list" => {
                let listed = blocking::Locks::connect(&part.address)
                    .and_then(|locks| locks.list("", PageRequest::default()));
                print_line(&match listed {
                    Ok(page) => format!("opened {} keys", page.keys.len()),
                    Err(error) => format!("opened {} {error}", error.code()),
                });
            }
            "inspect" => {
                let seen = blocking::Locks::connect(&part.address)
                    .and_then(|locks| locks.inspect(&part.key));
                print_line(&match seen {
                    Ok(seen) => format!("opened {} holders", seen.holders.len()),
                    Err(error) => format!("opened {} {error}", error.code()),
                });
            }
            "crowd" => {
                let locks = locks(dir);
                let ask = || locks.lock(&part.key).ttl(part.ttl).wait(secs(600)).acquire();
                std::thread::scope(|scope| {
                    for _ in 0..10 {
                        scope.spawn(ask);
                    }
                });
            }
            "exhaust" => exhaust(&locks(dir), &part.key),
            "rounds" => {
                print_line("ready");
                while let Some(line) = read_line() {
                    let locks = locks(&dir.join(line));
                    let guard = locks.lock(&part.key).ttl(part.ttl).wait(secs(20)).acquire();
                    let guard = guard.expect("acquired");
                    let fence = guard.fence();
                    guard.release().expect("released");
                    print_line(&format!("fence {fence}"));
                }
            }
            _ => return false,
        }
        true
    });
}

/// Opens files until the limit is reached, and asks for a lock then.
fn exhaust(locks: &blocking::Locks, key: &str) {
    locks.lock(key).acquire().expect("free").release().expect("released");
    let mut all = Vec::new();
    while let Ok(file) = fs::File::open("/dev/null") {
        all.push(file);
    }
    let error = locks.lock(key).acquire().expect_err("no descriptor is left");
    drop(all);
    print_line(&format!("exhausted {} {error}", error.code()));
    let again = locks.lock(key).acquire();
    print_line(&format!("again {}", again.map_or_else(|e| e.code(), |_| "ok")));
}

fn part(name: &str, dir: &Path, key: &str, ttl: Duration) -> Part {
    Part::new(name, &address(dir), key, ttl)
}

fn child(name: &str, dir: &Path, key: &str, ttl: Duration) -> Child {
    part(name, dir, key, ttl).start()
}

fn holder(dir: &Path, key: &str, ttl: Duration) -> (Child, u64) {
    Child::hold(&address(dir), key, ttl)
}

// ---- what all of them use ----------------------------------------------------------------------

fn address(dir: &Path) -> String {
    format!("file://{}", dir.display())
}

async fn connect(dir: &Path) -> Locks {
    Locks::connect(&address(dir)).await.expect("a directory")
}

fn locks(dir: &Path) -> blocking::Locks {
    blocking::Locks::connect(&address(dir)).expect("a directory")
}

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(dir).expect("reads").map(|e| e.expect("an entry").path()).collect();
    found.sort();
    found
}

/// The shards that were used.
fn shards(dir: &Path) -> Vec<PathBuf> {
    let mut found = files(&dir.join("shards"));
    found.retain(|path| path.file_name().is_some_and(|name| name.len() == 2));
    found
}

/// The one record there is.
fn record(dir: &Path) -> PathBuf {
    let found = files(&dir.join("keys"));
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

fn replace(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).expect("reads");
    assert!(text.contains(from), "{from} is not in {text}");
    fs::write(path, text.replace(from, to)).expect("written");
}

fn waiters(locks: &blocking::Locks, key: &str) -> usize {
    locks.inspect(key).expect("inspected").waiters.len()
}
