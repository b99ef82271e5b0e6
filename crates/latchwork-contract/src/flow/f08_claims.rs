//! F8 One process at a time is at a context, by a lease that ends by itself.

use latchwork_flow::Status;
use latchwork_flow::store::{ContextDraft, ContextStore, GiveBack, Save};

use super::Fixture;
use super::case::cases;
use super::fixture::{code, found, proof, save, stored};

cases![
    f08_of_two_claimers_one_wins,
    f08_a_claim_needs_the_revision_that_was_read,
    f08_a_claimed_context_is_busy,
    f08_a_claim_asked_again_is_no_error,
    f08_a_dead_process_is_replaced,
    f08_a_late_save_of_the_dead_is_refused,
    f08_a_heartbeat_keeps_the_run_lease,
    f08_a_heartbeat_after_the_take_over_is_refused,
    f08_a_released_context_can_be_claimed,
    f08_a_save_renews_the_run_lease,
    f08_a_slow_process_that_nobody_replaced_goes_on,
];

async fn f08_of_two_claimers_one_wins(f: Fixture) {
    let stores = [f.open().await, f.open().await, f.open().await, f.open().await];
    for _ in 0..5 {
        let draft = f.draft(Status::Paused);
        stored(&stores[0], &draft).await;
        let asked = stores.clone().map(|store| {
            let (id, claim) = (draft.id, f.long());
            tokio::spawn(async move { store.claim(id, Some(1), &claim).await })
        });
        let mut won = 0;
        for task in asked {
            match task.await.expect("no panic") {
                Ok(row) => {
                    won += 1;
                    assert_eq!(row.head.revision, 2);
                }
                Err(error) => {
                    assert!(
                        ["context_busy", "context_conflict"].contains(&error.code()),
                        "{error}"
                    );
                }
            }
        }
        assert_eq!(won, 1);
    }
}

async fn f08_a_claim_needs_the_revision_that_was_read(f: Fixture) {
    let store = f.open().await;
    let (draft, claim) = (f.draft(Status::Paused), f.long());
    stored(&store, &draft).await;
    store.claim(draft.id, Some(1), &claim).await.expect("nobody is at it");
    assert!(store.release(proof(&draft, &claim), &GiveBack::default()).await.expect("it answers"));
    assert_eq!(code(store.claim(draft.id, Some(1), &f.long()).await), "context_conflict");
    let row = store.claim(draft.id, Some(2), &f.long()).await.expect("the latest");
    assert_eq!(row.head.revision, 3);
}

async fn f08_a_claimed_context_is_busy(f: Fixture) {
    let store = f.open().await;
    let (draft, claim) = (f.draft(Status::Running), f.long());
    store.create(&draft, Some(&claim)).await.expect("it is new");
    let error = store.claim(draft.id, None, &f.long()).await.expect_err("somebody is at it");
    assert_eq!(error.code(), "context_busy");
    assert!(error.to_string().contains(&claim.runner), "{error}");
    assert!(error.is_temporary());
}

async fn f08_a_claim_asked_again_is_no_error(f: Fixture) {
    let store = f.open().await;
    let (draft, claim) = (f.draft(Status::Paused), f.long());
    stored(&store, &draft).await;
    for _ in 0..2 {
        let row = store.claim(draft.id, Some(1), &claim).await.expect("the same claim");
        assert_eq!(row.head.revision, 2);
    }
}

async fn f08_a_dead_process_is_replaced(f: Fixture) {
    let store = f.open().await;
    let (draft, dead) = (f.draft(Status::Running), f.short());
    store.create(&draft, Some(&dead)).await.expect("it is new");
    f.pass(f.unit() * 2).await;
    let row = store.claim(draft.id, Some(1), &f.long()).await.expect("its time is over");
    assert_eq!(row.head.revision, 2);
}

async fn f08_a_late_save_of_the_dead_is_refused(f: Fixture) {
    let store = f.open().await;
    let (draft, dead) = (f.draft(Status::Running), f.short());
    store.create(&draft, Some(&dead)).await.expect("it is new");
    f.pass(f.unit() * 2).await;
    let claim = f.long();
    store.claim(draft.id, None, &claim).await.expect("its time is over");
    let late = ContextDraft { body: "{}".to_owned(), ..draft.clone() };
    for revision in [1, 2] {
        assert_eq!(code(store.save(&save(&late, revision, &dead)).await), "context_conflict");
    }
    // Nor is a save without a change taken for one whose answer was lost.
    assert_eq!(code(store.save(&save(&draft, 1, &dead)).await), "context_conflict");
    assert!(!store.release(proof(&draft, &dead), &GiveBack::default()).await.expect("it answers"));
    assert_eq!(found(&store, draft.id).await.body, draft.body);
    store.save(&save(&late, 2, &claim)).await.expect("the new one is not disturbed");
}

async fn f08_a_heartbeat_keeps_the_run_lease(f: Fixture) {
    let store = f.open().await;
    let (draft, claim) = (f.draft(Status::Running), f.short());
    store.create(&draft, Some(&claim)).await.expect("it is new");
    assert!(store.heartbeat(proof(&draft, &claim), f.unit() * 100).await.expect("it answers").held);
    f.pass(f.unit() * 2).await;
    assert_eq!(code(store.claim(draft.id, None, &f.long()).await), "context_busy");
    assert_eq!(found(&store, draft.id).await.head.revision, 1, "a heartbeat is no change");
}

async fn f08_a_heartbeat_after_the_take_over_is_refused(f: Fixture) {
    let store = f.open().await;
    let (draft, dead) = (f.draft(Status::Running), f.short());
    store.create(&draft, Some(&dead)).await.expect("it is new");
    f.pass(f.unit() * 2).await;
    store.claim(draft.id, None, &f.long()).await.expect("its time is over");
    assert!(!store.heartbeat(proof(&draft, &dead), f.unit()).await.expect("it answers").held);
}

async fn f08_a_released_context_can_be_claimed(f: Fixture) {
    let store = f.open().await;
    let (draft, claim) = (f.draft(Status::Running), f.long());
    store.create(&draft, Some(&claim)).await.expect("it is new");
    assert!(store.release(proof(&draft, &claim), &GiveBack::default()).await.expect("it answers"));
    assert!(
        !store.release(proof(&draft, &claim), &GiveBack::default()).await.expect("it answers"),
        "only once"
    );
    store.claim(draft.id, Some(1), &f.long()).await.expect("nobody is at it");
}

async fn f08_a_save_renews_the_run_lease(f: Fixture) {
    let store = f.open().await;
    let (draft, claim) = (f.draft(Status::Running), f.short());
    store.create(&draft, Some(&claim)).await.expect("it is new");
    let keep = Save { keep: Some(f.unit() * 100), ..save(&draft, 1, &claim) };
    store.save(&keep).await.expect("it is ours");
    f.pass(f.unit() * 2).await;
    assert_eq!(code(store.claim(draft.id, None, &f.long()).await), "context_busy");
}

async fn f08_a_slow_process_that_nobody_replaced_goes_on(f: Fixture) {
    let store = f.open().await;
    let (draft, claim) = (f.draft(Status::Running), f.short());
    store.create(&draft, Some(&claim)).await.expect("it is new");
    f.pass(f.unit() * 2).await;
    let keep = Save { keep: Some(f.unit() * 100), ..save(&draft, 1, &claim) };
    store.save(&keep).await.expect("nobody else was at it");
    assert_eq!(code(store.claim(draft.id, None, &f.long()).await), "context_busy");
}
