//! The states of a payment, and which may become which.

use std::fmt;
use std::sync::LazyLock;

use latchwork_flow::TransitionTable;

/// Where a payment stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PaymentState {
    /// Asked for; the bank has not spoken.
    Pending,
    /// The bank will pay, until the window closes.
    Authorized,
    /// The money was taken.
    Captured,
    /// The bank will not pay.
    Failed,
}

impl PaymentState {
    /// Its name, as it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            PaymentState::Pending => "pending",
            PaymentState::Authorized => "authorized",
            PaymentState::Captured => "captured",
            PaymentState::Failed => "failed",
        }
    }

    /// The state of a name.
    pub fn parse(name: &str) -> Option<Self> {
        table().states().iter().copied().find(|state| state.as_str() == name)
    }
}

impl fmt::Display for PaymentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The one table that every move of a payment is looked up in.
pub fn table() -> &'static TransitionTable<PaymentState> {
    use PaymentState::{Authorized, Captured, Failed, Pending};
    #[expect(clippy::expect_used, reason = "the table is constant, and a test builds it")]
    static TABLE: LazyLock<TransitionTable<PaymentState>> = LazyLock::new(|| {
        TransitionTable::builder("payment")
            .initial(Pending)
            .allow(Pending, [Authorized, Failed])
            .allow(Authorized, [Captured, Failed])
            .terminal([Captured, Failed])
            .build()
            .expect("it holds together")
    });
    &TABLE
}

#[cfg(test)]
mod tests {
    use super::PaymentState::{self, Authorized, Captured, Failed, Pending};
    use super::table;

    #[test]
    fn the_table_allows_these_moves_and_no_others() {
        let all = [Pending, Authorized, Captured, Failed];
        assert_eq!(table().states().len(), all.len());
        for from in all {
            for to in all {
                let allowed = matches!(
                    (from, to),
                    (Pending, Authorized | Failed) | (Authorized, Captured | Failed)
                );
                assert_eq!(table().can(&from, &to), allowed, "{from} to {to}");
            }
            assert_eq!(PaymentState::parse(from.as_str()), Some(from));
        }
        assert_eq!(PaymentState::parse("paid"), None);
        assert!(table().is_final(&Captured) && table().is_final(&Failed));
    }
}
