//! One claim: picks open items, counts them for their limits, and leases them.

#[cfg(feature = "postgres")]
mod at_once;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde_json::{Value, json};

use super::{CheckedOut, Checkout, HeldBack, WorkClient, transact};
use crate::metrics;
use crate::store::{
    AGENT, IdempotencyKey, ItemEdit, LANE, LeaseRow, LimitKey, LimitRow, NewLease, Pick, PickFrom,
    ResultRow, Session, TYPE, Taken,
};
use crate::{EventType, Item, ItemId, Lease, LeaseId, OrderId, OrderState, Result};

/// What one transaction of a claim did.
#[derive(Default)]
pub(super) struct Round {
    pub(super) leases: Vec<Lease>,
    /// The limits that held something back.
    pub(super) held_back: BTreeMap<LimitKey, LimitRow>,
    /// Types at their limit, which the next round need not look at.
    pub(super) full_types: Vec<String>,
    /// Orders that should follow their items.
    pub(super) follow: BTreeSet<OrderId>,
    /// Whether what is open was leased as far as limits allow, or others have it in hand.
    pub(super) has_taken_open: bool,
    /// Whether it found nothing that it could have leased.
    nothing_open: bool,
    /// Whether more of what is open might be leased by another round.
    more: bool,
}

/// What a claim came to.
pub(super) enum Claim {
    /// It was done.
    Now(CheckedOut),
    /// An earlier request with its key got these leases.
    Before(Vec<LeaseId>),
}

/// So many transactions a claim takes at most, where limits hold much back.
const ROUNDS: usize = 16;

/// So many expired leases a claim takes back itself when a limit holds it up.
const RECLAIMED: i64 = 16;

impl WorkClient {
    /// Leases what can be leased now.
    ///
    /// What a limit holds back is put aside and the next items are looked at, in a transaction of its
    /// own: limits are locked in one order, and a second look would break it.
    ///
    /// With a key the ids of the leases are stored in the transaction that makes them, and the first
    /// round that leases anything is the last one; an empty answer is not stored.
    pub(super) async fn claim(
        &self,
        checkout: &Checkout,
        key: Option<&IdempotencyKey>,
    ) -> Result<Claim> {
        let mut all = match key {
            None => self.claim_at_once(checkout).await?,
            Some(_) => Round::default(),
        };
        let wanted = checkout.limit.unwrap_or(1) as usize;
        for round in 0..ROUNDS {
            if all.leases.len() >= wanted || key.is_some() && !all.leases.is_empty() {
                break;
            }
            if round == 0 && key.is_none() && !self.may_find_more(checkout, &mut all).await? {
                break;
            }
            let mut rest = checkout.clone();
            rest.limit = u32::try_from(wanted - all.leases.len()).ok();
            let full = all.full_types.clone();
            // Where much is held back each round looks further than the one before.
            let reach = 1 << round.min(6);
            let round = transact!(begin_short, self.manager, session => {
                if let Some(key) = key
                    && let Taken::Replay(ids) = session.take_key(key).await?
                {
                    return Ok(Err(ids));
                }
                let round = self.claim_round(session, &rest, &full, reach).await?;
                if let Some(key) = key {
                    let ids: Vec<_> = round.leases.iter().map(|lease| lease.id).collect();
                    match ids.is_empty() {
                        true => session.forget_key(key).await?,
                        false => session.put_answer(key, &ids).await?,
                    }
                }
                Ok(Ok(round))
            })?;
            let round = match round {
                Ok(round) => round,
                Err(ids) => return Ok(Claim::Before(ids)),
            };
            all.leases.extend(round.leases);
            // What dead agents hold of a limit is taken back at once, in a transaction of its own: this
            // one had the limit locked, and a change of such an item may wait for it.
            let mut reclaimed = round.nothing_open && self.reclaim_of_full_lanes(checkout).await?;
            for limit in round.held_back.keys().filter(|key| !all.held_back.contains_key(key)) {
                reclaimed |= self.reclaim_of(limit).await?;
            }
            all.held_back.extend(round.held_back);
            all.full_types.extend(round.full_types);
            all.follow.extend(round.follow);
            if !round.more && !reclaimed {
                break;
            }
        }
        self.manager.follow_all(std::mem::take(&mut all.follow)).await;
        self.manager.inner.inputs.keep(&all.leases);
        all.leases.iter().for_each(|lease| metrics::leased(&lease.order_type));
        Ok(Claim::Now(all.into_answer()))
    }

    async fn claim_round(
        &self,
        session: &mut Session<'_>,
        checkout: &Checkout,
        full_types: &[String],
        reach: usize,
    ) -> Result<Round> {
        let mut round = Round::default();
        session.promote().await?;
        let types = self.wanted_types(checkout);
        let types = types.into_iter().filter(|name| !full_types.iter().any(|full| full == name));
        let types: Vec<_> = types.collect();
        let mut room = checkout.limit.unwrap_or(1) as usize;
        let agent = LimitKey::agent(self.agent()?);
        if let Some(max) = self.manager.inner.max_leases_per_agent {
            let held = session.limits([&agent]).await?;
            let held = held.get(&agent).map_or(0, |row| row.held);
            let free = usize::try_from(i64::from(max) - held).unwrap_or(0);
            room = room.min(free);
            if free == 0 {
                round.held_back.insert(agent, LimitRow { held, max: max.into(), ordered: false });
                return Ok(round);
            }
        }
        let picked = pick(session, checkout, &types, room.saturating_mul(reach)).await?;
        if picked.is_empty() {
            round.nothing_open = true;
            return Ok(round);
        }
        let states: BTreeMap<ItemId, OrderState> = picked.iter().copied().collect();
        let ids: Vec<_> = picked.iter().map(|(id, _)| *id).collect();
        let mut items = session.items(&ids).await?;
        let turns: HashMap<_, _> = ids.iter().enumerate().map(|(turn, id)| (*id, turn)).collect();
        items.sort_by_key(|item| turns.get(&item.id).copied());
        let admitted = self.admit(session, items, agent, room, &mut round).await?;
        // A limit held some back: others behind them may be free.
        round.more |= admitted.len() < ids.len().min(room);
        self.lease(session, admitted, &states, &mut round).await?;
        Ok(round)
    }

    /// Those of the items that their limits let in; counts them.
    pub(super) async fn admit(
        &self,
        session: &mut Session<'_>,
        items: Vec<Item>,
        agent: LimitKey,
        room: usize,
        round: &mut Round,
    ) -> Result<Vec<(Item, i64)>> {
        let mut limits = BTreeMap::new();
        let with_agent = self.manager.inner.max_leases_per_agent;
        for item in &items {
            if let Some(max) = self.max_of_type(&item.item_type) {
                limits.insert(LimitKey::order_type(&item.item_type), (max, false));
            }
        }
        limits.extend(with_agent.map(|max| (agent.clone(), (max, false))));
        let mut keys: BTreeSet<LimitKey> = limits.keys().cloned().collect();
        keys.extend(items.iter().filter_map(|item| item.concurrency.as_ref()).map(LimitKey::from));
        if keys.is_empty() {
            return Ok(items.into_iter().take(room).map(|item| (item, 0)).collect());
        }
        // Locked first, in the order of their keys; made or brought up to date only where they differ.
        let mut rows = session.lock_limits(&keys).await?;
        limits.retain(|key, (max, _)| rows.get(key).is_none_or(|row| row.max != i64::from(*max)));
        if !limits.is_empty() {
            session.set_limits(&limits).await?;
            rows = session.lock_limits(&keys).await?;
        }
        let (mut admitted, mut changes) = (Vec::new(), BTreeMap::new());
        let mut full = BTreeSet::new();
        for item in items {
            if admitted.len() == room {
                break;
            }
            let order_type = LimitKey::order_type(&item.item_type);
            let lane = item.concurrency.as_ref().map(LimitKey::from);
            let of = [(Some(agent.clone()), AGENT), (Some(order_type), TYPE), (lane, LANE)];
            let of = of.into_iter().filter_map(|(key, flag)| Some((key?, flag)));
            let of: Vec<_> = of.filter(|(key, _)| rows.contains_key(key)).collect();
            let reached = of.iter().find(|(key, _)| rows.get(key).is_some_and(LimitRow::is_full));
            if let Some((key, flag)) = reached {
                if *flag == TYPE {
                    round.full_types.push(item.item_type.clone());
                }
                full.insert(key.clone());
                continue;
            }
            let mut counted = 0;
            for (key, flag) in of {
                counted |= flag;
                *changes.entry(key.clone()).or_default() += 1;
                if let Some(row) = rows.get_mut(&key) {
                    row.held += 1;
                }
            }
            admitted.push((item, counted));
        }
        session.change_limits(&changes).await?;
        for key in &full {
            if let Some(row) = rows.get(key) {
                round.held_back.insert(key.clone(), row.clone());
            }
        }
        let lanes = full.iter().filter(|key| key.is_lane()).map(|key| key.as_str().to_owned());
        session.rebalance(&lanes.collect::<Vec<_>>()).await?;
        Ok(admitted)
    }

    /// Whether a round could lease something that the claim at once could not: takes no lock, so that who
    /// waits for a limit or for new items hinders nobody. Says which limits are reached.
    async fn may_find_more(&self, checkout: &Checkout, all: &mut Round) -> Result<bool> {
        if checkout.order.is_some() {
            return Ok(true);
        }
        let types = self.wanted_types(checkout);
        let of_type = |name: &&str| Some((LimitKey::order_type(name), self.max_of_type(name)?));
        let mut limits: BTreeMap<LimitKey, u32> = types.iter().filter_map(of_type).collect();
        let agent = LimitKey::agent(self.agent()?);
        let of_agent = self.manager.inner.max_leases_per_agent;
        limits.extend(of_agent.map(|max| (agent.clone(), max)));
        let keys: Vec<_> = limits.keys().collect();
        let seen = self.manager.store().glance(&types, &keys).await?;
        let full = |key: &LimitKey| {
            let (held, max) = (seen.held.get(key).copied()?, i64::from(*limits.get(key)?));
            (held >= max).then_some(LimitRow { held, max, ordered: false })
        };
        if seen.is_expired {
            return Ok(true); // a round takes back what a limit's dead agents hold
        }
        if let Some(row) = full(&agent) {
            all.held_back.insert(agent, row);
            return Ok(false);
        }
        let mut may = seen.is_due;
        for name in seen.open {
            let of_type = LimitKey::order_type(&name);
            match full(&of_type) {
                Some(row) => {
                    all.held_back.insert(of_type, row);
                    all.full_types.push(name);
                }
                None => may |= !all.has_taken_open,
            }
        }
        Ok(may)
    }

    /// Counts a lease of an item for its limits, and tells for which, or refuses.
    pub(super) async fn count_lease(&self, session: &mut Session<'_>, item: &Item) -> Result<i64> {
        let (agent, mut round) = (LimitKey::agent(self.agent()?), Round::default());
        let admitted = self.admit(session, vec![item.clone()], agent, 1, &mut round).await?;
        if let Some((_, counted)) = admitted.first() {
            return Ok(*counted);
        }
        let held_back = round.held_back.into_iter().next().map(HeldBack::from);
        let HeldBack { limit, held, max } =
            held_back.ok_or_else(|| crate::Error::damaged("no limit holds the item back"))?;
        Err(crate::ErrorKind::LimitReached { limit, held, max }.into())
    }

    fn max_of_type(&self, name: &str) -> Option<u32> {
        self.manager.types().get(name).ok()?.settings().max_leases
    }

    /// Takes back what a limit's dead agents hold.
    async fn reclaim_of(&self, limit: &LimitKey) -> Result<bool> {
        let reclaimed = transact!(begin_short, self.manager, session => {
            let expired = session.expired_of(limit, RECLAIMED).await?;
            self.reclaim(session, &expired).await
        })?;
        self.follow_reclaimed(reclaimed).await
    }

    /// Takes back what dead agents hold of the lanes that hold something back. Claims do not look at
    /// what these hold back, so one that finds nothing looks for their dead agents.
    async fn reclaim_of_full_lanes(&self, checkout: &Checkout) -> Result<bool> {
        let types = self.wanted_types(checkout);
        let reclaimed = transact!(begin_short, self.manager, session => {
            let expired = session.expired_of_full_lanes(&types, RECLAIMED).await?;
            self.reclaim(session, &expired).await
        })?;
        self.follow_reclaimed(reclaimed).await
    }

    async fn reclaim(&self, session: &mut Session<'_>, expired: &[ItemId]) -> Result<Vec<Item>> {
        if expired.is_empty() {
            return Ok(Vec::new());
        }
        let items = session.lock_free_items(expired).await?;
        self.manager.reclaim_items(session, items).await
    }

    async fn follow_reclaimed(&self, reclaimed: Vec<Item>) -> Result<bool> {
        reclaimed.iter().for_each(|item| metrics::expired(&item.item_type));
        let orders: BTreeSet<_> = reclaimed.iter().map(|item| item.order_id).collect();
        self.manager.follow_all(orders).await;
        Ok(!reclaimed.is_empty())
    }

    async fn lease(
        &self,
        session: &mut Session<'_>,
        admitted: Vec<(Item, i64)>,
        states: &BTreeMap<ItemId, OrderState>,
        round: &mut Round,
    ) -> Result<()> {
        if admitted.is_empty() {
            return Ok(());
        }
        let (agent, now) = (self.agent()?.to_owned(), session.now());
        let ids: Vec<_> = admitted.iter().map(|(item, _)| item.id).collect();
        let mut inputs = session.inputs(&ids).await?;
        let with_past =
            admitted.iter().filter(|(item, _)| item.results > 0 || item.error.is_some());
        let with_past: Vec<_> = with_past.map(|(item, _)| item.id).collect();
        let past = Past::read(session, &with_past).await?;
        let mut edits = Vec::with_capacity(admitted.len());
        for (item, counted) in admitted {
            let settings = self.manager.settings_of(&item);
            let lease = NewLease {
                id: LeaseId::new(now),
                agent: agent.clone(),
                ttl: settings.lease_ttl,
                heartbeat_every: settings.heartbeat_every,
                counted,
            };
            let row = LeaseRow {
                id: lease.id,
                item_id: item.id,
                order_id: item.order_id,
                order_type: item.item_type.clone(),
                agent: agent.clone(),
                fence: item.fence + 1,
                heartbeat_every: crate::store::span(lease.heartbeat_every),
                leased_at: now,
                expires_at: now + lease.ttl,
                heartbeat_at: now,
                heartbeat_event_at: now,
            };
            if states.get(&item.id) == Some(&OrderState::Queued) {
                round.follow.insert(item.order_id);
            }
            let payload = json!({"lease_id": lease.id, "fence": row.fence,
                "lease_expires_at": row.expires_at, "attempt": item.attempts + 1});
            let mut edit = ItemEdit::new(item);
            let note = self.note().payload(payload).event(EventType::Leased);
            edit.lease(self.manager.tables(), lease, note, now)?;
            let input = inputs.remove(&row.item_id).unwrap_or_default();
            let past = past.of(row.item_id);
            round.leases.push(lease_of(&row, edit.item(), input, past));
            edits.push(edit);
        }
        session.write_items(edits).await?;
        Ok(())
    }
}

impl Round {
    fn into_answer(self) -> CheckedOut {
        let held_back = self.held_back.into_iter().map(HeldBack::from).collect();
        CheckedOut { leases: self.leases, held_back }
    }
}

impl From<(LimitKey, LimitRow)> for HeldBack {
    fn from((key, row): (LimitKey, LimitRow)) -> Self {
        HeldBack {
            limit: key.into_text(),
            held: u32::try_from(row.held).unwrap_or(0),
            max: u32::try_from(row.max).unwrap_or(u32::MAX),
        }
    }
}

/// Open items in the order of their turn, over several types.
async fn pick(
    session: &mut Session<'_>,
    checkout: &Checkout,
    types: &[&str],
    room: usize,
) -> Result<Vec<(ItemId, OrderState)>> {
    let min_priority = checkout.min_priority.map_or(i64::MIN, i64::from);
    let meta = checkout.meta.as_ref();
    let base = Pick { from: PickFrom::Type(""), min_priority, before: None, meta, limit: room };
    if let Some(order) = checkout.order {
        let pick = Pick { from: PickFrom::Order(order), ..base };
        return session.pick(&pick).await;
    }
    if let [only] = types {
        return session.pick(&Pick { from: PickFrom::Type(only), ..base }).await;
    }
    // From the type whose first item is the most urgent, up to where the next type's turn comes, and so
    // on; then without that bound, for what others have locked or the meta has left out.
    let heads = session.heads(types).await?;
    let mut picked: Vec<(ItemId, OrderState)> = Vec::new();
    for bounded in [true, false] {
        for (n, head) in heads.iter().enumerate() {
            let next = heads.get(n + 1).filter(|_| bounded);
            let before = next.map(|next| (next.priority, next.queued_at));
            let pick = Pick { from: PickFrom::Type(&head.order_type), before, ..base.clone() };
            // What this transaction has locked already is found again.
            let found = session.pick(&pick).await?.into_iter();
            let fresh = found.filter(|(id, _)| !picked.iter().any(|(had, _)| had == id));
            let fresh: Vec<_> = fresh.take(room - picked.len()).collect();
            picked.extend(fresh);
            if picked.len() == room {
                return Ok(picked);
            }
        }
    }
    Ok(picked)
}

/// What earlier leases of items left: their results, and what reviewers asked for.
#[derive(Default)]
pub(super) struct Past {
    results: Vec<ResultRow>,
    reworks: HashMap<ItemId, Value>,
}

impl Past {
    pub(super) async fn read(session: &mut Session<'_>, items: &[ItemId]) -> Result<Self> {
        if items.is_empty() {
            return Ok(Past::default());
        }
        let results = session.results(items).await?;
        Ok(Past { results, reworks: session.reworks(items).await? })
    }

    pub(super) fn of(&self, item: ItemId) -> (Option<&ResultRow>, Option<&Value>) {
        (self.results.iter().find(|result| result.item_id == item), self.reworks.get(&item))
    }
}

/// A lease as its agent sees it.
pub(super) fn lease_of(
    row: &LeaseRow,
    item: &Item,
    input: Value,
    (result, rework): (Option<&ResultRow>, Option<&Value>),
) -> Lease {
    let previous = (result.is_some() || item.error.is_some() || rework.is_some()).then(|| {
        let mut previous =
            json!({"result": result.map(|result| &result.result), "error": item.error});
        if let Some(rework) = rework {
            previous["review"] = rework.clone();
        }
        previous
    });
    Lease {
        id: row.id,
        item_id: row.item_id,
        order_id: row.order_id,
        order_type: row.order_type.clone(),
        input,
        agent: row.agent.clone(),
        fence: row.fence,
        attempt: item.attempts,
        max_attempts: item.max_attempts,
        expires_at: row.expires_at,
        heartbeat_every: Duration::from_micros(row.heartbeat_every.unsigned_abs()),
        previous,
    }
}

#[cfg(not(feature = "postgres"))]
impl WorkClient {
    async fn claim_at_once(&self, _: &Checkout) -> Result<Round> {
        Ok(Round::default())
    }
}
