//! One step of a schema.

/// A step that adds to the schema of one layer. Steps are never changed once released, and only
/// add: an old program must be able to go on beside a new one.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Counts up from 1 within its layer.
    pub version: i64,
    /// What it adds, in a word or two.
    pub name: &'static str,
    /// The statements, in the database's own language.
    pub sql: &'static str,
}
