//! Who is alive.

use std::fs;
use std::io::{self, Read};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::SystemClock;
use crate::provider::BootClock;

/// One process: its number alone would be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Process {
    /// Its number.
    pub(super) pid: u32,
    /// When it started, in clock ticks since boot.
    pub(super) start_ticks: u64,
}

/// The requester, as the record keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequesterInfo {
    pub(super) host: String,
    pub(super) process: Process,
    /// Processes for which the lease lives on when the first one has died.
    pub(super) companions: Vec<Process>,
    /// Where the numbers mean something; none when it could not be told.
    pub(super) pid_namespace: Option<String>,
    /// The lease outlives its processes, because another will resume it.
    pub(super) handed_over: bool,
    /// When a waiter gives up.
    pub(super) until: crate::Moment,
}

impl Process {
    /// A process that runs now.
    pub(super) fn of(pid: u32) -> io::Result<Self> {
        Ok(Process { pid, start_ticks: Stat::read(&pid.to_string())?.start_ticks })
    }
}

impl RequesterInfo {
    /// `host:pid`.
    pub(super) fn label(&self) -> String {
        format!("{}:{}", self.host, self.process.pid)
    }

    pub(super) fn processes(&self) -> impl Iterator<Item = Process> {
        std::iter::once(self.process).chain(self.companions.iter().copied())
    }
}

/// This process and the boot clock it lives by.
pub(super) struct LocalProcess {
    pub(super) clock: BootClock,
    asker: RequesterInfo,
}

impl LocalProcess {
    pub(super) fn new(companions: Vec<Process>) -> io::Result<Self> {
        let pid = std::process::id();
        // A /proc of another namespace numbers processes differently: nothing there can be used.
        let own = Stat::read("self")
            .map_err(|e| io::Error::new(e.kind(), format!("it needs /proc, and: {e}")))?;
        let pid_namespace = match fs::read_link("/proc/self/ns/pid") {
            Ok(link) if own.pid == pid => Some(link.to_string_lossy().into_owned()),
            _ => None,
        };
        let host = crate::process_label().rsplit_once(':').map_or("", |(host, _)| host);
        Ok(LocalProcess {
            clock: SystemClock::boot_clock()?,
            asker: RequesterInfo {
                host: host.to_owned(),
                process: Process { pid, start_ticks: own.start_ticks },
                companions,
                pid_namespace,
                handed_over: false,
                until: crate::Moment::NEVER,
            },
        })
    }

    /// This process, as it goes into a record.
    pub(super) fn asker(&self, until: crate::Moment) -> RequesterInfo {
        RequesterInfo { until, ..self.asker.clone() }
    }

    fn sees(&self, asker: &RequesterInfo) -> bool {
        asker.pid_namespace.is_some() && asker.pid_namespace == self.asker.pid_namespace
    }
}

/// Looks at each process once, however many leases it has.
pub(super) struct Census<'a> {
    here: &'a LocalProcess,
    seen: Vec<(Process, bool)>,
}

impl<'a> Census<'a> {
    pub(super) fn new(here: &'a LocalProcess) -> Self {
        Self::knowing(here, std::iter::empty())
    }

    /// One that need not look at these, who are known to live.
    pub(super) fn knowing(here: &'a LocalProcess, alive: impl Iterator<Item = Process>) -> Self {
        let alive = alive.chain([here.asker.process]);
        Census { here, seen: alive.map(|process| (process, true)).collect() }
    }

    /// Those of its processes, but for this one, whose death would matter and could be seen.
    pub(super) fn mortals(&mut self, asker: &RequesterInfo) -> Vec<Process> {
        if asker.handed_over || !self.here.sees(asker) {
            return Vec::new();
        }
        let own = self.here.asker.process;
        asker.processes().filter(|p| *p != own && self.lives(*p)).collect()
    }

    /// Whether nobody is left who could use or release the lease.
    pub(super) fn is_dead(&mut self, asker: &RequesterInfo) -> bool {
        if asker.handed_over || !self.here.sees(asker) {
            return false;
        }
        asker.processes().all(|process| !self.lives(process))
    }

    fn lives(&mut self, process: Process) -> bool {
        if let Some((_, lives)) = self.seen.iter().find(|(seen, _)| *seen == process) {
            return *lives;
        }
        let lives = lives(process);
        self.seen.push((process, lives));
        lives
    }
}

/// Whether a process of our namespace still runs.
pub(super) fn lives(process: Process) -> bool {
    let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else { return false };
    match Stat::read(&process.pid.to_string()) {
        Ok(stat) => stat.start_ticks == process.start_ticks && !stat.ended(),
        // /proc may hide the processes of other users (hidepid), so that a missing file proves nothing.
        Err(_) => test_kill_process(pid) != Err(Errno::SRCH),
    }
}

/// The part of `/proc/PID/stat` that matters here.
struct Stat {
    pid: u32,
    state: u8,
    threads: u64,
    start_ticks: u64,
}

impl Stat {
    fn read(pid: &str) -> io::Result<Self> {
        // The kernel makes the whole of it for one read, and it is shorter than this.
        let mut text = [0; 2048];
        let bytes = fs::File::open(format!("/proc/{pid}/stat"))?.read(&mut text)?;
        Self::parse(&text[..bytes])
            .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat is unreadable")))
    }

    /// The second field is the program's name in parentheses, and a name may hold anything.
    fn parse(text: &[u8]) -> Option<Self> {
        let open = text.iter().position(|b| *b == b'(')?;
        let close = text.iter().rposition(|b| *b == b')')?;
        let pid = std::str::from_utf8(&text[..open]).ok()?.trim().parse().ok()?;
        let rest = std::str::from_utf8(&text[close + 1..]).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Stat {
            pid,
            state: *field(3)?.as_bytes().first()?,
            threads: field(20)?.parse().ok()?,
            start_ticks: field(22)?.parse().ok()?,
        })
    }

    /// A first thread that ended shows as a zombie while others still run.
    fn ended(&self) -> bool {
        matches!(self.state, b'X' | b'x') || self.state == b'Z' && self.threads <= 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let text = b"42 (a) R 1 (b)) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 987654 1 2";
        let stat = Stat::parse(text).expect("parses");
        assert_eq!((stat.pid, stat.state, stat.threads), (42, b'S', 3));
        assert_eq!(stat.start_ticks, 987_654);
    }

    #[test]
    fn a_process_lives_until_it_ends() {
        let here = LocalProcess::new(Vec::new()).expect("this process");
        assert!(lives(here.asker.process));
        let reused =
            Process { start_ticks: here.asker.process.start_ticks + 1, ..here.asker.process };
        assert!(!lives(reused), "the number was used again by another");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("starts");
        let process = Process::of(child.id()).expect("runs");
        assert!(lives(process));
        child.kill().expect("killed");
        // Not yet waited for: a zombie holds nothing.
        let dead = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            !lives(process)
        });
        assert!(dead);
        child.wait().expect("waited for");
    }
}
