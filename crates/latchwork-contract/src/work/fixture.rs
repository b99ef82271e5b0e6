//! What a case is given: a database of its own, and short words for what most cases do.

use std::time::Duration;

use latchwork_work::{
    Actor, Approval, Checkout, DynamicOrderType, Event, EventType, Item, ItemId, ItemState, Lease,
    Order, OrderId, OrderState, OrderTypes, PlannedItem, Proposal, RetryPolicy, Submission,
    TransitionTables, TypeSettings, WorkClient, WorkManager, WorkManagerBuilder,
};
use serde_json::{Value, json};

use super::TestBackend;

/// A database for one case.
pub struct Fixture {
    backend: TestBackend,
}

/// The type of most cases: as many items as the payload's `items` says, numbered from 0.
pub(super) const PLAIN: &str = "plain";

impl Fixture {
    pub(super) fn new(backend: TestBackend) -> Self {
        Fixture { backend }
    }

    /// The database's address.
    pub fn url(&self) -> &str {
        &self.backend.url
    }

    /// A manager with a connection of its own, as another process has it.
    pub async fn manager(&self) -> WorkManager {
        self.open(WorkManager::builder(types())).await
    }

    /// A manager with settings of the case's own.
    pub async fn open(&self, builder: WorkManagerBuilder) -> WorkManager {
        builder.connect(self.url()).await.expect("the database opens")
    }

    /// A manager that knows these types only.
    pub async fn with_types(
        &self,
        list: impl IntoIterator<Item = DynamicOrderType>,
    ) -> WorkManager {
        let mut types = OrderTypes::new();
        for one in list {
            types.add_dynamic(one).expect("a legal type");
        }
        self.open(WorkManager::builder(types)).await
    }
}

/// How long the leases of [`quick`] last: a case waits for their end, but a busy machine must come to
/// use one before.
const QUICK_LEASE: Duration = Duration::from_millis(2_400);

/// Waits until a lease of [`quick`] has run out.
pub(super) async fn quick_lease_is_over() {
    tokio::time::sleep(QUICK_LEASE + Duration::from_millis(100)).await;
}

/// Settings with short times, so that a case need not wait long: short leases, retries at once.
pub(super) fn quick() -> TypeSettings {
    TypeSettings {
        lease_ttl: QUICK_LEASE,
        heartbeat_every: Duration::from_millis(200),
        retry: at_once(3),
        ..TypeSettings::default()
    }
}

/// So many attempts without a pause between them.
pub(super) fn at_once(attempts: u16) -> RetryPolicy {
    RetryPolicy {
        max_attempts: attempts,
        backoff: Duration::ZERO,
        max_backoff: Duration::ZERO,
        jitter: Duration::ZERO,
    }
}

/// A type whose payload says how many items an order has: `{"items": 3}`; each is given its number.
pub(super) fn plain(name: &str) -> DynamicOrderType {
    let split = |payload: &Value| {
        let count = payload["items"].as_u64().unwrap_or(1);
        Ok((0..count).map(|n| PlannedItem::new(json!({ "n": n }))).collect())
    };
    DynamicOrderType::new(name).plan(split)
}

/// The types of most cases.
pub(super) fn types() -> OrderTypes {
    let mut types = OrderTypes::new();
    types.add_dynamic(plain(PLAIN)).expect("a legal type");
    types.add_dynamic(plain("other")).expect("a legal type");
    types.add_dynamic(plain("quick").settings(quick())).expect("a legal type");
    types
}

/// An agent.
pub(super) fn agent(work: &WorkManager, name: &str) -> WorkClient {
    work.client(Actor::agent(name).expect("a legal name"))
}

/// A person.
pub(super) fn user(work: &WorkManager, name: &str) -> WorkClient {
    work.client(Actor::user(name).expect("a legal name"))
}

/// An order of a type with so many items.
pub(super) async fn propose(work: &WorkManager, order_type: &str, items: u64) -> Order {
    let proposal = Proposal::new(order_type, json!({ "items": items }));
    user(work, "ada").propose(proposal).await.expect("proposed").order
}

/// One item for an agent.
pub(super) async fn lease(client: &WorkClient) -> Lease {
    let mut got = client.checkout(Checkout::any()).await.expect("checked out");
    assert_eq!(got.leases.len(), 1, "one item can be leased");
    got.leases.remove(0)
}

/// Nothing can be leased.
pub(super) async fn nothing(client: &WorkClient) {
    let got = client.checkout(Checkout::any()).await.expect("checked out");
    assert_eq!(got.leases, [], "nothing can be leased");
}

/// Submits a result for a lease.
pub(super) async fn submit(client: &WorkClient, lease: &Lease) {
    let result = json!({"of": lease.input});
    client.submit(Submission::new(lease, result)).await.expect("submitted");
}

/// Where an order stands.
pub(super) async fn order_state(work: &WorkManager, order: OrderId) -> OrderState {
    work.order(order).await.expect("an order").order.state
}

/// The only item of an order.
pub(super) async fn only_item(work: &WorkManager, order: OrderId) -> Item {
    let mut items = work.items(order, None, 10).await.expect("items");
    assert_eq!(items.len(), 1);
    items.remove(0).item
}

/// Where an item stands.
pub(super) async fn item_state(work: &WorkManager, item: ItemId) -> ItemState {
    work.item(item).await.expect("an item").item.state
}

/// All events of an order.
pub(super) async fn events(work: &WorkManager, order: OrderId) -> Vec<Event> {
    work.timeline(order, None, 1_000).await.expect("a timeline").events
}

/// The names of an order's events, without those of its proposal.
pub(super) async fn event_names(work: &WorkManager, order: OrderId) -> Vec<EventType> {
    events(work, order).await.iter().skip(2).map(|event| event.event).collect()
}

/// How long something takes.
pub(super) struct Timer(latchwork_lock::provider::Moment);

impl Timer {
    pub(super) fn start() -> Self {
        Timer(latchwork_lock::Clock::now(&*latchwork_lock::SystemClock::shared()))
    }

    pub(super) fn elapsed(&self) -> Duration {
        latchwork_lock::Clock::now(&*latchwork_lock::SystemClock::shared()).since(self.0)
    }
}

/// One item for an agent, and by which limits others were held back.
pub(super) async fn checkout(
    client: &WorkClient,
    wish: Checkout,
) -> (Vec<Lease>, Vec<latchwork_work::HeldBack>) {
    let got = client.checkout(wish).await.expect("checked out");
    (got.leases, got.held_back)
}

/// Tables by which a rejected item cannot fail.
pub(super) fn without_rejected_to_failed() -> TransitionTables {
    let usual = TransitionTables::default();
    let mut item = usual.item().to_data();
    item.moves.retain(|step| *step != (ItemState::Rejected, ItemState::Failed));
    let item = item.try_into().expect("a table");
    TransitionTables::new(usual.order().clone(), item).expect("they hold together")
}

/// An order of a type whose items are all in, by agent-1.
pub(super) async fn submitted(work: &WorkManager, order_type: &str, items: u64) -> OrderId {
    let order = propose(work, order_type, items).await.id;
    hand_in(work, order).await;
    order
}

/// Has agent-1 do everything of an order that can be leased.
pub(super) async fn hand_in(work: &WorkManager, order: OrderId) {
    let client = agent(work, "agent-1");
    let wish = Checkout::of_order(order).limit(100);
    for lease in client.checkout(wish).await.expect("checked out").leases {
        submit(&client, &lease).await;
    }
}

/// Approves an order as a reviewer sees it.
pub(super) async fn approve(work: &WorkManager, order: OrderId, reviewer: &str) -> Order {
    let preview = work.preview(order).await.expect("a preview");
    let approved = user(work, reviewer).approve(Approval::of(&preview)).await;
    approved.expect("approved").order
}

/// Applies what can be applied.
pub(super) async fn apply_all(work: &WorkManager) -> usize {
    let worker = work.apply_worker("worker-1").expect("a legal name");
    let mut applied = 0;
    while worker.apply_next().await.expect("the store answers").is_some() {
        applied += 1;
    }
    applied
}
