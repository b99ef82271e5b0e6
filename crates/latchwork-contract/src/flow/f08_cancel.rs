//! F8 Calling off: nothing more begins, and the lock is not forgotten.

use latchwork_flow::store::{Cancelled, ContextDraft, ContextStore, Due, DueClaim, Save, Waiting};
use latchwork_flow::{Contexts, Status};

use super::Fixture;
use super::case::cases;
use super::fixture::{code, found, save, stored};

cases![
    f08_a_pause_is_called_off_at_once,
    f08_a_running_one_learns_of_it_with_its_next_save,
    f08_an_orphan_is_called_off_at_once,
    f08_who_died_before_learning_of_it_is_replaced,
    f08_a_lock_of_the_cancelled_is_given_back,
    f08_the_ended_cannot_be_called_off,
    f08_completion_wins_over_a_request,
];

async fn f08_a_pause_is_called_off_at_once(f: Fixture) {
    let store = f.open().await;
    let wait = Waiting { signal: Some("go".to_owned()), ..Waiting::default() };
    let draft = f.paused(wait);
    stored(&store, &draft).await;
    let answer = Contexts::cancel(&store, draft.id, "no longer wanted").await;
    assert_eq!(answer.expect("it is paused"), Cancelled::Done);
    let head = found(&store, draft.id).await.head;
    assert_eq!((head.status, head.revision, head.due_at), (Status::Cancelled, 2, None));
    assert_eq!(head.summary().cancel_reason.as_deref(), Some("no longer wanted"));
    assert_eq!(code(store.claim(draft.id, None, &f.long()).await), "transition_over");
}

async fn f08_a_running_one_learns_of_it_with_its_next_save(f: Fixture) {
    let store = f.open().await;
    let (draft, claim) = (f.draft(Status::Running), f.long());
    store.create(&draft, Some(&claim)).await.expect("it is new");
    let answer = Contexts::cancel(&store, draft.id, "stop it").await;
    assert_eq!(answer.expect("it runs"), Cancelled::Asked);
    assert_eq!(found(&store, draft.id).await.head.status, Status::Running);
    // Also a save that would have ended the run: the action that is told must be able to act.
    let paused = ContextDraft { status: Status::Paused, ..draft };
    let saved = store.save(&save(&paused, 1, &claim)).await.expect("it is ours");
    assert_eq!(saved.cancel.expect("it is told").reason, "stop it");
    let over = ContextDraft { status: Status::Cancelled, body: "{}".to_owned(), ..paused };
    let saved = store.save(&save(&over, 2, &claim)).await.expect("still ours");
    assert_eq!(saved.cancel, None);
    let head = found(&store, over.id).await.head;
    assert_eq!((head.status, head.run, head.due_at), (Status::Cancelled, None, None));
}

async fn f08_an_orphan_is_called_off_at_once(f: Fixture) {
    let store = f.open().await;
    let (draft, dead) = (f.draft(Status::Running), f.short());
    store.create(&draft, Some(&dead)).await.expect("it is new");
    f.pass(f.unit() * 2).await;
    let answer = Contexts::cancel(&store, draft.id, "gone").await;
    assert_eq!(answer.expect("nobody is at it"), Cancelled::Done);
    let late = ContextDraft { body: "{}".to_owned(), ..draft };
    assert_eq!(code(store.save(&save(&late, 1, &dead)).await), "context_conflict");
    assert_eq!(found(&store, late.id).await.head.status, Status::Cancelled);
}

async fn f08_who_died_before_learning_of_it_is_replaced(f: Fixture) {
    let store = f.open().await;
    let (draft, dead) = (f.draft(Status::Running), f.short());
    store.create(&draft, Some(&dead)).await.expect("it is new");
    let answer = Contexts::cancel(&store, draft.id, "stop it").await;
    assert_eq!(answer.expect("it runs"), Cancelled::Asked);
    f.pass(f.unit() * 2).await;
    let rows =
        store.claim_due(&DueClaim::new(f.machine(), 1, &f.long())).await.expect("it answers");
    let now = ContextStore::now(&store).await.expect("it tells the time");
    match rows[0].head.due(now) {
        Due::Cancel(request) => assert_eq!(request.reason, "stop it"),
        other => panic!("{other:?}"),
    }
}

async fn f08_a_lock_of_the_cancelled_is_given_back(f: Fixture) {
    let store = f.open().await;
    let draft = ContextDraft { holds_lock: true, ..f.paused(Waiting::default()) };
    stored(&store, &draft).await;
    Contexts::cancel(&store, draft.id, "why").await.expect("it is paused");
    assert!(!Contexts::delete(&store, draft.id).await.expect("it answers"), "its lock is held");
    let claim = f.long();
    let rows = store.claim_due(&DueClaim::new(f.machine(), 1, &claim)).await.expect("it answers");
    let now = ContextStore::now(&store).await.expect("it tells the time");
    assert_eq!(rows[0].head.due(now), Due::ReleaseLock);
    assert_eq!(rows[0].body, draft.body, "the lease is in it");
    let done = ContextDraft { status: Status::Cancelled, holds_lock: false, ..draft };
    let save = Save { ..save(&done, rows[0].head.revision, &claim) };
    store.save(&save).await.expect("it is ours");
    let head = found(&store, done.id).await.head;
    assert_eq!((head.status, head.due_at), (Status::Cancelled, None));
    assert!(Contexts::delete(&store, done.id).await.expect("it answers"));
}

async fn f08_the_ended_cannot_be_called_off(f: Fixture) {
    let store = f.open().await;
    let draft = f.draft(Status::Completed);
    stored(&store, &draft).await;
    let error = Contexts::cancel(&store, draft.id, "why").await.expect_err("it is over");
    assert_eq!(error.code(), "transition_over");
    assert!(error.to_string().contains("completed"), "{error}");
}

async fn f08_completion_wins_over_a_request(f: Fixture) {
    let store = f.open().await;
    let (draft, claim) = (f.draft(Status::Running), f.long());
    store.create(&draft, Some(&claim)).await.expect("it is new");
    Contexts::cancel(&store, draft.id, "too late").await.expect("it runs");
    let over = ContextDraft { status: Status::Completed, ..draft };
    let saved = store.save(&save(&over, 1, &claim)).await.expect("it is ours");
    assert_eq!(saved.cancel, None);
    let head = found(&store, over.id).await.head;
    assert_eq!((head.status, head.run, head.cancel), (Status::Completed, None, None));
}
