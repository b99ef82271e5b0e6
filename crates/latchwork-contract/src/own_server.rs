//! A database or lock server that only one test uses, so that it may be stopped and killed.
//!
//! It is started by `scripts/services` of this repository, which a published crate does not have: for the
//! tests of the workspace.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A server of one test, which ends with it.
#[derive(Debug)]
pub struct OwnServer {
    service: &'static str,
    directory: tempfile::TempDir,
    base: u16,
    environment: Vec<(&'static str, OsString)>,
    /// Where it is.
    pub address: String,
}

impl OwnServer {
    /// Starts a service of `scripts/services`.
    pub fn start(service: &'static str) -> Self {
        Self::start_with(service, Vec::new())
    }

    /// The same, with more variables in its environment.
    pub fn start_with(service: &'static str, environment: Vec<(&'static str, OsString)>) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let open = std::fs::Permissions::from_mode(0o711);
        std::fs::set_permissions(directory.path(), open).expect("its own");
        let mut own =
            OwnServer { service, directory, base: ports(), environment, address: String::new() };
        own.up();
        own
    }

    /// Starts it again, with its data.
    pub fn up(&mut self) {
        let lines = self.services("up");
        let address = lines.split_once('=').expect("an assignment").1;
        self.address = address.lines().next().expect("a line").trim().to_owned();
    }

    /// Sends a signal, and waits until it has ended.
    pub fn end(&self, signal: Signal) {
        let file = self.directory.path().join(format!("s/{}.pid", self.service));
        let text = std::fs::read_to_string(file).expect("it runs");
        let pid: i32 = text.split(' ').next().expect("a number").parse().expect("a number");
        kill_process(Pid::from_raw(pid).expect("not zero"), signal).expect("signalled");
        let mut looks = 0;
        while self.services("status").contains("runs") {
            looks += 1;
            assert!(looks < 3_000, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The directory of its data.
    pub fn data(&self) -> std::path::PathBuf {
        self.directory.path().join("s").join(self.service)
    }

    fn services(&self, command: &str) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services");
        let out = Command::new(script)
            .args([command, self.service])
            .env("LATCHWORK_SERVICES_DIR", self.directory.path().join("s"))
            .env("LATCHWORK_SERVICES_PORT", self.base.to_string())
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
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
pub fn ports() -> u16 {
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
