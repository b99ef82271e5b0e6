//! Order types from files: checked, served, and applied by their commands.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use latchwork::work::{Actor, Approval, Preview, WorkManager};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{LockDirectory, latchwork};

/// The sample declarations, as they stand.
fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/types")
}

/// A copy of them, since their command writes beside them.
fn copied(place: &LockDirectory) -> PathBuf {
    let to = place.path("types");
    std::fs::create_dir(&to).expect("made");
    for entry in std::fs::read_dir(samples()).expect("the samples") {
        let from = entry.expect("an entry").path();
        if from.is_file() {
            std::fs::copy(&from, to.join(from.file_name().expect("a name"))).expect("copied");
        }
    }
    to
}

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(place: &LockDirectory, types: &Path) -> Self {
        let mut command = latchwork();
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(place.path("data"));
        command.arg("--types").arg(types).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut said = Vec::new();
        let address = loop {
            let line = lines.next().expect("it goes on").expect("readable");
            said.push(line.clone());
            if let Some((_, at)) = line.split_once("curl ") {
                let told = said.join("\n");
                assert!(told.contains("pages, summary"), "it names its types: {told}");
                break at.trim_end_matches("/v1/order-types").to_owned();
            }
        };
        Server { child, address }
    }

    /// One request by curl; a refusal fails the test.
    fn request(&self, actor: &str, path: &str, body: Option<&Value>) -> Value {
        let mut command = Command::new("curl");
        command.args(["-sS", "--fail-with-body", "-H", &format!("Latchwork-Actor: {actor}")]);
        if let Some(body) = body {
            command.args(["--json", &body.to_string()]);
        }
        let output = command.arg(format!("{}{path}", self.address)).output().expect("curl runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{path}: {said}");
        serde_json::from_str(&said).expect("JSON")
    }

    fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("it ends").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until an order is over, and gives it.
fn finished(server: &Server, order: &str) -> Value {
    let begun = Instant::now();
    loop {
        let found = server.request("user:ada", &format!("/v1/orders/{order}"), None);
        let state = found["order"]["state"].as_str().expect("a state").to_owned();
        if ["completed", "failed"].contains(&state.as_str()) {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it stays {state}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Approves what bob sees, in another process than the server's: this one.
fn approve(place: &LockDirectory, types: &Path, order: &str) -> Preview {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let url = format!("sqlite://{}", place.path("data").join("latchwork.db").display());
        let types = latchwork_server::types_of(types).expect("order types");
        let work = WorkManager::builder(types).connect(&url).await.expect("it opens");
        let preview = work.preview(order.parse().expect("an id")).await.expect("a preview");
        let bob = work.client(Actor::user("bob").expect("a name"));
        bob.approve(Approval::of(&preview)).await.expect("approved");
        work.close().await;
        preview
    })
}

fn submit_all(server: &Server, result: impl Fn(&Value) -> Value) {
    let wanted = json!({"limit": 50});
    let got = server.request("agent:writer", "/v1/items/checkout", Some(&wanted));
    for lease in got["leases"].as_array().expect("leases") {
        let done = json!({"lease": lease["id"], "result": result(&lease["input"])});
        server.request("agent:writer", "/v1/items/submit", Some(&done));
    }
}

#[test]
fn the_samples_work_as_they_stand() {
    let place = LockDirectory::new();
    let types = copied(&place);
    let server = Server::start(&place, &types);
    let payload = json!({"style": "plain", "pages": [
        {"path": "index.txt", "about": "the site"}, {"path": "a/b.txt", "about": "a detail"}]});
    let order = json!({"type": "pages", "payload": payload});
    let order = server.request("user:ada", "/v1/orders", Some(&order));
    assert_eq!(order["order"]["priority"], 5, "the type's own");
    let id = order["order"]["id"].as_str().expect("an id").to_owned();
    submit_all(&server, |input| {
        assert_eq!(input["style"], "plain");
        json!({"text": format!("about {}\n", input["page"]["about"].as_str().expect("text"))})
    });
    let preview = approve(&place, &types, &id);
    assert_eq!(preview.diff.expect("a diff").after["index.txt"], "about the site\n");
    let done = finished(&server, &id);
    assert_eq!(done["order"]["state"], "completed", "{done}");
    for (path, text) in [("index.txt", "about the site\n"), ("a/b.txt", "about a detail\n")] {
        let written = std::fs::read_to_string(types.join("published").join(path));
        assert_eq!(written.expect("published"), text);
    }
    // The other sample: batches of five, and a rule that approves.
    let texts = json!({"type": "summary", "payload": {"texts": ["a", "b"]}});
    let short = server.request("user:ada", "/v1/orders", Some(&texts));
    submit_all(&server, |input| {
        assert_eq!(*input, json!(["a", "b"]));
        json!({"title": "two texts"})
    });
    let short = finished(&server, short["order"]["id"].as_str().expect("an id"));
    assert_eq!(short["order"]["state"], "completed");
    server.end();
}

#[test]
fn a_command_that_fails_is_told_by_the_order() {
    let place = LockDirectory::new();
    let types = copied(&place);
    let failing = "[publish]\ncommand = ['/bin/sh', '-c', 'echo the disk is full >&2; exit 3']\n";
    std::fs::write(types.join("appliers.toml"), failing).expect("written");
    let server = Server::start(&place, &types);
    let payload = json!({"pages": [{"path": "index.txt", "about": "the site"}]});
    let order = json!({"type": "pages", "payload": payload});
    let order = server.request("user:ada", "/v1/orders", Some(&order));
    let id = order["order"]["id"].as_str().expect("an id").to_owned();
    submit_all(&server, |_| json!({"text": "x"}));
    approve(&place, &types, &id);
    let failed = finished(&server, &id);
    assert_eq!(failed["order"]["state"], "failed");
    let message = failed["order"]["error"]["message"].as_str().expect("why");
    assert!(message.contains("exit status: 3") && message.contains("disk is full"), "{message}");
    server.end();
}

#[test]
fn a_mistake_in_a_declaration_keeps_the_server_from_starting() {
    let place = LockDirectory::new();
    let types = copied(&place);
    std::fs::write(types.join("wrong.toml"), "name = 'wrong'\n\nlease_ttl = 5\n").expect("written");
    let mut command = latchwork();
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(place.path("data"));
    let output = command.arg("--types").arg(&types).output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(
        said.contains("wrong.toml:3: lease_ttl: invalid type: integer `5`, expected a duration"),
        "{said}"
    );
}

#[test]
fn declarations_are_checked() {
    let output = latchwork().args(["types", "check"]).arg(samples()).output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("order type pages, version 1"), "{said}");
    let place = LockDirectory::new();
    let types = copied(&place);
    std::fs::write(types.join("one.toml"), "name = 'one'\n[apply]\napplier = 'none'")
        .expect("written");
    std::fs::write(types.join("two.toml"), "name = 'two'\nprioritty = 1").expect("written");
    let mut command = latchwork();
    command.args(["types", "check"]);
    for name in ["one.toml", "pages.toml", "two.toml", "appliers.toml", "three.toml"] {
        command.arg(types.join(name));
    }
    let output = command.output().expect("it ends");
    let (said, wrong) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(64), "{wrong}");
    assert!(said.contains("order type pages") && said.contains("1 appliers: publish"), "{said}");
    for expected in
        ["one.toml:3: apply.applier", "two.toml:2: prioritty: unknown field", "three.toml"]
    {
        assert!(wrong.contains(expected), "{expected}: {wrong}");
    }
}
