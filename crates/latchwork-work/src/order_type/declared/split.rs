//! How a declared type splits a payload into items.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Concurrency, PlannedItem, TypeError};

/// Which list of a payload is split, and what an item gets of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Split {
    /// A JSON pointer to a list of the payload.
    pub(super) list: String,
    /// So many elements an item has, as a list; without it each element is an item of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) batch: Option<u32>,
    /// The field of the input that has the element, or the batch; without it the element is the input.
    #[serde(default, rename = "as", skip_serializing_if = "Option::is_none")]
    pub(super) field: Option<String>,
    /// Fields of the payload that each input has, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) with: Vec<String>,
}

impl Split {
    /// What is wrong with it: the field, and why.
    pub(super) fn problem(&self) -> Option<(&'static str, &'static str)> {
        if !self.list.is_empty() && !self.list.starts_with('/') {
            Some(("split.list", "is no JSON pointer: write \"/texts\" for the field texts"))
        } else if self.batch == Some(0) {
            Some(("split.batch", "is zero: an item could never have an element"))
        } else if !self.with.is_empty() && self.field.is_none() {
            Some(("split.with", "needs split.as, the field that has the element itself"))
        } else if self.field.as_ref().is_some_and(|field| self.with.contains(field)) {
            Some(("split.with", "names the field of split.as"))
        } else {
            None
        }
    }

    pub(super) fn plan(&self, payload: &Value) -> Result<Vec<PlannedItem<Value>>, TypeError> {
        let Some(list) = payload.pointer(&self.list).and_then(Value::as_array) else {
            return Err(TypeError::invalid(&self.list, "list", "a list is expected here"));
        };
        let item = |element: Value| PlannedItem::new(self.input(payload, element));
        Ok(match self.batch {
            None => list.iter().cloned().map(item).collect(),
            Some(size) => {
                let size = usize::try_from(size).unwrap_or(usize::MAX).max(1);
                list.chunks(size).map(|batch| item(Value::from(batch))).collect()
            }
        })
    }

    fn input(&self, payload: &Value, element: Value) -> Value {
        let Some(field) = &self.field else { return element };
        let shared = self.with.iter().filter_map(|name| Some((name, payload.get(name)?)));
        let mut input: Map<_, _> =
            shared.map(|(name, value)| (name.clone(), value.clone())).collect();
        input.insert(field.clone(), element);
        Value::Object(input)
    }
}

/// A limit that items share whose inputs have the same value in a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SharedLimit {
    /// A JSON pointer to a field of the input. An item without it has no such limit.
    pub(super) field: String,
    /// What stands before the field's value in the key, such as `repo:`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) prefix: String,
    /// How many of them may be leased at a time; one unless told.
    #[serde(default = "one")]
    pub(super) limit: u32,
    /// Whether an item that waits for its retry holds back those behind it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) ordered: bool,
}

fn one() -> u32 {
    1
}

impl SharedLimit {
    /// What is wrong with it: the field, and why.
    pub(super) fn problem(&self) -> Option<(&'static str, &'static str)> {
        if !self.field.is_empty() && !self.field.starts_with('/') {
            Some(("concurrency.field", "is no JSON pointer: write \"/repo\" for the field repo"))
        } else if self.limit == 0 {
            Some(("concurrency.limit", "is zero: an item could never be leased"))
        } else if self.ordered && self.limit != 1 {
            Some(("concurrency.limit", "must be one where items are ordered"))
        } else {
            None
        }
    }

    /// The limit of an item with this input.
    pub(super) fn of(&self, input: &Value) -> Result<Option<Concurrency>, TypeError> {
        let value = match input.pointer(&self.field) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(text)) => text.clone(),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
            Some(_) => {
                let message = "a text or a number is expected here: items with the same one are limited together";
                return Err(TypeError::invalid(&self.field, "concurrency", message));
            }
        };
        let key = format!("{}{value}", self.prefix);
        // Checked here, where it is the payload that is wrong and not the type.
        if let Err(error) = latchwork_lock::Key::new(key.as_str()) {
            return Err(TypeError::invalid(&self.field, "concurrency", error.to_string()));
        }
        Ok(Some(Concurrency { key, limit: self.limit, ordered: self.ordered }))
    }
}
