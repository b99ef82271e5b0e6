//! `flows ls|show|signal|cancel|retry|release`, over an SQLite file and, where there is a server,
//! PostgreSQL.

use std::process::Output;

use latchwork::flow::store::{ContextDraft, ContextStore, DueClaim, GiveBack, Proof, RunClaim};
use latchwork::flow::{
    ActionResult, Contexts, JsonState, Pause, StateMachine, StateMachineBuilder, TransitionId,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{assert_code, latchwork, said, text};

/// A store with some transitions in it.
struct Stored {
    at: String,
    paused: TransitionId,
    failed: TransitionId,
    quarantined: TransitionId,
    _directory: Option<TempDir>,
}

impl Stored {
    fn flows(&self, args: &[&str]) -> Output {
        latchwork().arg("flows").args(args).args(["--at", &self.at]).output().expect("it runs")
    }

    fn json(&self, args: &[&str]) -> Value {
        let out = self.flows(&[args, &["--json"]].concat());
        assert_code(&out, 0);
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&out)))
    }
}

fn machine(contexts: &Contexts) -> StateMachineBuilder<JsonState> {
    StateMachine::builder("orders").store(contexts.clone())
}

async fn fill(at: String, directory: Option<TempDir>) -> Stored {
    let contexts = Contexts::connect(&at).await.expect("a store");
    let state = |id: &str| JsonState::new(json!({"id": id})).expect("a state");
    let delta = || JsonState::delta(json!({})).expect("a delta");
    let pauses = machine(&contexts).action_fn("ask", |_| async {
        Ok(ActionResult::pause(Pause::new().on_signal("approved")))
    });
    let pauses = pauses.build().expect("a machine");
    let paused = pauses.run(state("ORD-1"), delta()).await.expect("no error").id();
    let fails = machine(&contexts).action_fn("charge", |_| async { Err("no money".into()) });
    let mut failing = fails.build().expect("a machine").transition(state("ORD-2"), delta());
    let failed = failing.context().id();
    failing.execute().await.expect_err("it fails");
    let quarantined = pauses.submit(state("ORD-3"), delta()).await.expect("stored");
    let claim = RunClaim::new(std::time::Duration::from_secs(60));
    let due = DueClaim { max_attempts: 1, ..DueClaim::new("orders", 1, &claim) };
    assert_eq!(contexts.claim_due(&due).await.expect("it answers").len(), 1);
    let proof = Proof { id: quarantined, token: claim.token };
    let how = GiveBack { counts: true, reason: Some("the disk is full"), postpone: None };
    assert!(contexts.release(proof, &how).await.expect("it answers"));
    assert!(contexts.claim_due(&due).await.expect("it answers").is_empty());
    Stored { at, paused, failed, quarantined, _directory: directory }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

fn sqlite() -> Stored {
    let directory = tempfile::tempdir().expect("a directory");
    let at = format!("sqlite://{}", directory.path().join("a.db").display());
    block_on(fill(at, Some(directory)))
}

fn everything(stored: &Stored) {
    let table = said(&stored.flows(&["ls"]));
    for part in ["ID", "WAITS FOR", "ORD-1", "paused", "\"approved\"", "ORD-2", "failed"] {
        assert!(table.contains(part), "{part:?} in\n{table}");
    }
    let found = stored.json(&["ls", "--status", "quarantined"]);
    assert_eq!(found["contexts"].as_array().expect("an array").len(), 1);
    assert_eq!(found["contexts"][0]["waiting_for"][0]["why"], "the disk is full");
    let found = stored.json(&["ls", "--limit", "1"]);
    assert_eq!(found["more"], true);

    let id = stored.quarantined.to_string();
    let shown = said(&stored.flows(&["show", &id]));
    for part in ["is quarantined", "its release", "after 1 attempts", "the disk is full"] {
        assert!(shown.contains(part), "{part:?} in\n{shown}");
    }
    let out = stored.flows(&["release", &id]);
    assert_code(&out, 0);
    assert!(said(&out).contains("is pending"), "{}", said(&out));
    let out = stored.flows(&["release", &id]);
    assert_code(&out, 64);
    assert!(text(&out).contains("not quarantined"), "{}", text(&out));

    let id = stored.failed.to_string();
    let shown = said(&stored.flows(&["show", &id]));
    assert!(shown.contains("action_failed") && shown.contains("no money"), "{shown}");
    assert_eq!(stored.json(&["retry", &id])["status"], "running");
    let out = stored.flows(&["retry", &id]);
    assert_code(&out, 64);
    assert!(text(&out).contains("has not failed"), "{}", text(&out));

    let id = stored.paused.to_string();
    let out = stored.flows(&["signal", &id, "approved", "--payload", "{"]);
    assert_code(&out, 64);
    assert!(text(&out).contains("not JSON"), "{}", text(&out));
    let out = stored.flows(&["signal", &id, "approved", "--payload", r#"{"by":"Ada"}"#]);
    assert_code(&out, 0);
    assert!(said(&out).contains("a runner"), "it is due now: {}", said(&out));
    let cancelled = stored.json(&["cancel", &id, "--reason", "too late"]);
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(cancelled["cancel_reason"], "too late");
    let out = stored.flows(&["cancel", &id, "--json"]);
    assert_code(&out, 64);
    assert!(text(&out).contains("transition_over"), "{}", text(&out));
}

#[test]
fn flows_in_a_file() {
    everything(&sqlite());
}

#[test]
fn flows_in_a_server() {
    let Ok(server) = std::env::var("LATCHWORK_TEST_POSTGRES") else {
        assert!(std::env::var_os("CI").is_none(), "no server; `scripts/services up postgres`");
        return;
    };
    let stored = block_on(async {
        use sqlx::{AssertSqlSafe, Connection, PgConnection};
        let name = format!("flows_{}", TransitionId::new(chrono::Utc::now()));
        let name = name.replace('-', "");
        let mut admin = PgConnection::connect(&server).await.expect("the server is there");
        let made = sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA {name}")));
        made.execute(&mut admin).await.expect("a room of its own");
        fill(format!("{server}?options[search_path]={name}"), None).await
    });
    everything(&stored);
}

#[test]
fn what_is_wrong_with_an_address_or_an_id_is_said() {
    let stored = sqlite();
    let nobody = "01a1ec65-bd87-79bf-b011-37a5ca00697c";
    let out = stored.flows(&["show", nobody]);
    assert_code(&out, 64);
    assert!(text(&out).contains("there is no context"), "{}", text(&out));
    assert_code(&stored.flows(&["show", "nonsense"]), 64);
    let out = stored.flows(&["ls", "--status", "lost"]);
    assert_code(&out, 64);
    assert!(text(&out).contains("quarantined"), "{}", text(&out));
    for (at, code, part) in [
        ("sqlite:///no/such/file.db", 69, "does not exist"),
        ("redis://me:hunter2@nowhere", 64, "postgres://"),
        ("postgres://me:hunter2@127.0.0.1:1/db", 69, "no server listens"),
    ] {
        let out = latchwork().args(["flows", "ls", "--at", at]).output().expect("it runs");
        assert_code(&out, code);
        assert!(text(&out).contains(part) && !text(&out).contains("hunter2"), "{}", text(&out));
    }
}

/// The address may have a password, which a list of the processes would show.
#[test]
fn an_address_may_stand_in_a_file() {
    let stored = sqlite();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("address");
    std::fs::write(&file, format!("{}\n", stored.at)).expect("written");
    let run = |args: &[&str]| {
        let mut command = latchwork();
        command.args(args).arg("--at-file").arg(&file).env_remove("LATCHWORK_AT");
        command.output().expect("it runs")
    };
    assert!(said(&run(&["flows", "ls"])).contains("ORD-1"));
    assert!(said(&run(&["locks", "schema"])).contains("CREATE TABLE"));
    std::fs::remove_file(&file).expect("removed");
    for args in [["flows", "ls"], ["locks", "schema"]] {
        let out = run(&args);
        assert_code(&out, 64);
        assert!(text(&out).contains("cannot be read"), "{}", text(&out));
        let out = latchwork().args(args).env_remove("LATCHWORK_AT").output().expect("it runs");
        assert_code(&out, 64);
        assert!(text(&out).contains("--at"), "{}", text(&out));
    }
}

#[test]
fn no_state_and_no_secret_is_shown() {
    let stored = sqlite();
    let secret = "5ec4e7c0ffee5ec4e7c0ffee5ec4e7c0";
    let id = block_on(async {
        let contexts = Contexts::connect(&stored.at).await.expect("a store");
        let row = Contexts::load(&contexts, stored.paused).await.expect("it is there");
        let draft = ContextDraft {
            id: TransitionId::new(chrono::Utc::now()),
            machine: "orders".to_owned(),
            entity: None,
            status: row.head.status,
            body: format!("{{\"token\":\"{secret}\"}}"),
            details: row.head.details.clone(),
            waiting: None,
            holds_lock: false,
        };
        contexts.create(&draft, None).await.expect("it is new");
        draft.id.to_string()
    });
    for args in [&["ls", "--json"][..], &["show", &id, "--json"], &["show", &id]] {
        let out = stored.flows(args);
        let all = said(&out) + &text(&out);
        assert!(all.contains(&id) && !all.contains(secret), "{all}");
    }
}
