//! `latchwork serve`, as its own words say.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{LockDirectory, latchwork};

struct Server {
    child: Child,
    greeting: Vec<String>,
}

impl Server {
    fn start(place: &LockDirectory) -> Self {
        let mut command = latchwork();
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(place.path("data"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut greeting: Vec<String> = Vec::new();
        // The last line is the third command.
        while greeting.iter().filter(|line| line.starts_with("curl ")).count() < 3 {
            greeting.push(lines.next().expect("it goes on").expect("readable"));
        }
        Server { child, greeting }
    }

    fn end(mut self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("it ends").success());
    }
}

#[test]
fn the_commands_of_the_greeting_work_as_printed() {
    let place = LockDirectory::new();
    let server = Server::start(&place);
    let data = place.path("data").join("latchwork.db");
    let named = format!("its data is in {}", data.display());
    assert!(server.greeting.contains(&named) && data.exists(), "{:?}", server.greeting);
    let commands = server.greeting.iter().filter(|line| line.starts_with("curl "));
    let answers: Vec<serde_json::Value> = commands
        .map(|command| {
            let command = command.replacen("curl ", "curl -sS --fail-with-body ", 1);
            let output = Command::new("sh").args(["-c", &command]).output().expect("a shell");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{command}: {said}");
            serde_json::from_str(&said).expect("JSON")
        })
        .collect();
    assert_eq!(answers[0]["order"]["state"], "queued");
    assert_eq!(answers[1]["leases"][0]["input"]["name"], "Ada");
    assert_eq!(answers[2]["orders"][0]["items_count"]["leased"], 1);
    server.end();
    // What was done is there after a restart.
    let server = Server::start(&place);
    let command = server.greeting.last().expect("a line").replacen("curl ", "curl -sS ", 1);
    let output = Command::new("sh").args(["-c", &command]).output().expect("a shell");
    let orders: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(orders["orders"][0]["id"], answers[0]["order"]["id"]);
    server.end();
}

#[test]
fn it_refuses_an_address_that_others_can_reach() {
    let place = LockDirectory::new();
    let mut command = latchwork();
    command.args(["serve", "--listen", "0.0.0.0:0", "--data"]).arg(place.path("data"));
    let output = command.output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("127.0.0.1") && said.contains("tokens"), "{said}");
}
