//! What this process did, as figures through the `metrics` facade (feature `metrics`); without a recorder,
//! or without the feature, nothing is kept.
//!
//! | name | labels |
//! | --- | --- |
//! | `latchwork_work_claims_total` | type |
//! | `latchwork_work_leases_expired_total` | type |
//! | `latchwork_work_apply_seconds` | type, state: that of the order after it |
//!
//! How much there is in each state is not counted here: the store knows it, for all processes.

use std::time::Duration;

use crate::{Item, Lease, OrderState};

/// Items were leased.
pub(crate) fn claimed(leases: &[Lease]) {
    #[cfg(feature = "metrics")]
    for lease in leases {
        metrics::counter!("latchwork_work_claims_total", "type" => lease.order_type.clone())
            .increment(1);
    }
    #[cfg(not(feature = "metrics"))]
    let _ = leases;
}

/// Leases ran out, and their items were taken back.
pub(crate) fn expired(items: &[Item]) {
    #[cfg(feature = "metrics")]
    for item in items {
        metrics::counter!("latchwork_work_leases_expired_total", "type" => item.item_type.clone())
            .increment(1);
    }
    #[cfg(not(feature = "metrics"))]
    let _ = items;
}

/// An apply took so long, and left its order in this state.
pub(crate) fn applied(order_type: &str, state: OrderState, took: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!("latchwork_work_apply_seconds",
        "type" => order_type.to_owned(), "state" => state.as_str())
    .record(took.as_secs_f64());
    #[cfg(not(feature = "metrics"))]
    let _ = (order_type, state, took);
}
