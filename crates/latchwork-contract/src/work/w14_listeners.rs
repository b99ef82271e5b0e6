//! W14: listeners get sealed events, at least once and in order, and resume where they stopped.

use std::time::Duration;

use futures::StreamExt;
use latchwork_work::{
    Checkout, ErrorKind, Event, EventFilter, EventType, ListenFrom, Listener, Submission,
    Subscription, WorkManager,
};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{PLAIN, Timer, agent, lease, propose, submit, user};
use super::w10_audit::{hurried, maintenance};

cases![
    w14_a_listener_gets_every_sealed_event_in_order,
    w14_an_event_is_heard_when_it_is_sealed,
    w14_a_listener_of_another_process_is_woken_too,
    w14_bug_what_was_rolled_back_is_never_heard,
    w14_filters_choose_orders_types_and_events,
    w14_a_filter_by_type_outlives_the_order,
    w14_a_page_says_where_to_read_on,
    w14_a_subscription_resumes_behind_a_position,
    w14_pruned_positions_name_the_checkpoint,
    w14_a_listener_that_pruning_overtakes_is_told,
    w14_a_position_behind_the_end_is_refused,
    w14_a_named_listener_resumes_behind_what_it_acknowledged,
    w14_a_named_listener_that_hears_nothing_keeps_up,
    w14_a_slow_listener_holds_nobody_up,
    w14_illegal_filters_and_names_are_refused,
];

/// The position of an event.
fn at(event: &Event) -> u64 {
    event.seal.expect("sealed").position
}

/// The next event, which is there already or soon.
async fn next(subscription: &mut Subscription) -> Event {
    let waited = tokio::time::timeout(Duration::from_secs(10), subscription.next()).await;
    waited.expect("it is woken").expect("an event")
}

async fn next_of(listener: &mut Listener) -> Event {
    let waited = tokio::time::timeout(Duration::from_secs(10), listener.next()).await;
    waited.expect("it is woken").expect("an event")
}

/// As many events as there are up to a position.
async fn up_to(subscription: &mut Subscription, last: u64) -> Vec<Event> {
    let mut all = vec![next(subscription).await];
    while at(&all[all.len() - 1]) < last {
        all.push(next(subscription).await);
    }
    all
}

/// Nothing comes for a while.
async fn silence(subscription: &mut Subscription) {
    let waited = tokio::time::timeout(Duration::from_millis(150), subscription.next()).await;
    assert!(waited.is_err(), "nothing is sealed: {waited:?}");
}

/// An order with an item that is submitted.
async fn one_order(work: &WorkManager, order_type: &str) -> latchwork_work::OrderId {
    let order = propose(work, order_type, 1).await.id;
    let client = agent(work, "agent-1");
    let held = client.checkout(Checkout::of_order(order)).await.expect("checked out").leases;
    submit(&client, &held[0]).await;
    order
}

async fn sealed(work: &WorkManager) -> u64 {
    work.seal().await.expect("sealed");
    sealed_position(work).await
}

async fn w14_a_listener_gets_every_sealed_event_in_order(f: Fixture) {
    let work = f.manager().await;
    let mut early = work.subscribe(ListenFrom::Now, EventFilter::all()).await.expect("subscribed");
    let mut told = Vec::new();
    for _ in 0..3 {
        one_order(&work, PLAIN).await;
        let last = sealed(&work).await;
        told.extend(up_to(&mut early, last).await);
    }
    let all = work.events(0, 1_000).await.expect("events");
    assert_eq!(told, all);
    assert_eq!(
        told.iter().map(at).collect::<Vec<_>>(),
        (1..=told.len() as u64).collect::<Vec<_>>()
    );
    let late = work.subscribe(ListenFrom::Oldest, EventFilter::all()).await.expect("subscribed");
    let stream = late.into_stream().take(all.len()).map(|event| event.expect("an event"));
    assert_eq!(stream.collect::<Vec<_>>().await, all, "and as a stream");
}

async fn w14_an_event_is_heard_when_it_is_sealed(f: Fixture) {
    let work = f.manager().await;
    let mut listening =
        work.subscribe(ListenFrom::Now, EventFilter::all()).await.expect("subscribed");
    propose(&work, PLAIN, 1).await;
    silence(&mut listening).await;
    // Woken by the sealing, and not by a look of its own: that comes every 1.5 s.
    let waiting = tokio::spawn(async move { (next(&mut listening).await, listening) });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let timer = Timer::start();
    work.seal().await.expect("sealed");
    let (event, mut listening) = waiting.await.expect("no panic");
    assert!(timer.elapsed() < Duration::from_millis(1_000), "{:?}", timer.elapsed());
    assert_eq!(event.event, EventType::Proposed);
    assert_eq!(next(&mut listening).await.event, EventType::Planned);
    silence(&mut listening).await;
}

async fn w14_a_listener_of_another_process_is_woken_too(f: Fixture) {
    let (work, other) = (f.manager().await, f.manager().await);
    let mut listening =
        other.subscribe(ListenFrom::Now, EventFilter::all()).await.expect("subscribed");
    let mut notices = other.seal_notices();
    for _ in 0..3 {
        propose(&work, PLAIN, 1).await;
        let last = sealed(&work).await;
        assert_eq!(up_to(&mut listening, last).await.len(), 2);
    }
    tokio::time::timeout(Duration::from_secs(10), notices.wait()).await.expect("it returns");
}

/// The second of two submissions is refused, so the first has not happened either.
async fn w14_bug_what_was_rolled_back_is_never_heard(f: Fixture) {
    let work = f.manager().await;
    propose(&work, PLAIN, 2).await;
    let (one, two) = (agent(&work, "agent-1"), agent(&work, "agent-2"));
    let (first, second) = (lease(&one).await, lease(&two).await);
    two.release(second.id, None).await.expect("released");
    let both = vec![Submission::new(&first, json!(1)), Submission::new(&second, json!(1))];
    one.submit_many(both).await.expect_err("the second lease is over");
    let last = sealed(&work).await;
    let mut listening =
        work.subscribe(ListenFrom::Oldest, EventFilter::all()).await.expect("subscribed");
    let told = up_to(&mut listening, last).await;
    assert!(told.iter().all(|event| event.event != EventType::Submitted), "{told:?}");
}

async fn w14_filters_choose_orders_types_and_events(f: Fixture) {
    let work = f.manager().await;
    let mine = one_order(&work, PLAIN).await;
    let other = one_order(&work, "other").await;
    let last = sealed(&work).await;
    let all = work.events(0, 1_000).await.expect("events");
    let page = async |filter: EventFilter| {
        let page = work.events_after(0, &filter, 1_000).await.expect("a page");
        assert_eq!((page.position, page.more), (last, false), "everything was looked at");
        page.events
    };
    let those = |wanted: &dyn Fn(&Event) -> bool| {
        all.iter().filter(|event| wanted(event)).cloned().collect::<Vec<_>>()
    };
    let of_order = those(&|event| event.order_id == mine);
    assert!(of_order.len() > 4);
    assert_eq!(page(EventFilter::all().order(mine)).await, of_order);
    assert_eq!(page(EventFilter::all().order_type(PLAIN)).await, of_order);
    let both = EventFilter::all().order_type(PLAIN).order_type("other");
    assert_eq!(page(both).await, all);
    assert_eq!(page(EventFilter::all().order_type("nobody")).await, []);
    let kinds = EventFilter::all().event(EventType::Leased).event(EventType::Proposed);
    let chosen = |e: &Event| matches!(e.event, EventType::Leased | EventType::Proposed);
    assert_eq!(page(kinds.clone()).await, those(&chosen));
    let of_other = |e: &Event| chosen(e) && e.order_id == other;
    assert_eq!(page(kinds.clone().order(other)).await, those(&of_other));
    assert_eq!(page(kinds.order_type("other")).await, those(&of_other));
}

/// Whether its events are sealed before it is pruned, or after.
async fn w14_a_filter_by_type_outlives_the_order(f: Fixture) {
    let work = f.manager().await;
    let filter = EventFilter::all().order_type(PLAIN);
    let mut settings = hurried();
    settings.prune_events_after = None;
    for seal_first in [true, false] {
        let order = propose(&work, PLAIN, 1).await.id;
        propose(&work, "other", 1).await;
        user(&work, "ada").cancel(order, "x").await.expect("cancelled");
        let before = sealed_position(&work).await;
        if seal_first {
            sealed(&work).await;
        }
        maintenance(&work, settings.clone()).round().await.expect("a round");
        assert_eq!(work.order(order).await.expect_err("gone").code(), "order_not_found");
        sealed(&work).await;
        let page = work.events_after(before, &filter, 1_000).await.expect("a page");
        assert!(page.events.len() > 4, "{page:?}");
        assert!(page.events.iter().all(|event| event.order_id == order));
    }
}

async fn sealed_position(work: &WorkManager) -> u64 {
    work.verify().await.expect("verified").position
}

async fn w14_a_page_says_where_to_read_on(f: Fixture) {
    let work = f.manager().await;
    for _ in 0..3 {
        one_order(&work, PLAIN).await;
    }
    let last = sealed(&work).await;
    for filter in [EventFilter::all(), EventFilter::all().event(EventType::Leased)] {
        let whole = work.events_after(0, &filter, 1_000).await.expect("a page").events;
        let (mut paged, mut position) = (Vec::new(), 0);
        loop {
            let page = work.events_after(position, &filter, 2).await.expect("a page");
            assert_eq!(page.more, page.position < last);
            assert!(page.more || page.position == last);
            paged.extend(page.events);
            position = page.position;
            if !page.more {
                break;
            }
        }
        assert_eq!(paged, whole);
    }
    for limit in [0, 1_001] {
        let error = work.events_after(0, &EventFilter::all(), limit).await.expect_err("illegal");
        assert_eq!(error.code(), "invalid_argument");
    }
}

async fn w14_a_subscription_resumes_behind_a_position(f: Fixture) {
    let work = f.manager().await;
    one_order(&work, PLAIN).await;
    let last = sealed(&work).await;
    let all = work.events(0, 1_000).await.expect("events");
    for seen in 0..last - 1 {
        let from = ListenFrom::After(seen);
        let mut rest = work.subscribe(from, EventFilter::all()).await.expect("subscribed");
        assert_eq!(rest.position(), seen);
        let event = next(&mut rest).await;
        assert_eq!(event, all[usize::try_from(seen).expect("small")]);
        assert_eq!(rest.position(), at(&event));
        // A call that is dropped while it waits takes nothing with it.
        drop(Box::pin(rest.next()));
        assert_eq!(up_to(&mut rest, last).await.len() as u64, last - seen - 1);
    }
}

async fn w14_pruned_positions_name_the_checkpoint(f: Fixture) {
    let work = f.manager().await;
    for _ in 0..2 {
        one_order(&work, PLAIN).await;
    }
    sealed(&work).await;
    maintenance(&work, hurried()).round().await.expect("a round");
    let pruned = work.checkpoints().await.expect("checkpoints");
    let pruned = pruned.iter().map(|at| at.seal.position).max().expect("one");
    for position in 0..pruned {
        let filter = EventFilter::all().event(EventType::Completed);
        let error = work.events_after(position, &filter, 10).await.expect_err("pruned");
        assert_eq!(error.code(), "events_pruned");
        assert!(error.to_string().contains(&pruned.to_string()), "{error}");
        let ErrorKind::EventsPruned { checkpoint, .. } = error.kind() else { panic!("{error}") };
        assert_eq!(*checkpoint, pruned);
        let from = ListenFrom::After(position);
        let error = work.subscribe(from, EventFilter::all()).await.expect_err("pruned");
        assert_eq!(error.code(), "events_pruned", "also at once");
    }
    work.events_after(pruned, &EventFilter::all(), 10).await.expect("right behind it");
    let mut oldest =
        work.subscribe(ListenFrom::Oldest, EventFilter::all()).await.expect("subscribed");
    assert_eq!(at(&next(&mut oldest).await), pruned + 1);
}

/// Also where everything was pruned, so that no event behind the position is left to show a gap.
async fn w14_a_listener_that_pruning_overtakes_is_told(f: Fixture) {
    let work = f.manager().await;
    let mut listening =
        work.subscribe(ListenFrom::Now, EventFilter::all()).await.expect("subscribed");
    one_order(&work, PLAIN).await;
    let last = sealed(&work).await;
    let mut settings = hurried();
    settings.batch = 1_000;
    maintenance(&work, settings).round().await.expect("a round");
    let error = listening.next().await.expect_err("overtaken");
    assert_eq!(error.code(), "events_pruned");
    assert!(error.to_string().contains(&last.to_string()), "{error}");
    let told: Vec<_> = listening.into_stream().take(5).collect().await;
    assert_eq!(told.len(), 1, "a stream ends with a permanent error");
    for from in [ListenFrom::Oldest, ListenFrom::Now] {
        let fresh = work.subscribe(from, EventFilter::all()).await.expect("subscribed");
        assert_eq!(fresh.position(), last);
    }
}

async fn w14_a_position_behind_the_end_is_refused(f: Fixture) {
    let work = f.manager().await;
    one_order(&work, PLAIN).await;
    let last = sealed(&work).await;
    work.events_after(last, &EventFilter::all(), 10).await.expect("the end");
    for wrong in [last + 1, u64::MAX] {
        let error = work.events_after(wrong, &EventFilter::all(), 10).await.expect_err("beyond");
        assert_eq!(error.code(), "invalid_argument");
        assert!(error.to_string().contains(&last.to_string()), "{error}");
    }
}

async fn w14_a_named_listener_resumes_behind_what_it_acknowledged(f: Fixture) {
    let work = f.manager().await;
    one_order(&work, PLAIN).await;
    let last = sealed(&work).await;
    let start = async || {
        let listening = work.listen("billing", ListenFrom::Oldest, EventFilter::all()).await;
        listening.expect("it listens")
    };
    let mut listening = start().await;
    let first = next_of(&mut listening).await;
    let second = next_of(&mut listening).await;
    listening.ack(&first).await.expect("acknowledged");
    assert_eq!(listening.position(), at(&first));
    drop(listening);
    let mut listening = start().await;
    let again = next_of(&mut listening).await;
    assert_eq!(again, second, "what was not acknowledged comes again");
    let third = next_of(&mut listening).await;
    listening.ack(&third).await.expect("acknowledged");
    listening.ack(&second).await.expect("an older one changes nothing");
    let ahead = Event { seal: last_seal(&work, last).await, ..first.clone() };
    assert_eq!(listening.ack(&ahead).await.expect_err("not seen").code(), "invalid_argument");
    assert_eq!(listening.position(), at(&third));
    let all = work.listeners().await.expect("listeners");
    assert_eq!((all.len(), all[0].name.as_str(), all[0].position), (1, "billing", at(&third)));
    // Another name is another listener; one that is forgotten is new again.
    let mut other =
        work.listen("other", ListenFrom::Oldest, EventFilter::all()).await.expect("it listens");
    assert_eq!(next_of(&mut other).await, first);
    assert!(work.forget_listener("billing").await.expect("forgotten"));
    assert!(!work.forget_listener("billing").await.expect("looked"));
    assert_eq!(next_of(&mut start().await).await, first);
}

async fn last_seal(work: &WorkManager, last: u64) -> Option<latchwork_work::Seal> {
    work.events(last - 1, 1).await.expect("events")[0].seal
}

/// Its filter lets nothing through, and still pruning does not overtake it.
async fn w14_a_named_listener_that_hears_nothing_keeps_up(f: Fixture) {
    let work = f.manager().await;
    let filter = EventFilter::all().order_type("other");
    let mut listening = work.listen("quiet", ListenFrom::Now, filter).await.expect("it listens");
    let order = propose(&work, PLAIN, 700).await.id;
    user(&work, "ada").cancel(order, "x").await.expect("cancelled");
    let last = sealed(&work).await;
    assert!(last > 1_400);
    let expected = propose(&work, "other", 1).await.id;
    sealed(&work).await;
    // Sealed while nothing concerned it: it moved on by itself before it handed anything out.
    let event = next_of(&mut listening).await;
    assert_eq!(event.order_id, expected);
    drop(listening);
    let stored = work.listeners().await.expect("listeners")[0].position;
    assert!(stored < at(&event), "what it has not acknowledged comes again");
    let mut again = work
        .listen("quiet", ListenFrom::Now, EventFilter::all().order_type("nobody"))
        .await
        .expect("it listens");
    let waited = tokio::time::timeout(Duration::from_millis(300), again.next()).await;
    assert!(waited.is_err(), "nothing concerns it");
    let stored = work.listeners().await.expect("listeners")[0].position;
    assert!(stored >= last, "{stored} of {last}: it keeps up although it hears nothing");
}

async fn w14_a_slow_listener_holds_nobody_up(f: Fixture) {
    let work = f.manager().await;
    let mut slow = work.subscribe(ListenFrom::Now, EventFilter::all()).await.expect("subscribed");
    one_order(&work, PLAIN).await;
    sealed(&work).await;
    let first = next(&mut slow).await;
    // It is busy with the first event while others work, seal and hear.
    let mut quick =
        work.subscribe(ListenFrom::After(1), EventFilter::all()).await.expect("subscribed");
    let mut last = 0;
    for _ in 0..10 {
        one_order(&work, PLAIN).await;
        last = sealed(&work).await;
    }
    let told = up_to(&mut quick, last).await;
    assert_eq!(at(&first), 1);
    assert_eq!(up_to(&mut slow, last).await, told, "and it misses nothing");
}

async fn w14_illegal_filters_and_names_are_refused(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 1).await.id;
    let both = EventFilter::all().order(order).order_type(PLAIN);
    let many = EventFilter { types: vec!["x".to_owned(); 101], ..EventFilter::default() };
    for filter in [both, many] {
        let error = work.subscribe(ListenFrom::Now, filter.clone()).await.expect_err("illegal");
        assert_eq!(error.code(), "invalid_argument");
        assert_eq!(
            work.events_after(0, &filter, 1).await.expect_err("illegal").code(),
            error.code()
        );
    }
    for name in ["", "a\nb", &"x".repeat(121)] {
        let error = work.listen(name, ListenFrom::Now, EventFilter::all()).await;
        assert_eq!(error.expect_err("illegal").code(), "invalid_argument");
    }
}
