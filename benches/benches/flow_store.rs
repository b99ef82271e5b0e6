//! Finding what is due among many contexts that are not, in SQLite. Ratios of one run.
//!
//! `cargo bench -p latchwork-benches --bench flow_store` takes a minute or so, most of it to store
//! 100,000 contexts. Goals are printed and not asserted: a busy machine is no fault of the code.
#![allow(clippy::expect_used, reason = "a bench of what fails is none")]

use std::hint::black_box;
use std::time::Duration;

use latchwork_benches::{Contender, Goal, Scale, Table, race};
use latchwork_flow::store::{
    ContextDraft, ContextFilter, ContextPageRequest, ContextStore, DueClaim, GiveBack, Proof,
    RunClaim, View, Waiting,
};
use latchwork_flow::{SqliteContextStore, Status, TransitionId};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const MACHINE: &str = "bench";
const HOUR: Duration = Duration::from_secs(3_600);
const DUE: usize = 10;

fn main() -> std::io::Result<()> {
    let scale = Scale::from_args();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (many, few) = (scale.pick(100_000, 500), scale.pick(1_000, 50));
    let (full, small) = (Store::fill(&runtime, many), Store::fill(&runtime, few));

    let mut table =
        Table::new("SQLite with 100,000 paused contexts: how many times the cost with 1,000");
    let mut row = |name: &str, first: &dyn Fn(u64), second: &dyn Fn(u64)| {
        let mut contenders = [Contender::new("many", first), Contender::new("few", second)];
        let ratio = race(scale, &mut contenders).first_costs_of(1);
        table.row(name, "1,000", ratio.median, ratio.to_string(), Goal::AtMost(1.5));
    };
    row("claim 10 that are due, and give them back", &|n| full.claim(n), &|n| small.claim(n));
    row("list 10 that are due", &|n| full.list(n), &|n| small.list(n));
    // From here on somebody is at those that were due.
    full.claim_for_good();
    small.claim_for_good();
    row("look when nothing is due", &|n| full.look(n), &|n| small.look(n));
    table.print(scale);
    Ok(())
}

struct Store<'a> {
    runtime: &'a Runtime,
    store: SqliteContextStore,
    _directory: TempDir,
}

impl<'a> Store<'a> {
    /// So many that wait for a time or a signal, and ten that are due.
    fn fill(runtime: &'a Runtime, waiting: u64) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("flows.db");
        let url = format!("sqlite://{}?synchronous=normal", path.display());
        let store = runtime.block_on(async {
            let store = SqliteContextStore::open(&url).await.expect("a store");
            let now = store.now().await.expect("it tells the time");
            for number in 0..waiting {
                let wait = match number % 2 {
                    0 => Waiting { wake_at: Some(now + HOUR * 24), ..Waiting::default() },
                    _ => Waiting {
                        signal: Some("approved".to_owned()),
                        timeout_at: Some(now + HOUR * 48),
                        ..Waiting::default()
                    },
                };
                let draft = draft(TransitionId::new(now), wait);
                store.create(&draft, None).await.expect("it is new");
            }
            for _ in 0..DUE {
                let wait = Waiting { wake_at: Some(now - HOUR), ..Waiting::default() };
                let draft = draft(TransitionId::new(now), wait);
                store.create(&draft, None).await.expect("it is new");
            }
            store
        });
        Store { runtime, store, _directory: directory }
    }

    fn claim(&self, operations: u64) {
        self.runtime.block_on(async {
            for _ in 0..operations {
                let claim = RunClaim::new(HOUR);
                let rows = self.store.claim_due(&DueClaim::new(MACHINE, DUE, &claim)).await;
                let rows = rows.expect("it answers");
                assert_eq!(rows.len(), DUE);
                for row in rows {
                    let proof = Proof { id: row.head.id, token: claim.token };
                    self.store.release(proof, &GiveBack::default()).await.expect("it answers");
                }
            }
        });
    }

    fn claim_for_good(&self) {
        let claim = RunClaim::new(HOUR);
        let rows =
            self.runtime.block_on(self.store.claim_due(&DueClaim::new(MACHINE, DUE, &claim)));
        assert_eq!(rows.expect("it answers").len(), DUE);
    }

    fn list(&self, operations: u64) {
        let machine = Some(MACHINE.to_owned());
        let filter = ContextFilter { machine, view: View::Due, ..ContextFilter::default() };
        self.runtime.block_on(async {
            for _ in 0..operations {
                let page = self.store.list(&filter, &ContextPageRequest::default()).await;
                assert_eq!(page.expect("it answers").contexts.len(), DUE);
            }
        });
    }

    fn look(&self, operations: u64) {
        self.runtime.block_on(async {
            let claim = RunClaim::new(HOUR);
            for _ in 0..operations {
                let rows = self
                    .store
                    .claim_due(&DueClaim::new(MACHINE, 16, &claim))
                    .await
                    .expect("it answers");
                assert!(rows.is_empty());
                black_box(self.store.next_due(MACHINE).await.expect("it answers"));
            }
        });
    }
}

fn draft(id: TransitionId, waiting: Waiting) -> ContextDraft {
    ContextDraft {
        id,
        machine: MACHINE.to_owned(),
        entity: Some(format!("order {id}")),
        status: Status::Paused,
        // About what a small order with three actions takes.
        body: format!("{{\"of\":\"{id}\",\"rest\":\"{}\"}}", "x".repeat(900)),
        details: r#"{"definition":1,"done":1,"left":2}"#.to_owned(),
        waiting: Some(waiting),
        holds_lock: false,
    }
}
