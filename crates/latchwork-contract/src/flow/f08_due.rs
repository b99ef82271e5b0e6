//! F8 What is due is found, when it is due and by one runner.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use latchwork_flow::store::{
    ContextDraft, ContextStore, Due, DueClaim, GiveBack, RunClaim, Save, StoredContext, Waiting,
};
use latchwork_flow::{Contexts, Status, TransitionId};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{code, found, later, proof, save, stored};

cases![
    f08_what_waits_to_begin_is_due,
    f08_a_pause_without_condition_is_never_due,
    f08_a_time_wakes_not_before_it_comes,
    f08_a_signal_wakes,
    f08_another_signal_does_not_wake,
    f08_a_signal_that_came_early_is_kept,
    f08_a_used_signal_is_gone,
    f08_a_timeout_is_due,
    f08_a_lock_to_renew_is_due,
    f08_an_orphan_is_due,
    f08_a_claimed_context_is_not_due,
    f08_what_was_released_is_due_as_before,
    f08_somebody_can_wake_it,
    f08_the_next_due_time_is_told,
    f08_longest_due_comes_first,
    f08_other_machines_are_left_alone,
    f08_two_runners_get_different_ones,
    f08_signals_for_the_ended_are_refused,
];

const HOUR: Duration = Duration::from_secs(3_600);

/// What is due, and why, by a claim that ends at once so that the case can ask again.
async fn due(f: &Fixture, store: &Contexts) -> Vec<(TransitionId, Due)> {
    let claim = f.long();
    let now = ContextStore::now(store).await.expect("it tells the time");
    let rows = store.claim_due(&DueClaim::new(f.machine(), 100, &claim)).await.expect("it answers");
    let mut found = Vec::new();
    for StoredContext { head, .. } in rows {
        let proof = latchwork_flow::store::Proof { id: head.id, token: claim.token };
        assert!(
            store.release(proof, &GiveBack::default()).await.expect("it answers"),
            "it is claimed"
        );
        found.push((head.id, head.due(now + Duration::from_millis(2))));
    }
    found
}

async fn only_due(f: &Fixture, store: &Contexts) -> Option<Due> {
    let mut found = due(f, store).await;
    assert!(found.len() <= 1, "{found:?}");
    found.pop().map(|(_, due)| due)
}

/// Nothing is found before this time. On a busy machine it may have come when we look.
async fn nothing_is_due_before(time: DateTime<Utc>, f: &Fixture, store: &Contexts) {
    if let Some(due) = only_due(f, store).await {
        assert!(later(store, Duration::ZERO).await >= time, "{due:?} before its time");
    }
}

async fn f08_what_waits_to_begin_is_due(f: Fixture) {
    let store = f.open().await;
    stored(&store, &f.draft(Status::Pending)).await;
    assert_eq!(only_due(&f, &store).await, Some(Due::Begin));
}

async fn f08_a_pause_without_condition_is_never_due(f: Fixture) {
    let store = f.open().await;
    stored(&store, &f.paused(Waiting::default())).await;
    f.pass(f.unit()).await;
    assert_eq!(only_due(&f, &store).await, None);
}

async fn f08_a_time_wakes_not_before_it_comes(f: Fixture) {
    let store = f.open().await;
    let far = Some(later(&store, HOUR).await);
    stored(&store, &f.paused(Waiting { wake_at: far, ..Waiting::default() })).await;
    assert_eq!(only_due(&f, &store).await, None);
    let soon = Some(later(&store, f.unit()).await);
    let draft = f.paused(Waiting { wake_at: soon, ..Waiting::default() });
    stored(&store, &draft).await;
    f.pass(f.unit() * 2).await;
    assert_eq!(due(&f, &store).await, [(draft.id, Due::Time)]);
}

async fn f08_a_signal_wakes(f: Fixture) {
    let (store, other) = (f.open().await, f.open().await);
    let wait = Waiting { signal: Some("paid".to_owned()), ..Waiting::default() };
    let draft = f.paused(wait);
    stored(&store, &draft).await;
    let before = found(&store, draft.id).await.head.revision;
    Contexts::signal(&other, draft.id, "paid", json!({"by": "ana"})).await.expect("it waits");
    match only_due(&f, &store).await {
        Some(Due::Signal(signal)) => {
            assert_eq!((&*signal.name, &signal.payload), ("paid", &json!({"by": "ana"})));
        }
        other => panic!("{other:?}"),
    }
    assert!(found(&store, draft.id).await.head.revision > before, "claiming is a change");
}

async fn f08_another_signal_does_not_wake(f: Fixture) {
    let store = f.open().await;
    let wait = Waiting { signal: Some("paid".to_owned()), ..Waiting::default() };
    let draft = f.paused(wait);
    stored(&store, &draft).await;
    Contexts::signal(&store, draft.id, "shipped", json!(null)).await.expect("it is kept");
    assert_eq!(only_due(&f, &store).await, None);
    assert_eq!(found(&store, draft.id).await.head.summary().signals, ["shipped"]);
}

async fn f08_a_signal_that_came_early_is_kept(f: Fixture) {
    let store = f.open().await;
    let (draft, claim) = (f.draft(Status::Running), f.long());
    store.create(&draft, Some(&claim)).await.expect("it is new");
    // The process that runs it is not disturbed.
    Contexts::signal(&store, draft.id, "paid", json!(1)).await.expect("it is kept");
    let wait = Waiting { signal: Some("paid".to_owned()), ..Waiting::default() };
    let draft = ContextDraft { status: Status::Paused, waiting: Some(wait), ..draft };
    store.save(&save(&draft, 1, &claim)).await.expect("it is ours");
    assert!(matches!(only_due(&f, &store).await, Some(Due::Signal(_))));
}

async fn f08_a_used_signal_is_gone(f: Fixture) {
    let store = f.open().await;
    let wait = Waiting { signal: Some("go".to_owned()), ..Waiting::default() };
    let draft = f.paused(wait);
    stored(&store, &draft).await;
    for payload in [1, 2] {
        Contexts::signal(&store, draft.id, "go", json!(payload)).await.expect("it waits");
    }
    let claim = f.long();
    for payload in [1, 2] {
        let rows =
            store.claim_due(&DueClaim::new(f.machine(), 1, &claim)).await.expect("it answers");
        let head = &rows[0].head;
        let signal = head.awaited_signal().expect("it came");
        assert_eq!(signal.payload, json!(payload), "first come, first used");
        let used = Some(signal.sequence);
        let save = Save { used_signal: used, ..save(&draft, head.revision, &claim) };
        store.save(&save).await.expect("it is ours");
    }
    assert_eq!(only_due(&f, &store).await, None);
    assert!(found(&store, draft.id).await.head.signals.is_empty());
}

async fn f08_a_timeout_is_due(f: Fixture) {
    let store = f.open().await;
    let soon = later(&store, f.unit()).await;
    let wait =
        Waiting { signal: Some("go".to_owned()), timeout_at: Some(soon), ..Waiting::default() };
    stored(&store, &f.paused(wait)).await;
    nothing_is_due_before(soon, &f, &store).await;
    f.pass(f.unit() * 2).await;
    assert_eq!(only_due(&f, &store).await, Some(Due::Timeout));
}

async fn f08_a_lock_to_renew_is_due(f: Fixture) {
    let store = f.open().await;
    let soon = later(&store, f.unit()).await;
    let wait = Waiting { renew_at: Some(soon), ..Waiting::default() };
    stored(&store, &f.paused(wait)).await;
    nothing_is_due_before(soon, &f, &store).await;
    f.pass(f.unit() * 2).await;
    assert_eq!(only_due(&f, &store).await, Some(Due::RenewLock));
}

async fn f08_an_orphan_is_due(f: Fixture) {
    let store = f.open().await;
    let draft = f.draft(Status::Running);
    let soon = later(&store, f.unit()).await;
    store.create(&draft, Some(&f.short())).await.expect("it is new");
    nothing_is_due_before(soon, &f, &store).await;
    f.pass(f.unit() * 2).await;
    assert_eq!(only_due(&f, &store).await, Some(Due::GoOn));
}

async fn f08_a_claimed_context_is_not_due(f: Fixture) {
    let store = f.open().await;
    let draft = f.draft(Status::Pending);
    stored(&store, &draft).await;
    store.claim(draft.id, None, &f.long()).await.expect("nobody is at it");
    assert_eq!(only_due(&f, &store).await, None);
}

async fn f08_what_was_released_is_due_as_before(f: Fixture) {
    let store = f.open().await;
    let far = Some(later(&store, HOUR).await);
    let draft = f.paused(Waiting { wake_at: far, ..Waiting::default() });
    stored(&store, &draft).await;
    let before = found(&store, draft.id).await.head.due_at;
    let claim = f.long();
    store.claim(draft.id, None, &claim).await.expect("nobody is at it");
    assert_ne!(found(&store, draft.id).await.head.due_at, before);
    assert!(store.release(proof(&draft, &claim), &GiveBack::default()).await.expect("it answers"));
    assert_eq!(found(&store, draft.id).await.head.due_at, before);
}

async fn f08_somebody_can_wake_it(f: Fixture) {
    let store = f.open().await;
    let draft = f.paused(Waiting::default());
    stored(&store, &draft).await;
    Contexts::wake(&store, draft.id).await.expect("it is paused");
    assert_eq!(due(&f, &store).await, [(draft.id, Due::Hand)]);
}

async fn f08_the_next_due_time_is_told(f: Fixture) {
    let store = f.open().await;
    let next = async || store.next_due(f.machine()).await.expect("it answers");
    assert_eq!(next().await, None);
    stored(&store, &f.paused(Waiting::default())).await;
    stored(&store, &f.draft(Status::Completed)).await;
    let other = ContextDraft { machine: format!("{}!", f.machine()), ..f.draft(Status::Pending) };
    stored(&store, &other).await;
    assert_eq!(next().await, None, "none of these will be due by itself");
    let wake_at = Some(later(&store, HOUR).await);
    stored(&store, &f.paused(Waiting { wake_at, ..Waiting::default() })).await;
    let left = next().await.expect("one waits for its time");
    assert!(HOUR / 2 < left && left <= HOUR, "{left:?}");
    stored(&store, &f.draft(Status::Pending)).await;
    assert_eq!(next().await, Some(Duration::ZERO));
    let claim = RunClaim::new(HOUR / 4);
    assert_eq!(
        store.claim_due(&DueClaim::new(f.machine(), 9, &claim)).await.expect("it answers").len(),
        1
    );
    let left = next().await.expect("its run-lease will end");
    assert!(HOUR / 8 < left && left <= HOUR / 4, "{left:?}");
}

async fn f08_longest_due_comes_first(f: Fixture) {
    let store = f.open().await;
    let now = later(&store, Duration::ZERO).await;
    let mut wanted = Vec::new();
    for ago in [3_u32, 1, 4, 2] {
        let wake_at = Some(now - HOUR * ago);
        let draft = f.paused(Waiting { wake_at, ..Waiting::default() });
        stored(&store, &draft).await;
        wanted.push((ago, draft.id));
    }
    wanted.sort_by_key(|(ago, _)| std::cmp::Reverse(*ago));
    let rows =
        store.claim_due(&DueClaim::new(f.machine(), 3, &f.long())).await.expect("it answers");
    let ids: Vec<_> = rows.iter().map(|row| row.head.id).collect();
    assert_eq!(ids, wanted[..3].iter().map(|(_, id)| *id).collect::<Vec<_>>());
    let rows =
        store.claim_due(&DueClaim::new(f.machine(), 3, &f.long())).await.expect("it answers");
    assert_eq!(rows.iter().map(|row| row.head.id).collect::<Vec<_>>(), [wanted[3].1]);
}

async fn f08_other_machines_are_left_alone(f: Fixture) {
    let store = f.open().await;
    let other = ContextDraft { machine: format!("{}!", f.machine()), ..f.draft(Status::Pending) };
    stored(&store, &other).await;
    assert_eq!(only_due(&f, &store).await, None);
}

async fn f08_two_runners_get_different_ones(f: Fixture) {
    let stores = [f.open().await, f.open().await, f.open().await];
    let mut wanted = BTreeSet::new();
    for _ in 0..30 {
        let draft = f.draft(Status::Pending);
        stored(&stores[0], &draft).await;
        wanted.insert(draft.id);
    }
    let runners = stores.map(|store| {
        let (machine, claim) = (f.machine().to_owned(), f.long());
        tokio::spawn(async move {
            let mut ids = Vec::new();
            loop {
                let rows =
                    store.claim_due(&DueClaim::new(&machine, 4, &claim)).await.expect("it answers");
                if rows.is_empty() {
                    return ids;
                }
                ids.extend(rows.iter().map(|row| row.head.id));
            }
        })
    });
    let mut got = Vec::new();
    for runner in runners {
        got.extend(runner.await.expect("no panic"));
    }
    assert_eq!(got.len(), 30, "each once");
    assert_eq!(got.into_iter().collect::<BTreeSet<_>>(), wanted);
}

async fn f08_signals_for_the_ended_are_refused(f: Fixture) {
    let store = f.open().await;
    for status in [Status::Completed, Status::Stopped, Status::Failed, Status::Cancelled] {
        let draft = f.draft(status);
        stored(&store, &draft).await;
        assert_eq!(
            code(Contexts::signal(&store, draft.id, "go", json!(1)).await),
            "transition_over"
        );
        assert_eq!(code(Contexts::wake(&store, draft.id).await), "transition_over");
    }
    let empty = Contexts::signal(&store, f.draft(Status::Paused).id, "", json!(1)).await;
    assert_eq!(code(empty), "invalid_argument");
}
