//! What callers and a mutex workflow say to each other. It is stored in histories, so it is versioned and
//! may only grow: new fields have defaults, and nothing changes its meaning within a version.

use std::fmt;

use latchwork_lock::Mode;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The version of the messages, which is also in the ids and the type of mutex workflows.
pub(crate) const VERSION: u32 = 2;

/// The type of the mutex workflow, as the server shows it.
pub const WORKFLOW_TYPE: &str = "latchwork.mutex.v2";

/// The signal by which a mutex gets its operations.
pub(crate) const APPLY_SIGNAL: &str = "latchwork.mutex.apply";

/// The signal by which a mutex answers a workflow. A workflow that locks declares a signal of this
/// name; see [`MutexInbox`](crate::MutexInbox).
pub const REPLY_SIGNAL: &str = "latchwork.mutex.reply";

/// What stands before the resource in the id of a mutex workflow.
pub const ID_PREFIX: &str = "latchwork.mutex.v2.";

/// The search attribute with the resource of a mutex: a keyword. A mutex sets it in namespaces that have it.
pub const RESOURCE_ATTRIBUTE: &str = "LatchworkResource";

/// The longest value of a keyword.
const LONGEST_KEYWORD: usize = 255;

/// A resource as a search attribute has it: a long one is cut.
pub(crate) fn keyword(resource: &str) -> String {
    let mut end = resource.len().min(LONGEST_KEYWORD);
    while !resource.is_char_boundary(end) {
        end -= 1;
    }
    resource[..end].to_owned()
}

/// The longest id that every database below a Temporal server can store is 255 bytes.
const LONGEST_ID: usize = 240;

/// The id of the workflow that is the mutex of a resource. A long name is cut, and told from others by a
/// hash.
pub fn workflow_id(resource: &str) -> String {
    use sha2::{Digest, Sha256};

    if ID_PREFIX.len() + resource.len() <= LONGEST_ID {
        return format!("{ID_PREFIX}{resource}");
    }
    let hash = Sha256::digest(resource.as_bytes());
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut end = LONGEST_ID - ID_PREFIX.len() - hash.len() - 1;
    while !resource.is_char_boundary(end) {
        end -= 1;
    }
    format!("{ID_PREFIX}{}~{hash}", &resource[..end])
}

/// A number that identifies a request or an operation: as text, since JSON numbers of 128 bits do not
/// survive most readers.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub(crate) u128);

impl Id {
    pub(crate) fn random() -> Self {
        Id(rand::random())
    }

    /// A hash of a token or of a text that is as good as one. Histories can be read by others, who must not
    /// learn the secret itself.
    pub(crate) fn of(secret: &[u8]) -> Self {
        use sha2::{Digest, Sha256};

        let hash = Sha256::digest(secret);
        Id(hash.iter().take(16).fold(0, |id, byte| id << 8 | u128::from(*byte)))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Id(…)")
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{:032x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16)
            .map(Id)
            .map_err(|_| serde::de::Error::custom("an id is hexadecimal digits"))
    }
}

/// The input of a mutex workflow.
#[doc(hidden)]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MutexInput {
    pub(crate) version: u32,
    /// What it guards, with the prefix.
    pub(crate) resource: String,
    /// How long it stays although nobody uses it.
    pub(crate) idle_timeout_ms: u64,
    /// After how many operations it continues as new; the server's suggestion also counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) operations_per_run: Option<u64>,
    /// The state of the run before, where this one continues it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) carried: Option<Box<crate::state::State>>,
}

/// What a mutex workflow leaves behind when it ends because nobody needs it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MutexResult {
    /// The highest fence that was granted. The next run starts above it.
    pub(crate) last_fence: u64,
}

/// Operations that travel together.
#[doc(hidden)]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Batch {
    pub(crate) version: u32,
    pub(crate) operations: Vec<Operation>,
}

/// One operation. A client that got no answer sends it again with the same id, and it is done once.
#[doc(hidden)]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Operation {
    pub(crate) id: Id,
    #[serde(flatten)]
    pub(crate) kind: OperationKind,
}

#[doc(hidden)]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OperationKind {
    /// Asks whether the mutex works.
    Ping,
    /// The same for a workflow, which is told by a signal.
    Hello { lease: Id, workflow: Caller },
    /// Asks for a lease, or claims one that was reserved.
    Acquire(Acquire),
    /// Ends a lease, or leaves the queue. A request that comes later with this identity is refused.
    Release { lease: Id },
    /// Lets a lease last this long from now.
    Renew { lease: Id, ttl_us: u64 },
    /// Looks whether a lease is held.
    Check { lease: Id },
    /// Gives a lease another identity and a higher fence.
    Rotate { lease: Id, fresh: Id, ttl_us: u64 },
    /// Ends the lease with this fence, or all: the force-release.
    Break {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fence: Option<u64>,
    },
    /// A workflow says that it still holds a lease, after a reset in a new run.
    Confirm { lease: Id, run_id: String },
    /// Of a later version.
    #[serde(other)]
    Unknown,
}

/// A request for a lease.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    pub(crate) lease: Id,
    #[serde(default)]
    pub(crate) mode: Mode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    /// Who asks, to be shown.
    pub(crate) process: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    pub(crate) ttl_us: u64,
    #[serde(default)]
    pub(crate) wait: Patience,
    /// Whether it was in the queue before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) again: bool,
    /// The workflow that asks, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) workflow: Option<Caller>,
}

/// How long a request waits.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Patience {
    #[default]
    No,
    ForMicros(u64),
    Forever,
}

/// A workflow that holds or waits.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    pub(crate) workflow_id: String,
    pub(crate) run_id: String,
    /// How long the lock stays taken after the workflow has gone, since its activities may still run.
    pub(crate) grace_us: u64,
}

/// What became of an operation.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The mutex works.
    Ready,
    /// It holds.
    Granted(Granted),
    /// It waits.
    Queued,
    /// Somebody else holds it, and the request does not wait.
    Refused {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        holder: Option<Box<HolderView>>,
    },
    /// Whether there was such a lease.
    Done { found: bool },
    /// The lease was rotated, or there was none.
    Rotated {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        granted: Option<Granted>,
    },
    /// These were ended.
    Broken { holders: Vec<HolderView> },
    /// The mutex does not know such an operation.
    Unsupported,
}

/// One grant.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    pub(crate) fence: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) previous_fence: Option<u64>,
    /// Whether it had to wait.
    pub(crate) waited: bool,
    /// Whether the ttl began with this operation.
    pub(crate) began: bool,
}

/// What is asked in one query.
#[doc(hidden)]
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StatusRequest {
    /// Operations whose outcomes are wanted.
    #[serde(default)]
    pub(crate) operations: Vec<Id>,
    /// Requests whose place is wanted.
    #[serde(default)]
    pub(crate) requests: Vec<Id>,
}

/// The answer to it, in the same order.
#[doc(hidden)]
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StatusAnswer {
    pub(crate) outcomes: Vec<Option<Outcome>>,
    pub(crate) places: Vec<QueuePlace>,
    /// The mutex wants to continue as new and gets no pause to do it: callers send nothing new for a
    /// moment.
    #[serde(default)]
    pub(crate) draining: bool,
}

/// How a request stands.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueuePlace {
    /// Not here, or not any more.
    Unknown,
    /// It waits; 1 is next.
    Waiting(usize),
    /// Its turn has come, and it is to claim it.
    Reserved,
    /// It holds.
    Held,
}

/// All that a mutex shows: what `temporal workflow query --name status` prints, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MutexStatus {
    /// The version of this form.
    pub version: u32,
    /// What it guards, with the prefix of the locks.
    pub resource: String,
    /// Who holds it, oldest grant first.
    pub holders: Vec<HolderView>,
    /// Who waits, next one first.
    pub waiters: Vec<WaiterView>,
    /// The highest fence so far.
    pub last_fence: u64,
    /// The worker's wall clock at the query, in microseconds since 1970.
    #[serde(default)]
    pub now_us: u64,
}

/// One who holds a mutex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HolderView {
    /// The owner, where a name was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Who asked: `host:pid`, or a workflow's id.
    pub process: String,
    /// Alone or shared.
    pub mode: Mode,
    /// The fence of the grant.
    pub fence: u64,
    /// When it was granted, in microseconds since 1970 by the server's clock.
    pub since_us: u64,
    /// When it ends.
    pub expires_us: u64,
    /// What the holder said about itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The holder's run, where it is a workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
}

/// One who waits for a mutex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WaiterView {
    /// The owner, where a name was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Who asks: `host:pid`, or a workflow's id.
    pub process: String,
    /// Alone or shared.
    pub mode: Mode,
    /// Since when it waits, in microseconds since 1970 by the server's clock.
    pub since_us: u64,
    /// What the waiter said about itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What a mutex tells a workflow. It is the input of the signal [`REPLY_SIGNAL`]; a workflow passes it to
/// its [`MutexInbox`](crate::MutexInbox), and need not know what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MutexReply {
    pub(crate) version: u32,
    pub(crate) lease: Id,
    #[serde(flatten)]
    pub(crate) kind: ReplyKind,
}

#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReplyKind {
    /// The mutex works.
    Ready,
    /// The lock is the workflow's.
    Granted {
        fence: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        previous_fence: Option<u64>,
        /// When it ends, by the server's clock.
        expires_us: u64,
    },
    /// The lock ran out or was taken away.
    Lost,
    /// The request cannot wait: too many do, or it is an upgrade that would exclude another holder.
    Refused,
    /// The mutex asks whether the workflow, in whichever run, still holds this lease.
    Confirm { mutex: String },
    /// Somebody waits, and the mutex looks whether the holder is still there. No answer is needed.
    Probe,
    /// Of a later version.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_short_enough_and_tells_resources_apart() {
        assert_eq!(workflow_id("repo:42"), "latchwork.mutex.v2.repo:42");
        let long = "ü".repeat(300);
        let (one, other) = (workflow_id(&long), workflow_id(&format!("{long}x")));
        assert!(one.len() <= LONGEST_ID && other.len() <= LONGEST_ID);
        assert_ne!(one, other);
        assert!(one.starts_with(ID_PREFIX));
    }

    #[test]
    fn an_operation_of_a_later_version_is_read_as_unknown() {
        let text = r#"{"id":"0f","kind":"teleport","where":"mars"}"#;
        let operation: Operation = serde_json::from_str(text).expect("it is read");
        assert!(matches!(operation.kind, OperationKind::Unknown));
        assert_eq!(operation.id, Id(15));
    }

    #[test]
    fn an_acquire_survives_the_journey() {
        let acquire = Acquire {
            lease: Id(7),
            mode: Mode::Shared,
            owner: None,
            process: "here:1".into(),
            note: None,
            ttl_us: 5,
            wait: Patience::ForMicros(9),
            again: true,
            workflow: None,
        };
        let operation = Operation { id: Id(1), kind: OperationKind::Acquire(acquire.clone()) };
        let text = serde_json::to_string(&operation).expect("it serialises");
        let back: Operation = serde_json::from_str(&text).expect("it is read");
        assert!(matches!(back.kind, OperationKind::Acquire(found) if found == acquire), "{text}");
    }
}
