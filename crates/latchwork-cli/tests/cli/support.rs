//! Starting the binary, and waiting for what must come.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything takes on a busy machine, and than the longest `--wait` of a test; a test that needs
/// it fails.
const PATIENCE: Duration = Duration::from_secs(90);

/// The binary, without the settings of the user who runs the tests.
pub(crate) fn latchwork() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchwork"));
    command.env_remove("LATCHWORK_AT").env_remove("LATCHWORK_LOG").stdin(Stdio::null());
    command
}

/// The address of a server. A missing one is named on a laptop, and a failure in CI.
pub(crate) fn server(variable: &str) -> Option<String> {
    let address = std::env::var(variable).ok();
    if address.is_none() {
        assert!(std::env::var_os("CI").is_none(), "no server: {variable} is not set");
        println!("skipped: {variable} is not set; `scripts/services up` starts servers");
    }
    address
}

/// A key that no other test of any run uses.
pub(crate) fn unique_key(name: &str) -> String {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
    format!("cli-{name}-{}-{}", std::process::id(), now.as_nanos())
}

/// A lock directory and room for files beside it.
pub(crate) struct LockDirectory(TempDir);

impl LockDirectory {
    pub(crate) fn new() -> Self {
        LockDirectory(tempfile::tempdir().expect("a temporary directory"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn at(&self) -> String {
        self.path("locks").display().to_string()
    }

    /// `latchwork lock key --at … options -- sh -c script`, with `$D` as the room for files.
    pub(crate) fn lock(&self, key: &str, options: &[&str], script: &str) -> Command {
        let mut command = latchwork();
        command.args(["lock", key, "--at", &self.at()]).args(options);
        command.args(["--", "sh", "-c", script]).env("D", self.0.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// `latchwork locks …`.
    pub(crate) fn locks(&self, args: &[&str]) -> Output {
        let mut command = latchwork();
        command.arg("locks").args(args).args(["--at", &self.at()]).output().expect("it runs")
    }

    pub(crate) fn inspect(&self, key: &str) -> Value {
        let out = self.locks(&["show", key, "--json"]);
        // The process that makes the place may not have come that far.
        if out.status.code() == Some(69) && text(&out).contains("nothing was locked there") {
            return serde_json::json!({ "key": key, "holders": [], "waiters": [] });
        }
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&out)))
    }

    pub(crate) fn waiters(&self, key: &str) -> usize {
        self.inspect(key)["waiters"].as_array().expect("an array").len()
    }

    pub(crate) fn is_held(&self, key: &str) -> bool {
        !self.inspect(key)["holders"].as_array().expect("an array").is_empty()
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    pub(crate) fn touch(&self, name: &str) {
        fs::write(self.path(name), "").expect("written");
    }

    /// Waits for a file that a script writes with one line, and reads it.
    #[track_caller]
    pub(crate) fn line(&self, name: &str) -> String {
        let path = self.path(name);
        eventually(name, || fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n')));
        fs::read_to_string(path).expect("read").trim().to_owned()
    }
}

/// A process that does not outlive its test.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Running(Some(command.spawn().expect("it starts")))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(self.0.as_ref().expect("there is one"))
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it is there");
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn output(mut self) -> Output {
        let child = self.0.as_mut().expect("there is one");
        let mut status = None;
        // Its pipes are large and its output small, so it is read at the end.
        eventually("its end", || {
            status = child.try_wait().expect("waited for");
            status.is_some()
        });
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        read(child.stdout.take(), &mut stdout);
        read(child.stderr.take(), &mut stderr);
        Output { status: status.expect("it ended"), stdout, stderr }
    }
}

impl From<Child> for Running {
    fn from(child: Child) -> Self {
        Running(Some(child))
    }
}

fn read(pipe: Option<impl std::io::Read>, into: &mut Vec<u8>) {
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(into).expect("read");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process runs; a zombie does not.
pub(crate) fn runs(pid: &str) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

/// The state of a process, as `ps` shows it.
pub(crate) fn state(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// What a program said on stderr.
pub(crate) fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// What a program said on stdout.
pub(crate) fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// The exit code, with all that was said if it is another.
#[track_caller]
pub(crate) fn assert_code(out: &Output, code: i32) {
    assert_eq!(out.status.code(), Some(code), "{:?}: {}{}", out.status, said(out), text(out));
}
