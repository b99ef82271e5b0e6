//! The states of orders and items, by the names of seed 002.

use crate::names::named;

named! {
    /// Where an order stands.
    pub enum OrderState ("order state") {
        /// Proposed and planned; no agent has an item yet.
        Queued = "queued",
        /// At least one item was leased.
        CheckedOut = "checked_out",
        /// At least one agent reported that it works.
        InProgress = "in_progress",
        /// Every item is in; the order waits for approval.
        Submitted = "submitted",
        /// Approved; the apply step follows.
        Approved = "approved",
        /// The changes were made.
        Applied = "applied",
        /// Done.
        Completed = "completed",
        /// A reviewer rejected it.
        Rejected = "rejected",
        /// Something failed; it may be retried or given up.
        Failed = "failed",
        /// Given up.
        DeadLettered = "dead_lettered",
    }
}

named! {
    /// Where an item stands.
    pub enum ItemState ("item state") {
        /// Ready for an agent, once it is due.
        Queued = "queued",
        /// An agent holds its lease.
        Leased = "leased",
        /// That agent reported that it works on it.
        InProgress = "in_progress",
        /// Its result is in and passed validation.
        Submitted = "submitted",
        /// Its order was applied.
        Accepted = "accepted",
        /// Its order was rejected.
        Rejected = "rejected",
        /// Done.
        Completed = "completed",
        /// It failed; it may be retried or given up.
        Failed = "failed",
        /// Given up.
        DeadLettered = "dead_lettered",
    }
}

impl OrderState {
    /// The declared ends: completed and dead_lettered.
    pub const TERMINAL: [OrderState; 2] = [OrderState::Completed, OrderState::DeadLettered];

    /// Whether it is one of the declared ends.
    pub fn is_terminal(self) -> bool {
        Self::TERMINAL.contains(&self)
    }

    /// Whether agents may lease items of an order in this state.
    pub const fn is_claimable(self) -> bool {
        matches!(self, OrderState::Queued | OrderState::CheckedOut | OrderState::InProgress)
    }

    /// Whether a `unique_key` is always taken by an order in this state (W20): queued to applied.
    pub const fn is_live(self) -> bool {
        matches!(
            self,
            OrderState::Queued
                | OrderState::CheckedOut
                | OrderState::InProgress
                | OrderState::Submitted
                | OrderState::Approved
                | OrderState::Applied
        )
    }
}

impl ItemState {
    /// The declared ends (W16): completed, rejected and dead_lettered. Rework leads out of rejected
    /// all the same, so it is terminal and not final.
    pub const TERMINAL: [ItemState; 3] =
        [ItemState::Completed, ItemState::Rejected, ItemState::DeadLettered];

    /// Whether it is one of the declared ends.
    pub fn is_terminal(self) -> bool {
        Self::TERMINAL.contains(&self)
    }

    /// Whether an agent holds a lease on an item in this state.
    pub const fn is_leased(self) -> bool {
        matches!(self, ItemState::Leased | ItemState::InProgress)
    }

    /// Whether its order may complete with the item in this state.
    pub const fn is_settled(self) -> bool {
        matches!(self, ItemState::Completed | ItemState::DeadLettered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w16_a_name_is_the_same_everywhere() {
        for state in OrderState::ALL {
            assert_eq!(state.to_string().parse::<OrderState>().expect("its own name"), *state);
            assert_eq!(serde_json::to_value(state).expect("JSON"), state.as_str());
        }
        for state in ItemState::ALL {
            assert_eq!(state.to_string().parse::<ItemState>().expect("its own name"), *state);
            assert_eq!(serde_json::to_value(state).expect("JSON"), state.as_str());
        }
        let error = "Queued".parse::<OrderState>().expect_err("names are lower case");
        assert_eq!(error.code(), "unknown_name");
        assert!(error.to_string().contains("checked_out"), "{error}");
    }
}
