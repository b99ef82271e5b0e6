//! Order types whose schemas are data.

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;

use super::{ApplyStep, DynOrderType, Hook, OrderContent, PlannedItem, TypeError, TypeSettings};
use crate::Diff;

type Plan = dyn Fn(&Value) -> Result<Vec<PlannedItem<Value>>, TypeError> + Send + Sync;
type Validate = dyn Fn(&Value, &Value) -> Result<(), TypeError> + Send + Sync;
type Ready = dyn Fn(&OrderContent) -> Result<(), TypeError> + Send + Sync;
type Rule = dyn Fn(&OrderContent) -> Result<bool, TypeError> + Send + Sync;
type Preview = dyn for<'a> Fn(&'a OrderContent) -> Hook<'a, Option<Diff>> + Send + Sync;
type Before = dyn for<'a> Fn(&'a OrderContent, &'a ApplyStep) -> Hook<'a, ()> + Send + Sync;
type Apply = dyn for<'a> Fn(&'a OrderContent, &'a mut ApplyStep) -> Hook<'a, Diff> + Send + Sync;
type After =
    dyn for<'a> Fn(&'a OrderContent, &'a Diff, &'a ApplyStep) -> Hook<'a, ()> + Send + Sync;

/// An order type on [`serde_json::Value`].
///
/// Unless told otherwise it accepts any payload and any result, and an order is one item whose input
/// is the payload. Any reviewer may approve it, and apply changes nothing but the order itself.
///
/// Hooks that may wait return a boxed future: `|order, step| Box::pin(async move { … })`.
pub struct DynamicOrderType {
    name: String,
    version: u32,
    settings: TypeSettings,
    payload: Value,
    input: Value,
    result: Value,
    plan: Box<Plan>,
    validate: Box<Validate>,
    ready: Box<Ready>,
    rule: Box<Rule>,
    preview: Box<Preview>,
    before: Box<Before>,
    apply: Box<Apply>,
    after: Box<After>,
}

impl DynamicOrderType {
    /// A type of this name.
    pub fn new(name: impl Into<String>) -> Self {
        DynamicOrderType {
            name: name.into(),
            version: 1,
            settings: TypeSettings::default(),
            payload: Value::Bool(true),
            input: Value::Bool(true),
            result: Value::Bool(true),
            plan: Box::new(|payload| Ok(vec![PlannedItem::new(payload.clone())])),
            validate: Box::new(|_, _| Ok(())),
            ready: Box::new(|_| Ok(())),
            rule: Box::new(|_| Ok(false)),
            preview: Box::new(|_| Box::pin(async { Ok(None) })),
            before: Box::new(|_, _| Box::pin(async { Ok(()) })),
            apply: Box::new(|_, _| Box::pin(async { Ok(Diff::empty()) })),
            after: Box::new(|_, _, _| Box::pin(async { Ok(()) })),
        }
    }

    /// The version of its schemas.
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// How its orders are run.
    pub fn settings(mut self, settings: TypeSettings) -> Self {
        self.settings = settings;
        self
    }

    /// The JSON Schema of payloads.
    pub fn payload_schema(mut self, schema: Value) -> Self {
        self.payload = schema;
        self
    }

    /// The JSON Schema of the items' inputs.
    pub fn input_schema(mut self, schema: Value) -> Self {
        self.input = schema;
        self
    }

    /// The JSON Schema of results.
    pub fn result_schema(mut self, schema: Value) -> Self {
        self.result = schema;
        self
    }

    /// How a payload is split into items.
    pub fn plan(
        mut self,
        plan: impl Fn(&Value) -> Result<Vec<PlannedItem<Value>>, TypeError> + Send + Sync + 'static,
    ) -> Self {
        self.plan = Box::new(plan);
        self
    }

    /// How a result (the second value) of an input is checked by code, after its schema.
    pub fn validate_submission(
        mut self,
        validate: impl Fn(&Value, &Value) -> Result<(), TypeError> + Send + Sync + 'static,
    ) -> Self {
        self.validate = Box::new(validate);
        self
    }

    /// Whether an order whose items are all in may be approved;
    /// [`TypeError::Invalid`] says what is missing.
    pub fn can_approve(
        mut self,
        ready: impl Fn(&OrderContent) -> Result<(), TypeError> + Send + Sync + 'static,
    ) -> Self {
        self.ready = Box::new(ready);
        self
    }

    /// Whether a rule approves an order without a reviewer; its version is in
    /// [`ReviewSettings::auto_approve`](super::ReviewSettings::auto_approve).
    pub fn auto_approve(
        mut self,
        rule: impl Fn(&OrderContent) -> Result<bool, TypeError> + Send + Sync + 'static,
    ) -> Self {
        self.rule = Box::new(rule);
        self
    }

    /// What apply would change, without changing anything.
    pub fn preview(
        mut self,
        preview: impl for<'a> Fn(&'a OrderContent) -> BoxFuture<'a, Result<Option<Diff>, TypeError>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.preview = Box::new(preview);
        self
    }

    /// What runs before apply.
    pub fn before_apply(
        mut self,
        before: impl for<'a> Fn(&'a OrderContent, &'a ApplyStep) -> BoxFuture<'a, Result<(), TypeError>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.before = Box::new(before);
        self
    }

    /// What makes the changes of an approved order, and tells them.
    pub fn apply(
        mut self,
        apply: impl for<'a> Fn(
            &'a OrderContent,
            &'a mut ApplyStep,
        ) -> BoxFuture<'a, Result<Diff, TypeError>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.apply = Box::new(apply);
        self
    }

    /// What runs after apply was recorded.
    pub fn after_apply(
        mut self,
        after: impl for<'a> Fn(
            &'a OrderContent,
            &'a Diff,
            &'a ApplyStep,
        ) -> BoxFuture<'a, Result<(), TypeError>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.after = Box::new(after);
        self
    }
}

impl DynOrderType for DynamicOrderType {
    fn name(&self) -> &str {
        &self.name
    }
    fn version(&self) -> u32 {
        self.version
    }
    fn settings(&self) -> TypeSettings {
        self.settings.clone()
    }
    fn payload_schema(&self) -> Value {
        self.payload.clone()
    }
    fn input_schema(&self) -> Value {
        self.input.clone()
    }
    fn result_schema(&self) -> Value {
        self.result.clone()
    }
    fn plan<'a>(&'a self, payload: &'a Value) -> Hook<'a, Vec<PlannedItem<Value>>> {
        async move { (self.plan)(payload) }.boxed()
    }
    fn validate_submission<'a>(&'a self, input: &'a Value, result: &'a Value) -> Hook<'a, ()> {
        async move { (self.validate)(input, result) }.boxed()
    }
    fn can_approve<'a>(&'a self, order: &'a OrderContent) -> Hook<'a, ()> {
        async move { (self.ready)(order) }.boxed()
    }
    fn preview<'a>(&'a self, order: &'a OrderContent) -> Hook<'a, Option<Diff>> {
        (self.preview)(order)
    }
    fn auto_approve<'a>(&'a self, order: &'a OrderContent) -> Hook<'a, bool> {
        async move { (self.rule)(order) }.boxed()
    }
    fn before_apply<'a>(&'a self, order: &'a OrderContent, step: &'a ApplyStep) -> Hook<'a, ()> {
        (self.before)(order, step)
    }
    fn apply<'a>(&'a self, order: &'a OrderContent, step: &'a mut ApplyStep) -> Hook<'a, Diff> {
        (self.apply)(order, step)
    }
    fn after_apply<'a>(
        &'a self,
        order: &'a OrderContent,
        diff: &'a Diff,
        step: &'a ApplyStep,
    ) -> Hook<'a, ()> {
        (self.after)(order, diff, step)
    }
}
