//! Which field of a JSON text is wrong, by the place that serde names.
//!
//! What serde says may quote a value, and the value may be a token. So only the place is taken from
//! it, and a name of a field that is missing, which serde has from the program and not from the text.

use serde_json::Error;

/// Names the field of `text` at which reading it failed, without any value of it.
pub(crate) fn field_at(text: &str, error: &Error) -> Option<String> {
    let mut open = open_at(text, error.line(), error.column());
    let message = error.to_string();
    if let Some(rest) = message.strip_prefix("missing field `") {
        // It is told at the end of its object, whose last field is not to blame.
        open.pop();
        open.push(rest.split('`').next().map(str::to_owned));
    }
    let path: Vec<_> = open.into_iter().flatten().collect();
    (!path.is_empty()).then(|| path.join("."))
}

/// Whether a field is missing, and not of the wrong shape.
pub(crate) fn is_missing(error: &Error) -> bool {
    error.to_string().starts_with("missing field `")
}

/// The objects and arrays that enclose a place, from the outermost on, each with the field that is
/// being read in it.
fn open_at(text: &str, line: usize, column: usize) -> Vec<Option<String>> {
    let lines = text.split_inclusive('\n').take(line.saturating_sub(1));
    let end = lines.map(str::len).sum::<usize>().saturating_add(column).min(text.len());
    let bytes = text.as_bytes();
    let mut open: Vec<Option<String>> = Vec::new();
    let (mut at, mut is_name) = (0, false);
    while at < end {
        match bytes[at] {
            b'{' => {
                open.push(None);
                is_name = true;
            }
            b'[' => {
                open.push(None);
                is_name = false;
            }
            // The error of a whole object is placed at its last character.
            b'}' | b']' if at + 1 < end => {
                open.pop();
            }
            b',' => {
                let in_object = open.last().is_some_and(Option::is_some);
                if in_object {
                    open.pop();
                    open.push(None);
                }
                is_name = in_object;
            }
            b'"' => {
                let begin = at + 1;
                at = begin;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                if std::mem::take(&mut is_name)
                    && let Some(last) = open.last_mut()
                {
                    *last = text.get(begin..at.min(text.len())).map(str::to_owned);
                }
            }
            _ => {}
        }
        at += 1;
    }
    open
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only reading it matters")]
    struct Outer {
        name: String,
        inner: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only reading it matters")]
    struct Inner {
        #[serde(default)]
        other: Option<String>,
        count: u32,
    }

    fn field(text: &str) -> Option<String> {
        field_at(text, &serde_json::from_str::<Outer>(text).expect_err("it is wrong"))
    }

    #[test]
    fn the_field_is_named_and_no_value_is() {
        let told = |text| field(text).expect("there is one");
        assert_eq!(told(r#"{"inner":[]}"#), "name");
        assert_eq!(told(r#"{"name":5,"inner":[]}"#), "name");
        assert_eq!(told(r#"{"name":"secret","inner":7}"#), "inner");
        assert_eq!(told(r#"{"name":"a\"b","inner":[{"other":"x"}]}"#), "inner.count");
        assert_eq!(
            told("{\"name\":\"a\",\n \"inner\":[{\"count\":1},{\"count\":\"secret\"}]}"),
            "inner.count"
        );
        assert_eq!(told(r#"{"name":"a","inner":[{"other":["x"],"count":1}]}"#), "inner.other");
    }

    #[test]
    fn no_text_makes_it_panic() {
        for text in ["", "{", "\"", "{\"a", "[[[", "}}}", "{\"name\":\"\\", "{\"ä\":\"ö", "\n\n{"]
        {
            field(text);
        }
    }
}
