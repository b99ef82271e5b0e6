//! F8 What is stored is what is found, and only the process that runs it can change it.

use std::time::Duration;

use latchwork_flow::store::{ContextDraft, ContextStore, GiveBack, Save};
use latchwork_flow::{Contexts, Status, TransitionId};

use super::Fixture;
use super::case::cases;
use super::fixture::{code, found, proof, save, stored};

cases![
    f08_what_is_stored_is_found_by_another,
    f08_an_id_is_stored_once,
    f08_a_creation_asked_again_is_no_error,
    f08_a_body_is_kept_byte_by_byte,
    f08_a_save_needs_the_run_lease,
    f08_a_save_needs_the_latest_revision,
    f08_a_save_asked_again_is_no_error,
    f08_a_refused_save_changes_nothing,
    f08_a_final_save_ends_the_run_lease,
    f08_an_unknown_id_is_named,
    f08_times_are_the_stores,
    f08_changes_at_the_same_time_are_all_kept,
];

async fn f08_what_is_stored_is_found_by_another(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let draft = ContextDraft { holds_lock: true, ..f.draft(Status::Pending) };
    stored(&ours, &draft).await;
    let row = found(&theirs, draft.id).await;
    assert_eq!(row.body, draft.body);
    let head = row.head;
    assert_eq!((head.id, &head.machine, &head.entity), (draft.id, &draft.machine, &draft.entity));
    assert_eq!((head.status, head.revision, head.holds_lock), (Status::Pending, 1, true));
    assert_eq!((head.details, head.waiting, head.cancel), (draft.details, None, None));
    assert!(head.run.is_none() && head.signals.is_empty());
}

async fn f08_an_id_is_stored_once(f: Fixture) {
    let store = f.open().await;
    let draft = f.draft(Status::Pending);
    stored(&store, &draft).await;
    let other = ContextDraft { body: "{}".to_owned(), ..draft.clone() };
    assert_eq!(code(store.create(&other, None).await), "context_exists");
    assert_eq!(code(store.create(&draft, Some(&f.long())).await), "context_exists");
    assert_eq!(found(&store, draft.id).await.body, draft.body);
}

async fn f08_a_creation_asked_again_is_no_error(f: Fixture) {
    let store = f.open().await;
    let (draft, claim) = (f.draft(Status::Running), f.long());
    for _ in 0..2 {
        assert_eq!(store.create(&draft, Some(&claim)).await.expect("the same"), 1);
    }
}

async fn f08_a_body_is_kept_byte_by_byte(f: Fixture) {
    let store = f.open().await;
    let hard = [
        "{\"text\":\"größe \\u0000 \\\"quoted\\\" 🦀\"}".to_owned(),
        format!("{{\"long\":\"{}\"}}", "x".repeat(1_000_000)),
        "{ \"spaces\" :  1.10 , \"a\":2,\"a\":1e400 }".to_owned(),
    ];
    for body in hard {
        let draft = ContextDraft { body, ..f.draft(Status::Pending) };
        stored(&store, &draft).await;
        assert!(found(&store, draft.id).await.body == draft.body);
    }
}

async fn f08_a_save_needs_the_run_lease(f: Fixture) {
    let store = f.open().await;
    let (draft, claim) = (f.draft(Status::Pending), f.long());
    stored(&store, &draft).await;
    assert_eq!(code(store.save(&save(&draft, 1, &claim)).await), "context_conflict");
    let row = store.claim(draft.id, Some(1), &claim).await.expect("nobody is at it");
    assert_eq!(row.head.revision, 2);
    let next = ContextDraft { status: Status::Running, body: "{}".to_owned(), ..draft };
    assert_eq!(code(store.save(&save(&next, 2, &f.long())).await), "context_conflict");
    let saved = store.save(&save(&next, 2, &claim)).await.expect("it is ours");
    assert_eq!((saved.revision, saved.cancel), (3, None));
    let row = found(&store, next.id).await;
    assert_eq!((row.head.status, row.head.revision, &*row.body), (Status::Running, 3, "{}"));
}

async fn f08_a_save_needs_the_latest_revision(f: Fixture) {
    let store = f.open().await;
    let (draft, claim) = (f.draft(Status::Running), f.long());
    store.create(&draft, Some(&claim)).await.expect("it is new");
    let next = ContextDraft { body: "{}".to_owned(), ..draft.clone() };
    for wrong in [0, 2, 7] {
        let answer = store.save(&save(&next, wrong, &claim)).await;
        assert_eq!(code(answer), "context_conflict", "revision {wrong}");
    }
    let keep = Save { keep: Some(claim.ttl), ..save(&draft, 1, &claim) };
    assert_eq!(store.save(&keep).await.expect("it is ours").revision, 2);
    assert_eq!(store.save(&save(&next, 2, &claim)).await.expect("still ours").revision, 3);
}

async fn f08_a_save_asked_again_is_no_error(f: Fixture) {
    let store = f.open().await;
    let (draft, claim) = (f.draft(Status::Running), f.long());
    store.create(&draft, Some(&claim)).await.expect("it is new");
    // Also when the save has ended the run-lease.
    let next = ContextDraft { status: Status::Completed, body: "{}".to_owned(), ..draft };
    for _ in 0..2 {
        let saved = store.save(&save(&next, 1, &claim)).await.expect("the same save");
        assert_eq!(saved.revision, 2);
    }
    let other = ContextDraft { body: "[]".to_owned(), ..next };
    assert_eq!(code(store.save(&save(&other, 1, &claim)).await), "context_conflict");
}

async fn f08_a_refused_save_changes_nothing(f: Fixture) {
    let store = f.open().await;
    let (draft, claim) = (f.draft(Status::Running), f.long());
    store.create(&draft, Some(&claim)).await.expect("it is new");
    let before = found(&store, draft.id).await;
    let next = ContextDraft { status: Status::Failed, body: "{}".to_owned(), ..draft };
    assert_eq!(code(store.save(&save(&next, 5, &claim)).await), "context_conflict");
    assert_eq!(found(&store, next.id).await, before);
}

async fn f08_a_final_save_ends_the_run_lease(f: Fixture) {
    let store = f.open().await;
    let (draft, claim) = (f.draft(Status::Running), f.long());
    store.create(&draft, Some(&claim)).await.expect("it is new");
    let over = ContextDraft { status: Status::Completed, ..draft };
    store.save(&save(&over, 1, &claim)).await.expect("it is ours");
    let row = found(&store, over.id).await;
    assert_eq!((row.head.run, row.head.due_at), (None, None));
    assert_eq!(code(store.claim(over.id, None, &f.long()).await), "transition_over");
    assert!(!store.heartbeat(proof(&over, &claim), claim.ttl).await.expect("it answers").held);
}

async fn f08_an_unknown_id_is_named(f: Fixture) {
    let store = f.open().await;
    let draft = f.draft(Status::Pending);
    let id = TransitionId::new(f.clock().wall());
    assert!(ContextStore::load(&store, id).await.expect("it answers").is_none());
    let error = Contexts::load(&store, id).await.expect_err("not there");
    assert!(error.to_string().contains(&id.to_string()), "{error}");
    let claim = f.long();
    assert_eq!(code(store.claim(id, None, &claim).await), "context_not_found");
    assert_eq!(code(store.save(&save(&draft, 1, &claim)).await), "context_not_found");
    assert_eq!(code(Contexts::signal(&store, id, "go", 1.into()).await), "context_not_found");
    assert_eq!(code(Contexts::cancel(&store, id, "why").await), "context_not_found");
    assert_eq!(code(Contexts::wake(&store, id).await), "context_not_found");
    assert!(!store.heartbeat(proof(&draft, &claim), claim.ttl).await.expect("it answers").held);
    assert!(!store.release(proof(&draft, &claim), &GiveBack::default()).await.expect("it answers"));
    assert!(!Contexts::delete(&store, id).await.expect("it answers"));
}

async fn f08_times_are_the_stores(f: Fixture) {
    let store = f.open().await;
    let draft = f.draft(Status::Pending);
    let before = ContextStore::now(&store).await.expect("it tells the time");
    stored(&store, &draft).await;
    let head = found(&store, draft.id).await.head;
    let after = ContextStore::now(&store).await.expect("it tells the time");
    // A store may keep times less finely than its clock tells them.
    let fine = Duration::from_millis(2);
    assert!(before - fine <= head.created_at && head.created_at <= after + fine);
    assert_eq!(head.created_at, head.updated_at);
}

async fn f08_changes_at_the_same_time_are_all_kept(f: Fixture) {
    let (draft, claim) = (f.draft(Status::Running), f.long());
    f.open().await.create(&draft, Some(&claim)).await.expect("it is new");
    let senders = [f.open().await, f.open().await, f.open().await].map(|store| {
        let id = draft.id;
        tokio::spawn(async move {
            for number in 0..8 {
                Contexts::signal(&store, id, "go", number.into()).await.expect("it is kept");
            }
        })
    });
    // Meanwhile the process that runs it saves and renews.
    let store = f.open().await;
    for revision in 1..=8 {
        let body = format!("{{\"revision\":{revision}}}");
        let next = ContextDraft { body, ..draft.clone() };
        let keep = Save { keep: Some(claim.ttl), ..save(&next, revision, &claim) };
        let saved = store.save(&keep).await.expect("a signal is no change of the revision");
        assert_eq!(saved.revision, revision + 1);
        assert!(store.heartbeat(proof(&draft, &claim), claim.ttl).await.expect("it answers").held);
    }
    for sender in senders {
        sender.await.expect("no panic");
    }
    let row = found(&store, draft.id).await;
    assert_eq!((row.head.signals.len(), row.head.revision), (24, 9));
    assert_eq!(row.body, "{\"revision\":8}");
    let mut sequences: Vec<_> = row.head.signals.iter().map(|signal| signal.sequence).collect();
    sequences.dedup();
    assert_eq!(sequences.len(), 24, "each has a number of its own");
}
