//! The stored form of a context (F6): JSON with a version, and with the lease's secret.

use std::borrow::Cow;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use latchwork_lock::{Fence, Key, Lease};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::context::{Executions, MachineLabel, Plan};
use crate::entity::Entity;
use crate::field_path::{field_at, is_missing};
use crate::migrate::Migrate;
use crate::{
    ActionExecution, ActionSkip, Error, ErrorKind, Failure, GateEvaluation, OlderContext, Paused,
    Result, State, Status, TransitionContext, TransitionId, Woken,
};

/// The highest version of the stored form that this program writes and reads.
///
/// Fields are only ever added within a version, and unknown ones are passed over: so an older
/// program reads what a newer one wrote, unless the newer one says by a higher version that it must
/// not.
pub const CONTEXT_FORMAT: u32 = 1;

/// What must be understood before anything else is.
#[derive(Deserialize)]
struct Label<'a> {
    format: u32,
    #[serde(borrow)]
    machine: Cow<'a, str>,
    definition: u32,
}

#[derive(Serialize)]
struct Written<'a, S: State> {
    format: u32,
    machine: &'a str,
    definition: u32,
    id: TransitionId,
    revision: u64,
    events: u64,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'a S>,
    delta: &'a S::Delta,
    #[serde(flatten)]
    rest: Rest<'a>,
}

/// The state and the delta are left as they are, so that it can be told which of them is wrong.
#[derive(Deserialize)]
struct Read<'a> {
    id: TransitionId,
    revision: u64,
    #[serde(default)]
    events: u64,
    status: Status,
    #[serde(borrow, default)]
    state: Option<&'a RawValue>,
    #[serde(borrow)]
    delta: &'a RawValue,
}

#[derive(Serialize, Deserialize)]
struct Rest<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<Cow<'a, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<Cow<'a, Failure>>,
    /// Null while the gates have not been asked: then there is no plan yet.
    #[serde(default)]
    remaining: Option<Cow<'a, [Arc<str>]>>,
    #[serde(default)]
    next: usize,
    #[serde(default)]
    gates: Cow<'a, [GateEvaluation]>,
    #[serde(default)]
    actions: Cow<'a, [ActionExecution]>,
    #[serde(default)]
    skips: Cow<'a, [ActionSkip]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paused: Option<Cow<'a, Paused>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    woken: Option<Cow<'a, Woken>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lock_key: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease: Option<Cow<'a, Lease>>,
    /// Where there is no lease, which has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fence: Option<Fence>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entity: Option<Cow<'a, Entity>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    skipped_by_lock: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    lock_lost: bool,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

impl<S: State> TransitionContext<S> {
    /// The stored form, with the lease's secret in it: keep it as you keep secrets.
    ///
    /// # Errors
    /// [`InvalidState`](ErrorKind::InvalidState) or [`InvalidDelta`](ErrorKind::InvalidDelta) when
    /// one of them cannot be written as JSON.
    pub fn to_json(&self) -> Result<String> {
        let rest = Rest {
            metadata: self.metadata.as_ref().map(Cow::Borrowed),
            failure: self.failure.as_deref().map(Cow::Borrowed),
            remaining: self.plan.as_ref().map(|_| Cow::Borrowed(self.remaining_actions())),
            next: self.next,
            gates: Cow::Borrowed(&self.gates),
            actions: Cow::Borrowed(self.actions.as_slice()),
            skips: Cow::Borrowed(&self.skips),
            paused: self.paused.as_deref().map(Cow::Borrowed),
            woken: self.woken.as_deref().map(Cow::Borrowed),
            lock_key: self.lock_key.as_ref().map(|key| Cow::Borrowed(key.as_str())),
            lease: self.lease.as_deref().map(Cow::Borrowed),
            fence: self.fence.filter(|_| self.lease.is_none()),
            entity: self.entity.as_deref().map(Cow::Borrowed),
            skipped_by_lock: self.skipped_by_lock,
            lock_lost: self.lock_lost,
            created_at: self.created_at,
            updated_at: self.updated_at,
        };
        let written = Written {
            format: CONTEXT_FORMAT,
            machine: &self.machine.name,
            definition: self.definition,
            id: self.id,
            revision: self.revision,
            events: self.events,
            status: self.status,
            state: self.state.as_ref(),
            delta: &self.delta,
            rest,
        };
        serde_json::to_string(&written).map_err(|error| {
            let reason = format!("it cannot be written as JSON: {error}");
            if serde_json::to_string(&self.state).is_err() {
                Error::invalid_state(reason)
            } else {
                Error::invalid_delta(reason)
            }
        })
    }

    /// Reads the stored form of one of this machine's contexts.
    pub(crate) fn from_json(
        text: &str,
        machine: &Arc<MachineLabel>,
        definition: u32,
        migrate: Option<&Migrate>,
    ) -> Result<Self> {
        let corrupt =
            |error: serde_json::Error| Error::corrupt_context(without_secrets(text, &error));
        let label: Label<'_> = serde_json::from_str(text).map_err(corrupt)?;
        if label.format == 0 {
            return Err(Error::corrupt_context(
                "its format has the version 0, which there never was",
            ));
        }
        if label.format > CONTEXT_FORMAT {
            let (found, known) = (label.format.into(), CONTEXT_FORMAT.into());
            return Err(ErrorKind::NewerContext { what: "format", found, known }.into());
        }
        if label.machine != *machine.name {
            let (expected, found) = (machine.name.to_string(), label.machine.into_owned());
            return Err(ErrorKind::ForeignContext { expected, found }.into());
        }
        if label.definition > definition {
            let (found, known) = (label.definition.into(), definition.into());
            return Err(ErrorKind::NewerContext { what: "definition", found, known }.into());
        }
        let read: Read<'_> = serde_json::from_str(text).map_err(corrupt)?;
        let mut rest: Rest<'_> = serde_json::from_str(text).map_err(corrupt)?;
        if read.state.is_none() && rest.entity.is_none() {
            return Err(Error::corrupt_context("it has neither a state nor an entity"));
        }
        let mut parts = Parts {
            definition: label.definition,
            state: read.state.map(|state| Cow::Borrowed(state.get())),
            delta: Cow::Borrowed(read.delta.get()),
        };
        if let Some(migrate) = migrate
            && label.definition < definition
            && !read.status.is_over()
        {
            rest.remaining = parts.migrate(rest.remaining, migrate, definition)?;
        }
        let state = match &parts.state {
            Some(state) => Some(
                serde_json::from_str(state)
                    .map_err(|error| Error::invalid_state(with_field(state, &error)))?,
            ),
            None => None,
        };
        let delta = serde_json::from_str(&parts.delta)
            .map_err(|error| Error::invalid_delta(with_field(&parts.delta, &error)))?;
        let lock_key = rest.lock_key.map(|key| Key::new(&key)).transpose()?;
        Ok(TransitionContext {
            id: read.id,
            machine: machine.clone(),
            definition: parts.definition,
            revision: read.revision,
            events: read.events,
            state,
            delta,
            status: read.status,
            metadata: rest.metadata.map(Cow::into_owned),
            failure: rest.failure.map(|failure| Box::new(failure.into_owned())),
            plan: rest
                .remaining
                .map(|names| Plan::Chosen { names: names.as_ref().into(), first: rest.next }),
            next: rest.next,
            gates: rest.gates.into_owned(),
            actions: Executions::Many(rest.actions.into_owned()),
            skips: rest.skips.into_owned(),
            paused: rest.paused.map(|paused| Box::new(paused.into_owned())),
            woken: rest.woken.map(|woken| Box::new(woken.into_owned())),
            lock_key,
            fence: rest.fence.or(rest.lease.as_ref().map(|lease| lease.fence)),
            lease: rest.lease.map(|lease| Box::new(lease.into_owned())),
            entity: rest.entity.map(|entity| Box::new(entity.into_owned())),
            skipped_by_lock: rest.skipped_by_lock,
            lock_lost: rest.lock_lost,
            created_at: rest.created_at,
            updated_at: rest.updated_at,
        })
    }
}

/// What a migration may change of a stored context.
struct Parts<'a> {
    definition: u32,
    state: Option<Cow<'a, str>>,
    delta: Cow<'a, str>,
}

impl Parts<'_> {
    /// Brings them up to the definition `to`, and gives the actions that are left then.
    fn migrate<'b>(
        &mut self,
        remaining: Option<Cow<'_, [Arc<str>]>>,
        migrate: &Migrate,
        to: u32,
    ) -> Result<Option<Cow<'b, [Arc<str>]>>> {
        let value = |text: &str| {
            serde_json::from_str::<Value>(text)
                .map_err(|_| Error::corrupt_context("its state or delta is not JSON"))
        };
        let names = |names: Cow<'_, [Arc<str>]>| names.iter().map(ToString::to_string).collect();
        let mut older = OlderContext {
            definition: self.definition,
            state: self.state.as_deref().map(value).transpose()?,
            delta: value(&self.delta)?,
            remaining: remaining.map(names),
        };
        migrate.run(&mut older, to)?;
        self.definition = to;
        self.state = older.state.map(|state| Cow::Owned(state.to_string()));
        self.delta = Cow::Owned(older.delta.to_string());
        let names = |names: Vec<String>| names.into_iter().map(Arc::from).collect::<Vec<_>>();
        Ok(older.remaining.map(|left| Cow::Owned(names(left))))
    }
}

/// What serde says may quote a value, and the value may be a token: only a place is safe.
fn without_secrets(text: &str, error: &serde_json::Error) -> String {
    use serde_json::error::Category;
    let what = match (error.classify(), field_at(text, error)) {
        (Category::Eof, _) => "it ends too early: it was cut off".to_owned(),
        (Category::Syntax, _) => "it is not JSON".to_owned(),
        (Category::Data, Some(field)) if is_missing(error) => format!("its {field:?} is missing"),
        (Category::Data, Some(field)) => format!("its {field:?} has the wrong shape"),
        (Category::Data, None) => "it has the wrong shape".to_owned(),
        (Category::Io, _) => "it could not be read".to_owned(),
    };
    format!("{what} (line {}, column {})", error.line(), error.column())
}

/// What serde says of a state or a delta, with the field that it is about.
fn with_field(text: &str, error: &serde_json::Error) -> String {
    match field_at(text, error) {
        Some(field) => format!("{field:?}: {error}"),
        None => error.to_string(),
    }
}
