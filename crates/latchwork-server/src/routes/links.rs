//! Links of the description: what to do with an answer. They lead from a proposal to its approval, and
//! schemathesis follows them.

use serde_json::{Value, json};
use utoipa::openapi::link::Link;
use utoipa::openapi::path::Operation;
use utoipa::openapi::{OpenApi, RefOr};

/// From the answer of an operation to another operation: its path parameter `id`, and parts of its body.
struct Step {
    from: &'static str,
    status: &'static str,
    to: &'static str,
    id: Option<&'static str>,
    body: &'static [(&'static str, &'static str)],
}

const fn by_id(
    from: &'static str,
    status: &'static str,
    to: &'static str,
    id: &'static str,
) -> Step {
    Step { from, status, to, id: Some(id), body: &[] }
}

const fn by_lease(to: &'static str) -> Step {
    let body = &[("lease", "$response.body#/leases/0/id")];
    Step { from: "checkout", status: "200", to, id: None, body }
}

const ORDER: &str = "$response.body#/order/id";
const SUBMITTED: &str = "$response.body#/order_id";

const STEPS: &[Step] = &[
    by_id("propose", "201", "show_order", ORDER),
    Step { from: "propose", status: "201", to: "checkout", id: None, body: &[("order", ORDER)] },
    by_id("propose", "201", "order_items", ORDER),
    by_id("propose", "201", "order_events", ORDER),
    by_id("propose", "201", "comment", ORDER),
    by_id("propose", "201", "clone_order", ORDER),
    by_id("propose", "201", "requeue", ORDER),
    by_id("propose", "201", "cancel", ORDER),
    by_lease("heartbeat"),
    by_lease("submit"),
    by_lease("submit_part"),
    by_lease("finalize"),
    by_lease("release"),
    by_lease("snooze"),
    by_lease("fail"),
    by_id("checkout", "200", "show_item", "$response.body#/leases/0/item_id"),
    by_id("checkout", "200", "list_parts", "$response.body#/leases/0/item_id"),
    by_id("submit", "200", "item_results", "$response.body#/item_id"),
    by_id("submit", "200", "preview", SUBMITTED),
    by_id("submit", "200", "reject", SUBMITTED),
    by_id("finalize", "200", "preview", SUBMITTED),
    Step {
        from: "preview",
        status: "200",
        to: "approve",
        id: Some(SUBMITTED),
        body: &[
            ("content_version", "$response.body#/content_version"),
            ("digest", "$response.body#/digest"),
        ],
    },
    by_id("preview", "200", "reject", SUBMITTED),
    by_id("approve", "200", "show_order", ORDER),
    by_id("approve", "200", "receipt", ORDER),
    by_id("cancel", "200", "dead_letter", "$response.body#/id"),
    by_id("fail", "200", "retry_item", "$response.body#/id"),
    by_id("fail", "200", "retry", SUBMITTED),
];

/// Adds the links to the operations that they begin at.
pub(super) fn add(description: &mut OpenApi) {
    for item in description.paths.paths.values_mut() {
        for operation in [&mut item.get, &mut item.post].into_iter().flatten() {
            add_to(operation);
        }
    }
}

fn add_to(operation: &mut Operation) {
    let Some(id) = operation.operation_id.clone() else { return };
    for step in STEPS.iter().filter(|step| step.from == id) {
        let Some(RefOr::T(response)) = operation.responses.responses.get_mut(step.status) else {
            continue;
        };
        let mut link = Link::builder().operation_id(step.to);
        if let Some(id) = step.id {
            link = link.parameter("id", Value::from(id));
        }
        if !step.body.is_empty() {
            let body = step.body.iter().map(|(name, value)| ((*name).to_owned(), json!(value)));
            link = link.request_body(Some(Value::Object(body.collect())));
        }
        response.links.insert(step.to.to_owned(), RefOr::T(link.build()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_link_is_in_the_description_and_leads_somewhere() {
        let api = serde_json::to_value(crate::openapi()).expect("JSON");
        let paths = api["paths"].as_object().expect("paths").values();
        let operations = paths.flat_map(|methods| methods.as_object().expect("methods").values());
        let operations: Vec<_> = operations.collect();
        let names: BTreeSet<_> =
            operations.iter().filter_map(|one| one["operationId"].as_str()).collect();
        for step in STEPS {
            assert!(names.contains(step.to), "there is no operation {}", step.to);
            let from = operations.iter().find(|one| one["operationId"] == step.from);
            let link = &from.expect(step.from)["responses"][step.status]["links"][step.to];
            assert_eq!(link["operationId"], step.to, "{} {}", step.from, step.status);
        }
        for (from, to) in [("propose", "checkout"), ("checkout", "submit"), ("preview", "approve")]
        {
            assert!(STEPS.iter().any(|step| step.from == from && step.to == to));
        }
    }
}
