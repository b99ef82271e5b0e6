//! The two transition tables, and the only way to get a move (W1).
//!
//! A store writes a state only with an [`OrderMove`] or an [`ItemMove`], and only
//! [`TransitionTables`] makes one. So a move that the tables do not allow cannot be written by
//! any operation.

use std::fmt::Display;
use std::hash::Hash;

use latchwork_flow::TransitionTable;

use crate::ItemState as Item;
use crate::OrderState as Order;
use crate::{Error, ErrorKind, ItemState, OrderState, Result};

/// The transition tables of orders and items.
#[derive(Clone, Debug)]
pub struct TransitionTables {
    order: TransitionTable<OrderState>,
    item: TransitionTable<ItemState>,
}

/// An allowed move of an order; made by [`TransitionTables::order_move`] only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderMove {
    from: OrderState,
    to: OrderState,
}

/// An allowed move of an item; made by [`TransitionTables::item_move`] only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemMove {
    from: ItemState,
    to: ItemState,
}

/// The moves that operations and maintenance make by themselves; a table without one of them would
/// strand an order.
const ORDER_NEEDS: &[(Order, Order)] = &[
    (Order::Queued, Order::CheckedOut),
    (Order::Queued, Order::Failed),
    (Order::CheckedOut, Order::InProgress),
    (Order::CheckedOut, Order::Queued),
    (Order::CheckedOut, Order::Failed),
    (Order::InProgress, Order::Submitted),
    (Order::InProgress, Order::Queued),
    (Order::InProgress, Order::Failed),
    (Order::Submitted, Order::Approved),
    (Order::Submitted, Order::Rejected),
    (Order::Submitted, Order::Failed),
    (Order::Approved, Order::Applied),
    (Order::Approved, Order::Failed),
    (Order::Applied, Order::Completed),
    (Order::Applied, Order::Failed),
    (Order::Rejected, Order::DeadLettered),
    (Order::Failed, Order::DeadLettered),
];

const ITEM_NEEDS: &[(Item, Item)] = &[
    (Item::Queued, Item::Leased),
    (Item::Queued, Item::Failed),
    (Item::Leased, Item::InProgress),
    (Item::Leased, Item::Queued),
    (Item::Leased, Item::Failed),
    (Item::InProgress, Item::Submitted),
    (Item::InProgress, Item::Queued),
    (Item::InProgress, Item::Failed),
    (Item::Submitted, Item::Accepted),
    (Item::Submitted, Item::Rejected),
    (Item::Submitted, Item::Failed),
    (Item::Accepted, Item::Completed),
    (Item::Failed, Item::DeadLettered),
];

/// Nobody gets to the second state without the first: no work without submission, no change without
/// approval.
const ORDER_GUARDS: &[(Order, Order)] = &[
    (Order::Submitted, Order::Approved),
    (Order::Approved, Order::Applied),
    (Order::Applied, Order::Completed),
];

const ITEM_GUARDS: &[(Item, Item)] =
    &[(Item::Submitted, Item::Accepted), (Item::Accepted, Item::Completed)];

impl TransitionTables {
    /// Tables of your own, among the known states.
    ///
    /// # Errors
    /// [`InvalidTable`](ErrorKind::InvalidTable) with every reason: a state is missing, a move is
    /// missing that operations make by themselves, a terminal state is declared differently, or a
    /// way leads past submission or approval.
    pub fn new(
        order: TransitionTable<OrderState>,
        item: TransitionTable<ItemState>,
    ) -> Result<Self> {
        check(&order, Order::ALL, &Order::TERMINAL, ORDER_NEEDS, ORDER_GUARDS)?;
        check(&item, Item::ALL, &Item::TERMINAL, ITEM_NEEDS, ITEM_GUARDS)?;
        Ok(TransitionTables { order, item })
    }

    /// The table of orders.
    pub fn order(&self) -> &TransitionTable<OrderState> {
        &self.order
    }

    /// The table of items.
    pub fn item(&self) -> &TransitionTable<ItemState> {
        &self.item
    }

    /// The move of an order from one state to another.
    ///
    /// # Errors
    /// [`IllegalTransition`](ErrorKind::IllegalTransition), which names what is allowed.
    pub fn order_move(&self, from: OrderState, to: OrderState) -> Result<OrderMove> {
        allow(&self.order, "order", from, to)?;
        Ok(OrderMove { from, to })
    }

    /// The move of an item from one state to another.
    ///
    /// # Errors
    /// [`IllegalTransition`](ErrorKind::IllegalTransition), which names what is allowed.
    pub fn item_move(&self, from: ItemState, to: ItemState) -> Result<ItemMove> {
        allow(&self.item, "item", from, to)?;
        Ok(ItemMove { from, to })
    }
}

impl OrderMove {
    /// The state before.
    pub fn from(self) -> OrderState {
        self.from
    }

    /// The state after.
    pub fn to(self) -> OrderState {
        self.to
    }
}

impl ItemMove {
    /// The state before.
    pub fn from(self) -> ItemState {
        self.from
    }

    /// The state after.
    pub fn to(self) -> ItemState {
        self.to
    }
}

impl Default for TransitionTables {
    /// The tables of seed 002.
    fn default() -> Self {
        let order = TransitionTable::builder("order")
            .states(Order::ALL.iter().copied())
            .initial(Order::Queued)
            .allow(
                Order::Queued,
                [Order::CheckedOut, Order::Submitted, Order::Rejected, Order::Failed],
            )
            .allow(Order::CheckedOut, [Order::InProgress, Order::Queued, Order::Failed])
            .allow(Order::InProgress, [Order::Submitted, Order::Failed, Order::Queued])
            .allow(Order::Submitted, [Order::Approved, Order::Rejected, Order::Failed])
            .allow(Order::Approved, [Order::Applied, Order::Failed])
            .allow(Order::Applied, [Order::Completed, Order::Failed])
            .allow(Order::Rejected, [Order::Queued, Order::DeadLettered])
            .allow(Order::Failed, [Order::Queued, Order::DeadLettered])
            .terminal(Order::TERMINAL)
            .build();
        let item = TransitionTable::builder("item")
            .states(Item::ALL.iter().copied())
            .initial(Item::Queued)
            .allow(Item::Queued, [Item::Leased, Item::Failed])
            .allow(Item::Leased, [Item::InProgress, Item::Queued, Item::Failed])
            .allow(Item::InProgress, [Item::Submitted, Item::Failed, Item::Queued])
            .allow(Item::Submitted, [Item::Accepted, Item::Rejected, Item::Failed])
            .allow(Item::Accepted, [Item::Completed])
            .allow(Item::Rejected, [Item::Queued, Item::Failed])
            .allow(Item::Failed, [Item::Queued, Item::DeadLettered])
            .terminal(Item::TERMINAL)
            .build();
        match (order, item) {
            (Ok(order), Ok(item)) => TransitionTables { order, item },
            // A test builds them and checks them.
            _ => unreachable!("the tables of seed 002 hold together"),
        }
    }
}

fn allow<S: Copy + Eq + Hash + Display>(
    table: &TransitionTable<S>,
    entity: &'static str,
    from: S,
    to: S,
) -> Result<()> {
    if table.can(&from, &to) {
        return Ok(());
    }
    Err(ErrorKind::IllegalTransition {
        entity,
        from: from.to_string(),
        to: to.to_string(),
        allowed: table.allowed_from(&from).map(S::to_string).collect(),
    }
    .into())
}

fn check<S: Copy + Eq + Hash + Display>(
    table: &TransitionTable<S>,
    states: &[S],
    terminal: &[S],
    needs: &[(S, S)],
    guards: &[(S, S)],
) -> Result<()> {
    let mut problems = Vec::new();
    for state in states {
        if !table.contains(state) {
            problems.push(format!("it lacks the state {state}"));
        } else if table.is_terminal(state) != terminal.contains(state) {
            let should = if terminal.contains(state) { "must" } else { "must not" };
            problems.push(format!("{state} {should} be declared terminal"));
        }
    }
    for (from, to) in needs {
        if !table.can(from, to) {
            problems.push(format!("{from} must be able to become {to}"));
        }
    }
    for (guard, guarded) in guards {
        if reaches(table, guarded, Some(guard)) {
            problems.push(format!("{guarded} can be reached without {guard}"));
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::from(ErrorKind::InvalidTable { table: table.name().to_owned(), problems }))
}

/// Whether a state can be reached from the beginning without passing through another.
fn reaches<S: Copy + Eq + Hash + Display>(
    table: &TransitionTable<S>,
    goal: &S,
    without: Option<&S>,
) -> bool {
    let mut seen: Vec<S> = Vec::new();
    let mut next: Vec<S> = table.initial().copied().collect();
    while let Some(state) = next.pop() {
        if Some(&state) == without || seen.contains(&state) {
            continue;
        }
        if state == *goal {
            return true;
        }
        seen.push(state);
        next.extend(table.allowed_from(&state).copied());
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed()
    -> (latchwork_flow::TransitionTableData<Order>, latchwork_flow::TransitionTableData<Item>) {
        let tables = TransitionTables::default();
        (tables.order.to_data(), tables.item.to_data())
    }

    fn refused(change: impl Fn(&mut Vec<(Order, Order)>, &mut Vec<(Item, Item)>)) -> String {
        let (mut order, mut item) = seed();
        change(&mut order.moves, &mut item.moves);
        let order = order.try_into().expect("it holds together by itself");
        let item = item.try_into().expect("it holds together by itself");
        let error = TransitionTables::new(order, item).expect_err("refused");
        assert_eq!(error.code(), "invalid_table");
        error.to_string()
    }

    #[test]
    fn w16_the_tables_of_the_seed_pass_their_own_check() {
        let (order, item) = seed();
        let (order, item) = (order.try_into().expect("a table"), item.try_into().expect("a table"));
        TransitionTables::new(order, item).expect("they hold together");
    }

    #[test]
    fn w16_rejected_items_are_terminal_and_not_final() {
        let tables = TransitionTables::default();
        assert!(tables.item().is_terminal(&Item::Rejected));
        assert!(!tables.item().is_final(&Item::Rejected));
        for state in [Order::Completed, Order::DeadLettered] {
            assert!(tables.order().is_terminal(&state) && tables.order().is_final(&state));
        }
    }

    #[test]
    fn w01_every_cell_gives_a_move_or_says_what_is_allowed() {
        let tables = TransitionTables::default();
        let mut allowed = 0;
        for from in Order::ALL {
            for to in Order::ALL {
                match tables.order_move(*from, *to) {
                    Ok(moved) => {
                        allowed += 1;
                        assert_eq!((moved.from(), moved.to()), (*from, *to));
                    }
                    Err(error) => {
                        let ErrorKind::IllegalTransition { entity, allowed, .. } = error.kind()
                        else {
                            panic!("{error}");
                        };
                        let expected: Vec<_> =
                            tables.order().allowed_from(from).map(|s| s.to_string()).collect();
                        assert_eq!((*entity, allowed), ("order", &expected));
                    }
                }
            }
        }
        assert_eq!(allowed, 21);
        let items = Item::ALL.iter().flat_map(|from| Item::ALL.iter().map(move |to| (from, to)));
        assert_eq!(items.filter(|(from, to)| tables.item_move(**from, **to).is_ok()).count(), 16);
    }

    #[test]
    fn w01_a_table_that_bypasses_review_is_refused() {
        let said = refused(|order, _| order.push((Order::InProgress, Order::Approved)));
        assert!(said.contains("approved can be reached without submitted"), "{said}");
        let said = refused(|order, _| order.push((Order::Submitted, Order::Applied)));
        assert!(said.contains("applied can be reached without approved"), "{said}");
        let said = refused(|_, item| item.push((Item::InProgress, Item::Accepted)));
        assert!(said.contains("accepted can be reached without submitted"), "{said}");
    }

    #[test]
    fn w01_a_table_that_strands_a_state_is_refused() {
        let said = refused(|order, _| {
            order.retain(|step| *step != (Order::CheckedOut, Order::Queued));
        });
        assert!(said.contains("checked_out must be able to become queued"), "{said}");
        let said = refused(|_, item| {
            item.retain(|step| *step != (Item::InProgress, Item::Queued));
        });
        assert!(said.contains("in_progress must be able to become queued"), "{said}");
    }

    #[test]
    fn w01_rework_and_retry_may_be_left_out() {
        let (mut order, mut item) = seed();
        order.moves.retain(|step| *step != (Order::Rejected, Order::Queued));
        item.moves.retain(|step| *step != (Item::Rejected, Item::Queued));
        let (order, item) = (order.try_into().expect("a table"), item.try_into().expect("a table"));
        let tables = TransitionTables::new(order, item).expect("no rework is a choice");
        assert!(tables.order_move(Order::Rejected, Order::Queued).is_err());
    }
}
