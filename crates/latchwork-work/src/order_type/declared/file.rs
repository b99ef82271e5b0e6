//! A file of declarations, with the place of each mistake.

use std::io::Read as _;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

use crate::{Error, ErrorKind, Result};

/// The largest file of declarations.
const MAX_FILE: u64 = 1 << 20;

/// The text of a file of declarations. Mistakes in it are told with file, line and field.
#[derive(Clone, Debug)]
pub struct DeclarationFile {
    name: Arc<str>,
    text: Arc<str>,
}

impl DeclarationFile {
    /// A file of this name with this text.
    pub fn new(name: impl Into<Arc<str>>, text: impl Into<Arc<str>>) -> Self {
        DeclarationFile { name: name.into(), text: text.into() }
    }

    /// Reads a file of at most a mebibyte.
    ///
    /// # Errors
    /// [`InvalidDeclaration`](ErrorKind::InvalidDeclaration) where it cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let refused = |reason: String| {
            let file = name.clone();
            Error::from(ErrorKind::InvalidDeclaration {
                file,
                line: 1,
                field: String::new(),
                reason,
            })
        };
        let mut text = String::new();
        let file = std::fs::File::open(path)
            .map_err(|error| refused(format!("it cannot be read: {error}")))?;
        let read = file.take(MAX_FILE + 1).read_to_string(&mut text);
        read.map_err(|error| refused(format!("it cannot be read: {error}")))?;
        if text.len() as u64 > MAX_FILE {
            return Err(refused(format!("it is larger than {MAX_FILE} bytes")));
        }
        Ok(Self::new(name, text))
    }

    /// Its name, as errors tell it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it says.
    ///
    /// # Errors
    /// [`InvalidDeclaration`](ErrorKind::InvalidDeclaration) with line and field.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T> {
        toml::from_str(&self.text).map_err(|error| {
            // What is missing in the file as a whole has no place.
            let span = error.span().unwrap_or(0..0);
            let field = if span.is_empty() { String::new() } else { self.field_at(&span) };
            self.at(&span, field, error.message().replace('\n', "; "))
        })
    }

    /// A mistake in a field, such as `review.approvals`. The line is that of the field, or of the
    /// nearest one around it that is written.
    pub fn mistake(&self, field: &str, reason: impl Into<String>) -> Error {
        let span = self.span_of(field).unwrap_or(0..0);
        self.at(&span, field.to_owned(), reason.into())
    }

    fn at(&self, span: &Range<usize>, field: String, reason: String) -> Error {
        let before = self.text.as_bytes().iter().take(span.start);
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        ErrorKind::InvalidDeclaration { file: self.name.to_string(), line, field, reason }.into()
    }

    /// The field whose key or value is at a place: of all that contain it, the smallest.
    fn field_at(&self, span: &Range<usize>) -> String {
        let mut best: Option<(usize, String)> = None;
        if let Ok(table) = DeTable::parse(&self.text) {
            walk(table.get_ref(), "", &mut |path, range| {
                let contains = range.start <= span.start && span.end <= range.end;
                let size = range.end - range.start;
                if contains && best.as_ref().is_none_or(|(smallest, _)| size <= *smallest) {
                    best = Some((size, path.to_owned()));
                }
            });
        }
        best.map(|(_, path)| path).unwrap_or_default()
    }

    fn span_of(&self, field: &str) -> Option<Range<usize>> {
        let table = DeTable::parse(&self.text).ok()?;
        let mut best: Option<(usize, Range<usize>)> = None;
        walk(table.get_ref(), "", &mut |path, range| {
            let around =
                field == path || field.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
            if around && best.as_ref().is_none_or(|(length, _)| path.len() > *length) {
                best = Some((path.len(), range.clone()));
            }
        });
        best.map(|(_, span)| span)
    }
}

/// Visits the key and the value of each field, with its path.
fn walk(table: &DeTable<'_>, path: &str, visit: &mut impl FnMut(&str, &Range<usize>)) {
    for (key, value) in table.iter() {
        let path = match path {
            "" => key.get_ref().to_string(),
            path => format!("{path}.{}", key.get_ref()),
        };
        visit(&path, &key.span());
        within(value, &path, visit);
    }
}

fn within(
    value: &toml::Spanned<DeValue<'_>>,
    path: &str,
    visit: &mut impl FnMut(&str, &Range<usize>),
) {
    visit(path, &value.span());
    match value.get_ref() {
        DeValue::Table(table) => walk(table, path, visit),
        DeValue::Array(list) => {
            for (n, value) in list.iter().enumerate() {
                within(value, &format!("{path}.{n}"), visit);
            }
        }
        _ => {}
    }
}
