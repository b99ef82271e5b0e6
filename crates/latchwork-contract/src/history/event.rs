//! One thing that happened.

use std::fmt;

use latchwork_lock::provider::Moment;
use latchwork_lock::{Fence, Mode};
use serde::{Deserialize, Serialize};

/// One thing that happened, as its witness wrote it down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, on the boot clock.
    pub at: Moment,
    /// Which process wrote it.
    pub process: u32,
    /// Its place among the events of that process.
    pub number: u64,
    /// The key.
    pub key: String,
    /// Which request, unique over all processes.
    pub request: u64,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum What {
    /// It is about to be sent.
    Asked {
        /// Alone or shared.
        mode: Mode,
        /// Until when it surely waits: its deadline, or the moment at which the caller means to
        /// drop it, whichever is sooner.
        until: Moment,
    },
    /// It was seen in the queue.
    Queued {
        /// Its place; 1 is next.
        position: usize,
    },
    /// The answer came: it is held.
    Granted {
        /// The fence.
        fence: Fence,
        /// Until when the holder trusts it.
        until: Moment,
    },
    /// A renewal is about to be sent.
    Renewing,
    /// The holder trusts it for longer.
    Renewed {
        /// Until when.
        until: Moment,
    },
    /// The release is about to be sent.
    Releasing,
    /// The guard of a key that nobody else asks for is about to be dropped.
    Dropped,
    /// Somebody is about to break it.
    Breaking,
    /// The holder was told that it was lost.
    Lost,
    /// The holder saw that its time was over.
    Expired,
    /// The wait ended without a grant, or was given up.
    GaveUp,
    /// The backend did not answer as it should: nothing is known of the wait.
    Failed,
    /// The lease is no longer tied to the process that held it: the answer to that came.
    HandedOver,
    /// A lease that was handed over is about to be resumed, as this request.
    Resuming {
        /// The request that got it first.
        from: u64,
        /// Its mode.
        mode: Mode,
    },
    /// An administrator ended a lease, as the answer told; the request is the one in its note.
    Broken {
        /// The lease's fence; none when there was no answer, so that any lease may have ended.
        fence: Option<Fence>,
        /// When the break was about to be sent.
        since: Moment,
    },
    /// Somebody saw that the backend answered nobody for a while, as where a disk is busy: what
    /// was offered meanwhile may have passed on to others.
    Stalled {
        /// Since when.
        since: Moment,
    },
    /// The process that writes this did not run for a while, as on a busy machine: what it was
    /// offered meanwhile may have passed on to others.
    StoodStill {
        /// Since when.
        since: Moment,
    },
    /// A process is about to end or to be killed: what it holds may be free from here on.
    ProcessEnds {
        /// Which; not called `process`, as the witness is in an event.
        who: u32,
    },
    /// A process is about to be stopped: what it was offered may pass on to others.
    ProcessStops {
        /// Which; not called `process`, as the witness is in an event.
        who: u32,
    },
    /// A stopped process goes on.
    ProcessGoes {
        /// Which; not called `process`, as the witness is in an event.
        who: u32,
    },
    /// What the lock guards was written to, as the store that checks fences tells it.
    Written {
        /// The fence that came with the write.
        fence: Fence,
        /// The place of this write among all writes to the key.
        place: u64,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { at, process, number, key, request, what } = self;
        let at = at.as_nanos();
        write!(f, "{at} process {process} #{number} {key:?} request {request:x}: {what:?}")
    }
}
