//! JSON as one text: the same value always gives the same bytes, so that a digest can name it.

use std::fmt::Write;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// JSON without spaces and with sorted fields, whichever order a map was in.
pub(crate) fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

/// SHA-256 of a text, in lower-case hex.
pub(crate) fn sha256(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            out.push('{');
            for (number, (name, value)) in fields.into_iter().enumerate() {
                if number > 0 {
                    out.push(',');
                }
                let _ = write!(out, "{}:", Value::String(name.clone()));
                write(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (number, item) in items.iter().enumerate() {
                if number > 0 {
                    out.push(',');
                }
                write(item, out);
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
    use serde_json::json;

    use super::*;

    #[test]
    fn w17_the_same_value_gives_the_same_text() {
        let one: Value =
            serde_json::from_str(r#"{"b": [1, {"z": null, "a": "é\n"}], "a": 1.5}"#).expect("JSON");
        assert_eq!(canonical(&one), r#"{"a":1.5,"b":[1,{"a":"é\n","z":null}]}"#);
        assert_eq!(canonical(&json!([])), "[]");
        assert_eq!(
            sha256("{}"),
            "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
        );
    }
}
