//! What a store is asked and what it answers.

use std::time::Duration;

use chrono::{DateTime, Utc};
use latchwork_lock::provider::Token;
use serde::{Deserialize, Serialize};

use super::{CancelRequest, ContextDraft, ContextHead, RunClaim};
use crate::{ContextSummary, Result, Status, TransitionId};

/// A draft, and by what right it is written.
#[derive(Clone, Copy, Debug)]
pub struct Save<'a> {
    /// What to write.
    pub draft: &'a ContextDraft,
    /// The revision that the writer knows.
    pub revision: u64,
    /// The secret of the writer's run-lease.
    pub token: Token,
    /// How long the run-lease goes on; none gives it back with the save.
    pub keep: Option<Duration>,
    /// The signal that was used and can go.
    pub used_signal: Option<u64>,
    /// Whether an action has completed since the last save: then attempts are counted anew.
    pub progress: bool,
}

/// Which contexts a runner wants, and for whom.
#[derive(Clone, Copy, Debug)]
pub struct DueClaim<'a> {
    /// Of this machine.
    pub machine: &'a str,
    /// So many at most.
    pub limit: usize,
    /// For this one.
    pub claim: &'a RunClaim,
    /// Whether the caller is at a [suspect](SUSPECT): then it gets only contexts that nobody has
    /// tried yet; else one suspect at most.
    pub beside_suspect: bool,
    /// What was claimed so often without getting on is quarantined.
    pub max_attempts: u32,
    /// How long a suspect is left alone beyond its run-lease after its process has died a second time;
    /// doubles with each attempt, up to a minute.
    pub back_off: Duration,
    /// Not these.
    pub exclude: &'a [TransitionId],
}

impl<'a> DueClaim<'a> {
    /// Up to so many of a machine, with the limits that a runner has unless told.
    pub fn new(machine: &'a str, limit: usize, claim: &'a RunClaim) -> Self {
        DueClaim {
            machine,
            limit,
            claim,
            beside_suspect: false,
            max_attempts: MAX_ATTEMPTS,
            back_off: Duration::ZERO,
            exclude: &[],
        }
    }
}

/// How often a context is claimed without getting on before it is quarantined, unless told.
pub const MAX_ATTEMPTS: u32 = 5;

/// A context that was claimed this often without getting on is a *suspect*: perhaps it kills its
/// process, and all that is run beside it.
///
/// A process is at one of them at a time, and takes nothing else meanwhile but what nobody has tried
/// yet. So what died along with a suspect gets on without it, and does not end in quarantine beside
/// it. One death is enough: in a second one, what only ran beside the cause would often die between
/// taking over its lock and storing that it did, and would have to count its state as stale (F14).
pub const SUSPECT: u32 = 1;

/// What came of a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Whether the run-lease was renewed; else it is another's, or nobody's.
    pub held: bool,
    /// Set when somebody wants the context called off.
    pub cancel: Option<CancelRequest>,
}

/// How a run-lease is given back without a save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GiveBack<'a> {
    /// Runners leave the context alone for so long; none: it may be claimed at once.
    pub postpone: Option<Duration>,
    /// Whether it was an attempt. A graceful stop is none, nor is a lock that somebody else has.
    pub counts: bool,
    /// Why it did not get on.
    pub reason: Option<&'a str>,
}

/// What came of a save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The revision that it has now.
    pub revision: u64,
    /// Set when somebody wants it called off: the run-lease is kept then, so that the writer can
    /// see to it.
    pub cancel: Option<CancelRequest>,
}

/// What came of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cancelled {
    /// It is cancelled, and no action of it will begin any more.
    Done,
    /// A process is at it, and will learn of it with its next heartbeat or save.
    Asked,
}

/// The right to a run-lease.
#[derive(Clone, Copy, Debug)]
pub struct Proof {
    /// The context.
    pub id: TransitionId,
    /// The secret.
    pub token: Token,
}

/// Which contexts are wanted; everything unless told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextFilter {
    /// Only of this machine.
    pub machine: Option<String>,
    /// Only of this entity.
    pub entity: Option<String>,
    /// Only those that stand here.
    pub status: Option<Status>,
    /// Only those that are seen so.
    pub view: View,
}

/// A way to look at contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum View {
    /// All of them.
    #[default]
    All,
    /// Those with which a runner has something to do now.
    Due,
    /// Those whose process has let its run-lease run out.
    Orphaned,
    /// Those that a process is at.
    Held,
}

impl ContextFilter {
    /// Whether a context is wanted at this time, for stores that look at each.
    pub fn lets_through(&self, head: &ContextHead, now: DateTime<Utc>) -> bool {
        let run_until = head.run.as_ref().map(|run| run.expires_at);
        self.machine.as_ref().is_none_or(|machine| *machine == head.machine)
            && self.entity.as_ref().is_none_or(|entity| Some(entity) == head.entity.as_ref())
            && self.status.is_none_or(|status| status == head.shown_status())
            && match self.view {
                View::All => true,
                View::Due => head.due_at.is_some_and(|at| at <= now),
                View::Orphaned => run_until.is_some_and(|until| until <= now),
                View::Held => run_until.is_some_and(|until| until > now),
            }
    }
}

/// Which part of a listing is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextPageRequest {
    /// How many at most, 1 to 1,000.
    pub limit: usize,
    /// Only those behind this one: the [`next`](ContextPage::next) of the page before.
    pub after: Option<TransitionId>,
}

impl Default for ContextPageRequest {
    fn default() -> Self {
        ContextPageRequest { limit: 100, after: None }
    }
}

/// One part of a listing, sorted by id.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContextPage {
    /// The contexts, without any secret.
    pub contexts: Vec<ContextSummary>,
    /// The rows among them that cannot be read, which must not hide the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<Unreadable>,
    /// Where the next page begins; none when this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<TransitionId>,
}

/// A row of a store that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreadable {
    /// Its id, as far as it is one.
    pub id: String,
    /// What is wrong with it.
    pub reason: String,
}

impl ContextPage {
    /// The page of what a store found when it looked for one more than was wanted.
    pub fn cut(
        found: impl IntoIterator<Item = Result<ContextSummary, Unreadable>>,
        limit: usize,
    ) -> Self {
        let mut page = ContextPage::default();
        let mut last = None;
        for (index, row) in found.into_iter().enumerate() {
            if index >= limit {
                page.next = last;
                break;
            }
            match row {
                Ok(context) => {
                    last = Some(context.id);
                    page.contexts.push(context);
                }
                Err(row) => {
                    last = row.id.parse().ok().or(last);
                    page.unreadable.push(row);
                }
            }
        }
        page
    }
}
