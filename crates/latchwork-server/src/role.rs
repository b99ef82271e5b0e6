//! Roles of tokens, and what each of them may do.

use std::fmt;
use std::str::FromStr;

/// What a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sees everything within its limits.
    Reader,
    /// Proposes orders, works on items, takes locks.
    Agent,
    /// Proposes orders and decides on them.
    Reviewer,
    /// Helps what is stuck: orders, flows, locks.
    Operator,
    /// Everything, and makes tokens.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 5] =
        [Role::Reader, Role::Agent, Role::Reviewer, Role::Operator, Role::Admin];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Reader => "reader",
            Role::Agent => "agent",
            Role::Reviewer => "reviewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// There is no such role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no role; there are reader, agent, reviewer, operator and admin")]
pub struct UnknownRole(String);

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        Role::ALL
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| UnknownRole(text.to_owned()))
    }
}

/// What a route asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing: it tells nothing about orders, locks or flows.
    Open,
    /// To see.
    Read,
    /// To propose, clone and comment.
    Propose,
    /// To lease items and to answer for them.
    Work,
    /// To decide on orders.
    Review,
    /// To take and give back locks.
    Lock,
    /// To repair: retry, cancel, break.
    Operate,
    /// To make and revoke tokens.
    Admin,
}

impl Access {
    pub(crate) const ALL: [Access; 8] = [
        Access::Open,
        Access::Read,
        Access::Propose,
        Access::Work,
        Access::Review,
        Access::Lock,
        Access::Operate,
        Access::Admin,
    ];
}

impl Role {
    /// Whether a token of this role may use a route that asks for this.
    pub(crate) fn may(self, access: Access) -> bool {
        use Access::{Lock, Open, Operate, Propose, Read, Review, Work};
        match self {
            Role::Reader => matches!(access, Open | Read),
            Role::Agent => matches!(access, Open | Read | Propose | Work | Lock),
            Role::Reviewer => matches!(access, Open | Read | Propose | Review),
            Role::Operator => matches!(access, Open | Read | Propose | Lock | Operate),
            Role::Admin => true,
        }
    }
}
