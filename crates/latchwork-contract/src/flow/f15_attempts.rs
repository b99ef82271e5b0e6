//! F15 Attempts are counted at the claim and bounded, and what exceeds them is quarantined.

use std::time::Duration;

use latchwork_flow::store::{
    ContextDraft, ContextFilter, ContextPageRequest, ContextStore, DueClaim, GiveBack, RunClaim,
    Save, StoredContext,
};
use latchwork_flow::{Contexts, Status, TransitionId, WaitingFor};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{code, found, proof, save, stored};

cases![
    f15_a_claim_is_an_attempt,
    f15_what_was_tried_too_often_is_quarantined,
    f15_a_quarantine_says_why,
    f15_a_quarantine_does_not_show_an_older_reason,
    f15_a_quarantined_context_can_be_released,
    f15_a_quarantined_context_can_be_cancelled,
    f15_a_quarantined_context_is_not_pruned,
    f15_the_late_save_of_a_quarantined_context_is_refused,
    f15_progress_counts_anew,
    f15_a_save_without_progress_does_not,
    f15_what_is_given_back_was_no_attempt,
    f15_a_postponed_context_is_left_alone,
    f15_of_suspects_one_is_claimed_at_a_time,
    f15_beside_a_suspect_only_what_is_new_is_claimed,
    f15_a_suspect_waits_longer_than_its_run_lease,
    f15_excluded_contexts_are_left_to_others,
    f15_what_is_to_be_called_off_is_not_quarantined,
    f15_a_lock_that_cannot_be_given_back_is_given_up,
    f15_a_heartbeat_tells_of_a_cancellation,
];

/// Claims what is due with a short run-lease.
async fn claim(f: &Fixture, store: &Contexts, most: u32) -> Vec<StoredContext> {
    let claim = f.short();
    let due = DueClaim { max_attempts: most, ..DueClaim::new(f.machine(), 10, &claim) };
    store.claim_due(&due).await.expect("it answers")
}

/// Lets a process die with it, this many times.
async fn dies(f: &Fixture, store: &Contexts, times: u32) {
    for _ in 0..times {
        assert_eq!(claim(f, store, u32::MAX).await.len(), 1);
        f.pass(f.unit() * 2).await;
    }
}

async fn list(f: &Fixture, store: &Contexts, status: Status) -> Vec<TransitionId> {
    let (machine, status) = (Some(f.machine().to_owned()), Some(status));
    let filter = ContextFilter { machine, status, ..ContextFilter::default() };
    let page = store.list(&filter, &ContextPageRequest::default()).await.expect("it answers");
    page.contexts.into_iter().map(|context| context.id).collect()
}

/// A context that three processes have died with.
async fn quarantined(f: &Fixture, store: &Contexts) -> ContextDraft {
    let draft = f.draft(Status::Running);
    stored(store, &draft).await;
    dies(f, store, 3).await;
    assert!(claim(f, store, 3).await.is_empty());
    draft
}

async fn f15_a_claim_is_an_attempt(f: Fixture) {
    let store = f.open().await;
    let draft = f.draft(Status::Running);
    stored(&store, &draft).await;
    assert_eq!(store.show(draft.id).await.expect("it is there").attempts, 0);
    for attempt in 1..=3 {
        let rows = claim(&f, &store, 5).await;
        assert_eq!(rows[0].head.attempts, attempt);
        assert_eq!(store.show(draft.id).await.expect("it is there").attempts, attempt);
        f.pass(f.unit() * 2).await;
    }
    let begun = f.draft(Status::Running);
    store.create(&begun, Some(&f.long())).await.expect("it is new");
    assert_eq!(found(&store, begun.id).await.head.attempts, 1, "to begin is one, too");
}

async fn f15_what_was_tried_too_often_is_quarantined(f: Fixture) {
    let store = f.open().await;
    let draft = quarantined(&f, &store).await;
    let shown = store.show(draft.id).await.expect("it is there");
    assert_eq!((shown.status, shown.attempts), (Status::Quarantined, 3));
    assert_eq!(shown.due_at, None, "no runner has anything to do with it");
    assert_eq!(list(&f, &store, Status::Quarantined).await, [draft.id]);
    assert!(list(&f, &store, Status::Running).await.is_empty());
    assert_eq!(store.next_due(f.machine()).await.expect("it answers"), None);
    assert!(claim(&f, &store, 100).await.is_empty());
    assert_eq!(code(store.claim(draft.id, None, &f.long()).await), "context_quarantined");
}

async fn f15_a_quarantine_says_why(f: Fixture) {
    let store = f.open().await;
    let draft = quarantined(&f, &store).await;
    let shown = store.show(draft.id).await.expect("it is there");
    let reasons = shown.waiting_for(shown.updated_at);
    let [WaitingFor::Release { attempts: 3, why, .. }] = &reasons[..] else {
        panic!("{reasons:?}");
    };
    assert!(why.contains("died"), "{why}");
    // And in the words of the process that could still tell.
    let draft = f.draft(Status::Running);
    stored(&store, &draft).await;
    let mine = f.short();
    let due = DueClaim { max_attempts: 1, ..DueClaim::new(f.machine(), 10, &mine) };
    assert_eq!(store.claim_due(&due).await.expect("it answers").len(), 1);
    let how = GiveBack { counts: true, reason: Some("it is broken"), postpone: None };
    assert!(store.release(proof(&draft, &mine), &how).await.expect("it answers"));
    assert!(store.claim_due(&due).await.expect("it answers").is_empty());
    let shown = store.show(draft.id).await.expect("it is there");
    let reasons = shown.waiting_for(shown.updated_at);
    assert!(
        matches!(&reasons[..], [WaitingFor::Release { why, .. }] if why == "it is broken"),
        "{reasons:?}"
    );
}

/// A reason that an earlier attempt reported says nothing about a process that died since.
async fn f15_a_quarantine_does_not_show_an_older_reason(f: Fixture) {
    let store = f.open().await;
    let draft = f.draft(Status::Running);
    stored(&store, &draft).await;
    let mine = f.short();
    let due = DueClaim { max_attempts: 2, ..DueClaim::new(f.machine(), 10, &mine) };
    assert_eq!(store.claim_due(&due).await.expect("it answers").len(), 1);
    let how = GiveBack { counts: true, reason: Some("the lock is taken"), ..GiveBack::default() };
    assert!(store.release(proof(&draft, &mine), &how).await.expect("it answers"));
    dies(&f, &store, 1).await;
    assert!(claim(&f, &store, 2).await.is_empty());
    let shown = store.show(draft.id).await.expect("it is there");
    let reasons = shown.waiting_for(shown.updated_at);
    let [WaitingFor::Release { attempts: 2, why, .. }] = &reasons[..] else {
        panic!("{reasons:?}");
    };
    assert!(why.contains("died") && !why.contains("taken"), "{why}");
}

async fn f15_a_quarantined_context_can_be_released(f: Fixture) {
    let store = f.open().await;
    let draft = quarantined(&f, &store).await;
    let other = f.open().await;
    assert!(Contexts::release_quarantined(&other, draft.id).await.expect("it answers"));
    assert!(!Contexts::release_quarantined(&other, draft.id).await.expect("it answers"));
    let shown = store.show(draft.id).await.expect("it is there");
    assert_eq!((shown.status, shown.attempts), (Status::Running, 0));
    let rows = claim(&f, &store, 3).await;
    assert_eq!(rows[0].head.attempts, 1);
    assert_eq!(rows[0].body, draft.body);
    let nobody = f.draft(Status::Running).id;
    let answer = Contexts::release_quarantined(&store, nobody).await;
    assert_eq!(code(answer), "context_not_found");
}

async fn f15_a_quarantined_context_can_be_cancelled(f: Fixture) {
    let store = f.open().await;
    let draft = quarantined(&f, &store).await;
    Contexts::signal(&store, draft.id, "go", json!(1)).await.expect("it is not over");
    Contexts::cancel(&store, draft.id, "enough").await.expect("it is not over");
    let shown = store.show(draft.id).await.expect("it is there");
    assert_eq!(shown.status, Status::Cancelled);
    assert_eq!(shown.cancel_reason.as_deref(), Some("enough"));
    assert!(store.delete(draft.id).await.expect("it answers"));
}

async fn f15_a_quarantined_context_is_not_pruned(f: Fixture) {
    let store = f.open().await;
    let draft = quarantined(&f, &store).await;
    f.pass(Duration::from_millis(5)).await;
    ContextStore::prune(&store, Duration::ZERO, 1_000).await.expect("it answers");
    assert!(!store.delete(draft.id).await.expect("it answers"));
    found(&store, draft.id).await;
}

async fn f15_the_late_save_of_a_quarantined_context_is_refused(f: Fixture) {
    let store = f.open().await;
    let draft = f.draft(Status::Running);
    stored(&store, &draft).await;
    let mine = f.short();
    let due = DueClaim { max_attempts: 1, ..DueClaim::new(f.machine(), 1, &mine) };
    let row = store.claim_due(&due).await.expect("it answers").remove(0);
    f.pass(f.unit() * 2).await;
    assert!(store.claim_due(&due).await.expect("it answers").is_empty());
    for revision in [row.head.revision, row.head.revision + 1] {
        let late = store.save(&save(&draft, revision, &mine)).await;
        assert_eq!(code(late), "context_conflict");
    }
    assert!(!store.heartbeat(proof(&draft, &mine), f.unit()).await.expect("it answers").held);
}

async fn f15_progress_counts_anew(f: Fixture) {
    let store = f.open().await;
    let draft = f.draft(Status::Running);
    stored(&store, &draft).await;
    dies(&f, &store, 2).await;
    let mine = f.long();
    let row = store.claim(draft.id, None, &mine).await.expect("nobody is at it");
    assert_eq!(row.head.attempts, 3);
    let step = Save {
        keep: Some(Duration::from_secs(600)),
        progress: true,
        ..save(&draft, row.head.revision, &mine)
    };
    let saved = store.save(&step).await.expect("it is ours");
    assert_eq!(found(&store, draft.id).await.head.attempts, 1, "at the next action");
    let paused = ContextDraft { status: Status::Paused, ..draft };
    store.save(&save(&paused, saved.revision, &mine)).await.expect("it is ours");
    assert_eq!(found(&store, paused.id).await.head.attempts, 0, "nobody tries");
}

async fn f15_a_save_without_progress_does_not(f: Fixture) {
    let store = f.open().await;
    let draft = f.draft(Status::Running);
    stored(&store, &draft).await;
    dies(&f, &store, 2).await;
    let mine = f.long();
    let row = store.claim(draft.id, None, &mine).await.expect("nobody is at it");
    let keep = Some(Duration::from_secs(600));
    let step = Save { keep, ..save(&draft, row.head.revision, &mine) };
    store.save(&step).await.expect("it is ours");
    assert_eq!(found(&store, draft.id).await.head.attempts, 3);
}

async fn f15_what_is_given_back_was_no_attempt(f: Fixture) {
    let store = f.open().await;
    let draft = f.draft(Status::Running);
    stored(&store, &draft).await;
    for _ in 0..4 {
        let mine = f.long();
        let row = store.claim(draft.id, None, &mine).await.expect("nobody is at it");
        assert_eq!(row.head.attempts, 1);
        let how = GiveBack::default();
        assert!(store.release(proof(&draft, &mine), &how).await.expect("it answers"));
    }
    assert_eq!(found(&store, draft.id).await.head.attempts, 0);
}

async fn f15_a_postponed_context_is_left_alone(f: Fixture) {
    let store = f.open().await;
    let draft = f.draft(Status::Running);
    stored(&store, &draft).await;
    let mine = RunClaim::new(f.unit());
    store.claim(draft.id, None, &mine).await.expect("nobody is at it");
    let postpone = Some(f.unit() * 4);
    let how = GiveBack { postpone, counts: false, reason: Some("the lock is taken") };
    assert!(store.release(proof(&draft, &mine), &how).await.expect("it answers"));
    assert!(claim(&f, &store, 5).await.is_empty(), "it is not its turn");
    let shown = store.show(draft.id).await.expect("it is there");
    assert_eq!((shown.runner.as_deref(), shown.attempts), (None, 0), "nobody is at it");
    let reasons = shown.waiting_for(shown.updated_at);
    assert!(
        matches!(&reasons[..], [WaitingFor::Retry { why: Some(why), .. }] if why == "the lock is taken"),
        "{reasons:?}"
    );
    let next = store.next_due(f.machine()).await.expect("it answers").expect("soon");
    assert!(next <= f.unit() * 4, "{next:?}");
    f.pass(f.unit() * 5).await;
    assert_eq!(claim(&f, &store, 5).await.len(), 1);
    // A caller that asks for it by name need not wait.
    f.pass(f.unit() * 2).await;
    let mine = f.long();
    store.claim(draft.id, None, &mine).await.expect("nobody is at it");
    assert!(store.release(proof(&draft, &mine), &how).await.expect("it answers"));
    store.claim(draft.id, None, &f.long()).await.expect("nobody is at it");
}

async fn f15_of_suspects_one_is_claimed_at_a_time(f: Fixture) {
    let store = f.open().await;
    for _ in 0..4 {
        stored(&store, &f.draft(Status::Running)).await;
    }
    assert_eq!(claim(&f, &store, 9).await.len(), 4);
    f.pass(f.unit() * 2).await;
    stored(&store, &f.draft(Status::Running)).await;
    let first = claim(&f, &store, 9).await;
    assert_eq!(first.len(), 2, "after a death one of them is tried, beside what is new");
    let second = claim(&f, &store, 9).await;
    assert_eq!(second.len(), 1, "by another process");
    assert!(first.iter().all(|row| row.head.id != second[0].head.id));
}

async fn f15_beside_a_suspect_only_what_is_new_is_claimed(f: Fixture) {
    let store = f.open().await;
    let (suspect, tried, new) =
        (f.draft(Status::Running), f.draft(Status::Running), f.draft(Status::Running));
    stored(&store, &suspect).await;
    dies(&f, &store, 2).await;
    stored(&store, &tried).await;
    let mine = f.short();
    store.claim(tried.id, None, &mine).await.expect("nobody is at it");
    f.pass(f.unit() * 2).await;
    stored(&store, &new).await;
    let mine = f.long();
    let due = DueClaim { beside_suspect: true, ..DueClaim::new(f.machine(), 10, &mine) };
    let rows = store.claim_due(&due).await.expect("it answers");
    assert_eq!(rows.iter().map(|row| row.head.id).collect::<Vec<_>>(), [new.id]);
    let rows = claim(&f, &store, 9).await;
    assert_eq!(rows.iter().map(|row| row.head.id).collect::<Vec<_>>(), [suspect.id]);
    let rows = claim(&f, &store, 9).await;
    assert_eq!(rows.iter().map(|row| row.head.id).collect::<Vec<_>>(), [tried.id]);
}

async fn f15_a_suspect_waits_longer_than_its_run_lease(f: Fixture) {
    let store = f.open().await;
    stored(&store, &f.draft(Status::Running)).await;
    dies(&f, &store, 2).await;
    let mine = f.short();
    let back_off = Duration::from_secs(30);
    let due = DueClaim { back_off, ..DueClaim::new(f.machine(), 10, &mine) };
    assert!(store.claim_due(&due).await.expect("it answers").is_empty());
    let due = DueClaim { back_off: Duration::ZERO, ..due };
    assert_eq!(store.claim_due(&due).await.expect("it answers").len(), 1);
}

async fn f15_excluded_contexts_are_left_to_others(f: Fixture) {
    let store = f.open().await;
    let drafts = [f.draft(Status::Running), f.draft(Status::Running), f.draft(Status::Running)];
    for draft in &drafts {
        stored(&store, draft).await;
    }
    let (mine, exclude) = (f.long(), [drafts[0].id, drafts[1].id]);
    let due = DueClaim { exclude: &exclude, ..DueClaim::new(f.machine(), 1, &mine) };
    let rows = store.claim_due(&due).await.expect("it answers");
    assert_eq!(rows.iter().map(|row| row.head.id).collect::<Vec<_>>(), [drafts[2].id]);
    assert!(store.claim_due(&due).await.expect("it answers").is_empty());
    assert_eq!(claim(&f, &store, 5).await.len(), 2);
}

async fn f15_what_is_to_be_called_off_is_not_quarantined(f: Fixture) {
    let store = f.open().await;
    let draft = f.draft(Status::Running);
    stored(&store, &draft).await;
    assert_eq!(claim(&f, &store, 1).await.len(), 1);
    Contexts::cancel(&store, draft.id, "enough").await.expect("it is not over");
    f.pass(f.unit() * 2).await;
    assert!(claim(&f, &store, 1).await.is_empty());
    assert_eq!(store.show(draft.id).await.expect("it is there").status, Status::Cancelled);
}

async fn f15_a_lock_that_cannot_be_given_back_is_given_up(f: Fixture) {
    let store = f.open().await;
    let draft = ContextDraft { holds_lock: true, ..f.draft(Status::Paused) };
    stored(&store, &draft).await;
    Contexts::cancel(&store, draft.id, "enough").await.expect("it is not over");
    assert_eq!(claim(&f, &store, 1).await.len(), 1);
    f.pass(f.unit() * 2).await;
    assert!(claim(&f, &store, 1).await.is_empty());
    assert_eq!(store.show(draft.id).await.expect("it is there").status, Status::Cancelled);
    assert!(store.delete(draft.id).await.expect("it answers"), "nobody waits for the lock");
}

async fn f15_a_heartbeat_tells_of_a_cancellation(f: Fixture) {
    let store = f.open().await;
    let (draft, mine) = (f.draft(Status::Running), f.long());
    store.create(&draft, Some(&mine)).await.expect("it is new");
    let beat = async || store.heartbeat(proof(&draft, &mine), mine.ttl).await.expect("it answers");
    assert_eq!((beat().await.held, beat().await.cancel), (true, None));
    Contexts::cancel(&store, draft.id, "enough").await.expect("it is not over");
    let told = beat().await;
    assert!(told.held);
    assert_eq!(told.cancel.expect("it is told").reason, "enough");
}
