//! What an order changes: before, after, and the changes between them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::names::named;

/// What apply changed, or what it would change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Diff {
    /// What was there.
    #[serde(default)]
    pub before: Value,
    /// What is there now.
    #[serde(default)]
    pub after: Value,
    /// From before to after, as a JSON Patch (RFC 6902).
    #[serde(default)]
    pub changes: Vec<Change>,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
}

named! {
    /// What a [`Change`] does.
    pub enum ChangeOp ("patch operation") {
        /// A value appears.
        Add = "add",
        /// A value disappears.
        Remove = "remove",
        /// A value takes the place of another.
        Replace = "replace",
    }
}

/// One operation of a JSON Patch (RFC 6902).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// What is done.
    pub op: ChangeOp,
    /// Where, as a JSON pointer (RFC 6901).
    pub path: String,
    /// The new value; none where one is removed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub value: Option<Value>,
}

/// Tells a value of `null` from no value.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl Diff {
    /// The changes between two values. Elements of arrays are compared place by place.
    pub fn between(before: Value, after: Value) -> Self {
        let mut changes = Vec::new();
        compare(&before, &after, &mut String::new(), &mut changes);
        Diff { before, after, changes, summary: None }
    }

    /// That nothing changed, or that it is not told.
    pub fn empty() -> Self {
        Self::default()
    }

    /// A sentence for people.
    #[must_use]
    pub fn summary(mut self, summary: impl Into<String>) -> Self {
        self.summary = Some(summary.into());
        self
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changes as people read them, one a line: `/title: "a" → "b"`.
    pub fn readable(&self) -> Vec<String> {
        let line = |change: &Change| {
            let path = if change.path.is_empty() { "all of it" } else { &change.path };
            let old = self.before.pointer(&change.path);
            let new = change.value.as_ref();
            match (change.op, old, new) {
                (ChangeOp::Replace, Some(old), Some(new)) => {
                    format!("{path}: {} → {}", shown(old), shown(new))
                }
                (ChangeOp::Remove, Some(old), _) => format!("{path}: removed {}", shown(old)),
                (ChangeOp::Remove, None, _) => format!("{path}: removed"),
                (_, _, Some(new)) => format!("{path}: added {}", shown(new)),
                (_, _, None) => format!("{path}: changed"),
            }
        };
        self.changes.iter().map(line).collect()
    }
}

/// So many characters of a value are shown in a line.
const SHOWN: usize = 200;

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn compare(before: &Value, after: &Value, path: &mut String, changes: &mut Vec<Change>) {
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            for name in old.keys().filter(|name| !new.contains_key(*name)) {
                within(path, name, |path| changes.push(change(ChangeOp::Remove, path, None)));
            }
            for (name, value) in new {
                within(path, name, |path| match old.get(name) {
                    None => changes.push(change(ChangeOp::Add, path, Some(value))),
                    Some(old) => compare(old, value, path, changes),
                });
            }
        }
        (Value::Array(old), Value::Array(new)) => {
            for (n, (old, new)) in old.iter().zip(new).enumerate() {
                within(path, &n.to_string(), |path| compare(old, new, path, changes));
            }
            // From the end, so that no removal moves what another one names.
            for n in (new.len()..old.len()).rev() {
                let remove = |path: &mut String| changes.push(change(ChangeOp::Remove, path, None));
                within(path, &n.to_string(), remove);
            }
            for (n, value) in new.iter().enumerate().skip(old.len()) {
                let add =
                    |path: &mut String| changes.push(change(ChangeOp::Add, path, Some(value)));
                within(path, &n.to_string(), add);
            }
        }
        (old, new) if old == new => {}
        (_, new) => changes.push(change(ChangeOp::Replace, path, Some(new))),
    }
}

fn change(op: ChangeOp, path: &str, value: Option<&Value>) -> Change {
    Change { op, path: path.to_owned(), value: value.cloned() }
}

fn within(path: &mut String, name: &str, run: impl FnOnce(&mut String)) {
    let length = path.len();
    path.push('/');
    path.push_str(&name.replace('~', "~0").replace('/', "~1"));
    run(path);
    path.truncate(length);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// A reader of RFC 6902, as far as a diff goes.
    fn patch(mut value: Value, changes: &[Change]) -> Value {
        for change in changes {
            let Some((parent, last)) = change.path.rsplit_once('/') else {
                value = change.value.clone().expect("a value");
                continue;
            };
            let last = last.replace("~1", "/").replace("~0", "~");
            let new = change.value.clone();
            match value.pointer_mut(parent).expect("a place") {
                Value::Object(fields) => match new {
                    Some(new) => drop(fields.insert(last, new)),
                    None => drop(fields.remove(&last).expect("it is there")),
                },
                Value::Array(list) => {
                    let at: usize = last.parse().expect("an index");
                    match (change.op, new) {
                        (ChangeOp::Add, Some(new)) => list.insert(at, new),
                        (ChangeOp::Replace, Some(new)) => list[at] = new,
                        _ => drop(list.remove(at)),
                    }
                }
                other => panic!("{} is in {other}", change.path),
            }
        }
        value
    }

    fn value() -> impl Strategy<Value = Value> {
        let plain = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..3).prop_map(Value::from),
            "[a~/]{0,2}".prop_map(Value::from),
        ];
        plain.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map("[a-c~/]{0,2}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn w07_the_changes_lead_from_before_to_after(before in value(), after in value()) {
            let diff = Diff::between(before.clone(), after.clone());
            prop_assert_eq!(patch(before.clone(), &diff.changes), after.clone());
            prop_assert_eq!(diff.is_empty(), before == after);
            let text = serde_json::to_string(&diff).expect("JSON");
            prop_assert_eq!(serde_json::from_str::<Diff>(&text).expect("its own form"), diff);
        }
    }

    #[test]
    fn w07_changes_are_readable() {
        let diff = Diff::between(
            json!({"title": "a", "tags": ["x", "y"], "old": 1}),
            json!({"title": "b", "tags": ["x"], "new": null}),
        );
        let expected = [
            "/old: removed 1",
            "/new: added null",
            "/tags/1: removed \"y\"",
            "/title: \"a\" → \"b\"",
        ];
        let mut lines = diff.readable();
        lines.sort();
        let mut expected = expected.map(str::to_owned).to_vec();
        expected.sort();
        assert_eq!(lines, expected);
        let long = Diff::between(json!(null), json!("x".repeat(1_000)));
        assert!(long.readable()[0].chars().count() < 300);
    }
}
