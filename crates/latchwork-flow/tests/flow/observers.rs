//! The ready observers tell what they promise.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use latchwork_flow::{
    ActionResult, EntityKey, GateResult, JsonState, StateMachine, StateMachineBuilder,
};
use latchwork_lock::{InMemoryLockProvider, Locks};
use serde_json::json;

fn machine(locks: &Locks) -> StateMachineBuilder<JsonState> {
    StateMachine::builder("watched")
        .locks(locks, EntityKey::new())
        .gate_fn("open", |_, _| GateResult::Allow)
        .action_fn("act", |_| async { Ok(ActionResult::proceed()) })
}

fn order() -> JsonState {
    JsonState::new(json!({"id": 1})).unwrap()
}

#[cfg(feature = "metrics")]
mod metrics {
    use super::*;
    use ::metrics::{
        Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
        SharedString, Unit,
    };
    use latchwork_flow::MetricsObserver;

    /// What was counted, by name and labels.
    #[derive(Clone, Default)]
    struct Book(Arc<Mutex<BTreeMap<String, u64>>>);

    struct Entry(Book, String);

    impl Entry {
        fn of(book: &Book, key: &Key) -> Arc<Self> {
            let labels: Vec<_> =
                key.labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
            Arc::new(Entry(book.clone(), format!("{} {}", key.name(), labels.join(" "))))
        }

        fn add(&self, count: u64) {
            *self.0.0.lock().unwrap().entry(self.1.clone()).or_default() += count;
        }
    }

    impl CounterFn for Entry {
        fn increment(&self, value: u64) {
            self.add(value);
        }
        fn absolute(&self, value: u64) {
            self.add(value);
        }
    }

    impl HistogramFn for Entry {
        fn record(&self, _: f64) {
            self.add(1);
        }
    }

    impl Recorder for Book {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(Entry::of(self, key))
        }
        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }
        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(Entry::of(self, key))
        }
    }

    #[test]
    fn f10_figures_are_counted() {
        let book = Book::default();
        let locks = Locks::new(InMemoryLockProvider::new());
        let machine = machine(&locks).observe(MetricsObserver).build().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        ::metrics::with_local_recorder(&book, || {
            runtime.block_on(async {
                machine.run(order(), Default::default()).await.unwrap();
                let held = locks.lock("flow:entity:1").acquire().await.unwrap();
                machine.run(order(), Default::default()).await.unwrap_err();
                drop(held);
            });
        });
        let book = book.0.lock().unwrap();
        let lines: Vec<_> = book.iter().map(|(name, count)| format!("{count} {name}")).collect();
        assert_eq!(
            lines,
            [
                "1 latchwork_flow_action_seconds machine=watched action=act",
                "1 latchwork_flow_actions_total machine=watched action=act execution=continue",
                "1 latchwork_flow_gates_total machine=watched gate=open verdict=allow",
                "1 latchwork_flow_lock_contention_total machine=watched",
                "1 latchwork_flow_transitions_total machine=watched status=completed",
                "1 latchwork_flow_transitions_total machine=watched status=failed",
            ]
        );
    }
}

mod log {
    use super::*;
    use latchwork_flow::TracingObserver;
    use tracing::field::{Field, Visit};
    use tracing::{Event, Level, Metadata, Subscriber, span};

    /// The messages with their levels.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<(Level, String)>>>);

    struct Message(String);

    impl Visit for Message {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            if field.name() == "message" {
                self.0 = format!("{value:?}");
            }
        }
    }

    impl Subscriber for Log {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "latchwork_flow"
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &Event<'_>) {
            let mut message = Message(String::new());
            event.record(&mut message);
            self.0.lock().unwrap().push((*event.metadata().level(), message.0));
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn f10_the_log_has_contention_as_a_warning() {
        let log = Log::default();
        let locks = Locks::new(InMemoryLockProvider::new());
        let machine = machine(&locks).observe(TracingObserver).build().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tracing::subscriber::with_default(log.clone(), || {
            runtime.block_on(async {
                let held = locks.lock("flow:entity:1").acquire().await.unwrap();
                machine.run(order(), Default::default()).await.unwrap_err();
                drop(held);
                machine.run(order(), Default::default()).await.unwrap();
            });
        });
        let log = log.0.lock().unwrap();
        let warned: Vec<_> = log.iter().filter(|(level, _)| *level == Level::WARN).collect();
        assert_eq!(
            warned.iter().map(|(_, said)| &**said).collect::<Vec<_>>(),
            ["LockFailed", "TransitionFailed"]
        );
        assert!(log.contains(&(Level::INFO, "TransitionCompleted".to_owned())), "{log:?}");
        assert!(log.contains(&(Level::DEBUG, "ActionExecuted".to_owned())), "{log:?}");
    }
}
