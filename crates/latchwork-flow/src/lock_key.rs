//! What to lock for a transition (F9).

use std::borrow::Cow;
use std::fmt::Write;

use latchwork_lock::Key;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{Error, ErrorKind, Result, State};

/// Says what to lock for a transition.
///
/// [`EntityKey`], [`TransitionKey`] and [`SnapshotKey`] are ready; closures are given to
/// [`StateMachineBuilder::lock_key_fn`](crate::StateMachineBuilder::lock_key_fn) and
/// [`entity_key_fn`](crate::StateMachineBuilder::entity_key_fn).
pub trait LockKeyProvider<S: State>: Send + Sync + 'static {
    /// The key of what must not be moved by two at once.
    ///
    /// # Errors
    /// When the state has no legal key. Never answer a made-up one: two states without an id are not
    /// the same entity.
    fn lock_key(&self, state: &S, delta: &S::Delta) -> Result<Key>;

    /// The same key before the state is known, of the entity's id and the delta alone: what
    /// [`transition_of`](crate::StateMachine::transition_of) needs, since it loads the state under
    /// the lock. None, the default: there is no such key, and a machine with a loader refuses it.
    fn entity_key(&self, entity: &str, delta: &S::Delta) -> Option<Result<Key>> {
        let _ = (entity, delta);
        None
    }

    /// Whether [`entity_key`](Self::entity_key) gives keys: asked when a machine is built.
    fn has_entity_keys(&self) -> bool {
        false
    }
}

impl<S, F> LockKeyProvider<S> for F
where
    S: State,
    F: Fn(&S, &S::Delta) -> Result<Key> + Send + Sync + 'static,
{
    fn lock_key(&self, state: &S, delta: &S::Delta) -> Result<Key> {
        self(state, delta)
    }
}

/// Keys that a closure makes of the entity's id and the delta.
pub(crate) struct EntityKeyFn<F>(pub(crate) F);

impl<S, F> LockKeyProvider<S> for EntityKeyFn<F>
where
    S: State,
    F: Fn(&str, &S::Delta) -> Result<Key> + Send + Sync + 'static,
{
    fn lock_key(&self, state: &S, delta: &S::Delta) -> Result<Key> {
        self.0(&id_of(state)?, delta)
    }

    fn entity_key(&self, entity: &str, delta: &S::Delta) -> Option<Result<Key>> {
        Some(self.0(entity, delta))
    }

    fn has_entity_keys(&self) -> bool {
        true
    }
}

/// What stands before the ready keys unless another is chosen.
pub const DEFAULT_KEY_PREFIX: &str = "flow:";

macro_rules! prefixed {
    ($name:ident) => {
        impl $name {
            /// With the prefix `flow:`.
            pub fn new() -> Self {
                Self::default()
            }

            /// With a prefix of your own.
            pub fn with_prefix(prefix: impl Into<Cow<'static, str>>) -> Self {
                $name { prefix: prefix.into() }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                $name { prefix: Cow::Borrowed(DEFAULT_KEY_PREFIX) }
            }
        }
    };
}

/// One transition of an entity at a time: `flow:entity:<id>`.
#[derive(Clone, Debug)]
pub struct EntityKey {
    prefix: Cow<'static, str>,
}
prefixed!(EntityKey);

impl<S: State> LockKeyProvider<S> for EntityKey {
    fn lock_key(&self, state: &S, _: &S::Delta) -> Result<Key> {
        self.key(&id_of(state)?)
    }

    fn entity_key(&self, entity: &str, _: &S::Delta) -> Option<Result<Key>> {
        Some(self.key(entity))
    }

    fn has_entity_keys(&self) -> bool {
        true
    }
}

impl EntityKey {
    fn key(&self, id: &str) -> Result<Key> {
        if id.is_empty() {
            return Err(lacks("id"));
        }
        Ok(Key::of_parts(&[&self.prefix, "entity:", id])?)
    }
}

/// One transition of a kind at a time, others of the same entity beside it:
/// `flow:entity:<id>:transition:<from>-><to>`.
#[derive(Clone, Debug)]
pub struct TransitionKey {
    prefix: Cow<'static, str>,
}
prefixed!(TransitionKey);

impl<S: State> LockKeyProvider<S> for TransitionKey {
    fn lock_key(&self, state: &S, delta: &S::Delta) -> Result<Key> {
        let id = id_of(state)?;
        let from = state.status().ok_or_else(|| lacks("status"))?;
        let to = S::target(delta).ok_or_else(|| lacks("target in its delta"))?;
        Ok(Key::of_parts(&[&self.prefix, "entity:", &id, ":transition:", &from, "->", &to])?)
    }
}

/// The very same change of the very same state at a time: `flow:snapshot:<hash>:<hash>`, hashes of
/// the state and the delta as canonical JSON.
#[derive(Clone, Debug)]
pub struct SnapshotKey {
    prefix: Cow<'static, str>,
}
prefixed!(SnapshotKey);

impl<S: State> LockKeyProvider<S> for SnapshotKey {
    fn lock_key(&self, state: &S, delta: &S::Delta) -> Result<Key> {
        let state = digest(state).map_err(Error::invalid_state)?;
        let delta = digest(delta).map_err(Error::invalid_delta)?;
        Ok(Key::of_parts(&[&self.prefix, "snapshot:", &state, ":", &delta])?)
    }
}

fn id_of<S: State>(state: &S) -> Result<Cow<'_, str>> {
    state.id().filter(|id| !id.is_empty()).ok_or_else(|| lacks("id"))
}

fn lacks(missing: &'static str) -> Error {
    ErrorKind::NoEntityId { missing }.into()
}

/// A hash of a value as canonical JSON.
pub(crate) fn digest(value: &impl Serialize) -> Result<String, String> {
    let value = serde_json::to_value(value)
        .map_err(|error| format!("it cannot be written as JSON: {error}"))?;
    let mut text = String::new();
    canonical(&value, &mut text);
    Ok(hex::encode(Sha256::digest(text.as_bytes())))
}

/// JSON without spaces and with sorted fields: the same value always gives the same text, whichever
/// order a map was in.
fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            out.push('{');
            for (number, (name, value)) in fields.into_iter().enumerate() {
                if number > 0 {
                    out.push(',');
                }
                canonical(&Value::String(name.clone()), out);
                out.push(':');
                canonical(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (number, item) in items.iter().enumerate() {
                if number > 0 {
                    out.push(',');
                }
                canonical(item, out);
            }
            out.push(']');
        }
        plain => {
            let _ = write!(out, "{plain}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JsonState;
    use serde_json::json;

    fn key(keys: impl LockKeyProvider<JsonState>, state: Value, delta: Value) -> Result<Key> {
        let state = JsonState::new(state).expect("an object");
        keys.lock_key(&state, &JsonState::delta(delta).expect("an object"))
    }

    #[test]
    fn f09_keys_are_as_the_design_spells_them() {
        let (state, delta) = (json!({"id": "o-1", "status": "draft"}), json!({"status": "done"}));
        let entity = key(EntityKey::new(), state.clone(), delta.clone()).expect("it has an id");
        assert_eq!(entity.as_str(), "flow:entity:o-1");
        let transition =
            key(TransitionKey::new(), state.clone(), delta.clone()).expect("all there");
        assert_eq!(transition.as_str(), "flow:entity:o-1:transition:draft->done");
        let other = key(EntityKey::with_prefix("shop/"), state, delta).expect("it has an id");
        assert_eq!(other.as_str(), "shop/entity:o-1");
    }

    #[test]
    fn f09_a_snapshot_is_of_values_not_of_their_order() {
        let one =
            key(SnapshotKey::new(), json!({"a": 1, "b": {"c": [1, "x"], "d": null}}), json!({}));
        let two =
            key(SnapshotKey::new(), json!({"b": {"d": null, "c": [1, "x"]}, "a": 1}), json!({}));
        let (one, two) = (one.expect("a key"), two.expect("a key"));
        assert_eq!(one, two);
        assert!(one.as_str().starts_with("flow:snapshot:"));
        assert_eq!(one.as_str().len(), "flow:snapshot:".len() + 64 + 1 + 64);
        let other = key(SnapshotKey::new(), json!({"a": 2}), json!({})).expect("a key");
        assert_ne!(one, other);
    }

    #[test]
    fn f09_a_state_without_an_id_has_no_key() {
        for state in [json!({}), json!({"id": ""}), json!({"id": null})] {
            let error = key(EntityKey::new(), state, json!({})).expect_err("no id");
            assert_eq!(error.code(), "no_entity_id");
        }
        let error = key(TransitionKey::new(), json!({"id": 1}), json!({"status": "x"}));
        assert!(error.expect_err("no status").to_string().contains("status"));
        let error = key(TransitionKey::new(), json!({"id": 1, "status": "x"}), json!({}));
        assert!(error.expect_err("no target").to_string().contains("target"));
    }

    #[test]
    fn f09_an_illegal_key_is_refused() {
        let error = key(EntityKey::new(), json!({"id": "a\nb"}), json!({})).expect_err("a newline");
        assert_eq!(error.code(), "invalid_key");
    }
}
