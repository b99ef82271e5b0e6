//! Inputs of the latest leases of this process.
//!
//! A submission is validated against its item's input, which never changes. Who submits is mostly the
//! process that leased, so it keeps the inputs of its latest leases and need not read them again. Nothing
//! else is decided by what is kept: whether the lease still stands, the store says.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use serde_json::Value;

use crate::{Lease, LeaseId};

/// So many inputs are kept.
const MOST: usize = 256;

/// Larger inputs are not kept, in bytes.
const LARGEST: usize = 64 << 10;

/// What a lease was given.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) order_type: String,
    pub(super) agent: String,
    pub(super) input: Value,
}

/// The inputs of the latest leases.
#[derive(Default)]
pub(crate) struct Inputs(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    by_lease: HashMap<LeaseId, Given>,
    oldest_first: VecDeque<LeaseId>,
}

impl Inputs {
    pub(super) fn keep<'l>(&self, leases: impl IntoIterator<Item = &'l Lease>) {
        let mut kept = self.0.lock();
        for lease in leases.into_iter().filter(|lease| size(&lease.input) <= LARGEST) {
            let (order_type, agent) = (lease.order_type.clone(), lease.agent.clone());
            let given = Given { order_type, agent, input: lease.input.clone() };
            if kept.by_lease.insert(lease.id, given).is_none() {
                kept.oldest_first.push_back(lease.id);
            }
        }
        while kept.oldest_first.len() > MOST {
            if let Some(oldest) = kept.oldest_first.pop_front() {
                kept.by_lease.remove(&oldest);
            }
        }
    }

    /// What a lease of an agent was given.
    pub(super) fn of(&self, lease: LeaseId, agent: &str) -> Option<Given> {
        self.0.lock().by_lease.get(&lease).filter(|given| given.agent == agent).cloned()
    }
}

/// About as many bytes as it has.
fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(|value| 8 + size(value)).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| 8 + key.len() + size(value)).sum(),
    }
}
