//! JSON Schema, with every violation and its path.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::TypeError;

/// One thing that is wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Where, as a JSON pointer; empty for the whole document.
    pub field: String,
    /// What kind of violation, such as `required` or a code of the type's own.
    pub code: String,
    /// A sentence for people.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => write!(f, "{}", self.message),
            field => write!(f, "{field}: {}", self.message),
        }
    }
}

/// So many violations are told at most: a hostile document could have a million.
const MAX_VIOLATIONS: usize = 100;

/// A JSON Schema, ready to validate.
pub(super) struct Schema {
    document: Value,
    validator: jsonschema::Validator,
}

impl Schema {
    /// Reads a schema; the error says what is wrong with it.
    pub(super) fn new(document: Value) -> Result<Self, String> {
        let validator = jsonschema::validator_for(&document).map_err(|error| error.to_string())?;
        Ok(Schema { document, validator })
    }

    pub(super) fn document(&self) -> &Value {
        &self.document
    }

    /// Every violation with its path.
    pub(super) fn check(&self, value: &Value) -> Result<(), TypeError> {
        let violations: Vec<_> = self
            .validator
            .iter_errors(value)
            .take(MAX_VIOLATIONS)
            .map(|error| Violation {
                field: error.instance_path().to_string(),
                code: error.kind().keyword().to_owned(),
                message: error.to_string(),
            })
            .collect();
        if violations.is_empty() { Ok(()) } else { Err(TypeError::Invalid { violations }) }
    }
}
