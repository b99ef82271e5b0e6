//! Which role may use which route: one table for all of them.
//!
//! The check looks at the path as it is declared. A route that is missing here is refused to everybody,
//! and a test compares the table with the API's description, so no route is open by oversight.

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Method, header};

use crate::app::App;
use crate::caller::authenticate;
use crate::error::ApiError;

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
    (Method::GET, "/openapi.json", Access::Open),
    (Method::GET, "/docs", Access::Open),
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
];

/// Lets a request through to its route if its caller may use it, and tells the route who that is.
pub(crate) async fn check(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let Some(path) = request.extensions().get::<MatchedPath>().cloned() else {
        // No route has this path: the fallback answers.
        return next.run(request).await;
    };
    let Some(access) = access_of(request.method(), path.as_str()) else {
        return refuse(path.as_str());
    };
    if access != Access::Open {
        match authenticate(&app, request.headers(), request.extensions()).await {
            Ok(caller) if caller.role().may(access) => {
                request.extensions_mut().insert(caller);
            }
            Ok(_) => {
                let detail = "the role of the token may not do this";
                return ApiError::new(403, "forbidden", detail).into_response();
            }
            Err(error) => return error.into_response(),
        }
    }
    next.run(request).await
}

/// What a route asks for; none for one that the table does not have. HEAD is answered where GET is.
fn access_of(method: &Method, path: &str) -> Option<Access> {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    TABLE.iter().find(|(known, at, _)| known == method && *at == path).map(|(.., access)| *access)
}

/// The answer for a method that the path does not have.
fn refuse(path: &str) -> Response {
    let methods = TABLE.iter().filter(|(_, at, _)| *at == path).map(|(method, ..)| method.as_str());
    let methods: Vec<_> = methods.collect();
    if methods.is_empty() {
        tracing::error!(path, "a route is not in the table of access");
        return ApiError::new(403, "forbidden", "nobody may use this route").into_response();
    }
    let detail = "the path has no such method; the header Allow lists those it has";
    let mut response = ApiError::new(405, "method_not_allowed", detail).into_response();
    let allow = methods.join(", ").replace("GET", "GET, HEAD");
    if let Ok(allow) = HeaderValue::from_str(&allow) {
        response.headers_mut().insert(header::ALLOW, allow);
    }
    response
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
            .chain(["/openapi.json", "/docs"].map(|path| ("GET".to_owned(), path.to_owned())))
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
        let all = [Role::Reader, Role::Agent, Role::Reviewer, Role::Operator, Role::Admin];
        assert!(all.iter().all(|role| role.may(Access::Open) && role.may(Access::Read)));
        assert!(all.iter().filter(|role| role.may(Access::Admin)).eq([&Role::Admin]));
        assert!(!Role::Agent.may(Access::Review) && !Role::Agent.may(Access::Operate));
        assert!(!Role::Reviewer.may(Access::Work) && !Role::Operator.may(Access::Review));
        assert_eq!(access_of(&Method::POST, "/v1/items/checkout"), Some(Access::Work));
        assert_eq!(access_of(&Method::DELETE, "/v1/orders"), None);
    }
}
