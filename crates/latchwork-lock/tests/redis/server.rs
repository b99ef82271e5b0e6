//! A server that only one test uses, so that it may be stopped and killed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use latchwork_contract::process::{self, Signal};

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
        process::send(self.process.as_ref().expect("it runs"), signal).expect("signalled");
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

/// A way to a server on which a connection can be held up.
pub(crate) struct StallingProxy {
    pub(crate) port: u16,
    connections: Arc<Mutex<Vec<Arc<Connection>>>>,
}

/// What goes to the server by one connection, and back.
pub(crate) struct Connection {
    there: Arc<Direction>,
    back: Arc<Direction>,
    ends: [TcpStream; 2],
}

#[derive(Default)]
struct Direction {
    pieces: AtomicUsize,
    held_up: AtomicBool,
}

/// Lets nothing pass as long as this is kept.
#[must_use]
pub(crate) struct HeldUp(Arc<Direction>);

impl Drop for HeldUp {
    fn drop(&mut self) {
        self.0.held_up.store(false, Ordering::Release);
    }
}

impl StallingProxy {
    pub(crate) fn to(server: u16) -> Self {
        let door = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = door.local_addr().expect("bound").port();
        let way = StallingProxy { port, connections: Arc::default() };
        let connections = way.connections.clone();
        std::thread::spawn(move || {
            for client in door.incoming() {
                let mut client = client.expect("a connection");
                // Who is refused there is refused here.
                let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let handle = |stream: &TcpStream| stream.try_clone().expect("a handle");
                let connection = Arc::new(Connection {
                    there: Arc::default(),
                    back: Arc::default(),
                    ends: [handle(&client), handle(&server)],
                });
                connections.lock().expect("no panic").push(connection.clone());
                let mut back = (handle(&server), handle(&client));
                let answers = connection.clone();
                std::thread::spawn(move || answers.back.copy(&mut back.0, &mut back.1));
                std::thread::spawn(move || connection.there.copy(&mut client, &mut server));
            }
        });
        way
    }

    /// All that were opened, also those that have ended.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        self.connections.lock().expect("no panic").clone()
    }

    /// The connection that was opened last.
    pub(crate) fn newest(&self) -> Arc<Connection> {
        self.connections.lock().expect("no panic").last().expect("one is open").clone()
    }
}

impl Connection {
    /// How many pieces have come, be they held up or not.
    pub(crate) fn pieces(&self) -> usize {
        self.there.pieces.load(Ordering::Acquire)
    }

    pub(crate) fn hold_up(&self) -> HeldUp {
        self.there.hold_up()
    }

    /// The same for what the server says.
    pub(crate) fn hold_up_answers(&self) -> HeldUp {
        self.back.hold_up()
    }

    /// Ends it. What is held up never arrives.
    pub(crate) fn cut(&self) {
        for end in &self.ends {
            let _ = end.shutdown(Shutdown::Both); // it may have heard of the other end
        }
    }
}

impl Direction {
    fn hold_up(self: &Arc<Self>) -> HeldUp {
        self.held_up.store(true, Ordering::Release);
        HeldUp(self.clone())
    }

    fn copy(&self, from: &mut TcpStream, to: &mut TcpStream) {
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut piece) {
            self.pieces.fetch_add(1, Ordering::Release);
            while self.held_up.load(Ordering::Acquire) {
                std::thread::sleep(millis(1));
            }
            if to.write_all(&piece[..read]).is_err() {
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
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
pub(crate) fn admin_command<T: redis::FromRedisValue>(address: &str, words: &[&str]) -> T {
    let client = redis::Client::open(address).expect("an address");
    let mut connection = client.get_connection().expect("the server is there");
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query(&mut connection).expect("it answers")
}

/// How often the server was sent a command of this name.
pub(crate) fn count(address: &str, command: &str) -> u64 {
    let stats: String = admin_command(address, &["INFO", "commandstats"]);
    let name = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&*name));
    line.and_then(|rest| rest.split(',').next()).map_or(0, |n| n.parse().expect("a number"))
}
