//! Where an order stands by the states of its items (W5).
//!
//! Agents work on items; the order follows. This is the one place that says how, as a pure function,
//! so that a claim, a submission, an expiry and the sweep all come to the same answer, and one that a
//! crash interrupted is completed by the next.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{ItemState, OrderState};

/// How many items of an order are in each state.
///
/// As JSON it is an object with the states that any item is in: `{"queued": 2, "leased": 1}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemCounts([u32; ItemState::ALL.len()]);

impl ItemCounts {
    /// How many items are in a state.
    pub fn get(&self, state: ItemState) -> u32 {
        self.0[state as usize]
    }

    /// Counts one more item, or several.
    pub fn add(&mut self, state: ItemState, count: u32) {
        self.0[state as usize] += count;
    }

    /// How many items there are.
    pub fn total(&self) -> u32 {
        self.0.iter().sum()
    }

    fn sum(&self, states: &[ItemState]) -> u32 {
        states.iter().map(|state| self.get(*state)).sum()
    }
}

impl FromIterator<ItemState> for ItemCounts {
    fn from_iter<I: IntoIterator<Item = ItemState>>(states: I) -> Self {
        let mut counts = ItemCounts::default();
        states.into_iter().for_each(|state| counts.add(state, 1));
        counts
    }
}

impl Serialize for ItemCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let counts = ItemState::ALL.iter().map(|state| (state, self.get(*state)));
        serializer.collect_map(counts.filter(|(_, count)| *count > 0))
    }
}

impl<'de> Deserialize<'de> for ItemCounts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut counts = ItemCounts::default();
        for (state, count) in BTreeMap::<ItemState, u32>::deserialize(deserializer)? {
            counts.add(state, count);
        }
        Ok(counts)
    }
}

/// What a failed item means for its order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailurePolicy {
    /// One failed item fails the order.
    #[default]
    FailFast,
    /// The order goes on with what succeeds, if anything does.
    BestEffort,
    /// The order goes on if at least this many items succeed.
    Quorum(u32),
}

impl FailurePolicy {
    /// How many items must succeed of so many.
    fn needs(self, total: u32) -> u32 {
        match self {
            FailurePolicy::FailFast => total,
            FailurePolicy::BestEffort => 1,
            FailurePolicy::Quorum(count) => count.clamp(1, total.max(1)),
        }
    }
}

/// The next state of an order, if its items ask for one.
///
/// Ask again with the answer until there is none: each answer is one move of the seed's table, so that
/// each leaves its event.
pub fn next_order_state(
    order: OrderState,
    items: &ItemCounts,
    policy: FailurePolicy,
) -> Option<OrderState> {
    use ItemState as Item;
    let held = items.sum(&[Item::Leased, Item::InProgress]);
    let open = held + items.get(Item::Queued);
    let succeeded = items.sum(&[Item::Submitted, Item::Accepted, Item::Completed]);
    let failed = items.sum(&[Item::Failed, Item::DeadLettered]);
    let hopeless = failed > 0 && succeeded + open < policy.needs(items.total());
    match order {
        OrderState::Queued
        | OrderState::CheckedOut
        | OrderState::InProgress
        | OrderState::Submitted
            if hopeless =>
        {
            Some(OrderState::Failed)
        }
        OrderState::Queued if held > 0 || succeeded > 0 => Some(OrderState::CheckedOut),
        OrderState::CheckedOut if items.get(Item::InProgress) > 0 || succeeded > 0 => {
            Some(OrderState::InProgress)
        }
        OrderState::InProgress if open == 0 && succeeded > 0 => Some(OrderState::Submitted),
        OrderState::CheckedOut | OrderState::InProgress
            if held == 0 && succeeded == 0 && open > 0 =>
        {
            Some(OrderState::Queued)
        }
        OrderState::Applied
            if items.total() > 0
                && items.total() == items.sum(&[Item::Completed, Item::DeadLettered]) =>
        {
            Some(OrderState::Completed)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::ItemState as Item;
    use super::OrderState as Order;
    use super::*;
    use crate::TransitionTables;

    /// The states that an order walks through.
    fn walk(mut order: Order, items: &[Item], policy: FailurePolicy) -> Vec<Order> {
        let (tables, counts) = (TransitionTables::default(), items.iter().copied().collect());
        let mut walked = Vec::new();
        while let Some(next) = next_order_state(order, &counts, policy) {
            tables.order_move(order, next).expect("a move of the table");
            walked.push(next);
            assert!(walked.len() < 5, "{items:?} {policy:?} goes in circles: {walked:?}");
            order = next;
        }
        walked
    }

    const FAST: FailurePolicy = FailurePolicy::FailFast;

    #[test]
    fn w04_the_order_follows_its_first_agent() {
        assert_eq!(walk(Order::Queued, &[Item::Queued, Item::Queued], FAST), []);
        assert_eq!(walk(Order::Queued, &[Item::Leased, Item::Queued], FAST), [Order::CheckedOut]);
        let begun = [Item::InProgress, Item::Queued];
        assert_eq!(walk(Order::CheckedOut, &begun, FAST), [Order::InProgress]);
        let straight = [Order::CheckedOut, Order::InProgress, Order::Submitted];
        assert_eq!(walk(Order::Queued, &[Item::Submitted], FAST), straight);
        assert_eq!(walk(Order::InProgress, &[Item::Submitted, Item::Leased], FAST), []);
    }

    #[test]
    fn w05_an_order_without_leases_and_results_waits_again() {
        for from in [Order::CheckedOut, Order::InProgress] {
            assert_eq!(walk(from, &[Item::Queued, Item::Queued], FAST), [Order::Queued]);
        }
        let kept = [Item::Submitted, Item::Queued];
        assert_eq!(walk(Order::InProgress, &kept, FAST), [], "the result that is in is not lost");
    }

    #[test]
    fn w05_a_failed_item_never_leaves_its_order_stuck() {
        use FailurePolicy::{BestEffort, Quorum};
        let one_failed = [Item::Submitted, Item::Submitted, Item::Failed];
        assert_eq!(walk(Order::InProgress, &one_failed, FAST), [Order::Failed]);
        assert_eq!(walk(Order::InProgress, &one_failed, BestEffort), [Order::Submitted]);
        assert_eq!(walk(Order::InProgress, &one_failed, Quorum(2)), [Order::Submitted]);
        assert_eq!(walk(Order::InProgress, &one_failed, Quorum(3)), [Order::Failed]);
        let still_open = [Item::Submitted, Item::Leased, Item::Failed];
        assert_eq!(walk(Order::InProgress, &still_open, Quorum(2)), []);
        let hopeless = [Item::Failed, Item::Leased, Item::Failed];
        assert_eq!(walk(Order::InProgress, &hopeless, Quorum(2)), [Order::Failed]);
        assert_eq!(walk(Order::CheckedOut, &[Item::Failed], BestEffort), [Order::Failed]);
        assert_eq!(walk(Order::Queued, &[Item::Failed], FAST), [Order::Failed]);
    }

    #[test]
    fn w05_an_order_completes_only_from_applied() {
        let done = [Item::Completed, Item::DeadLettered];
        assert_eq!(walk(Order::Applied, &done, FAST), [Order::Completed]);
        assert_eq!(walk(Order::Applied, &[Item::Completed, Item::Accepted], FAST), []);
        assert_eq!(walk(Order::Applied, &[], FAST), []);
        assert_eq!(walk(Order::Approved, &done, FAST), []);
    }

    #[test]
    fn w05_every_mix_comes_to_rest_by_legal_moves() {
        let policies =
            [FAST, FailurePolicy::BestEffort, FailurePolicy::Quorum(1), FailurePolicy::Quorum(2)];
        for order in Order::ALL {
            for one in Item::ALL {
                for two in Item::ALL {
                    for three in Item::ALL {
                        for policy in policies {
                            walk(*order, &[*one, *two, *three], policy);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn w05_no_live_order_rests_with_nothing_left_to_do() {
        let ends = [Item::Submitted, Item::Failed];
        for order in [Order::Queued, Order::CheckedOut, Order::InProgress] {
            for one in ends {
                for two in ends {
                    for policy in [FAST, FailurePolicy::BestEffort, FailurePolicy::Quorum(2)] {
                        let last = walk(order, &[one, two], policy).last().copied();
                        let moved = matches!(last, Some(Order::Submitted | Order::Failed));
                        assert!(moved, "{order} {one} {two} {policy:?}: {last:?}");
                    }
                }
            }
        }
    }
}
