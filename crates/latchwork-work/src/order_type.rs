//! What an order is about: its schemas, how it is split into items, and what a result must satisfy.
//!
//! [`OrderType`] is the typed form: payload, input and result are Rust types, and their JSON Schemas
//! come from them. [`DynamicOrderType`] is the same on [`serde_json::Value`], for schemas that are data.
//! [`DeclaredOrderType`] is read from a file, and names its [`Applier`]. All stand in one [`OrderTypes`].

mod applier;
mod apply;
mod content;
mod declared;
mod dynamic;
mod registry;
mod review;
mod schema;
mod typed;

use std::future::Future;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Diff, FailurePolicy, PartSettings, RetryPolicy};

pub use applier::{Applier, Appliers};
pub use apply::ApplyStep;
pub use content::{OrderContent, ReviewedItem};
pub use declared::{DeclarationFile, DeclaredOrderType, DurationText};
pub use dynamic::DynamicOrderType;
pub(crate) use registry::limit;
pub use registry::{OrderTypes, RegisteredType};
pub use review::{ApplySettings, AutoApprove, DeadlinePolicy, ReviewDeadline, ReviewSettings};
pub use schema::Violation;

/// A type of orders, with Rust types for its payload, the input of its items, and their results.
///
/// ```
/// use latchwork_work::{OrderType, PlannedItem, TypeError};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, schemars::JsonSchema)]
/// struct Translate { texts: Vec<String>, into: String }
/// #[derive(Serialize, Deserialize, schemars::JsonSchema)]
/// struct Text { text: String, into: String }
/// #[derive(Serialize, Deserialize, schemars::JsonSchema)]
/// struct Translated { text: String }
///
/// struct Translation;
///
/// impl OrderType for Translation {
///     type Payload = Translate;
///     type Input = Text;
///     type Result = Translated;
///
///     fn name(&self) -> &str {
///         "translation"
///     }
///     async fn plan(&self, order: Translate) -> Result<Vec<PlannedItem<Text>>, TypeError> {
///         let into = order.into;
///         Ok(order.texts.into_iter().map(|text| PlannedItem::new(Text { text, into: into.clone() })).collect())
///     }
/// }
/// ```
pub trait OrderType: Send + Sync + 'static {
    /// What an order carries.
    type Payload: Serialize + DeserializeOwned + schemars::JsonSchema + Send + Sync;
    /// What an agent is given.
    type Input: Serialize + DeserializeOwned + schemars::JsonSchema + Send + Sync;
    /// What an agent submits.
    type Result: Serialize + DeserializeOwned + schemars::JsonSchema + Send + Sync;

    /// Its name: letters, digits, `.`, `_` and `-`, at most 120 bytes.
    fn name(&self) -> &str;

    /// The version of its schemas, kept with each order.
    fn version(&self) -> u32 {
        1
    }

    /// How its orders are run.
    fn settings(&self) -> TypeSettings {
        TypeSettings::default()
    }

    /// Splits an order into items. An order without items is refused.
    ///
    /// Called before anything is stored; an error refuses the proposal.
    fn plan(
        &self,
        payload: Self::Payload,
    ) -> impl Future<Output = Result<Vec<PlannedItem<Self::Input>>, TypeError>> + Send;

    /// Checks a result by code, after its schema. Accepts it unless written.
    fn validate_submission(
        &self,
        input: Self::Input,
        result: Self::Result,
    ) -> impl Future<Output = Result<(), TypeError>> + Send {
        let _ = (input, result);
        async { Ok(()) }
    }

    /// Whether an order whose items are all in may be approved. [`TypeError::Invalid`] says what is
    /// missing. It may unless written.
    fn can_approve(
        &self,
        order: &ContentOf<Self>,
    ) -> impl Future<Output = Result<(), TypeError>> + Send {
        let _ = order;
        async { Ok(()) }
    }

    /// What apply would change, without changing anything; none unless written, and a reviewer then
    /// approves the results as they are.
    fn preview(
        &self,
        order: &ContentOf<Self>,
    ) -> impl Future<Output = Result<Option<Diff>, TypeError>> + Send {
        let _ = order;
        async { Ok(None) }
    }

    /// Whether a rule of the type's own approves the order without a reviewer. Asked only where
    /// [`ReviewSettings::auto_approve`] gives the rule a version, and has no schema that accepts.
    fn auto_approve(
        &self,
        order: &ContentOf<Self>,
    ) -> impl Future<Output = Result<bool, TypeError>> + Send {
        let _ = order;
        async { Ok(false) }
    }

    /// Runs before apply, in each of its runs. An error fails the order before anything was changed.
    fn before_apply(
        &self,
        order: &ContentOf<Self>,
        step: &ApplyStep,
    ) -> impl Future<Output = Result<(), TypeError>> + Send {
        let _ = (order, step);
        async { Ok(()) }
    }

    /// Makes the changes of an approved order, and tells them.
    ///
    /// It is recorded once and may be run more than once: a worker can die in the middle, and the next
    /// one begins anew with the same [`idempotency_key`](ApplyStep::idempotency_key). Unless written an
    /// order changes nothing but its own state.
    fn apply(
        &self,
        order: &ContentOf<Self>,
        step: &mut ApplyStep,
    ) -> impl Future<Output = Result<Diff, TypeError>> + Send {
        let _ = (order, step);
        async { Ok(Diff::empty()) }
    }

    /// Runs after apply was recorded. An error is tried again by itself
    /// ([`ApplySettings::cleanup`]); apply is not.
    fn after_apply(
        &self,
        order: &ContentOf<Self>,
        diff: &Diff,
        step: &ApplyStep,
    ) -> impl Future<Output = Result<(), TypeError>> + Send {
        let _ = (order, diff, step);
        async { Ok(()) }
    }
}

/// The content of an order of a type.
pub type ContentOf<T> =
    OrderContent<<T as OrderType>::Payload, <T as OrderType>::Input, <T as OrderType>::Result>;

/// How orders of a type are run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TypeSettings {
    /// How long a lease lasts without a heartbeat.
    pub lease_ttl: Duration,
    /// How often agents are advised to send a heartbeat.
    pub heartbeat_every: Duration,
    /// When an item is tried again.
    pub retry: RetryPolicy,
    /// What a failed item means for its order.
    pub failure: FailurePolicy,
    /// How many items of this type may be leased at a time, over all processes.
    pub max_leases: Option<u32>,
    /// The priority of orders whose proposal names none.
    #[serde(skip_serializing_if = "is_default")]
    pub priority: i32,
    /// The largest payload, in bytes of JSON.
    pub max_payload_bytes: usize,
    /// The largest result, in bytes of JSON.
    pub max_result_bytes: usize,
    /// How results in parts are checked.
    #[serde(skip_serializing_if = "is_default")]
    pub parts: PartSettings,
    /// How orders are reviewed.
    #[serde(skip_serializing_if = "is_default")]
    pub review: ReviewSettings,
    /// How orders are applied.
    #[serde(skip_serializing_if = "is_default")]
    pub apply: ApplySettings,
}

/// What is not stored: a program that does not know a setting yet can read an order without it.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Default for TypeSettings {
    fn default() -> Self {
        TypeSettings {
            lease_ttl: Duration::from_secs(600),
            heartbeat_every: Duration::from_secs(120),
            retry: RetryPolicy::default(),
            failure: FailurePolicy::default(),
            max_leases: None,
            priority: 0,
            max_payload_bytes: 1 << 20,
            max_result_bytes: 1 << 20,
            parts: PartSettings::default(),
            review: ReviewSettings::default(),
            apply: ApplySettings::default(),
        }
    }
}

/// One item of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedItem<T> {
    /// What the agent is given.
    pub input: T,
    /// How often it is tried; the type's setting unless told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u16>,
    /// Items with one key are limited together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
}

/// A limit that items with the same key share, over all orders and processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Concurrency {
    /// What they share, such as `repo:42`.
    pub key: String,
    /// How many of them may be leased at a time.
    pub limit: u32,
    /// Whether an item that waits for its retry holds back those behind it.
    #[serde(default)]
    pub ordered: bool,
}

impl<T> PlannedItem<T> {
    /// An item with this input and the type's settings.
    pub fn new(input: T) -> Self {
        PlannedItem { input, max_attempts: None, concurrency: None }
    }

    /// Tried so often at most.
    pub fn max_attempts(mut self, attempts: u16) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// At most `limit` items with this key are leased at a time.
    pub fn concurrency(mut self, key: impl Into<String>, limit: u32) -> Self {
        self.concurrency = Some(Concurrency { key: key.into(), limit, ordered: false });
        self
    }

    /// One item with this key is leased at a time, in the order of their planning.
    pub fn ordered(mut self, key: impl Into<String>) -> Self {
        self.concurrency = Some(Concurrency { key: key.into(), limit: 1, ordered: true });
        self
    }

    fn map<U, E>(self, change: impl FnOnce(T) -> Result<U, E>) -> Result<PlannedItem<U>, E> {
        let PlannedItem { input, max_attempts, concurrency } = self;
        Ok(PlannedItem { input: change(input)?, max_attempts, concurrency })
    }
}

/// Why a type refuses a payload or a result, or cannot judge it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TypeError {
    /// It is wrong, here and here.
    #[error("{}", violations.iter().map(Violation::to_string).collect::<Vec<_>>().join("; "))]
    Invalid {
        /// Everything that is wrong.
        violations: Vec<Violation>,
    },
    /// It could not be judged: a database did not answer, a bug.
    #[error("{0}")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl TypeError {
    /// One thing that is wrong. The field is a JSON pointer, such as `/texts/0`.
    pub fn invalid(
        field: impl Into<String>,
        code: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        let violation =
            Violation { field: field.into(), code: code.into(), message: message.into() };
        TypeError::Invalid { violations: vec![violation] }
    }
}

impl TypeError {
    /// What the registry said of a hook.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn from_error(error: crate::Error) -> Self {
        TypeError::Failed(Box::new(error))
    }
}

impl From<Box<dyn std::error::Error + Send + Sync>> for TypeError {
    fn from(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        TypeError::Failed(error)
    }
}

/// What a hook of a type comes to.
pub(crate) type Hook<'a, T> = futures::future::BoxFuture<'a, Result<T, TypeError>>;

/// A type in the form that a registry keeps: JSON in, JSON out.
pub(crate) trait DynOrderType: Send + Sync {
    fn name(&self) -> &str;
    fn version(&self) -> u32;
    fn settings(&self) -> TypeSettings;
    fn payload_schema(&self) -> Value;
    fn input_schema(&self) -> Value;
    fn result_schema(&self) -> Value;
    fn plan<'a>(&'a self, payload: &'a Value) -> Hook<'a, Vec<PlannedItem<Value>>>;
    fn validate_submission<'a>(&'a self, input: &'a Value, result: &'a Value) -> Hook<'a, ()>;
    fn can_approve<'a>(&'a self, order: &'a OrderContent) -> Hook<'a, ()>;
    fn preview<'a>(&'a self, order: &'a OrderContent) -> Hook<'a, Option<Diff>>;
    fn auto_approve<'a>(&'a self, order: &'a OrderContent) -> Hook<'a, bool>;
    fn before_apply<'a>(&'a self, order: &'a OrderContent, step: &'a ApplyStep) -> Hook<'a, ()>;
    fn apply<'a>(&'a self, order: &'a OrderContent, step: &'a mut ApplyStep) -> Hook<'a, Diff>;
    fn after_apply<'a>(
        &'a self,
        order: &'a OrderContent,
        diff: &'a Diff,
        step: &'a ApplyStep,
    ) -> Hook<'a, ()>;
}
