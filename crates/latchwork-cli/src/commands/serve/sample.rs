//! The order type that a server starts with, so that there is something to try.

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

/// How a command sends the token.
pub(super) const TOKEN: &str = " -H \"Authorization: Bearer $LATCHWORK_TOKEN\"";

/// Three commands that work as printed; with tokens, an agent's is in `LATCHWORK_TOKEN`.
pub(super) fn commands(base: &str, has_tokens: bool) -> [String; 3] {
    let (any, agent) = match has_tokens {
        true => (TOKEN, TOKEN),
        false => ("", " -H 'Latchwork-Actor: agent:me'"),
    };
    [
        format!(
            "curl {base}/v1/orders{any} --json \
             '{{\"type\": \"greeting\", \"payload\": {{\"names\": [\"Ada\"]}}}}'"
        ),
        format!("curl {base}/v1/items/checkout{agent} --json '{{}}'"),
        // In quotes: some shells take the question mark for a pattern.
        format!("curl '{base}/v1/orders?include=itemsCount'{any}"),
    ]
}
