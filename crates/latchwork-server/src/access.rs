//! Which role may use which route: one table for all of them.
//!
//! A route that is missing here is refused to everybody, and a test compares the table with the API's
//! description, so no route is open by oversight.

use http::Method;

/// What a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
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

impl Role {
    pub(crate) const ALL: [Role; 5] =
        [Role::Reader, Role::Agent, Role::Reviewer, Role::Operator, Role::Admin];

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

/// Every route: method, path as it is declared, and what it asks for.
const TABLE: &[(Method, &str, Access)] = &[
    (Method::GET, "/healthz", Access::Open),
    (Method::GET, "/readyz", Access::Open),
    (Method::GET, "/v1/orders", Access::Read),
    (Method::POST, "/v1/orders", Access::Propose),
    (Method::GET, "/v1/orders/{id}", Access::Read),
    (Method::GET, "/v1/orders/{id}/events", Access::Read),
    (Method::POST, "/v1/orders/{id}/requeue", Access::Operate),
    (Method::POST, "/v1/orders/{id}/retry", Access::Operate),
    (Method::POST, "/v1/orders/{id}/cancel", Access::Operate),
    (Method::POST, "/v1/orders/{id}/dead-letter", Access::Operate),
    (Method::POST, "/v1/orders/{id}/clone", Access::Propose),
    (Method::POST, "/v1/orders/{id}/comments", Access::Propose),
    (Method::GET, "/v1/items", Access::Read),
    (Method::GET, "/v1/items/{id}", Access::Read),
    (Method::POST, "/v1/items/checkout", Access::Work),
    (Method::POST, "/v1/items/heartbeat", Access::Work),
    (Method::POST, "/v1/items/submit", Access::Work),
    (Method::POST, "/v1/items/release", Access::Work),
    (Method::POST, "/v1/items/snooze", Access::Work),
    (Method::POST, "/v1/items/fail", Access::Work),
    (Method::POST, "/v1/items/{id}/retry", Access::Operate),
    (Method::GET, "/v1/events", Access::Read),
    (Method::GET, "/v1/order-types", Access::Read),
    (Method::GET, "/v1/order-types/{name}", Access::Read),
    (Method::GET, "/v1/stats", Access::Read),
    (Method::GET, "/v1/agents", Access::Read),
    (Method::GET, "/v1/locks", Access::Read),
    (Method::GET, "/v1/locks/keys/{key}", Access::Read),
    (Method::POST, "/v1/locks/acquire", Access::Lock),
    (Method::POST, "/v1/locks/wait", Access::Lock),
    (Method::POST, "/v1/locks/claim", Access::Lock),
    (Method::POST, "/v1/locks/renew", Access::Lock),
    (Method::POST, "/v1/locks/release", Access::Lock),
    (Method::POST, "/v1/locks/resume", Access::Lock),
    (Method::POST, "/v1/locks/check-fence", Access::Lock),
    (Method::POST, "/v1/locks/break", Access::Operate),
    (Method::GET, "/v1/flows", Access::Read),
    (Method::GET, "/v1/flows/{id}", Access::Read),
    (Method::POST, "/v1/flows/{id}/signal", Access::Operate),
    (Method::POST, "/v1/flows/{id}/cancel", Access::Operate),
    (Method::POST, "/v1/flows/{id}/retry", Access::Operate),
    (Method::POST, "/v1/flows/{id}/release", Access::Operate),
    (Method::POST, "/v1/flows/{id}/wake", Access::Operate),
    (Method::GET, "/v1/explain/orders/{id}", Access::Read),
    (Method::GET, "/v1/explain/items/{id}", Access::Read),
    (Method::GET, "/v1/explain/flows/{id}", Access::Read),
    (Method::GET, "/v1/explain/locks/{key}", Access::Read),
];

/// What a route asks for; none for one that the table does not have.
pub(crate) fn access_of(method: &Method, path: &str) -> Option<Access> {
    TABLE.iter().find(|(known, at, _)| known == method && *at == path).map(|(.., access)| *access)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_is_in_the_table_once() {
        let description = serde_json::to_value(crate::openapi()).expect("JSON");
        let paths = description["paths"].as_object().expect("paths").iter();
        let declared: BTreeSet<_> = paths
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().expect("methods").keys();
                methods.map(move |method| (method.to_uppercase(), path.clone()))
            })
            .collect();
        let listed: Vec<_> = TABLE
            .iter()
            .map(|(method, path, _)| (method.to_string(), (*path).to_owned()))
            .collect();
        assert_eq!(listed.iter().cloned().collect::<BTreeSet<_>>(), declared);
        assert_eq!(listed.len(), declared.len(), "a route stands there twice");
    }

    #[test]
    fn roles_differ_where_they_should() {
        assert!(Role::ALL.iter().all(|role| role.may(Access::Open) && role.may(Access::Read)));
        assert!(Role::ALL.iter().filter(|role| role.may(Access::Admin)).eq([&Role::Admin]));
        assert!(!Role::Agent.may(Access::Review) && !Role::Agent.may(Access::Operate));
        assert!(!Role::Reviewer.may(Access::Work) && !Role::Operator.may(Access::Review));
        assert_eq!(access_of(&Method::POST, "/v1/items/checkout"), Some(Access::Work));
        assert_eq!(access_of(&Method::DELETE, "/v1/orders"), None);
    }
}
