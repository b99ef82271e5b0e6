//! The figures of `docs/work.md`.
#![cfg(all(feature = "metrics", feature = "sqlite"))]
#![allow(clippy::expect_used, reason = "a test says what went wrong by panicking")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_work::{
    Actor, Checkout, DynamicOrderType, OrderTypes, Proposal, Submission, TypeSettings, WorkManager,
};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use serde_json::json;

/// What was counted, by name and labels.
#[derive(Clone, Default)]
struct TestRecorder(Arc<Mutex<BTreeMap<String, u64>>>);

struct Series(TestRecorder, String);

impl Series {
    fn of(recorder: &TestRecorder, key: &Key) -> Arc<Self> {
        let labels = key.labels().map(|label| format!(" {}={}", label.key(), label.value()));
        Arc::new(Series(recorder.clone(), format!("{}{}", key.name(), labels.collect::<String>())))
    }

    fn add(&self, count: u64) {
        *self.0.0.lock().expect("whole").entry(self.1.clone()).or_default() += count;
    }
}

impl CounterFn for Series {
    fn increment(&self, value: u64) {
        self.add(value);
    }
    fn absolute(&self, value: u64) {
        self.add(value);
    }
}

impl GaugeFn for Series {
    fn increment(&self, _: f64) {}
    fn decrement(&self, _: f64) {}
    fn set(&self, _: f64) {
        self.add(0);
    }
}

impl HistogramFn for Series {
    fn record(&self, _: f64) {
        self.add(1);
    }
}

impl Recorder for TestRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Series::of(self, key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Series::of(self, key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Series::of(self, key))
    }
}

async fn work() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite://{}", directory.path().join("work.db").display());
    let mut types = OrderTypes::new();
    let (lease_ttl, heartbeat_every) = (Duration::from_millis(20), Duration::from_millis(10));
    let settings = TypeSettings { lease_ttl, heartbeat_every, ..TypeSettings::default() };
    types.add_dynamic(DynamicOrderType::new("job")).expect("a type");
    types.add_dynamic(DynamicOrderType::new("short").settings(settings)).expect("a type");
    let work = WorkManager::builder(types).connect(&url).await.expect("opened");
    let ada = work.client(Actor::user("ada").expect("a name"));
    let agent = work.client(Actor::agent("agent-1").expect("a name"));
    let mut held = Vec::new();
    for order_type in ["job", "short"] {
        ada.propose(Proposal::new(order_type, json!(1))).await.expect("proposed");
        let got = agent.checkout(Checkout::of_type(order_type)).await.expect("checked out");
        held.extend(got.leases);
    }
    ada.retry(held[0].order_id).await.expect_err("nothing of it failed");
    ada.propose(Proposal::new("none", json!(1))).await.expect_err("no such type");
    while work.reclaim_expired().await.expect("reclaimed") == 0 {
        tokio::time::sleep(lease_ttl).await;
    }
    let done = || Submission::new(&held[0], json!(1));
    agent.submit(done()).await.expect("submitted");
    agent.submit(done()).await.expect_err("it is over");
    work.seal().await.expect("sealed");
}

#[test]
fn what_happens_is_counted() {
    let recorder = TestRecorder::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    metrics::with_local_recorder(&recorder, || runtime.block_on(work()));
    let mut counts = recorder.0.lock().expect("whole").clone();
    let sealed = counts.remove("latchwork_work_sealed_total").expect("sealed");
    assert!(sealed > 6, "{sealed}");
    let lines: Vec<_> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    assert_eq!(
        lines,
        [
            "1 latchwork_work_claims_total type=job",
            "1 latchwork_work_claims_total type=short",
            "1 latchwork_work_leases_expired_total type=short",
            "1 latchwork_work_refusals_total code=lease_expired",
            "1 latchwork_work_refusals_total code=order_state",
            "1 latchwork_work_refusals_total code=order_type_not_found",
            "0 latchwork_work_sealing_lag_seconds",
            "1 latchwork_work_submissions_total type=job",
        ]
    );
    let page = include_str!("../../../docs/work.md");
    let names = lines.iter().filter_map(|line| line.split(' ').nth(1));
    for name in names.chain(["latchwork_work_sealed_total", "latchwork_work_apply_seconds"]) {
        assert!(page.contains(&format!("| `{name}` |")), "docs/work.md should have {name}");
    }
}
