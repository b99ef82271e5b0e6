//! What moves: an entity's state, and the change that is wanted.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, Result};

/// An entity's state. Immutable: a change makes a new one.
///
/// How a delta is merged is yours to say, in [`with`](Self::with). The machine never merges by
/// itself: actions return new states, and [`MergeDelta`](crate::MergeDelta) is the action for the
/// common case.
///
/// ```
/// use latchwork_flow::State;
/// use serde::{Deserialize, Serialize};
/// use std::borrow::Cow;
///
/// #[derive(Clone, Serialize, Deserialize)]
/// struct Order { id: u64, status: String, note: String }
///
/// #[derive(Clone, Default, Serialize, Deserialize)]
/// struct Change { status: Option<String>, note: Option<String> }
///
/// impl State for Order {
///     type Delta = Change;
///     fn with(&self, change: &Change) -> Self {
///         let mut order = self.clone();
///         order.status = change.status.clone().unwrap_or(order.status);
///         order.note = change.note.clone().unwrap_or(order.note);
///         order
///     }
///     fn id(&self) -> Option<Cow<'_, str>> {
///         Some(self.id.to_string().into())
///     }
/// }
/// ```
pub trait State: Clone + Send + Sync + Stored + 'static {
    /// The change that is wanted: only what changes.
    type Delta: Clone + Send + Sync + Stored + 'static;

    /// The state with this change in it.
    #[must_use]
    fn with(&self, delta: &Self::Delta) -> Self;

    /// Names the entity, for lock keys and listings. None, the default: it has no name, and the
    /// ready lock keys refuse it.
    fn id(&self) -> Option<Cow<'_, str>> {
        None
    }

    /// Where the entity stands, for [`TransitionKey`](crate::TransitionKey) and
    /// [`LegalMove`](crate::LegalMove).
    fn status(&self) -> Option<Cow<'_, str>> {
        None
    }

    /// Where a delta would bring it, for the same.
    fn target(delta: &Self::Delta) -> Option<Cow<'_, str>> {
        let _ = delta;
        None
    }
}

/// What can be stored: all that serde can write and read. There is nothing to implement but its two
/// derives.
///
/// A trait of its own, because for a missing derive the compiler then names `Serialize` and
/// `Deserialize` with serde's advice to derive them. With those two as bounds of [`State`] it called
/// `State` a sealed trait.
///
/// ```compile_fail
/// #[derive(Clone)] // and neither Serialize nor Deserialize
/// struct Order { id: u64 }
///
/// impl latchwork_flow::State for Order {
///     type Delta = ();
///     fn with(&self, _: &()) -> Self {
///         self.clone()
///     }
/// }
/// ```
pub trait Stored: Serialize + DeserializeOwned {}

impl<T: Serialize + DeserializeOwned> Stored for T {}

/// A state that is any JSON object, for those who want a map.
///
/// A delta is merged as RFC 7396 says: objects merge, `null` removes, anything else replaces. The
/// entity's id is the field `id` (text or a whole number), its status the field `status`.
///
/// ```
/// use latchwork_flow::{JsonState, State};
/// use serde_json::json;
///
/// let order = JsonState::new(json!({"id": "ORD-1", "status": "draft"}))?;
/// let delta = JsonState::delta(json!({"status": "published", "by": "ana"}))?;
/// let moved = order.with(&delta);
/// assert_eq!(moved.get("status"), Some(&json!("published")));
/// assert_eq!(moved.id().as_deref(), Some("ORD-1"));
/// # Ok::<(), latchwork_flow::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JsonState(Map<String, Value>);

/// The wanted change of a [`JsonState`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JsonDelta(Map<String, Value>);

impl JsonState {
    /// The state of a JSON object.
    ///
    /// # Errors
    /// [`InvalidState`](crate::ErrorKind::InvalidState) for any other JSON.
    pub fn new(value: Value) -> Result<Self> {
        object(value).map(JsonState).map_err(Error::invalid_state)
    }

    /// The delta of a JSON object.
    ///
    /// # Errors
    /// [`InvalidDelta`](crate::ErrorKind::InvalidDelta) for any other JSON.
    pub fn delta(value: Value) -> Result<JsonDelta> {
        object(value).map(JsonDelta).map_err(Error::invalid_delta)
    }

    /// One of its fields.
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field)
    }

    /// All of its fields.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }
}

impl JsonDelta {
    /// One of its fields.
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field)
    }

    /// All of its fields.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }
}

impl State for JsonState {
    type Delta = JsonDelta;

    fn with(&self, delta: &JsonDelta) -> Self {
        let mut fields = self.0.clone();
        merge(&mut fields, &delta.0);
        JsonState(fields)
    }

    fn id(&self) -> Option<Cow<'_, str>> {
        match self.get("id")? {
            Value::String(text) if !text.is_empty() => Some(Cow::Borrowed(text)),
            // Of 1 and 1.0 nobody could tell whether they are one entity.
            Value::Number(number) if !number.is_f64() => Some(Cow::Owned(number.to_string())),
            _ => None,
        }
    }

    fn status(&self) -> Option<Cow<'_, str>> {
        self.get("status")?.as_str().map(Cow::Borrowed)
    }

    fn target(delta: &JsonDelta) -> Option<Cow<'_, str>> {
        delta.get("status")?.as_str().map(Cow::Borrowed)
    }
}

/// RFC 7396.
fn merge(into: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (name, change) in patch {
        match change {
            Value::Null => {
                into.remove(name);
            }
            Value::Object(change) => {
                let slot = into.entry(name.clone()).or_insert(Value::Null);
                if !slot.is_object() {
                    *slot = Value::Object(Map::new());
                }
                if let Value::Object(inner) = slot {
                    merge(inner, change);
                }
            }
            other => {
                into.insert(name.clone(), other.clone());
            }
        }
    }
}

fn object(value: Value) -> Result<Map<String, Value>, String> {
    let found = match value {
        Value::Object(fields) => return Ok(fields),
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
    };
    Err(format!("it is {found}, and a JSON object is wanted"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The examples of RFC 7396, appendix A, whose results are objects.
    #[test]
    fn deltas_merge_as_the_rfc_says() {
        for (state, delta, merged) in [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (json!({"a":"b","b":"c"}), json!({"a":null}), json!({"b":"c"})),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (json!({"a":{"b":"c"}}), json!({"a":{"b":"d","c":null}}), json!({"a":{"b":"d"}})),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!({}), json!({"a":{"bb":{"ccc":null}}}), json!({"a":{"bb":{}}})),
        ] {
            let out = JsonState::new(state).expect("an object");
            let out = out.with(&JsonState::delta(delta).expect("an object"));
            assert_eq!(out, JsonState::new(merged).expect("an object"));
        }
    }

    #[test]
    fn only_objects_are_states_and_deltas() {
        for value in [json!(null), json!([1]), json!("text"), json!(7), json!(true)] {
            let state = JsonState::new(value.clone()).expect_err("no object");
            assert_eq!(state.code(), "invalid_state");
            let delta = JsonState::delta(value).expect_err("no object");
            assert_eq!(delta.code(), "invalid_delta");
        }
    }

    #[test]
    fn an_id_is_text_or_a_whole_number() {
        let id = |id: Value| {
            JsonState::new(json!({"id": id})).expect("an object").id().map(Cow::into_owned)
        };
        assert_eq!(id(json!("a")).as_deref(), Some("a"));
        assert_eq!(id(json!(7)).as_deref(), Some("7"));
        for none in [json!(""), json!(null), json!(1.5), json!([1]), json!(true)] {
            assert_eq!(id(none), None);
        }
    }
}
