//! One error type, with stable codes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The result of an operation on a mutex.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong with a mutex. What the closure of
/// [`on_acquire`](crate::Mutex::on_acquire) returns is never in here.
///
/// Match [`kind`](Error::kind), or hand [`code`](Error::code) on; retry layers ask
/// [`is_temporary`](Error::is_temporary).
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<ErrorKind>);

/// The kinds of [`Error`]. They are kept in histories, so they serialise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "error", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// An option is not legal.
    #[error("invalid {name}: {reason}")]
    #[non_exhaustive]
    InvalidOption {
        /// Which option.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Nobody runs mutex workflows on this task queue.
    #[error(
        "no worker polls the task queue {task_queue:?} of the namespace {namespace:?}, so nobody runs \
         the mutex: start one with `latchwork temporal worker`, or {}",
        elsewhere(workflow_id.as_deref())
    )]
    #[non_exhaustive]
    NoWorker {
        /// The task queue that was named.
        task_queue: String,
        /// Where it is.
        namespace: String,
        /// The mutex, where it was started on this task queue although the request names another one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        workflow_id: Option<String>,
    },
    /// A workflow of another type has the id that the mutex would have.
    #[error(
        "the workflow {workflow_id:?} is of the type {workflow_type:?} and no mutex: end it, or lock \
         another resource"
    )]
    #[non_exhaustive]
    ForeignWorkflow {
        /// The id in question.
        workflow_id: String,
        /// What runs under it.
        workflow_type: String,
    },
    /// There is no such namespace.
    #[error("there is no namespace {namespace:?} on this Temporal server")]
    #[non_exhaustive]
    NoNamespace {
        /// The name that was given.
        namespace: String,
    },
    /// The server, or the mutex on it, did not answer in time. Whether anybody holds the lock is not known.
    #[error("the mutex cannot be reached ({during}): {reason}")]
    #[non_exhaustive]
    Unreachable {
        /// What was tried.
        during: String,
        /// What came back instead.
        reason: String,
    },
    /// The server answered, and trying again will not help until somebody repairs it.
    #[error("the Temporal server refused ({during}): {reason}")]
    #[non_exhaustive]
    Refused {
        /// What was tried.
        during: String,
        /// What is wrong.
        reason: String,
    },
    /// Somebody else holds the lock, and the time to wait is over.
    #[error("{resource:?} is taken; waited {waited:.1?}")]
    #[non_exhaustive]
    Taken {
        /// What was to be locked.
        resource: String,
        /// How long was waited for it.
        waited: Duration,
    },
    /// The lock ended before the closure did: its holder timeout passed, or somebody broke it.
    #[error(
        "the lock on {resource:?} (fence {fence}) was lost before the work was done: check what was \
         already done before locking again"
    )]
    #[non_exhaustive]
    Lost {
        /// What was locked.
        resource: String,
        /// The fence of the grant.
        fence: u64,
    },
    /// The workflow was cancelled while it waited for the lock.
    #[error("the workflow was cancelled while it waited for {resource:?}")]
    #[non_exhaustive]
    Cancelled {
        /// What was to be locked.
        resource: String,
    },
    /// The mutex runs another version of this crate and does not know the operation.
    #[error("the mutex does not know this operation: its worker runs another version of Latchwork")]
    #[non_exhaustive]
    Unsupported {},
}

/// What else can be done where nobody runs a mutex.
fn elsewhere(workflow_id: Option<&str>) -> String {
    match workflow_id {
        None => "name the task queue of one that runs".to_owned(),
        Some(id) => format!(
            "terminate {id:?}, if its task queue is a mistake: the request names another one"
        ),
    }
}

impl Error {
    /// Every code that [`code`](Self::code) can give, with what it means and whether trying again may
    /// help. The documentation's table is made of it.
    pub const CODES: [(&'static str, &'static str, bool); 10] = [
        ("invalid_argument", "an option is not legal", false),
        ("temporal_no_worker", "no worker runs mutex workflows on the task queue", true),
        ("temporal_foreign_workflow", "a workflow that is no mutex has the id of the mutex", false),
        ("temporal_no_namespace", "the Temporal server has no such namespace", false),
        ("temporal_unreachable", "the Temporal server or the mutex on it did not answer", true),
        ("temporal_refused", "the Temporal server refused; an operator has to act", false),
        ("lock_taken", "another holder has the lock, and the time to wait is over", true),
        ("lock_lost", "the lock ended before the work was done", false),
        ("lock_cancelled", "the workflow was cancelled while it waited for the lock", false),
        ("temporal_unsupported", "the mutex runs another version of Latchwork", false),
    ];

    /// What kind of error it is.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        self.row().0
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_temporary(&self) -> bool {
        self.row().2
    }

    fn row(&self) -> &'static (&'static str, &'static str, bool) {
        let at = match self.kind() {
            ErrorKind::InvalidOption { .. } => 0,
            ErrorKind::NoWorker { .. } => 1,
            ErrorKind::ForeignWorkflow { .. } => 2,
            ErrorKind::NoNamespace { .. } => 3,
            ErrorKind::Unreachable { .. } => 4,
            ErrorKind::Refused { .. } => 5,
            ErrorKind::Taken { .. } => 6,
            ErrorKind::Lost { .. } => 7,
            ErrorKind::Cancelled { .. } => 8,
            ErrorKind::Unsupported { .. } => 9,
        };
        &Self::CODES[at]
    }

    pub(crate) fn invalid(name: &str, reason: impl Into<String>) -> Self {
        ErrorKind::InvalidOption { name: name.to_owned(), reason: reason.into() }.into()
    }

    pub(crate) fn unreachable(during: &str, reason: impl Into<String>) -> Self {
        ErrorKind::Unreachable { during: during.to_owned(), reason: reason.into() }.into()
    }

    pub(crate) fn refused(during: &str, reason: impl Into<String>) -> Self {
        ErrorKind::Refused { during: during.to_owned(), reason: reason.into() }.into()
    }

    /// The same as an error of the lock layer.
    pub(crate) fn into_lock_error(self, during: &'static str) -> latchwork_lock::Error {
        use latchwork_lock::Error as LockError;

        match self.kind() {
            ErrorKind::Unreachable { reason, .. } => {
                LockError::unavailable(NAME, during, reason.clone(), None)
            }
            _ if self.is_temporary() => {
                LockError::unavailable(NAME, during, self.to_string(), None)
            }
            _ => LockError::backend(NAME, during, self.to_string(), None),
        }
    }
}

/// The provider's name in messages.
pub(crate) const NAME: &str = "temporal";

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Error(Box::new(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct() {
        let mut codes: Vec<_> = Error::CODES.iter().map(|row| row.0).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), Error::CODES.len());
    }

    #[test]
    fn the_table_in_the_documentation_has_these_codes() {
        let page = include_str!("../../../docs/errors.md");
        let of_the_lock_layer = latchwork_lock::Error::CODES.map(|row| row.0);
        for (code, meaning, temporary) in Error::CODES {
            // Those that both have mean the same, in words of their own.
            if !of_the_lock_layer.contains(&code) {
                let temporary = if temporary { "yes" } else { "no" };
                let row = format!("| `{code}` | {meaning} | {temporary} |\n");
                assert!(page.contains(&row), "docs/errors.md should have:\n{row}");
            }
        }
    }

    #[test]
    fn an_error_survives_the_journey_through_a_history() {
        let kind = ErrorKind::NoWorker {
            task_queue: "q".into(),
            namespace: "n".into(),
            workflow_id: Some("w".into()),
        };
        let text = serde_json::to_string(&kind).expect("it serialises");
        assert_eq!(serde_json::from_str::<ErrorKind>(&text).expect("it is read"), kind);
        let told = Error::from(kind).into_lock_error("locking");
        assert_eq!(told.code(), "lock_unavailable");
        assert!(told.to_string().contains("no worker polls"), "{told}");
    }
}
