//! Order types that are declared in a file.

mod document;
mod duration;
mod file;
mod schema;
mod split;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde_json::Value;

use self::document::{Document, PLAIN_FIELDS};
pub use self::duration::DurationText;
pub use self::file::DeclarationFile;
use self::schema::SchemaText;
use super::schema::Schema;
use super::{Appliers, DynamicOrderType, PlannedItem, TypeSettings};
use crate::{Error, Result};

/// An order type from a TOML file, so that nobody needs Rust to have one.
///
/// ```
/// use latchwork_work::{Appliers, DeclaredOrderType, OrderTypes};
///
/// let text = r#"
/// name = "translation"
/// lease_ttl = "5m"
/// failure = { quorum = 2 }
///
/// [payload]
/// type = "object"
/// required = ["texts", "into"]
///
/// [result]
/// type = "object"
/// required = ["text"]
///
/// [split]            # an item for each text; without this the order is one item
/// list = "/texts"    # with `batch = 10` one for ten of them
/// as = "text"
/// with = ["into"]    # {"text": …, "into": …}
///
/// [review]
/// approvals = 2
/// deadline = { after = "2 days", then = { escalate = "lead" } }
/// "#;
/// let mut types = OrderTypes::new();
/// types.add_declared(DeclaredOrderType::parse("translation.toml", text)?, &Appliers::new())?;
///
/// let error = DeclaredOrderType::parse("a.toml", "name = 'a'\nlease_tll = '5m'").unwrap_err();
/// assert!(error.to_string().starts_with("a.toml:2: lease_tll: unknown field"));
/// # Ok::<(), latchwork_work::Error>(())
/// ```
///
/// The names of the settings are those of [`TypeSettings`]; `[apply] applier` names what makes the
/// changes, one of [`Appliers`].
#[derive(Clone, Debug)]
pub struct DeclaredOrderType {
    document: Document,
    settings: TypeSettings,
    file: DeclarationFile,
}

impl DeclaredOrderType {
    /// Reads a file.
    ///
    /// # Errors
    /// [`InvalidDeclaration`](crate::ErrorKind::InvalidDeclaration) with line and field, also where the file
    /// cannot be read.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        Self::check(DeclarationFile::open(path.as_ref())?)
    }

    /// Reads the text of a file; the file's name is for the errors.
    ///
    /// # Errors
    /// [`InvalidDeclaration`](crate::ErrorKind::InvalidDeclaration) with line and field.
    pub fn parse(file: &str, text: &str) -> Result<Self> {
        Self::check(DeclarationFile::new(file, text))
    }

    fn check(file: DeclarationFile) -> Result<Self> {
        let document: Document = file.read()?;
        let settings = document.settings();
        super::registry::legal_name(&document.name).map_err(|why| file.mistake("name", why))?;
        let problem = super::registry::problem(&settings)
            .or_else(|| document.split.as_ref().and_then(split::Split::problem))
            .or_else(|| document.concurrency.as_ref().and_then(split::SharedLimit::problem));
        if let Some((field, why)) = problem {
            return Err(file.mistake(field, format!("it {why}")));
        }
        let schemas = [
            ("payload", &document.payload),
            ("input", &document.input),
            ("result", &document.result),
        ];
        for (field, schema) in schemas {
            check_schema(&file, field, schema.as_ref())?;
        }
        for (key, schema) in document.parts.iter().flat_map(|parts| parts.schemas.iter().flatten())
        {
            check_schema(&file, &format!("parts.schemas.{key}"), Some(schema))?;
        }
        let rule = document.review.as_ref().and_then(|review| review.auto_approve.as_ref());
        check_schema(&file, "review.auto_approve.schema", rule.map(|rule| &rule.schema))?;
        Ok(DeclaredOrderType { document, settings, file })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.document.name
    }

    /// The version of its schemas.
    pub fn version(&self) -> u32 {
        self.document.version
    }

    /// How its orders are run.
    pub fn settings(&self) -> &TypeSettings {
        &self.settings
    }

    /// The name of what makes the changes; none where an order changes nothing but its own state.
    pub fn applier(&self) -> Option<&str> {
        self.document.apply.as_ref()?.applier.as_deref()
    }

    /// The file that it was read from.
    pub fn file(&self) -> &DeclarationFile {
        &self.file
    }

    /// The declaration as TOML. Comments and the order of the file are not kept.
    pub fn to_toml(&self) -> String {
        // Every field was read from TOML, or is one that TOML has.
        toml::to_string(&self.document).unwrap_or_default()
    }

    pub(super) fn wrong(&self, field: &str, reason: impl Into<String>) -> Error {
        self.file.mistake(field, reason)
    }

    /// The same in the form that a registry takes.
    pub(super) fn order_type(self, appliers: &Appliers) -> Result<DynamicOrderType> {
        let applier = self.applier().map(|name| {
            appliers.get(name).ok_or_else(|| {
                let known: Vec<_> = appliers.names().collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                self.wrong(
                    "apply.applier",
                    format!("there is no applier {name:?}; there is {known}"),
                )
            })
        });
        let applier = applier.transpose()?;
        let Document { name, version, payload, input, result, split, concurrency, .. } =
            self.document;
        let schema = |told: Option<SchemaText>| told.map_or(Value::Bool(true), |schema| schema.0);
        let plan = move |payload: &Value| {
            let mut items = match &split {
                Some(split) => split.plan(payload)?,
                None => vec![PlannedItem::new(payload.clone())],
            };
            if let Some(shared) = &concurrency {
                for item in &mut items {
                    item.concurrency = shared.of(&item.input)?;
                }
            }
            Ok(items)
        };
        let declared = DynamicOrderType::new(name)
            .version(version)
            .settings(self.settings)
            .payload_schema(schema(payload))
            .input_schema(schema(input))
            .result_schema(schema(result))
            .plan(plan);
        let Some(applier) = applier else { return Ok(declared) };
        let previewer = applier.clone();
        Ok(declared
            .preview(move |order| Box::pin(previewer.clone().preview(order)))
            .apply(move |order, step| Box::pin(applier.clone().apply(order, step))))
    }
}

/// Whether a schema is one, and has no field of the declaration in it.
fn check_schema(file: &DeclarationFile, field: &str, schema: Option<&SchemaText>) -> Result<()> {
    let Some(SchemaText(schema)) = schema else { return Ok(()) };
    if let Some(name) = PLAIN_FIELDS.iter().find(|name| schema.get(**name).is_some()) {
        let reason =
            format!("{name} stands in a schema: move it above the first heading of the file");
        return Err(file.mistake(&format!("{field}.{name}"), reason));
    }
    let checked = Schema::new(schema.clone());
    checked
        .map(drop)
        .map_err(|reason| file.mistake(field, format!("it is no JSON Schema: {reason}")))
}
