//! The order types of a server: the operator's, or a sample.

use std::net::SocketAddr;
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
pub(super) fn commands(declared: bool, types: &OrderTypes, address: SocketAddr) -> String {
    if !declared {
        let commands = sample::commands(address).join("\n");
        return format!(
            "Try it, in another terminal: propose an order, lease its item as an agent, look at the orders.\n\n{commands}"
        );
    }
    let names: Vec<_> = types.iter().map(|known| known.name()).collect();
    format!(
        "Its order types are {}. What their orders carry:\n\ncurl http://{address}/v1/order-types",
        names.join(", ")
    )
}
