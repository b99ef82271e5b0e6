//! The key, as every command asks for it.

use clap::Args;

/// The key: a word, or an option where it begins with a dash.
#[derive(Args, Clone, Debug)]
pub(crate) struct KeyArg {
    /// The key: any name that all who share the resource use.
    #[arg(value_name = "KEY", required_unless_present = "dashed")]
    plain: Option<String>,

    /// The same for a key that begins with a dash: --key=-x.
    #[arg(long = "key", value_name = "KEY", conflicts_with = "plain", allow_hyphen_values = true)]
    dashed: Option<String>,
}

impl KeyArg {
    pub(crate) fn as_str(&self) -> &str {
        self.dashed.as_deref().or(self.plain.as_deref()).unwrap_or_default()
    }
}
