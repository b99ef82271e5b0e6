//! What the description says of headers and tokens: the same for all operations of a kind, so that a client
//! that is made from it knows them too.

use http::Method;
use latchwork_api::{IDEMPOTENT_REPLAYED, REQUEST_ID};
use utoipa::openapi::header::{Header, HeaderBuilder};
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Object, OpenApi, RefOr, Required, Schema, Type};

use crate::access;

/// A second one of these does no harm, so no key is looked at.
const WITHOUT_KEY: [&str; 6] =
    ["plan", "heartbeat", "heartbeat_many", "wait_for_lock", "renew_lock", "check_fence"];

/// What the version of an order can be asked for.
const WITH_VERSION: [&str; 6] = ["approve", "reject", "requeue", "retry", "cancel", "dead_letter"];

/// Whose answers are an order and have its version.
const WITH_ETAG: [&str; 9] = [
    "propose",
    "show_order",
    "clone_order",
    "approve",
    "reject",
    "requeue",
    "retry",
    "cancel",
    "dead_letter",
];

/// Whose answers are pages.
const PAGES: [&str; 10] = [
    "list_orders",
    "order_items",
    "order_events",
    "list_items",
    "list_leases",
    "list_events",
    "list_locks",
    "list_flows",
    "list_tokens",
    "export",
];

/// The name of what a token is in the description.
const TOKEN: &str = "token";

/// Adds them to the operations.
pub(super) fn add(description: &mut OpenApi) {
    let token = Http::new(HttpAuthScheme::Bearer);
    let components = description.components.get_or_insert_default();
    components.add_security_scheme(TOKEN, SecurityScheme::Http(token));
    for (path, item) in &mut description.paths.paths {
        for (method, operation) in [(Method::GET, &mut item.get), (Method::POST, &mut item.post)] {
            let Some(operation) = operation else { continue };
            add_to(operation, method == Method::POST);
            operation.security = Some(match access::is_open(&method, path) {
                true => Vec::new(),
                // Without tokens the server takes callers who name themselves.
                false => {
                    let with = SecurityRequirement::new::<_, [&str; 0], &str>(TOKEN, []);
                    vec![with, SecurityRequirement::default()]
                }
            });
        }
    }
}

fn add_to(operation: &mut Operation, changes: bool) {
    let id = operation.operation_id.clone().unwrap_or_default();
    let is_in = |list: &[&str]| list.contains(&&*id);
    let keyed = changes && !is_in(&WITHOUT_KEY);
    if keyed {
        add_parameter(operation, "Idempotency-Key", "The request has its effect once");
    }
    if is_in(&WITH_VERSION) {
        let what = "The ETag of the order, or *: refused with 412 if it was changed since";
        add_parameter(operation, "If-Match", what);
    }
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        let mut header = |name: &str, what: &str| {
            response.headers.insert(name.to_owned(), RefOr::T(text(what)));
        };
        if matches!(&**status, "409" | "429" | "503") {
            header("retry-after", "After so many seconds the request may be sent again");
        }
        if !status.starts_with('2') {
            continue; // a problem has the request's id in its body
        }
        header(REQUEST_ID, "The id of the request, in the server's log and in events");
        if keyed {
            header(IDEMPOTENT_REPLAYED, "`true` for the answer of an earlier request with the key");
        }
        if is_in(&WITH_ETAG) {
            header("etag", "The version of the order, for If-Match");
        }
        if is_in(&["propose", "clone_order"]) {
            header("location", "The path of the order");
        }
        if is_in(&PAGES) {
            header("link", "The address of the next page, with `rel=\"next\"`");
        }
    }
}

/// Adds a header to what an operation takes, unless it says more about it itself.
fn add_parameter(operation: &mut Operation, name: &str, what: &str) {
    let parameters = operation.parameters.get_or_insert_default();
    let is_there =
        |known: &RefOr<Parameter>| matches!(known, RefOr::T(known) if known.name == name);
    if parameters.iter().any(is_there) {
        return;
    }
    let parameter = ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(what))
        .schema(Some(RefOr::T(Schema::from(Object::with_type(Type::String)))));
    parameters.push(RefOr::T(parameter.build()));
}

fn text(what: &str) -> Header {
    let text = RefOr::T(Schema::from(Object::with_type(Type::String)));
    HeaderBuilder::new().schema(Some(text)).description(Some(what)).build()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_is_listed_here_is_there() {
        let api = serde_json::to_value(crate::openapi()).expect("JSON");
        assert_eq!(api["components"]["securitySchemes"][TOKEN]["scheme"], "bearer");
        let paths = api["paths"].as_object().expect("paths").iter();
        let operations: Vec<(&String, &String, &Value)> = paths
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().expect("methods").iter();
                methods.map(move |(method, operation)| (path, method, operation))
            })
            .collect();
        let names: BTreeSet<_> =
            operations.iter().filter_map(|(.., one)| one["operationId"].as_str()).collect();
        for list in [&WITHOUT_KEY[..], &WITH_VERSION, &WITH_ETAG, &PAGES] {
            assert!(list.iter().all(|name| names.contains(name)), "{list:?}");
        }
        for (path, method, operation) in operations {
            let open = ["/healthz", "/readyz"].contains(&&**path);
            let security = if open { json!([]) } else { json!([{TOKEN: []}, {}]) };
            assert_eq!(operation["security"], security, "{path}");
            let takes: Vec<_> = operation["parameters"].as_array().into_iter().flatten().collect();
            let keys = takes.iter().filter(|one| one["name"] == "Idempotency-Key").count();
            let name = operation["operationId"].as_str().unwrap_or_default();
            let keyed = method == "post" && !WITHOUT_KEY.contains(&name);
            assert_eq!(keys, usize::from(keyed), "{path}");
            // Whether an answer is a page shows in what it takes.
            let pages = ["after", "page[cursor]"].iter();
            let pages = pages.filter(|name| takes.iter().any(|one| one["name"] == **name)).count();
            assert_eq!(pages > 0, PAGES.contains(&name), "{path}");
        }
    }
}
