//! The exit codes, in one table that the help, the README and the tests read.

use std::fmt::Write as _;
use std::process::ExitCode;

use latchwork::lock;
use serde_json::{Map, Value};

/// The exit codes that are ours, from `sysexits.h` and the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Usage = 64,
    Unavailable = 69,
    Internal = 70,
    Taken = 75,
    Lost = 76,
    NotExecutable = 126,
    NotFound = 127,
}

/// Every exit code with its meaning.
const TABLE: [(&str, &str); 9] = [
    ("64", "usage: an argument, key, duration or address is not legal"),
    ("69", "unavailable: the place of the locks did not answer, or refused"),
    ("70", "internal: the supervisor itself failed; the command was stopped"),
    ("75", "taken: another holder has the key, and the time to wait is over"),
    ("76", "lost: the lease ended before the command did; the command was stopped"),
    ("126", "the command was found but could not be started"),
    ("127", "the command was not found"),
    ("128+N", "the command was ended by signal N"),
    ("other", "the command's own exit code"),
];

/// The table as the help shows it.
pub(crate) fn table() -> String {
    let mut text = String::from("Exit codes:\n");
    for (code, meaning) in TABLE {
        let _ = writeln!(text, "  {code:<6} {meaning}");
    }
    text
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Why a command of ours failed: what to say, and the code to exit with.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// Stable, for programs; the same as in Rust and over HTTP where the lock layer has one.
    pub(crate) code: &'static str,
    pub(crate) message: String,
    /// What to do next.
    pub(crate) hint: Option<String>,
    /// What `--json` shows besides.
    pub(crate) details: Map<String, Value>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, code: &'static str, message: impl Into<String>) -> Self {
        Failure { exit, code, message: message.into(), hint: None, details: Map::new() }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Failure::new(Exit::Internal, "internal", message)
    }

    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }
}

impl From<latchwork::flow::Error> for Failure {
    fn from(error: latchwork::flow::Error) -> Self {
        use latchwork::flow::ErrorKind as Kind;
        let exit = match error.kind() {
            Kind::StoreUnavailable { .. } | Kind::StoreBackend { .. } => Exit::Unavailable,
            Kind::InvalidArgument { .. }
            | Kind::NotBuilt { .. }
            | Kind::ContextNotFound { .. }
            | Kind::TransitionOver { .. } => Exit::Usage,
            _ => Exit::Internal,
        };
        Failure::new(exit, error.code(), error.to_string())
    }
}

#[cfg(feature = "sqlite")]
impl From<latchwork::work::Error> for Failure {
    fn from(error: latchwork::work::Error) -> Self {
        use latchwork::work::ErrorKind as Kind;
        let exit = match error.kind() {
            Kind::InvalidDeclaration { .. } => Exit::Usage,
            Kind::StoreUnavailable { .. } | Kind::StoreBackend { .. } => Exit::Unavailable,
            _ => Exit::Internal,
        };
        Failure::new(exit, error.code(), error.to_string())
    }
}

impl From<lock::Error> for Failure {
    fn from(error: lock::Error) -> Self {
        use lock::ErrorKind as Kind;
        let exit = match error.kind() {
            Kind::LockAcquisition { .. } => Exit::Taken,
            Kind::LockExpired { .. } | Kind::LockLost { .. } => Exit::Lost,
            Kind::Unavailable { .. } | Kind::Backend { .. } => Exit::Unavailable,
            Kind::InvalidKey { .. }
            | Kind::InvalidArgument { .. }
            | Kind::NotSupported { .. }
            | Kind::NotBuilt { .. } => Exit::Usage,
            _ => Exit::Internal,
        };
        let mut failure = Failure::new(exit, error.code(), error.to_string());
        if let Kind::NotBuilt { feature, .. } = error.kind() {
            failure.hint = Some(format!(
                "for this program: cargo build -p latchwork-cli --features {feature}"
            ));
        }
        failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_ours_is_in_the_table_once() {
        for exit in [
            Exit::Usage,
            Exit::Unavailable,
            Exit::Internal,
            Exit::Taken,
            Exit::Lost,
            Exit::NotExecutable,
            Exit::NotFound,
        ] {
            let code = (exit as u8).to_string();
            assert_eq!(TABLE.iter().filter(|row| row.0 == code).count(), 1, "{code}");
        }
    }

    #[test]
    fn the_readme_has_the_same_table() {
        let readme = include_str!("../README.md");
        for (code, meaning) in TABLE {
            assert!(readme.contains(&format!("| {code} | {meaning} |")), "{code} in README.md");
        }
    }
}
