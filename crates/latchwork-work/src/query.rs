//! Which orders are wanted: the grammar of filters, sorting, includes and pages (W13).
//!
//! The same for the library, HTTP, MCP and the command line: pairs of a name and a value, as in the
//! query of a URL. A name that does not exist is an error that lists those that do.
//!
//! | name | value |
//! | --- | --- |
//! | `filter[id]`, `filter[state]`, `filter[type]`, `filter[requested_by_type]`, `filter[requested_by_id]` | one or several, separated by commas; also without `filter[…]` |
//! | `filter[items.state]` | orders with an item in one of these states |
//! | `filter[priority]`, `filter[created_at]`, `filter[last_transitioned_at]`, `filter[applied_at]`, `filter[completed_at]` | a value, with `=`, `!=`, `>`, `>=`, `<` or `<=` before it; times in RFC 3339; an order without that time is not found |
//! | `filter[meta]` | `key:value` or a JSON object that the order's meta must contain: objects member by member, arrays element by element |
//! | `filter[has_available_items]` | `true` or `false` |
//! | `include` | `items`, `events`, `itemsCount`, `eventsCount` |
//! | `sort` | `priority`, `created_at`, `last_transitioned_at`, `applied_at`, `completed_at`, `items_count`; a `-` before it sorts downwards; `-priority,created_at` unless told; orders without that time come last either way |
//! | `page[size]` (`limit`, `per_page`) | 1 to 100; 50 unless told |
//! | `page[cursor]` | the `next` of the page before |

mod cursor;
mod items;
mod parse;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use crate::names::named;
use crate::{ActorType, ItemState, OrderId, OrderState};

pub use cursor::Cursor;
pub use items::{ItemCursor, ItemQuery, LeaseQuery};

/// Which orders are wanted, in which order, and what of them.
#[derive(Clone, Debug, PartialEq)]
pub struct OrderQuery {
    /// All of these must hold.
    pub filters: Vec<OrderFilter>,
    /// By what they are sorted; the id decides between equals.
    pub sort: Vec<Sort>,
    /// What comes with each order.
    pub include: Vec<Include>,
    /// How many at most, 1 to [`MAX_PAGE_SIZE`].
    pub page_size: u32,
    /// Where the page begins; the beginning unless told.
    pub after: Option<Cursor>,
}

/// The largest page.
pub const MAX_PAGE_SIZE: u32 = 100;

/// The page unless told.
pub const PAGE_SIZE: u32 = 50;

/// One condition.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum OrderFilter {
    /// One of these orders.
    Id(Vec<OrderId>),
    /// In one of these states.
    State(Vec<OrderState>),
    /// Of one of these types.
    Type(Vec<String>),
    /// Proposed by such an actor.
    RequestedByType(Vec<ActorType>),
    /// Proposed by one of these.
    RequestedById(Vec<String>),
    /// With an item in one of these states.
    ItemState(Vec<ItemState>),
    /// By priority.
    Priority(Comparison, i64),
    /// By a time.
    Time(TimeField, Comparison, DateTime<Utc>),
    /// The meta contains all of this.
    Meta(Map<String, Value>),
    /// Whether an agent could lease an item of it now.
    HasAvailableItems(bool),
}

named! {
    /// How two values are compared.
    pub enum Comparison ("comparison") {
        /// Equal.
        Equal = "=",
        /// Different.
        NotEqual = "!=",
        /// Greater.
        Greater = ">",
        /// Greater or equal.
        GreaterOrEqual = ">=",
        /// Less.
        Less = "<",
        /// Less or equal.
        LessOrEqual = "<=",
    }
}

named! {
    /// The times of an order.
    pub enum TimeField ("time") {
        /// When it was proposed.
        CreatedAt = "created_at",
        /// When its state last changed.
        LastTransitionedAt = "last_transitioned_at",
        /// When it was applied.
        AppliedAt = "applied_at",
        /// When it was completed.
        CompletedAt = "completed_at",
    }
}

named! {
    /// By what orders are sorted.
    pub enum SortField ("sort") {
        /// The priority.
        Priority = "priority",
        /// When it was proposed.
        CreatedAt = "created_at",
        /// When its state last changed.
        LastTransitionedAt = "last_transitioned_at",
        /// When it was applied.
        AppliedAt = "applied_at",
        /// When it was completed.
        CompletedAt = "completed_at",
        /// How many items it has.
        ItemsCount = "items_count",
    }
}

/// One key of the sorting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort {
    /// By what.
    pub field: SortField,
    /// Downwards.
    pub descending: bool,
}

named! {
    /// What comes with each order.
    pub enum Include ("include") {
        /// Its items.
        Items = "items",
        /// Its latest events.
        Events = "events",
        /// How many items it has.
        ItemsCount = "itemsCount",
        /// How many events it has.
        EventsCount = "eventsCount",
    }
}

impl Default for OrderQuery {
    /// All orders, the most urgent first, then the oldest.
    fn default() -> Self {
        OrderQuery {
            filters: Vec::new(),
            sort: vec![
                Sort { field: SortField::Priority, descending: true },
                Sort { field: SortField::CreatedAt, descending: false },
            ],
            include: Vec::new(),
            page_size: PAGE_SIZE,
            after: None,
        }
    }
}
