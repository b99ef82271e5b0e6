//! Two processes on one SQLite file: this test binary once more, told by its input what to do.
#![cfg(target_os = "linux")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use latchwork_contract::process::{self, Signal};
use latchwork_lock::{LockConfig, Locks, SqliteLockProvider, SystemClock};
use latchwork_payments::application::Result;
use latchwork_payments::application::blocking;
use latchwork_payments::application::ports::{CaptureRepository as _, lock_key};
use latchwork_payments::domain::{PaymentId, PaymentState};
use latchwork_payments::infrastructure::SqliteStore;

use crate::hooked::Hooked;
use crate::support::{
    OnSqlite, Setting as _, World, amount, request, runtime, soon, transfer, waiters,
};

const FILE: &str = "LATCHWORK_PAYMENTS_CHILD";

/// How long the leases of a slow child last.
const SHORT: Duration = Duration::from_millis(700);

struct Child {
    process: std::process::Child,
    said: Receiver<String>,
}

impl Child {
    fn start(file: &Path) -> Child {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "processes::child_process", "--nocapture"])
            .env(FILE, file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let out = BufReader::new(process.stdout.take().expect("piped"));
        let (tell, said) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(std::result::Result::ok) {
                // The harness writes on the same line.
                if let Some((_, word)) = line.split_once("@ ") {
                    let _ = tell.send(word.to_owned());
                }
            }
        });
        let child = Child { process, said };
        assert_eq!(child.read_line(), "ready");
        child
    }

    fn send(&mut self, line: &str) {
        let to = self.process.stdin.as_mut().expect("piped");
        writeln!(to, "{line}").expect("told");
    }

    fn read_line(&self) -> String {
        self.said.recv_timeout(Duration::from_secs(25)).expect("an answer")
    }

    fn signal(&self, signal: Signal) {
        process::send(&self.process, signal).expect("signalled");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Not a test of its own: what [`Child`] runs.
#[test]
fn child_process() {
    let Some(file) = std::env::var_os(FILE).map(PathBuf::from) else { return };
    let runtime = runtime();
    let open = async {
        let locks = Locks::new(SqliteLockProvider::open_file(&file).await.expect("a file"));
        World::new(locks, SystemClock, SqliteStore::open(&file).await.expect("a file"))
    };
    let world = runtime.block_on(open);
    let capture = world.blocking();
    let moving = blocking::TransferAmount::new(
        world.locks.clone().into(),
        world.time.clone(),
        world.store.clone(),
    )
    .expect("a runtime");
    // It stops between the check and the save until it is told to go on.
    let slow = Hooked::new(world.store.clone(), || async {
        print_line("checked");
        listen();
    });
    let short = LockConfig { ttl: SHORT, ..LockConfig::default() };
    let slow = World::new(world.locks.with_defaults(short), SystemClock, slow).blocking();

    print_line("ready");
    while let Some(line) = listen() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["capture", id, key, cents] => {
                print_line(&told(capture.execute(asked(id, key, cents))))
            }
            ["slow-capture", id, key, cents] => {
                print_line(&told(slow.execute(asked(id, key, cents))))
            }
            ["transfer", from, to, key, cents] => {
                let request = transfer(payment(from), payment(to), key, number(cents));
                print_line(&moving.execute(request).map_or_else(
                    |error| format!("refused {}", error.code()),
                    |answer| format!("transferred {}", answer.transfer.amount),
                ));
            }
            _ => panic!("no such order: {line}"),
        }
    }
}

fn listen() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).expect("read");
    (read > 0).then_some(line)
}

fn print_line(line: &str) {
    println!("@ {line}");
}

fn payment(id: &str) -> PaymentId {
    PaymentId::parse(id).expect("an id")
}

fn number(cents: &str) -> i64 {
    cents.parse().expect("a number")
}

fn asked(
    id: &str,
    key: &str,
    cents: &str,
) -> latchwork_payments::application::CapturePaymentRequest {
    request(payment(id), key, number(cents))
}

fn told(answer: Result<latchwork_payments::application::CapturePaymentResponse>) -> String {
    match answer {
        Ok(answer) if answer.replayed => format!("replayed {}", answer.capture.id),
        Ok(answer) => format!("captured {}", answer.capture.id),
        Err(error) => format!("refused {}", error.code()),
    }
}

/// Both children are asked, and both wait in the queue when it begins to move.
fn race(orders: [&str; 2]) {
    let (runtime, setting) = (runtime(), OnSqlite::new());
    let world = runtime.block_on(setting.open());
    let mut children = [(); 2].map(|()| Child::start(&setting.file()));
    for _ in 0..3 {
        let id = runtime.block_on(world.authorized(10_000));
        let door = runtime.block_on(world.locks.lock(lock_key(id)).acquire()).expect("free");
        for (child, order) in children.iter_mut().zip(orders) {
            child.send(&format!("capture {id} {order}"));
        }
        runtime.block_on(waiters(&world.locks, &lock_key(id), 2));
        runtime.block_on(door.release()).expect("held");
        let mut said = children.each_ref().map(Child::read_line);
        said.sort();
        let [captured, other] = said;
        let captured = captured.strip_prefix("captured ").expect("one captures");
        let expected = match orders {
            ["key-1 10000", "key-1 10000"] => format!("replayed {captured}"),
            ["key-1 10000", "key-2 10000"] => "refused payment_already_captured".to_owned(),
            _ => "refused idempotency_conflict".to_owned(),
        };
        assert_eq!(other, expected);
        let captures = runtime.block_on(world.store.captures_of(id)).expect("read");
        let ids: Vec<_> = captures.iter().map(|capture| capture.id.to_string()).collect();
        assert_eq!(ids, [captured]);
        assert_eq!(runtime.block_on(world.payment(id)).state(), PaymentState::Captured);
    }
}

#[test]
fn the_same_request_of_two_processes_captures_once() {
    race(["key-1 10000", "key-1 10000"]);
}

#[test]
fn two_requests_of_two_processes_capture_once() {
    race(["key-1 10000", "key-2 10000"]);
}

#[test]
fn one_key_with_two_amounts_of_two_processes_captures_once() {
    race(["key-1 10000", "key-1 9000"]);
}

#[test]
fn crossing_transfers_of_two_processes_end() {
    const ROUNDS: usize = 5;
    let (runtime, setting) = (runtime(), OnSqlite::new());
    let world = runtime.block_on(setting.open());
    let a = runtime.block_on(world.authorized(10_000));
    let b = runtime.block_on(world.authorized(10_000));
    let mut children = [(); 2].map(|()| Child::start(&setting.file()));
    for round in 0..ROUNDS {
        children[0].send(&format!("transfer {a} {b} round-{round} 300"));
        children[1].send(&format!("transfer {b} {a} round-{round} 200"));
    }
    for _ in 0..ROUNDS {
        assert_eq!(children[0].read_line(), "transferred 3.00");
        assert_eq!(children[1].read_line(), "transferred 2.00");
    }
    assert_eq!(runtime.block_on(world.payment(a)).data().amount, amount(9_500));
    assert_eq!(runtime.block_on(world.payment(b)).data().amount, amount(10_500));
}

/// A process is stopped between check and save, past the end of its lease, and goes on.
#[test]
fn a_stopped_process_that_goes_on_late_saves_nothing() {
    let (runtime, setting) = (runtime(), OnSqlite::new());
    let world = runtime.block_on(setting.open());
    let id = runtime.block_on(world.authorized(10_000));
    let mut child = Child::start(&setting.file());
    child.send(&format!("slow-capture {id} late 10000"));
    assert_eq!(child.read_line(), "checked");
    child.signal(Signal::STOP);
    child.send("go on");
    let ours = world.capture(id, "ours", 10_000);
    let ours = runtime.block_on(soon("the lease ends", ours)).expect("captured");
    child.signal(Signal::CONT);
    assert_eq!(child.read_line(), "refused stale_fence");
    let captures = runtime.block_on(world.store.captures_of(id)).expect("read");
    assert_eq!(captures, [ours.capture]);
}

/// A process is killed between check and save: nothing of it is left, and the same request,
/// asked again, captures.
#[test]
fn a_killed_process_leaves_nothing_half_done() {
    let (runtime, setting) = (runtime(), OnSqlite::new());
    let world = runtime.block_on(setting.open());
    let id = runtime.block_on(world.authorized(10_000));
    let mut child = Child::start(&setting.file());
    child.send(&format!("slow-capture {id} key 10000"));
    assert_eq!(child.read_line(), "checked");
    child.signal(Signal::KILL);
    child.process.wait().expect("ended");
    assert_eq!(runtime.block_on(world.payment(id)).state(), PaymentState::Authorized);
    let again = world.capture(id, "key", 10_000);
    let again = runtime.block_on(soon("the lease ends", again)).expect("captured");
    assert!(!again.replayed);
    let captures = runtime.block_on(world.store.captures_of(id)).expect("read");
    assert_eq!(captures, [again.capture]);
}
