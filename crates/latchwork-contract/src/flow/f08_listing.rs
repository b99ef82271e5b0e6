//! F8 What is there can be listed and removed, and a listing shows no secret.

use std::time::Duration;

use latchwork_flow::store::{
    ContextDraft, ContextFilter, ContextPageRequest, ContextStore, View, Waiting,
};
use latchwork_flow::{Contexts, Status, TransitionId};

use super::Fixture;
use super::case::cases;
use super::fixture::{SECRET, code, found, stored};

cases![
    f08_a_listing_comes_in_pages,
    f08_a_listing_is_filtered,
    f08_a_listing_shows_no_secret,
    f08_views_tell_due_held_and_orphaned,
    f08_only_the_ended_are_deleted,
    f08_only_the_long_ended_are_pruned,
];

async fn ids(store: &Contexts, filter: ContextFilter) -> Vec<TransitionId> {
    let page = ContextPageRequest { limit: 1_000, after: None };
    let page = Contexts::list(store, &filter, &page).await.expect("it answers");
    assert_eq!(page.next, None);
    page.contexts.iter().map(|found| found.id).collect()
}

async fn f08_a_listing_comes_in_pages(f: Fixture) {
    let store = f.open().await;
    let mut wanted = Vec::new();
    for _ in 0..7 {
        let draft = f.draft(Status::Pending);
        stored(&store, &draft).await;
        wanted.push(draft.id);
    }
    wanted.sort();
    let filter =
        ContextFilter { machine: Some(f.machine().to_owned()), ..ContextFilter::default() };
    let (mut got, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = ContextPageRequest { limit: 3, after };
        let page = Contexts::list(&store, &filter, &page).await.expect("it answers");
        got.extend(page.contexts.iter().map(|found| found.id));
        pages += 1;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((got, pages), (wanted, 3));
    for limit in [0, 1_001] {
        let page = ContextPageRequest { limit, after: None };
        assert_eq!(code(Contexts::list(&store, &filter, &page).await), "invalid_argument");
    }
}

async fn f08_a_listing_is_filtered(f: Fixture) {
    let store = f.open().await;
    let (one, two) = (f.draft(Status::Pending), f.paused(Waiting::default()));
    let other = ContextDraft { machine: format!("{}!", f.machine()), ..f.draft(Status::Paused) };
    for draft in [&one, &two, &other] {
        stored(&store, draft).await;
    }
    let ours = ContextFilter { machine: Some(f.machine().to_owned()), ..ContextFilter::default() };
    assert_eq!(ids(&store, ours.clone()).await, sorted([one.id, two.id]));
    let paused = ContextFilter { status: Some(Status::Paused), ..ours.clone() };
    assert_eq!(ids(&store, paused).await, [two.id]);
    let entity = ContextFilter { entity: one.entity.clone(), ..ContextFilter::default() };
    assert_eq!(ids(&store, entity).await, [one.id]);
    let nobody = ContextFilter { entity: Some("nobody".to_owned()), ..ours };
    assert!(ids(&store, nobody).await.is_empty());
}

fn sorted<const N: usize>(mut ids: [TransitionId; N]) -> [TransitionId; N] {
    ids.sort();
    ids
}

async fn f08_a_listing_shows_no_secret(f: Fixture) {
    let store = f.open().await;
    let claim = f.long();
    store.create(&f.draft(Status::Running), Some(&claim)).await.expect("it is new");
    let filter =
        ContextFilter { machine: Some(f.machine().to_owned()), ..ContextFilter::default() };
    let page = Contexts::list(&store, &filter, &ContextPageRequest::default()).await;
    let page = page.expect("it answers");
    assert_eq!(page.contexts[0].runner.as_deref(), Some(&*claim.runner));
    let row = found(&store, page.contexts[0].id).await;
    assert!(row.body.contains(SECRET), "the case has a secret to keep");
    let shown =
        format!("{page:?} {row:?} {}", serde_json::to_string(&page).expect("it serialises"));
    assert!(!shown.contains(SECRET), "{shown}");
    assert!(!shown.contains(&format!("{:x}", claim.token.expose())), "{shown}");
}

async fn f08_views_tell_due_held_and_orphaned(f: Fixture) {
    let store = f.open().await;
    let (due, held, dead) =
        (f.draft(Status::Pending), f.draft(Status::Running), f.draft(Status::Running));
    stored(&store, &due).await;
    store.create(&held, Some(&f.long())).await.expect("it is new");
    store.create(&dead, Some(&f.short())).await.expect("it is new");
    stored(&store, &f.paused(Waiting::default())).await;
    f.pass(f.unit() * 2).await;
    let machine = Some(f.machine().to_owned());
    let view = |view| ContextFilter { machine: machine.clone(), view, ..ContextFilter::default() };
    assert_eq!(ids(&store, view(View::Due)).await, sorted([due.id, dead.id]));
    assert_eq!(ids(&store, view(View::Held)).await, [held.id]);
    assert_eq!(ids(&store, view(View::Orphaned)).await, [dead.id]);
    assert_eq!(ids(&store, view(View::All)).await.len(), 4);
}

async fn f08_only_the_ended_are_deleted(f: Fixture) {
    let store = f.open().await;
    for status in Status::ALL {
        let draft = f.draft(status);
        stored(&store, &draft).await;
        let gone = Contexts::delete(&store, draft.id).await.expect("it answers");
        assert_eq!(gone, status.is_over(), "{status}");
        let there = ContextStore::load(&store, draft.id).await.expect("it answers").is_some();
        assert_eq!(there, !gone, "{status}");
    }
}

async fn f08_only_the_long_ended_are_pruned(f: Fixture) {
    let store = f.open().await;
    let old = f.draft(Status::Completed);
    let paused = f.paused(Waiting::default());
    let locked = ContextDraft { holds_lock: true, ..f.draft(Status::Cancelled) };
    for draft in [&old, &paused, &locked] {
        stored(&store, draft).await;
    }
    assert_eq!(store.prune(Duration::from_secs(3_600)).await.expect("it answers"), 0);
    f.pass(f.unit() * 2).await;
    let young = f.draft(Status::Failed);
    stored(&store, &young).await;
    let removed = store.prune(f.unit()).await.expect("it answers");
    assert_eq!(removed, 1, "the store is this case's own");
    let machine = Some(f.machine().to_owned());
    let left = ids(&store, ContextFilter { machine, ..ContextFilter::default() }).await;
    assert_eq!(left, sorted([paused.id, locked.id, young.id]));
}
