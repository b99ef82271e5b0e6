//! The chapters with several processes: this program runs itself.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use latchwork::Locks;
use latchwork::lock::{Clock as _, FileLockProvider, SystemClock};

use super::transcript::{Transcript, eventually};
use crate::exit::{Exit, Failure};
use crate::{duration, show};

/// Adds one to a number in a file, slowly enough for others to come in between.
const ADD_ONE: &str = r#"n=$(cat "$0"); sleep 0.05; echo $((n + 1)) > "$0""#;

pub(super) fn counting(transcript: &mut Transcript, directory: &Path) -> Result<(), Failure> {
    transcript.section(
        "Several processes",
        "Five shells add one to a number in a file: first as they are, then under `latchwork lock`.",
    );
    let bare = count(directory, |add_one| {
        let mut sh = Command::new(add_one[0]);
        sh.args(&add_one[1..]);
        sh
    })?;
    transcript.write_line(&format!("Without a lock: five times plus one is {bare}."));
    let locked = count(directory, |add_one| latchwork_lock(directory, "number", add_one))?;
    transcript.promise(&format!("under the lock: five times plus one is {locked}"), locked == "5")
}

/// The same under a lock at an address.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(super) fn count_to_five(directory: &Path, address: &str, key: &str) -> Result<String, Failure> {
    count(directory, |add_one| {
        let mut command = locking(key, add_one);
        // Everybody can see the arguments of a process; an address may hold a password.
        command.env("LATCHWORK_AT", address);
        command
    })
}

/// Five times plus one, by processes that all begin at once.
fn count(directory: &Path, command: impl Fn(&[&OsStr]) -> Command) -> Result<String, Failure> {
    const PROCESSES: usize = 5;
    let number = directory.join("number");
    fs::write(&number, "0\n").map_err(failed)?;
    let add_one = ["sh".as_ref(), "-c".as_ref(), ADD_ONE.as_ref(), number.as_os_str()];
    let started: Vec<_> = (0..PROCESSES).map(|_| command(&add_one).spawn()).collect();
    for child in started {
        child.and_then(|mut child| child.wait()).map_err(failed)?;
    }
    Ok(fs::read_to_string(&number).map_err(failed)?.trim().to_owned())
}

pub(super) async fn who_holds_what(
    transcript: &mut Transcript,
    directory: &Path,
) -> Result<(), Failure> {
    transcript.section(
        "Who holds what, and a killed supervisor",
        "A command does not outlive the program that holds its lock, nor do its children.",
    );
    let locks = open(directory)?;
    let pid_file = directory.join("grandchild");
    let script = r#"sleep 60 & echo $! > "$0"; wait"#;
    let backup = ["sh".as_ref(), "-c".as_ref(), script.as_ref(), pid_file.as_os_str()];
    let mut holder = Running::start(latchwork_lock(directory, "nightly-backup", &backup))?;
    eventually(async || fs::read_to_string(&pid_file).is_ok_and(|pid| pid.ends_with('\n'))).await;
    let mut next = Running::start(latchwork_lock(directory, "nightly-backup", &["true".as_ref()]))?;
    let queued = eventually(async || {
        locks.inspect("nightly-backup").await.is_ok_and(|found| found.waiters.len() == 1)
    })
    .await;
    let page = locks.list("", Default::default()).await?;
    transcript.write_line(
        "`latchwork lock nightly-backup -- …` runs twice. This is `latchwork locks ls`:",
    );
    transcript.show(&show::table(&page.keys));
    transcript.promise("one holds it, one waits", queued && page.keys.len() == 1)?;
    transcript.write_line("The holder is killed with SIGKILL. It cannot do anything about it.");
    let killed_at = SystemClock.now();
    holder.0.kill().map_err(failed)?;
    let status = next.0.wait().map_err(failed)?;
    let took = duration::show(SystemClock.now().since(killed_at));
    transcript.promise(
        &format!("the next one gets the lock and is done, {took} later"),
        status.success(),
    )?;
    let grandchild = fs::read_to_string(&pid_file).map_err(failed)?;
    transcript.promise(
        "the killed holder's grandchild was dead before that",
        !is_running(grandchild.trim()),
    )
}

pub(super) async fn breaking(transcript: &mut Transcript, directory: &Path) -> Result<(), Failure> {
    transcript.section(
        "Breaking a lock",
        "What is stuck can be ended, and a command that has lost its lock is stopped.",
    );
    let locks = open(directory)?;
    let mut command = latchwork_lock(directory, "stuck", &["sleep".as_ref(), "60".as_ref()]);
    let mut holder = Running::start({
        command.stderr(Stdio::null());
        command
    })?;
    eventually(async || locks.exists("stuck").await.unwrap_or(false)).await;
    transcript.write_line("A command hangs. `latchwork locks break stuck` ends its lease.");
    let broken = locks.break_lock("stuck").await?;
    let status = holder.0.wait().map_err(failed)?;
    transcript.promise(
        &format!("the command was stopped, with exit code {} (lost)", Exit::Lost as u8),
        broken.len() == 1 && status.code() == Some(i32::from(Exit::Lost as u8)),
    )?;
    let after = locks.lock("stuck").wait(Duration::from_secs(5)).acquire().await?;
    let fence = broken.first().map(|holder| holder.fence);
    transcript.promise("the next fence is higher", Some(after.fence()) > fence)
}

/// A process that does not outlive the demonstration.
pub(super) struct Running(pub(super) Child);

impl Running {
    pub(super) fn start(mut command: Command) -> Result<Self, Failure> {
        command.spawn().map(Running).map_err(failed)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn open(directory: &Path) -> Result<Locks, Failure> {
    Ok(Locks::new(FileLockProvider::builder(directory.join("locks")).open()?))
}

/// `latchwork lock KEY -- command` in a directory, by this very program.
fn latchwork_lock(directory: &Path, key: &str, command: &[&OsStr]) -> Command {
    let mut latchwork = locking(key, command);
    latchwork.env("LATCHWORK_AT", directory.join("locks"));
    latchwork
}

fn locking(key: &str, command: &[&OsStr]) -> Command {
    let mut latchwork = Command::new("/proc/self/exe");
    latchwork.args(["lock", key, "--ttl", "2s", "--wait", "10s", "--"]);
    latchwork.args(command).stdin(Stdio::null());
    latchwork
}

fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_ascii_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
}

pub(super) fn failed(error: std::io::Error) -> Failure {
    Failure::internal(format!("the demonstration failed: {error}"))
}
