//! A JSON Schema in a declaration.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// A JSON Schema: a table, or a text of JSON where TOML cannot say it (`null`).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SchemaText(pub(super) Value);

impl Serialize for SchemaText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Value::Object(fields) if fields.values().all(can_be_toml) => {
                fields.serialize(serializer)
            }
            Value::Bool(any) => any.serialize(serializer),
            other => serializer.collect_str(other),
        }
    }
}

/// Whether TOML has such a value: it has no `null`, and integers of 64 bits with a sign.
fn can_be_toml(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Number(number) => number.is_i64() || number.is_f64(),
        Value::Array(list) => list.iter().all(can_be_toml),
        Value::Object(fields) => fields.values().all(can_be_toml),
        Value::Bool(_) | Value::String(_) => true,
    }
}

impl<'de> Deserialize<'de> for SchemaText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wrong = |reason: String| serde::de::Error::custom(reason);
        let schema = match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => serde_json::from_str(&text)
                .map_err(|error| wrong(format!("the text is no JSON: {error}")))?,
            other => json(other).map_err(wrong)?,
        };
        match schema {
            Value::Object(_) | Value::Bool(_) => Ok(SchemaText(schema)),
            _ => Err(wrong("a JSON Schema is a table, or a text of JSON".to_owned())),
        }
    }
}

/// The same value as JSON; what JSON does not have is refused and not changed.
fn json(value: toml::Value) -> Result<Value, String> {
    Ok(match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Boolean(value) => value.into(),
        toml::Value::Float(number) => serde_json::Number::from_f64(number)
            .ok_or_else(|| format!("JSON has no number {number}"))?
            .into(),
        toml::Value::Datetime(time) => {
            return Err(format!("JSON has no dates: write {time} in quotes"));
        }
        toml::Value::Array(list) => list.into_iter().map(json).collect::<Result<_, _>>()?,
        toml::Value::Table(fields) => {
            let field = |(name, value)| Ok((name, json(value)?));
            Value::Object(fields.into_iter().map(field).collect::<Result<Map<_, _>, String>>()?)
        }
    })
}
