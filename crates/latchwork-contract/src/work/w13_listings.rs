//! W13: listings of orders, beside a filter in memory.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use latchwork_work::query::{
    Comparison, Cursor, Include, OrderFilter, OrderQuery, Sort, SortField, TimeField,
};
use latchwork_work::{
    Actor, ActorType, EventNote, INCLUDED_EVENTS, Item, ItemState, Order, OrderId, OrderState,
    Proposal, WorkManager,
};
use serde_json::{Map, Value, json};

use super::Fixture;
use super::case::cases;
use super::fixture::{PLAIN, agent, events, lease, propose, submit, user};

cases![
    w13_every_query_finds_what_a_filter_in_memory_finds,
    w13_hostile_text_is_only_text,
    w13_meta_contains_nested_objects_and_arrays,
    w13_pages_neither_repeat_nor_hide_orders,
    w13_orders_without_a_time_come_last,
    w13_includes_bring_items_events_and_counts,
    w13_what_no_database_keeps_is_refused,
];

/// Numbers that are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).expect("small")
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// One to three different ones.
    fn some<T: Clone>(&mut self, of: &[T]) -> Vec<T> {
        (0..=self.below(3)).map(|_| self.one(of)).collect()
    }
}

const NAMES: [&str; 4] = ["ada", "bob", "o'hara; --", "%"];

fn object(value: Value) -> Map<String, Value> {
    value.as_object().cloned().expect("an object")
}

fn metas() -> Vec<Value> {
    vec![
        json!({}),
        json!({"tenant": 7}),
        json!({"tenant": 7, "deep": {"a": {"b": [1, "x", null]}}}),
        json!({"tenant": "7", "deep": {"a": {"b": [1]}}, "on": true}),
        json!({"tenant": 7.5, "on": false, "none": null}),
    ]
}

/// Sixty orders in all states, of several types, people and priorities.
async fn many(work: &WorkManager, dice: &mut Dice) -> Vec<OrderId> {
    let mut ids = Vec::new();
    for _ in 0..60 {
        let by = match dice.below(4) {
            0 => Actor::agent(dice.one(&NAMES)),
            _ => Actor::user(dice.one(&NAMES)),
        };
        let client = work.client(by.expect("a legal name"));
        let count = dice.below(4) + 1;
        let priority = dice.one(&[-5, 0, 0, 0, 5]);
        let mut proposal = Proposal::new(dice.one(&[PLAIN, "other"]), json!({ "items": count }))
            .priority(priority);
        proposal.meta = Some(object(dice.one(&metas()))).filter(|_| dice.below(4) > 0);
        let order = client.propose(proposal).await.expect("proposed").order;
        use OrderState::*;
        let ways: [&[OrderState]; 7] = [
            &[],
            &[CheckedOut],
            &[Submitted],
            &[Submitted, Approved, Applied],
            &[Submitted, Approved, Applied, Completed],
            &[Rejected],
            &[Failed, DeadLettered],
        ];
        for step in dice.one(&ways) {
            client.transition_order(order.id, *step, EventNote::new()).await.expect("a legal way");
        }
        let items = work.items(order.id, None, 10).await.expect("items");
        if dice.below(3) == 0 {
            for item in &items[..=dice.below(items.len())] {
                let to = ItemState::Failed;
                client.transition_item(item.item.id, to, EventNote::new()).await.expect("failed");
            }
        }
        ids.push(order.id);
    }
    ids
}

/// An order as it is, with its items.
struct Known {
    order: Order,
    items: Vec<Item>,
}

async fn known(work: &WorkManager, ids: &[OrderId]) -> Vec<Known> {
    let mut all = Vec::new();
    for id in ids {
        let order = work.order(*id).await.expect("an order").order;
        let items = work.items(*id, None, 10).await.expect("items");
        all.push(Known { order, items: items.into_iter().map(|item| item.item).collect() });
    }
    all
}

fn contains(have: &Value, wanted: &Value) -> bool {
    match (have, wanted) {
        (Value::Object(have), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| have.get(key).is_some_and(|have| contains(have, wanted))),
        (Value::Array(have), Value::Array(wanted)) => {
            wanted.iter().all(|wanted| have.iter().any(|have| contains(have, wanted)))
        }
        (Value::Number(have), Value::Number(wanted)) => have.as_f64() == wanted.as_f64(),
        (have, wanted) => have == wanted,
    }
}

fn holds<T: PartialOrd>(left: T, comparison: Comparison, right: T) -> bool {
    match comparison {
        Comparison::Equal => left == right,
        Comparison::NotEqual => left != right,
        Comparison::Greater => left > right,
        Comparison::GreaterOrEqual => left >= right,
        Comparison::Less => left < right,
        Comparison::LessOrEqual => left <= right,
    }
}

fn time_of(order: &Order, field: TimeField) -> Option<DateTime<Utc>> {
    match field {
        TimeField::CreatedAt => Some(order.created_at),
        TimeField::LastTransitionedAt => Some(order.last_transitioned_at),
        TimeField::AppliedAt => order.applied_at,
        TimeField::CompletedAt => order.completed_at,
    }
}

fn passes(known: &Known, filter: &OrderFilter) -> bool {
    let order = &known.order;
    match filter {
        OrderFilter::Id(ids) => ids.contains(&order.id),
        OrderFilter::State(states) => states.contains(&order.state),
        OrderFilter::Type(names) => names.contains(&order.order_type),
        OrderFilter::RequestedByType(kinds) => kinds.contains(&order.requested_by.actor_type),
        OrderFilter::RequestedById(ids) => {
            order.requested_by.id.as_ref().is_some_and(|id| ids.contains(id))
        }
        OrderFilter::ItemState(states) => {
            known.items.iter().any(|item| states.contains(&item.state))
        }
        OrderFilter::Priority(comparison, than) => {
            holds(i64::from(order.priority), *comparison, *than)
        }
        OrderFilter::Time(field, comparison, than) => {
            time_of(order, *field).is_some_and(|time| holds(time, *comparison, *than))
        }
        OrderFilter::Meta(wanted) => {
            let have = Value::Object(order.meta.clone().unwrap_or_default());
            contains(&have, &Value::Object(wanted.clone()))
        }
        OrderFilter::HasAvailableItems(wanted) => {
            let queued = known.items.iter().any(|item| item.state == ItemState::Queued);
            (order.state.is_claimable() && queued) == *wanted
        }
        _ => panic!("a filter that this case does not know: {filter:?}"),
    }
}

fn key_of(order: &Order, field: SortField) -> Option<i64> {
    let micros = |time: Option<DateTime<Utc>>| time.map(|time| time.timestamp_micros());
    match field {
        SortField::Priority => Some(order.priority.into()),
        SortField::CreatedAt => micros(Some(order.created_at)),
        SortField::LastTransitionedAt => micros(Some(order.last_transitioned_at)),
        SortField::AppliedAt => micros(order.applied_at),
        SortField::CompletedAt => micros(order.completed_at),
        SortField::ItemsCount => Some(order.items.into()),
    }
}

fn compare(one: &Order, two: &Order, sort: &[Sort]) -> Ordering {
    for key in sort {
        let way = match (key_of(one, key.field), key_of(two, key.field)) {
            (Some(one), Some(two)) if key.descending => two.cmp(&one),
            (Some(one), Some(two)) => one.cmp(&two),
            (one, two) => one.is_none().cmp(&two.is_none()),
        };
        if way != Ordering::Equal {
            return way;
        }
    }
    one.id.cmp(&two.id)
}

fn any_filter(dice: &mut Dice, all: &[Known]) -> OrderFilter {
    let order = all[dice.below(all.len())].order.clone();
    let comparison = dice.one(Comparison::ALL);
    match dice.below(10) {
        0 => OrderFilter::Id(dice.some(&all.iter().map(|k| k.order.id).collect::<Vec<_>>())),
        1 => OrderFilter::State(dice.some(OrderState::ALL)),
        2 => OrderFilter::Type(dice.some(&[PLAIN, "other", "nowhere"].map(str::to_owned))),
        3 => OrderFilter::RequestedByType(dice.some(ActorType::ALL)),
        4 => OrderFilter::RequestedById(dice.some(&NAMES.map(str::to_owned))),
        5 => OrderFilter::ItemState(dice.some(ItemState::ALL)),
        6 => OrderFilter::Priority(comparison, dice.one(&[-5, 0, 5, 7])),
        7 => {
            let field = dice.one(TimeField::ALL);
            let than = time_of(&order, field).unwrap_or(order.created_at);
            OrderFilter::Time(field, comparison, than)
        }
        8 => OrderFilter::Meta(object(dice.one(&metas()))),
        _ => OrderFilter::HasAvailableItems(dice.below(2) == 0),
    }
}

/// All pages of a query.
async fn all_pages(work: &WorkManager, query: &OrderQuery) -> Vec<Order> {
    let mut query = query.clone();
    let mut found = Vec::new();
    loop {
        let page = work.orders(&query).await.expect("a page");
        assert!(page.orders.len() <= query.page_size as usize);
        found.extend(page.orders.into_iter().map(|listed| listed.order));
        let Some(next) = page.next else { return found };
        query.after = Some(next.to_string().parse().expect("a cursor reads back"));
    }
}

async fn w13_every_query_finds_what_a_filter_in_memory_finds(f: Fixture) {
    let work = f.manager().await;
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let ids = many(&work, &mut dice).await;
    let all = known(&work, &ids).await;
    let mut found_some = 0;
    for _ in 0..150 {
        let filters: Vec<_> = (0..dice.below(4)).map(|_| any_filter(&mut dice, &all)).collect();
        let mut sort = Vec::new();
        for field in dice.some(SortField::ALL) {
            if !sort.iter().any(|key: &Sort| key.field == field) {
                sort.push(Sort { field, descending: dice.below(2) == 0 });
            }
        }
        let page_size = u32::try_from(dice.below(20) + 1).expect("small");
        let query = OrderQuery { filters, sort, page_size, ..OrderQuery::default() };
        let mut expected: Vec<_> = (all.iter())
            .filter(|known| query.filters.iter().all(|filter| passes(known, filter)))
            .map(|known| known.order.clone())
            .collect();
        expected.sort_by(|one, two| compare(one, two, &query.sort));
        let found = all_pages(&work, &query).await;
        let ids = |orders: &[Order]| orders.iter().map(|order| order.id).collect::<Vec<_>>();
        assert_eq!(ids(&found), ids(&expected), "{query:?}");
        assert_eq!(found, expected, "{query:?}");
        found_some += usize::from(!found.is_empty());
    }
    assert!(found_some > 50, "the queries find something: {found_some}");
}

const HOSTILE: [&str; 9] = [
    "'; DROP TABLE latchwork_work_order; --",
    "\" OR 1=1 --",
    "100%",
    "a_b",
    "\\",
    "$1 ? :x @y",
    "日本語 ünïcode 🦀",
    "{\"json\": [1]}",
    "a,b",
];

async fn w13_hostile_text_is_only_text(f: Fixture) {
    let work = f.manager().await;
    let mut orders = Vec::new();
    for name in HOSTILE {
        let mut proposal = Proposal::new(PLAIN, json!({"items": 1}));
        proposal.meta = Some(object(json!({name: name, "in": {name: [name]}})));
        orders.push(user(&work, name).propose(proposal).await.expect("proposed").order);
    }
    for (name, order) in HOSTILE.into_iter().zip(&orders) {
        let filters = [
            OrderFilter::RequestedById(vec![name.to_owned()]),
            OrderFilter::Meta(object(json!({name: name}))),
            OrderFilter::Meta(object(json!({"in": {name: [name]}}))),
        ];
        for filter in filters {
            let query = OrderQuery { filters: vec![filter], ..OrderQuery::default() };
            let found = all_pages(&work, &query).await;
            assert_eq!(found, std::slice::from_ref(order), "{query:?}");
        }
        let of_type = OrderFilter::Type(vec![name.to_owned()]);
        let query = OrderQuery { filters: vec![of_type], ..OrderQuery::default() };
        assert_eq!(all_pages(&work, &query).await, [], "no type has such a name");
    }
    let all = all_pages(&work, &OrderQuery::default()).await;
    assert_eq!(all.len(), HOSTILE.len(), "nothing was dropped");
}

async fn w13_meta_contains_nested_objects_and_arrays(f: Fixture) {
    let work = f.manager().await;
    let meta = json!({"a": {"b": {"c": 1, "d": "x"}}, "list": [1, {"k": "v", "w": 2}, [3, 4]],
        "yes": true, "none": null, "big": 9_007_199_254_740_993_i64, "half": 0.5});
    let mut proposal = Proposal::new(PLAIN, json!({"items": 1}));
    proposal.meta = Some(object(meta));
    let order = user(&work, "ada").propose(proposal).await.expect("proposed").order;
    propose(&work, PLAIN, 1).await;
    for (wanted, is_in) in [
        (json!({"a": {"b": {"c": 1}}}), true),
        (json!({"a": {"b": {"c": 1.0}}}), true),
        (json!({"a": {"b": {"c": "1"}}}), false),
        (json!({"a": {"b": {"c": true}}}), false),
        (json!({"a": {"b": {}}}), true),
        (json!({"a": {"b": []}}), false),
        (json!({"a": {"c": 1}}), false),
        (json!({"list": [{"k": "v"}]}), true),
        (json!({"list": [[4]]}), true),
        (json!({"list": [4]}), false),
        (json!({"list": [1, 1]}), true),
        (json!({"list": 1}), false),
        (json!({"yes": true, "none": null}), true),
        (json!({"yes": 1}), false),
        (json!({"missing": null}), false),
        (json!({"big": 9_007_199_254_740_993_i64}), true),
        (json!({"big": 9_007_199_254_740_992_i64}), false),
        (json!({"half": 0.5}), true),
    ] {
        let filters = vec![OrderFilter::Meta(object(wanted.clone()))];
        let found = all_pages(&work, &OrderQuery { filters, ..OrderQuery::default() }).await;
        let expected = if is_in { vec![order.clone()] } else { Vec::new() };
        assert_eq!(found, expected, "{wanted}");
    }
    let filters = vec![OrderFilter::Meta(Map::new())];
    let found = all_pages(&work, &OrderQuery { filters, ..OrderQuery::default() }).await;
    assert_eq!(found.len(), 2, "everything contains nothing, also an order without meta");
}

async fn w13_pages_neither_repeat_nor_hide_orders(f: Fixture) {
    let work = f.manager().await;
    let ada = user(&work, "ada");
    let at = |priority| Proposal::new(PLAIN, json!({"items": 1})).priority(priority);
    let mut before = BTreeSet::new();
    for n in 0..20 {
        before.insert(ada.propose(at(n % 4)).await.expect("proposed").order.id);
    }
    let mut query = OrderQuery { page_size: 3, ..OrderQuery::default() };
    let mut seen = Vec::new();
    loop {
        let page = work.orders(&query).await.expect("a page");
        seen.extend(page.orders.iter().map(|listed| listed.order.id));
        let Some(next) = page.next else { break };
        query.after = Some(next);
        // One before the place and one behind it, as long as there are few.
        if seen.len() < 12 {
            ada.propose(at(9)).await.expect("proposed");
            ada.propose(at(-9)).await.expect("proposed");
        }
    }
    let old: Vec<_> = seen.iter().filter(|id| before.contains(id)).collect();
    assert_eq!(old.len(), 20, "each order that was there is seen once");
    let distinct: BTreeSet<_> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len(), "nothing is seen twice");
    // The order at which a page ended may be gone.
    let gone = OrderId::new(work.now().await.expect("a time"));
    let place = Cursor::new(&query.sort, vec![Some(3), Some(0)], gone);
    query.after = Some(place);
    let page = work.orders(&query).await.expect("a page");
    assert_eq!(page.orders[0].order.priority, 3, "it goes on behind the place all the same");
    let other = vec![Sort { field: SortField::CreatedAt, descending: false }];
    let error = work.orders(&OrderQuery { sort: other, ..query }).await.expect_err("of another");
    assert_eq!(error.code(), "invalid_argument", "{error}");
    assert!(error.to_string().contains("sorted by"), "{error}");
}

async fn w13_orders_without_a_time_come_last(f: Fixture) {
    let work = f.manager().await;
    let ada = user(&work, "ada");
    let mut ids = Vec::new();
    for n in 0..6 {
        let id = propose(&work, PLAIN, 1).await.id;
        use OrderState::{Applied, Approved, Submitted};
        for step in [Submitted, Approved, Applied].iter().filter(|_| n % 2 == 0) {
            ada.transition_order(id, *step, EventNote::new()).await.expect("a legal way");
        }
        ids.push(id);
    }
    for descending in [false, true] {
        let sort = vec![Sort { field: SortField::AppliedAt, descending }];
        let query = OrderQuery { sort, page_size: 2, ..OrderQuery::default() };
        let found: Vec<_> = all_pages(&work, &query).await.iter().map(|order| order.id).collect();
        let applied = if descending { [4, 2, 0] } else { [0, 2, 4] };
        let expected: Vec<_> = applied.into_iter().chain([1, 3, 5]).map(|n| ids[n]).collect();
        assert_eq!(found, expected, "descending: {descending}");
    }
}

async fn w13_includes_bring_items_events_and_counts(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 3).await;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    submit(&client, &held).await;
    for n in 0..25 {
        client.comment(order.id, format!("comment {n}")).await.expect("commented");
    }
    let bare = work.orders(&OrderQuery::default()).await.expect("a page").orders.remove(0);
    assert_eq!(
        (bare.order_items, bare.events, bare.items_count, bare.events_count),
        Default::default()
    );
    let query = OrderQuery { include: Include::ALL.to_vec(), ..OrderQuery::default() };
    let listed = work.orders(&query).await.expect("a page").orders.remove(0);
    let items = listed.order_items.clone().expect("items");
    assert_eq!(items.iter().map(|item| item.seq).collect::<Vec<_>>(), [0, 1, 2]);
    let states: Vec<_> = items.iter().map(|item| item.state).collect();
    assert_eq!(states, [ItemState::Submitted, ItemState::Queued, ItemState::Queued]);
    let counts = listed.items_count.expect("counts");
    assert_eq!((counts.total(), counts.get(ItemState::Queued)), (3, 2));
    let all = events(&work, order.id).await;
    assert_eq!(listed.events_count, Some(all.len() as u64));
    let latest = listed.events.clone().expect("events");
    assert_eq!(latest, all[all.len() - INCLUDED_EVENTS as usize..], "the latest, in their order");
    let json = serde_json::to_value(&listed).expect("JSON");
    assert_eq!(json["items_count"], json!({"queued": 2, "submitted": 1}));
    assert_eq!(json["id"], json!(order.id));
}

async fn w13_what_no_database_keeps_is_refused(f: Fixture) {
    let work = f.manager().await;
    let deep = (0..20).fold(json!(1), |inner, _| json!({ "a": inner }));
    for filter in [
        OrderFilter::Type(vec!["a\0b".to_owned()]),
        OrderFilter::RequestedById(vec!["a\0b".to_owned()]),
        OrderFilter::Meta(object(json!({"k": ["a\u{0}b"]}))),
        OrderFilter::Meta(object(json!({"a\u{0}b": 1}))),
        OrderFilter::Meta(object(deep)),
    ] {
        let query = OrderQuery { filters: vec![filter], ..OrderQuery::default() };
        let error = work.orders(&query).await.expect_err("refused");
        assert_eq!(error.code(), "invalid_argument", "{error}");
    }
    for page_size in [0, 101] {
        let query = OrderQuery { page_size, ..OrderQuery::default() };
        let error = work.orders(&query).await.expect_err("refused");
        assert!(error.to_string().contains("1 to 100"), "{error}");
    }
    let query = OrderQuery::default();
    let gone = OrderId::new(work.now().await.expect("a time"));
    let place = Cursor::new(&query.sort, vec![None, None], gone);
    let error = work.orders(&OrderQuery { after: Some(place), ..query }).await;
    assert_eq!(error.expect_err("no such place").code(), "invalid_argument");
}
