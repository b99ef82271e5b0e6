//! The order type that a server starts with, so that there is something to try.

use std::net::SocketAddr;

use latchwork::work::{Diff, DynamicOrderType, OrderContent, PlannedItem};
use serde_json::{Value, json};

/// The sample: an order of names, an item for each, and a greeting as its result. Somebody other than the
/// proposer approves it; what is applied is the list of greetings, which the preview shows before.
pub(super) fn order_type() -> DynamicOrderType {
    let split = |payload: &Value| {
        let names = payload["names"].as_array().into_iter().flatten();
        Ok(names.map(|name| PlannedItem::new(json!({ "name": name }))).collect())
    };
    DynamicOrderType::new("greeting")
        .payload_schema(
            json!({"type": "object", "required": ["names"], "additionalProperties": false,
            "properties": {"names": {"type": "array", "minItems": 1, "maxItems": 1_000,
                "items": {"type": "string", "minLength": 1}}}}),
        )
        .input_schema(json!({"type": "object", "required": ["name"]}))
        .result_schema(
            json!({"type": "object", "required": ["text"], "additionalProperties": false,
            "properties": {"text": {"type": "string", "minLength": 1}}}),
        )
        .plan(split)
        .preview(|order| Box::pin(async move { Ok(Some(greetings(order))) }))
        .apply(|order, _| Box::pin(async move { Ok(greetings(order)) }))
}

/// What an order of greetings changes: nobody is greeted before, everybody after.
fn greetings(order: &OrderContent) -> Diff {
    let said = order.items.iter().map(|item| item.result["text"].clone());
    let said: Vec<_> = said.collect();
    let summary = format!("{} greeted", said.len());
    Diff::between(json!([]), json!(said)).summary(summary)
}

/// Three commands that work as printed.
pub(super) fn commands(address: SocketAddr) -> [String; 3] {
    [
        format!(
            "curl http://{address}/v1/orders --json \
             '{{\"type\": \"greeting\", \"payload\": {{\"names\": [\"Ada\"]}}}}'"
        ),
        format!(
            "curl http://{address}/v1/items/checkout -H 'Latchwork-Actor: agent:me' --json '{{}}'"
        ),
        format!("curl http://{address}/v1/orders?include=itemsCount"),
    ]
}
