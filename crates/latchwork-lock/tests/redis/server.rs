//! A server that only one test uses, so that it may be stopped and killed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::{millis, secs};

pub(crate) struct Server {
    process: Option<Child>,
    directory: tempfile::TempDir,
    pub(crate) port: u16,
    settings: Vec<String>,
}

impl Server {
    /// Without persistence, unless the settings say otherwise.
    pub(crate) fn start(settings: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let settings = settings.iter().map(|s| (*s).to_owned()).collect();
        let mut server = Server { process: None, directory, port: free_port(), settings };
        server.up();
        server
    }

    pub(crate) fn up(&mut self) {
        let mut run = Command::new("redis-server");
        run.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--dir"]);
        run.arg(self.directory.path()).args(["--save", "", "--daemonize", "no"]);
        run.args(&self.settings).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(run.spawn().expect("redis-server is installed"));
        let begun = Instant::now();
        while !answers(self.port) {
            assert!(begun.elapsed() < secs(20), "it does not start");
            std::thread::sleep(millis(10));
        }
    }

    /// Without a chance to save anything.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("it runs");
            process.wait().expect("reaped");
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.process.as_ref().expect("it runs").id();
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, signal).expect("signalled");
    }

    pub(crate) fn address(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One that nobody has now. Who takes it in between fails a test, and says so.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port()
}

fn answers(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut answer = [0; 1];
    stream.set_read_timeout(Some(secs(1))).is_ok()
        && stream.write_all(b"PING\r\n").is_ok()
        && stream.read_exact(&mut answer).is_ok()
}

/// Says something to a server, as an administrator.
pub(crate) fn tell<T: redis::FromRedisValue>(address: &str, words: &[&str]) -> T {
    let client = redis::Client::open(address).expect("an address");
    let mut connection = client.get_connection().expect("the server is there");
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query(&mut connection).expect("it answers")
}

/// How often the server was sent a command of this name.
pub(crate) fn count(address: &str, command: &str) -> u64 {
    let stats: String = tell(address, &["INFO", "commandstats"]);
    let name = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&*name));
    line.and_then(|rest| rest.split(',').next()).map_or(0, |n| n.parse().expect("a number"))
}
