//! The order types of a server: the operator's, or a sample.

use std::path::Path;

use latchwork::work::OrderTypes;
use latchwork_server::types_of;

use super::sample;
use crate::exit::Failure;

/// The order types of a directory; without one, the sample.
pub(super) fn of(directory: Option<&Path>) -> Result<OrderTypes, Failure> {
    if let Some(directory) = directory {
        return Ok(types_of(directory)?);
    }
    let mut types = OrderTypes::new();
    types.add_dynamic(sample::order_type())?;
    Ok(types)
}

/// What to try, as the server says it when it starts.
pub(super) fn commands(declared: bool, types: &OrderTypes, base: &str, has_tokens: bool) -> String {
    let first = match has_tokens {
        true => {
            "Try it, in another terminal, with an agent's token (latchwork tokens create me --role agent) \
             in LATCHWORK_TOKEN"
        }
        false => "Try it, in another terminal",
    };
    if !declared {
        let commands = sample::commands(base, has_tokens).join("\n");
        return format!(
            "{first}: propose an order, lease its item as an agent, look at the orders.\n\n{commands}"
        );
    }
    let names: Vec<_> = types.iter().map(|known| known.name()).collect();
    let token = if has_tokens { sample::TOKEN } else { "" };
    format!(
        "Its order types are {}. {first}: what their orders carry.\n\ncurl {base}/v1/order-types{token}",
        names.join(", ")
    )
}
