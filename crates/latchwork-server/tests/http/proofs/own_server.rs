//! A server that only one test uses, so that it may be ended.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use super::{millis, secs};

pub(super) struct OwnServer {
    directory: tempfile::TempDir,
    base: u16,
    /// Where it is.
    pub(super) address: String,
}

impl OwnServer {
    pub(super) fn start() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let open = std::fs::Permissions::from_mode(0o711);
        std::fs::set_permissions(directory.path(), open).expect("its own");
        let mut own = OwnServer { directory, base: ports(), address: String::new() };
        own.up();
        own
    }

    /// Starts it again, with its data.
    pub(super) fn up(&mut self) {
        let lines = self.services("up");
        let address = lines.split_once('=').expect("an assignment").1;
        self.address = address.lines().next().expect("a line").trim().to_owned();
    }

    /// Sends a signal, and waits until it has ended.
    pub(super) fn end(&self, signal: Signal) {
        let file = self.directory.path().join("s/postgres.pid");
        let text = std::fs::read_to_string(file).expect("it runs");
        let pid: i32 = text.split(' ').next().expect("a number").parse().expect("a number");
        kill_process(Pid::from_raw(pid).expect("not zero"), signal).expect("signalled");
        let begun = Instant::now();
        while self.services("status").contains("runs") {
            assert!(begun.elapsed() < secs(30), "it does not end");
            std::thread::sleep(millis(20));
        }
    }

    fn services(&self, command: &str) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services");
        let out = Command::new(script)
            .args([command, "postgres"])
            .env("LATCHWORK_SERVICES_DIR", self.directory.path().join("s"))
            .env("LATCHWORK_SERVICES_PORT", self.base.to_string())
            .output()
            .expect("started");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("text")
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.services("down");
    }
}

/// A base with some free ports behind it, below those that the system gives away.
fn ports() -> u16 {
    const BEHIND: u16 = 32;
    let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    for _ in 0..100 {
        let base = 10_000 + rand::random_range(0..700) * BEHIND;
        if (base..base + BEHIND).all(free) {
            return base;
        }
    }
    panic!("no free ports");
}
