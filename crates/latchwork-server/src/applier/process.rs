//! A child process that is bounded in time and output, and ends with all that it started.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStderr, ChildStdin, Command};
use tokio::task::JoinHandle;

/// What is started, and within which bounds. The environment is these variables and nothing else.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) directory: PathBuf,
    pub(super) environment: Vec<(String, String)>,
    pub(super) time_limit: Duration,
    pub(super) max_output: usize,
}

/// So much of the end of stderr is kept for the event.
const MAX_STDERR: usize = 4_096;

/// How long the streams of a command that has ended are read on: one of its children may have left the
/// process group and hold them open.
const GRACE: Duration = Duration::from_secs(1);

/// What a command said.
pub(super) struct Output {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
}

/// Why a command gave nothing.
#[derive(Debug)]
pub(super) enum Failure {
    /// It could not be started, or its streams broke.
    Io(io::Error),
    /// It took too long, and was killed.
    TimeLimit(Duration),
    /// It wrote too much, and was killed.
    Output(usize),
    /// It ended with an error.
    Status(ExitStatus),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Io(error) => write!(f, "it could not be run: {error}"),
            Failure::TimeLimit(limit) => write!(
                f,
                "it took longer than {limit:?} and was killed; what it did until then is done"
            ),
            Failure::Output(limit) => {
                write!(f, "it wrote more than {limit} bytes to stdout and was killed")
            }
            // "exit status: 3", "signal: 9 (SIGKILL)"
            Failure::Status(status) => write!(f, "it ended with {status}"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Io(error)
    }
}

impl Process {
    /// Runs it with this input. The failure comes with the end of what it wrote to stderr.
    ///
    /// Cancel safe in that nothing stays: when the future is dropped, the process group is killed.
    pub(super) async fn run(&self, input: &[u8]) -> Result<Output, (Failure, String)> {
        let mut stderr = Tail::default();
        let ran = tokio::time::timeout(self.time_limit, self.run_unbounded(input, &mut stderr));
        let ran = ran.await.unwrap_or(Err(Failure::TimeLimit(self.time_limit)));
        match ran {
            Ok(stdout) => Ok(Output { stdout, stderr: stderr.text() }),
            Err(failure) => Err((failure, stderr.text())),
        }
    }

    async fn run_unbounded(&self, input: &[u8], tail: &mut Tail) -> Result<Vec<u8>, Failure> {
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .current_dir(&self.directory)
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut group = Group::of(&child);
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut read = Vec::new();
        {
            let streams = async {
                let read_stdout = async {
                    let Some(stdout) = stdout else { return Ok(()) };
                    let limit = u64::try_from(self.max_output).unwrap_or(u64::MAX);
                    stdout.take(limit.saturating_add(1)).read_to_end(&mut read).await?;
                    match read.len() > self.max_output {
                        true => Err(Failure::Output(self.max_output)),
                        false => Ok(()),
                    }
                };
                tokio::try_join!(feed(stdin, input), read_stdout, tail.read(stderr)).map(drop)
            };
            let mut streams = std::pin::pin!(streams);
            let mut ended = group.leader_ended();
            let streamed = tokio::select! {
                done = &mut streams => { done?; true }
                _ = &mut ended => false,
            };
            if streamed {
                let _ = ended.await;
            }
            // Before it is reaped: until then no other process can have its number.
            group.kill();
            if !streamed && let Ok(done) = tokio::time::timeout(GRACE, streams).await {
                done?;
            }
        }
        let status = child.wait().await?;
        if status.success() { Ok(read) } else { Err(Failure::Status(status)) }
    }
}

/// Writes the input. A command need not read it.
async fn feed(stdin: Option<ChildStdin>, input: &[u8]) -> Result<(), Failure> {
    let Some(mut stdin) = stdin else { return Ok(()) };
    match stdin.write_all(input).await {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// The process group of a child that was not reaped yet. Killed when it is dropped.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)))
    }

    /// Resolves when the leader has ended, and does not reap it. A thread waits for it, which ends when the
    /// leader does: by itself, or killed.
    fn leader_ended(&self) -> JoinHandle<()> {
        let leader = self.0;
        tokio::task::spawn_blocking(move || {
            let Some(leader) = leader else { return };
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let interrupted = |error| error == Errno::INTR;
            while waitid(WaitId::Pid(leader), options).is_err_and(interrupted) {}
        })
    }

    /// Kills whatever is left of it.
    fn kill(&mut self) {
        if let Some(id) = self.0.take() {
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The end of what a stream said.
#[derive(Default)]
struct Tail {
    bytes: VecDeque<u8>,
    cut: bool,
}

impl Tail {
    async fn read(&mut self, stderr: Option<ChildStderr>) -> Result<(), Failure> {
        let Some(mut stderr) = stderr else { return Ok(()) };
        let mut buffer = [0; 4_096];
        loop {
            match stderr.read(&mut buffer).await? {
                0 => return Ok(()),
                length => self.push(&buffer[..length]),
            }
        }
    }

    fn push(&mut self, more: &[u8]) {
        self.bytes.extend(more);
        let over = self.bytes.len().saturating_sub(MAX_STDERR);
        self.cut |= over > 0;
        self.bytes.drain(..over);
    }

    fn text(&self) -> String {
        let bytes: Vec<_> = self.bytes.iter().copied().collect();
        let text = readable(&bytes);
        if self.cut { format!("… {text}") } else { text }
    }
}

/// Bytes as text that can be stored and shown: no control characters but line ends and tabs.
pub(super) fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let shown = |c: char| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c };
    text.trim().chars().map(shown).collect()
}
