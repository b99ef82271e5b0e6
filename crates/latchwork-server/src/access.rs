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
use crate::role::{Access, Role};

/// Every route: method, path as it is declared, and what it asks for.
const TABLE: &[(Method, &str, Access)] = &[
    (Method::GET, "/healthz", Access::Open),
    (Method::GET, "/readyz", Access::Open),
    (Method::GET, "/openapi.json", Access::Open),
    (Method::GET, "/docs", Access::Open),
    (Method::GET, "/metrics", Access::Read),
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
    (Method::POST, "/v1/orders/plan", Access::Propose),
    (Method::POST, "/v1/orders/propose-many", Access::Propose),
    (Method::GET, "/v1/orders/{id}/items", Access::Read),
    (Method::GET, "/v1/orders/{id}/preview", Access::Read),
    (Method::POST, "/v1/orders/{id}/approve", Access::Review),
    (Method::POST, "/v1/orders/{id}/reject", Access::Review),
    (Method::GET, "/v1/orders/{id}/receipt", Access::Read),
    (Method::GET, "/v1/orders/{id}/apply", Access::Read),
    (Method::POST, "/v1/orders/{id}/apply/take-back", Access::Operate),
    (Method::GET, "/v1/items", Access::Read),
    (Method::GET, "/v1/items/{id}", Access::Read),
    (Method::POST, "/v1/items/checkout", Access::Work),
    (Method::POST, "/v1/items/heartbeat", Access::Work),
    (Method::POST, "/v1/items/submit", Access::Work),
    (Method::POST, "/v1/items/release", Access::Work),
    (Method::POST, "/v1/items/snooze", Access::Work),
    (Method::POST, "/v1/items/fail", Access::Work),
    (Method::POST, "/v1/items/{id}/retry", Access::Operate),
    (Method::POST, "/v1/items/heartbeat-many", Access::Work),
    (Method::POST, "/v1/items/submit-many", Access::Work),
    (Method::GET, "/v1/items/{id}/results", Access::Read),
    (Method::GET, "/v1/items/{id}/parts", Access::Read),
    (Method::POST, "/v1/items/{id}/comments", Access::Propose),
    (Method::POST, "/v1/parts", Access::Work),
    (Method::POST, "/v1/parts/finalize", Access::Work),
    (Method::GET, "/v1/leases", Access::Read),
    (Method::GET, "/v1/events", Access::Read),
    (Method::GET, "/v1/audit/verify", Access::Operate),
    (Method::GET, "/v1/audit/export", Access::Read),
    (Method::GET, "/v1/audit/checkpoints", Access::Read),
    (Method::GET, "/v1/listeners", Access::Read),
    (Method::POST, "/v1/listeners/{name}/forget", Access::Operate),
    (Method::GET, "/v1/transitions", Access::Read),
    (Method::GET, "/v1/order-types", Access::Read),
    (Method::GET, "/v1/order-types/{name}", Access::Read),
    (Method::GET, "/v1/stats", Access::Read),
    (Method::GET, "/v1/agents", Access::Read),
    (Method::GET, "/v1/whoami", Access::Read),
    (Method::GET, "/v1/tokens", Access::Admin),
    (Method::POST, "/v1/tokens", Access::Admin),
    (Method::GET, "/v1/tokens/{id}", Access::Admin),
    (Method::POST, "/v1/tokens/{id}/revoke", Access::Admin),
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

/// Lets a request through to its route if its caller may use it, and tells the route who that is.
pub(crate) async fn check(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let Some(path) = request.extensions().get::<MatchedPath>().cloned() else {
        // No route has this path: the fallback answers.
        return next.run(request).await;
    };
    let Some(access) = access_of(request.method(), path.as_str()) else {
        return refuse(path.as_str());
    };
    if access == Access::Open {
        return next.run(request).await;
    }
    let caller = match authenticate(&app, request.headers(), request.extensions()).await {
        Ok(caller) if caller.role().may(access) => caller,
        Ok(_) => return ApiError::new(403, "forbidden", refusal(access)).into_response(),
        Err(error) => return error.into_response(),
    };
    request.extensions_mut().insert(caller.clone());
    let mut response = next.run(request).await;
    if let Some(types) = caller.scope().types()
        && let Some(error) = response.extensions_mut().get_mut::<ApiError>()
    {
        error.hide_types(types);
    }
    response
}

/// Says which roles it takes.
fn refusal(access: Access) -> String {
    let roles = Role::ALL.into_iter().filter(|role| role.may(access)).map(Role::as_str);
    let roles = roles.collect::<Vec<_>>().join(" or ");
    format!("the token's role may not do this; it takes a token of the role {roles}")
}

/// What a route asks for; none for one that the table does not have. HEAD is answered where GET is.
fn access_of(method: &Method, path: &str) -> Option<Access> {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    TABLE.iter().find(|(known, at, _)| known == method && *at == path).map(|(.., access)| *access)
}

/// Whether everybody may use a route.
pub(crate) fn is_open(method: &Method, path: &str) -> bool {
    access_of(method, path) == Some(Access::Open)
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
        let all = Role::ALL;
        assert!(all.iter().all(|role| role.may(Access::Open) && role.may(Access::Read)));
        assert!(all.iter().filter(|role| role.may(Access::Admin)).eq([&Role::Admin]));
        assert!(!Role::Agent.may(Access::Review) && !Role::Agent.may(Access::Operate));
        assert!(!Role::Reviewer.may(Access::Work) && !Role::Operator.may(Access::Review));
        assert_eq!(access_of(&Method::POST, "/v1/items/checkout"), Some(Access::Work));
        assert_eq!(access_of(&Method::DELETE, "/v1/orders"), None);
    }
}
