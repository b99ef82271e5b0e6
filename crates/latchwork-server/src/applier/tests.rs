//! Commands that do as they should, and commands that do not.
#![cfg(feature = "sqlite")]

use std::path::Path;
use std::time::Duration;

use latchwork_lock::{Clock as _, SystemClock};
use latchwork_work::{
    Actor, Approval, Checkout, Event, EventType, Order, OrderState, Preview, Proposal, Submission,
    WorkManager,
};
use serde_json::json;

use super::*;

/// A directory with an order type whose applier is this shell script.
struct Directory(tempfile::TempDir);

impl Directory {
    fn new(script: &str, more: &str) -> Self {
        let directory = Directory(tempfile::tempdir().expect("a directory"));
        directory.write("job.toml", "name = 'job'\n[apply]\napplier = 'tool'\n");
        let script = toml_text(script);
        directory
            .write(APPLIERS, &format!("[tool]\ncommand = ['/bin/sh', '-c', {script}]\n{more}"));
        directory
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).expect("written");
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    async fn open(&self) -> WorkManager {
        let types = types_of(self.path()).expect("order types");
        let url = format!("sqlite://{}", self.path().join("work.db").display());
        WorkManager::builder(types).connect(&url).await.expect("it opens")
    }
}

/// A text of TOML; no script here has three single quotes.
fn toml_text(text: &str) -> String {
    format!("'''{text}'''")
}

async fn submitted(work: &WorkManager) -> Order {
    let ada = work.client(Actor::user("ada").expect("legal"));
    let order = ada.propose(Proposal::new("job", json!({"n": 1}))).await.expect("proposed").order;
    let agent = work.client(Actor::agent("agent-1").expect("legal"));
    let lease = agent.checkout(Checkout::any()).await.expect("asked").leases.remove(0);
    agent.submit(Submission::new(&lease, json!({"done": true}))).await.expect("submitted");
    order
}

async fn approve(work: &WorkManager, order: &Order) -> Preview {
    let preview = work.preview(order.id).await.expect("a preview");
    let bob = work.client(Actor::user("bob").expect("legal"));
    bob.approve(Approval::of(&preview)).await.expect("approved");
    preview
}

/// Applies an order by a script, and gives the order and the event that tells what became of it.
async fn applied(script: &str, more: &str) -> (Order, Event) {
    let directory = Directory::new(script, more);
    let work = directory.open().await;
    let order = submitted(&work).await;
    approve(&work, &order).await;
    let worker = work.apply_worker("worker-1").expect("legal");
    let order = worker.apply(order.id).await.expect("the store answers").expect("applied");
    let told = work.timeline(order.id, None, 100).await.expect("a timeline").events;
    let wanted =
        if order.state == OrderState::Failed { EventType::Failed } else { EventType::Applied };
    let event = told.into_iter().find(|event| event.event == wanted).expect("an event");
    (order, event)
}

/// The message of the event of a failure, which the order's error has, too.
async fn failure(script: &str, more: &str) -> String {
    let (order, event) = applied(script, more).await;
    assert_eq!(order.state, OrderState::Failed);
    let error = order.error.expect("why");
    assert_eq!((&error["stage"], &error["code"]), (&json!("apply"), &json!("apply_failed")));
    let message = event.message.expect("a message");
    assert_eq!(error["message"], json!(message));
    message
}

#[tokio::test]
async fn w07_a_command_gets_json_and_gives_a_diff() {
    let script =
        r#"read -r input; printf '{"before": {"n": 0}, "after": %s, "summary": "told"}' "$input""#;
    let (order, event) = applied(script, "").await;
    assert_eq!(order.state, OrderState::Completed);
    let diff = event.diff.expect("a diff");
    let told = &diff["after"];
    assert_eq!(
        (&told["action"], &told["fence"], &told["attempt"]),
        (&json!("apply"), &json!(1), &json!(1))
    );
    assert_eq!(told["idempotency_key"], order.id.to_string());
    assert_eq!(told["order"]["type"], "job");
    assert_eq!(
        (&told["payload"], &told["items"][0]["result"]),
        (&json!({"n": 1}), &json!({"done": true}))
    );
    assert_eq!(diff["summary"], "told");
    let changes = diff["changes"].as_array().expect("a patch");
    assert!(
        changes.iter().any(|change| change["path"] == "/n" && change["op"] == "remove"),
        "{diff}"
    );
}

#[tokio::test]
async fn w07_a_command_sees_the_environment_that_is_named() {
    let script = r#"printf '{"after": "%s"}' "$(env | sort | cut -d= -f1 | tr '\n' ' ')""#;
    let named = "env = { ONE = '1' }\npass_env = ['PATH']";
    let (_, event) = applied(script, named).await;
    let seen = event.diff.expect("a diff")["after"].as_str().expect("text").to_owned();
    // A shell sets variables of its own.
    let mut seen: Vec<_> = seen.split_whitespace().collect();
    seen.retain(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name));
    assert_eq!(seen, ["ONE", "PATH"]);
}

#[tokio::test]
async fn w07_a_command_that_exits_with_an_error_is_told_with_its_stderr() {
    let message =
        failure("echo 'the target is full' >&2; printf 'a\\000b\\n' >&2; exit 3", "").await;
    assert!(message.contains("exit status: 3"), "{message}");
    assert!(message.contains("the target is full"), "{message}");
    assert!(message.contains("a\u{fffd}b"), "it can be stored: {message:?}");
    let message = failure("kill -9 $$", "").await;
    assert!(message.contains("signal: 9"), "{message}");
    let message =
        failure("i=0; while [ $i -lt 9000 ]; do echo noise $i; i=$((i+1)); done >&2; exit 1", "")
            .await;
    assert!(message.contains("noise 8999") && !message.contains("noise 100\n"), "the end of it");
    assert!(message.len() < 5_000, "{} bytes", message.len());
}

/// Whether the process with the number in a file runs. A zombie does not.
fn runs(file: &Path) -> bool {
    let pid = std::fs::read_to_string(file).expect("a number");
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// A kill is sent at once, and the process dies soon.
async fn dies(file: &Path) {
    for _ in 0..500 {
        if !runs(file) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it still runs");
}

#[tokio::test]
async fn w07_a_command_that_hangs_is_killed_with_its_children() {
    let directory = tempfile::tempdir().expect("a directory");
    let child = directory.path().join("child");
    // The child holds stdout and stderr open.
    let script = format!("sleep 100 & echo $! >{}; echo begun >&2; wait", child.display());
    let begun = SystemClock.now();
    let message = failure(&script, "time_limit = '2s'").await;
    assert!(SystemClock.now().since(begun) < Duration::from_secs(50), "it is bounded");
    assert!(message.contains("longer than 2s") && message.contains("begun"), "{message}");
    dies(&child).await;
}

#[tokio::test]
async fn w07_what_a_command_leaves_behind_is_killed() {
    let directory = tempfile::tempdir().expect("a directory");
    let child = directory.path().join("child");
    let script = format!("sleep 100 & echo $! >{}; echo '{{}}'", child.display());
    let begun = SystemClock.now();
    let (order, _) = applied(&script, "").await;
    assert_eq!(order.state, OrderState::Completed);
    assert!(SystemClock.now().since(begun) < Duration::from_secs(50), "it does not wait for it");
    dies(&child).await;
}

/// The apply worker is dropped in the middle, as when its lease is lost.
#[tokio::test]
async fn w07_a_command_dies_with_its_worker() {
    let directory = Directory::new("echo $$ >child; sleep 100", "");
    let work = directory.open().await;
    let order = submitted(&work).await;
    approve(&work, &order).await;
    let worker = work.apply_worker("w").expect("legal");
    let running = tokio::spawn(async move { worker.apply(order.id).await });
    let child = directory.path().join("child");
    while std::fs::read_to_string(&child).unwrap_or_default().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(runs(&child));
    running.abort();
    let _ = running.await;
    dies(&child).await;
}

#[tokio::test]
async fn w07_a_command_that_prints_garbage_is_told() {
    for (script, expected) in [
        ("echo 'hello there'", "hello there"),
        ("true", "printed no diff"),
        ("echo '{\"befor\": 1}'", "befor"),
        ("echo '[1, 2]'", "[1, 2]"),
        ("echo '{} {}'", "trailing"),
        ("echo '{\"changes\": [{\"op\": \"eat\", \"path\": \"/\"}]}'", "eat"),
        ("printf '\\377\\376'", "printed no diff"),
    ] {
        let message = failure(script, "").await;
        assert!(
            message.contains("printed no diff") && message.contains(expected),
            "{script}: {message}"
        );
        assert!(message.len() < 1_000, "{message}");
    }
}

#[tokio::test]
async fn w07_a_command_that_writes_a_gigabyte_is_cut_off() {
    let begun = SystemClock.now();
    let message = failure("head -c 1000000000 /dev/zero", "max_output_bytes = 10000").await;
    assert!(message.contains("more than 10000 bytes"), "{message}");
    let message = failure("head -c 100000000 /dev/zero >&2; exit 1", "").await;
    assert!(message.len() < 20_000, "{} bytes", message.len());
    assert!(SystemClock.now().since(begun) < Duration::from_secs(30));
}

#[tokio::test]
async fn w07_a_command_need_not_read_its_input() {
    let directory = Directory::new("echo '{}'", "");
    let work = directory.open().await;
    let ada = work.client(Actor::user("ada").expect("legal"));
    let large = json!({"text": "x".repeat(900_000)});
    let order = ada.propose(Proposal::new("job", large)).await.expect("proposed").order;
    let agent = work.client(Actor::agent("agent-1").expect("legal"));
    let lease = agent.checkout(Checkout::any()).await.expect("asked").leases.remove(0);
    agent.submit(Submission::new(&lease, json!(1))).await.expect("submitted");
    approve(&work, &order).await;
    let worker = work.apply_worker("w").expect("legal");
    let done = worker.apply(order.id).await.expect("asked").expect("applied");
    assert_eq!(done.state, OrderState::Completed);
}

#[tokio::test]
async fn w07_a_preview_command_is_shown_and_made_once() {
    let directory =
        Directory::new("echo '{\"after\": \"applied\"}'", "preview = ['/bin/sh', 'preview.sh']");
    directory.write("preview.sh", "echo x >>made; echo '{\"after\": \"preview\"}'");
    let work = directory.open().await;
    let order = submitted(&work).await;
    let preview = approve(&work, &order).await;
    assert_eq!(preview.diff.expect("a diff").after, json!("preview"));
    let worker = work.apply_worker("w").expect("legal");
    worker.apply(order.id).await.expect("asked").expect("applied");
    let made =
        std::fs::read_to_string(directory.path().join("made")).expect("it ran in its directory");
    assert_eq!(made.lines().count(), 1, "made once, and stored");
}

#[tokio::test]
async fn w07_a_failing_preview_command_fails_the_request_and_not_the_order() {
    let directory = Directory::new("echo '{}'", "preview = ['/bin/false']");
    let work = directory.open().await;
    let order = submitted(&work).await;
    let error = work.preview(order.id).await.expect_err("no preview");
    assert_eq!(error.code(), "order_type_failed");
    assert!(error.to_string().contains("/bin/false"), "{error}");
    assert_eq!(work.order(order.id).await.expect("there").order.state, OrderState::Submitted);
}

#[test]
fn w12_a_mistake_in_a_file_of_commands_names_line_and_field() {
    let cases: [(&str, usize, &str, &str); 13] = [
        ("[tool]\n\ncommand = []", 3, "tool.command", "no program"),
        ("[tool]\ncommand = ['no-such-program']", 2, "tool.command", "no-such-program"),
        ("[tool]\ncommand = ['./tool.sh']", 2, "tool.command", "no executable file"),
        ("[tool]\ncommand = ['sh']\npreview = ['./x']", 3, "tool.preview", "no executable file"),
        ("[tool]\ncommand = 'sh'", 2, "tool.command", "sequence"),
        ("[tool]\ncommand = ['sh']\nenvironment = {}", 3, "tool.environment", "unknown field"),
        (
            "[tool]\ncommand = ['sh']\npass_env = ['NOT_SET_4711']",
            3,
            "tool.pass_env",
            "NOT_SET_4711",
        ),
        ("[tool]\ncommand = ['sh']\nenv = { 'A=B' = 'x' }", 3, "tool.env", "="),
        ("[tool]\ncommand = ['sh']\ndirectory = 'none'", 3, "tool.directory", "no directory"),
        ("[tool]\ncommand = ['sh']\ntime_limit = '0s'", 3, "tool.time_limit", "more than nothing"),
        ("[tool]\ncommand = ['sh']\ntime_limit = 3", 3, "tool.time_limit", "duration"),
        ("['a b']\ncommand = ['sh']", 1, "a b", "not legal"),
        ("time_limit = '3s'", 1, "time_limit", "Declared"),
    ];
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join(APPLIERS);
    for (text, line, field, expected) in cases {
        std::fs::write(&file, text).expect("written");
        let error = CommandApplier::read(&file).expect_err(text).to_string();
        let begin = format!("{}:{line}: {field}: ", file.display());
        assert!(error.starts_with(&begin) && error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn w12_a_directory_is_read_as_a_whole() {
    let directory = Directory::new("true", "");
    directory.write(".hidden.toml", "garbage");
    directory.write("tool.sh", "not a declaration");
    directory.write("b.toml", "name = 'b'");
    let types = types_of(directory.path()).expect("order types");
    assert_eq!(types.iter().map(|known| known.name()).collect::<Vec<_>>(), ["b", "job"]);
    directory.write("c.toml", "name = 'b'");
    let error = types_of(directory.path()).expect_err("twice").to_string();
    assert!(error.contains("c.toml:1: name: there is already a type \"b\""), "{error}");
    directory.write("c.toml", "name = 'c'\n[apply]\napplier = 'toll'");
    let error = types_of(directory.path()).expect_err("none").to_string();
    assert!(error.contains("c.toml:3: apply.applier: ") && error.contains("tool"), "{error}");
    let empty = tempfile::tempdir().expect("a directory");
    assert!(types_of(empty.path()).expect_err("empty").to_string().contains("no order type"));
    assert!(
        types_of(&empty.path().join("x")).expect_err("none").to_string().contains("cannot be read")
    );
}

#[test]
fn no_debug_form_shows_the_environment() {
    let directory = Directory::new("true", "env = { SECRET = 'hush' }");
    let appliers = CommandApplier::read(&directory.path().join(APPLIERS)).expect("read");
    let shown = format!("{appliers:?}");
    assert!(shown.contains("tool") && !shown.contains("hush"), "{shown}");
}
