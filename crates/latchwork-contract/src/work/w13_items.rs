//! W13: listings of items and leases.

use std::collections::BTreeSet;
use std::time::Duration;

use latchwork_work::query::{ItemQuery, LeaseQuery};
use latchwork_work::{ItemState, WorkManager};

use super::Fixture;
use super::case::cases;
use super::fixture::{PLAIN, agent, lease, propose, submit};

cases![
    w13_items_are_listed_by_order_type_state_and_agent,
    w13_leases_are_listed_with_agent_and_remaining_time,
];

async fn places(work: &WorkManager, query: &ItemQuery) -> Vec<(usize, u32)> {
    let mut query = ItemQuery { page_size: 2, ..query.clone() };
    let mut orders = Vec::new();
    let mut found = Vec::new();
    loop {
        let page = work.list_items(&query).await.expect("a page");
        for listed in page.items {
            let order = listed.item.order_id;
            if !orders.contains(&order) {
                orders.push(order);
            }
            assert_eq!(listed.lease.is_some(), listed.item.state.is_leased());
            found.push((orders.len() - 1, listed.item.seq));
        }
        let Some(next) = page.next else { return found };
        query.after = Some(next.to_string().parse().expect("a cursor reads back"));
    }
}

async fn w13_items_are_listed_by_order_type_state_and_agent(f: Fixture) {
    let work = f.manager().await;
    let first = propose(&work, PLAIN, 3).await;
    propose(&work, "other", 2).await;
    let odd = "agent '1' -- %_";
    let (one, two) = (agent(&work, odd), agent(&work, "agent-2"));
    let done = lease(&one).await;
    submit(&one, &done).await;
    lease(&one).await;
    lease(&two).await;
    let all = places(&work, &ItemQuery::default()).await;
    assert_eq!(all, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]);
    let of_order = ItemQuery { order: Some(first.id), ..ItemQuery::default() };
    assert_eq!(places(&work, &of_order).await, [(0, 0), (0, 1), (0, 2)]);
    let of_type = ItemQuery { types: vec!["other".to_owned()], ..ItemQuery::default() };
    assert_eq!(places(&work, &of_type).await, [(0, 0), (0, 1)]);
    let states = vec![ItemState::Submitted, ItemState::Queued];
    let in_states = ItemQuery { states, ..ItemQuery::default() };
    assert_eq!(places(&work, &in_states).await, [(0, 0), (1, 0), (1, 1)]);
    let leased_by = ItemQuery { leased_by: Some(odd.to_owned()), ..ItemQuery::default() };
    assert_eq!(places(&work, &leased_by).await, [(0, 1)]);
    // Who may see one type only counts the leases of that type, and asks for types by id.
    let of_type = async |name: &str| {
        let found = work.agents_of_types(&[name.to_owned()]).await.expect("agents");
        found.into_iter().map(|agent| (agent.id, agent.leases)).collect::<BTreeSet<_>>()
    };
    let both = [("agent-2".to_owned(), 1), (odd.to_owned(), 1)].into();
    assert_eq!(of_type(PLAIN).await, both);
    assert_eq!(of_type("other").await, BTreeSet::new());
    let (plain, other) = ([PLAIN.to_owned()], ["other".to_owned()]);
    work.check_order_type(first.id, &plain).await.expect("of this type");
    work.check_item_type(done.item_id, &plain).await.expect("of this type");
    let error = work.check_order_type(first.id, &other).await.expect_err("not to be seen");
    assert_eq!(error.code(), "order_not_found");
    let error = work.check_item_type(done.item_id, &other).await.expect_err("not to be seen");
    assert_eq!(error.code(), "item_not_found");
    let unknown = latchwork_work::OrderId::new(first.created_at);
    let error = work.check_order_type(unknown, &plain).await.expect_err("none");
    assert_eq!(error.code(), "order_not_found");
    for (types, leased_by) in [(vec!["a\0".to_owned()], None), (vec![], Some("a\0".to_owned()))] {
        let query = ItemQuery { types, leased_by, ..ItemQuery::default() };
        let error = work.list_items(&query).await.expect_err("no database keeps it");
        assert_eq!(error.code(), "invalid_argument", "{error}");
    }
    let error = work.list_items(&ItemQuery { page_size: 0, ..ItemQuery::default() }).await;
    assert_eq!(error.expect_err("no page").code(), "invalid_argument");
}

async fn w13_leases_are_listed_with_agent_and_remaining_time(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 3).await;
    let (one, two) = (agent(&work, "agent-1"), agent(&work, "agent-2"));
    let mut mine = vec![lease(&one).await, lease(&one).await];
    let other = lease(&two).await;
    mine.sort_by_key(|lease| lease.item_id);
    let all = work.list_leases(&LeaseQuery::default()).await.expect("a page");
    assert_eq!((all.leases.len(), all.next), (3, None));
    for listed in &all.leases {
        assert_eq!(listed.order_type, PLAIN);
        assert!(listed.remaining > Duration::from_secs(500), "{:?}", listed.remaining);
        assert!(listed.remaining <= Duration::from_secs(600), "{:?}", listed.remaining);
    }
    let agent = Some("agent-1".to_owned());
    let mut query = LeaseQuery { agent, page_size: 1, ..LeaseQuery::default() };
    for expected in &mine {
        let page = work.list_leases(&query).await.expect("a page");
        assert_eq!(page.leases[0].lease.item_id, expected.item_id);
        assert_eq!(page.leases[0].lease.fence, expected.fence);
        query.after = page.next;
    }
    assert_eq!(query.after, None, "the second page is the last");
    submit(&two, &other).await;
    let query = LeaseQuery { order: Some(order.id), ..LeaseQuery::default() };
    let left = work.list_leases(&query).await.expect("a page").leases;
    assert!(left.iter().all(|listed| listed.lease.leased_by_agent_id == "agent-1"));
    assert_eq!(left.len(), 2);
}
