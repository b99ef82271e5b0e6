//! Reading `latchwork.toml`, with the line of every value.

use std::collections::BTreeMap;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::{SETTINGS, Source, Value, wrong};
use crate::exit::{Exit, Failure};

/// The values of a file by their key.
pub(super) fn read(path: &Path) -> Result<BTreeMap<&'static str, Value>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let message = format!("{} cannot be read: {error}", path.display());
        Failure::new(Exit::Usage, "invalid_argument", message)
    })?;
    let reader = Reader { path, text: &text };
    let table = DeTable::parse(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        // Without the line's text: it may hold a password.
        reader.wrong(at, error.message())
    })?;
    let mut values = BTreeMap::new();
    reader.walk("", table.get_ref(), &mut values)?;
    Ok(values)
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn walk(
        &self,
        prefix: &str,
        table: &DeTable<'_>,
        values: &mut BTreeMap<&'static str, Value>,
    ) -> Result<(), Failure> {
        for (name, value) in table {
            let key = format!("{prefix}{}", name.get_ref());
            let at = name.span().start;
            let section = format!("{key}.");
            if SETTINGS.iter().any(|setting| setting.key.starts_with(&section)) {
                let DeValue::Table(inner) = value.get_ref() else {
                    return Err(self.wrong(at, &format!("{key} is a table: write [{key}]")));
                };
                self.walk(&section, inner, values)?;
                continue;
            }
            let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) else {
                let known: Vec<_> = SETTINGS.iter().map(|setting| setting.key).collect();
                let message = format!("there is no {key:?}; there are {}", known.join(", "));
                return Err(self.wrong(at, &message));
            };
            let text = match value.get_ref() {
                DeValue::String(text) => text.to_string(),
                DeValue::Integer(number) => {
                    let parsed = i64::from_str_radix(number.as_str(), number.radix());
                    parsed.map_err(|error| self.wrong(at, &format!("{key}: {error}")))?.to_string()
                }
                other => {
                    let found = other.type_str();
                    let message = format!("{key}: it is a text or a number, not a {found}");
                    return Err(self.wrong(at, &message));
                }
            };
            let source = Source::File { path: self.path.to_owned(), line: self.line_of(at) };
            values.insert(setting.key, Value { text, source });
        }
        Ok(())
    }

    fn wrong(&self, at: usize, message: &str) -> Failure {
        wrong(format!("{}:{}: {message}", self.path.display(), self.line_of(at)))
    }

    fn line_of(&self, at: usize) -> usize {
        self.text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
    }
}
