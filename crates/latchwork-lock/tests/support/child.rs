//! Another process: this test program once more, which plays a part and speaks by lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use latchwork_contract::process;
use latchwork_lock::blocking;
use rustix::process::set_parent_process_death_signal;
use serde::{Deserialize, Serialize};

use super::{SOON, block_on, gate, log, secs};

pub use latchwork_contract::process::Signal;

/// The variable in which a child finds its part.
const PART: &str = "LATCHWORK_CHILD";

/// How many wait in a crowd.
pub const CROWD: usize = 10;

/// What a child is to do. These parts every provider can play:
///
/// - `hold`, `wait`: takes the key (waiting for it), says `held FENCE`, and when it is told
///   anything releases it and says `released CODE`;
/// - `write`: takes the key, says `held FENCE`, and when it is told anything writes through the
///   gate and says `wrote CODE`;
/// - `loop`: says `ready`, then takes and releases the key for ever, and [logs](log) it;
/// - `lease`: takes the key, says `lease JSON`, and ends;
/// - `crowd`: [`CROWD`] threads wait for the key at the same time, each releases it at once, and
///   then it says `served FENCE`;
/// - `holding crowd`: the same while it holds the key itself, for good; it says `held FENCE` first.
#[derive(Clone, Serialize, Deserialize)]
pub struct Part {
    pub name: String,
    /// Where the locks are.
    pub address: String,
    pub key: String,
    pub ttl: Duration,
    /// Where it writes to: a gate, or a log.
    pub place: String,
}

impl Part {
    pub fn new(name: &str, address: &str, key: &str, ttl: Duration) -> Self {
        let (name, address, key) = (name.to_owned(), address.to_owned(), key.to_owned());
        Part { name, address, key, ttl, place: String::new() }
    }

    pub fn writing_to(self, place: &str) -> Self {
        Part { place: place.to_owned(), ..self }
    }

    pub fn start(&self) -> Child {
        self.start_as(Command::new(std::env::current_exe().expect("this program")))
    }

    /// By a command that ends in this program.
    pub fn start_as(&self, mut run: Command) -> Child {
        let mut process = run
            // What a program with the usual harness must be told; another looks at its part first.
            .args(["--exact", "child_process", "--nocapture"])
            .env(PART, serde_json::to_string(self).expect("plain data"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let out = BufReader::new(process.stdout.take().expect("piped"));
        let (tell, said) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                // The harness writes on the same line.
                if let Some((_, word)) = line.split_once("@ ") {
                    let _ = tell.send(word.to_owned());
                }
            }
        });
        Child { process, said }
    }

    fn play(&self) {
        let locks = blocking::Locks::connect(&self.address).expect("the backend is there");
        let request = || locks.lock(&self.key).ttl(self.ttl);
        match self.name.as_str() {
            "hold" => hold(request().acquire().expect("acquired")),
            "wait" => hold(request().wait(secs(60)).acquire().expect("acquired")),
            "write" => {
                let guard = request().acquire().expect("acquired");
                print_line(&format!("held {}", guard.fence()));
                if read_line().is_some() {
                    let wrote = block_on(gate::write(&self.place, &self.key, guard.fence()));
                    print_line(&format!("wrote {}", wrote.map_or_else(|code| code, |()| "ok")));
                }
            }
            "loop" => {
                print_line("ready");
                let mut log = log::Log::open(&self.place);
                loop {
                    let guard = request().wait(secs(60)).acquire().expect("acquired");
                    log.enter(guard.fence());
                    std::thread::sleep(Duration::from_micros(
                        u64::from(std::process::id() % 7) * 300,
                    ));
                    log.leave(&guard);
                    // Its time may be over on a busy machine.
                    let _ = guard.release();
                }
            }
            "lease" => {
                let lease = request().acquire().expect("acquired").into_lease().expect("a lease");
                print_line(&format!(
                    "lease {}",
                    serde_json::to_string(&lease).expect("serialises")
                ));
            }
            "crowd" => crowd(&|| request().wait(secs(60)).acquire().expect("acquired")),
            "holding crowd" => {
                let guard = request().acquire().expect("acquired");
                print_line(&format!("held {}", guard.fence()));
                crowd(&|| request().wait(secs(60)).acquire().expect("acquired"));
            }
            other => panic!("no part {other}"),
        }
    }
}

fn crowd(acquire: &(impl Fn() -> blocking::Guard + Sync)) {
    std::thread::scope(|threads| {
        for _ in 0..CROWD {
            threads.spawn(|| {
                let guard = acquire();
                let fence = guard.fence();
                guard.release().expect("held");
                print_line(&format!("served {fence}"));
            });
        }
    });
}

/// Plays the part that this process was started for; false when it was for none. `own` plays
/// those that not every provider can, and says whether it did.
pub fn play(own: impl FnOnce(&Part) -> bool) -> bool {
    let Ok(part) = std::env::var(PART) else { return false };
    let part: Part = serde_json::from_str(&part).expect("the parent's own words");
    // A parent that is killed cannot end its children.
    set_parent_process_death_signal(Some(Signal::KILL)).expect("a signal that exists");
    if !own(&part) {
        part.play();
    }
    true
}

/// Says what it holds, and holds it until it is told to release it or the parent is gone.
pub fn hold(guard: blocking::Guard) {
    print_line(&format!("held {}", guard.fence()));
    if read_line().is_some() {
        let answer = guard.release();
        print_line(&format!("released {}", answer.map_or_else(|e| e.code(), |()| "ok")));
    }
}

/// To the parent.
pub fn print_line(line: &str) {
    println!("@ {line}");
}

/// The next line of the parent; none when it is gone.
pub fn read_line() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    read.is_ok_and(|read| read > 0).then(|| line.trim().to_owned())
}

/// A process that plays a part. It ends with this value.
pub struct Child {
    process: std::process::Child,
    said: Receiver<String>,
}

impl Child {
    pub fn start(part: &str, address: &str, key: &str, ttl: Duration) -> Child {
        Part::new(part, address, key, ttl).start()
    }

    /// One that holds the key, and its fence.
    pub fn hold(address: &str, key: &str, ttl: Duration) -> (Child, u64) {
        let child = Child::start("hold", address, key, ttl);
        let fence = child.expect_line("held").parse().expect("a fence");
        (child, fence)
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits for a word, and gives what was said with it.
    pub fn expect_line(&self, word: &str) -> String {
        let said = self.said.recv_timeout(SOON * 2).unwrap_or_else(|_| panic!("no {word:?}"));
        let rest = said.strip_prefix(word).unwrap_or_else(|| panic!("{said:?} and not {word:?}"));
        rest.trim().to_owned()
    }

    /// Whether it has said something.
    pub fn has_spoken(&self) -> bool {
        self.said.try_recv().is_ok()
    }

    pub fn send_line(&mut self, line: &str) {
        let to = self.process.stdin.as_mut().expect("piped");
        writeln!(to, "{line}").expect("told");
    }

    /// Tells it to release what it holds, and hears how that went.
    pub fn release(&mut self) -> String {
        self.send_line("release");
        self.expect_line("released")
    }

    pub fn signal(&self, signal: Signal) {
        process::send(&self.process, signal).expect("signalled");
    }

    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        self.process.wait().expect("ended");
    }

    /// Waits for its own end; whether that was a good one.
    pub fn ends_well(&mut self) -> bool {
        self.process.wait().expect("ended").success()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
