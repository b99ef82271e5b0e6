//! The durable mutex: the lock as a workflow on a [Temporal](https://temporal.io) cluster.
//!
//! Workflows lock by [`Mutex`], inside their own code. Plain programs lock by [`TemporalLockProvider`],
//! behind the same `Locks` as every other backend. Both exclude each other: the mutex of a resource is one
//! workflow, [`MutexWorkflow`], which a worker hosts that anybody may run ([`run_worker`], or
//! `latchwork temporal worker`).
//!
//! # What it is for, and what not
//!
//! The state of such a lock is as durable as the cluster, and every grant is in a history that can be
//! looked at. For that a lock costs some eight events of history and tens of milliseconds, and one resource
//! sustains some signals a second. Where locks are taken often, or held for less than a second, Redis or
//! PostgreSQL do it better; take this one where the work is a workflow anyway.

mod activities;
mod client;
mod error;
mod messages;
mod mutex;
mod provider;
mod state;
mod worker;
mod workflow;

pub use activities::MutexActivities;
#[doc(hidden)]
pub use activities::{Beginning, PreviousRun, SendAnswer, SendRequest};
pub use client::DEFAULT_IDLE_TIMEOUT;
pub use error::{Error, ErrorKind, Result};
#[doc(hidden)]
pub use messages::{
    Acquire, Batch, Caller, Granted, Id, MutexInput, MutexResult, Operation, OperationKind,
    Outcome, Patience, QueuePlace, ReplyKind, StatusAnswer, StatusRequest,
};
pub use messages::{
    HolderView, ID_PREFIX, MutexReply, MutexStatus, REPLY_SIGNAL, RESOURCE_ATTRIBUTE,
    WORKFLOW_TYPE, WaiterView, workflow_id,
};
pub use mutex::{HasMutexInbox, HeldMutex, Mutex, MutexInbox, MutexOptions};
pub use provider::{TemporalConfig, TemporalLockProvider};
#[doc(hidden)]
pub use state::{Message, State};
pub use worker::{DEFAULT_TASK_QUEUE, register, register_caller, run_worker, worker_options};
pub use workflow::MutexWorkflow;
