//! Order types whose schemas are data.

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;

use super::{DynOrderType, PlannedItem, TypeError, TypeSettings};

type Plan = dyn Fn(&Value) -> Result<Vec<PlannedItem<Value>>, TypeError> + Send + Sync;
type Validate = dyn Fn(&Value, &Value) -> Result<(), TypeError> + Send + Sync;

/// An order type on [`serde_json::Value`].
///
/// Unless told otherwise it accepts any payload and any result, and an order is one item whose input
/// is the payload.
pub struct DynamicOrderType {
    name: String,
    version: u32,
    settings: TypeSettings,
    payload: Value,
    input: Value,
    result: Value,
    plan: Box<Plan>,
    validate: Box<Validate>,
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
    fn plan<'a>(
        &'a self,
        payload: &'a Value,
    ) -> BoxFuture<'a, Result<Vec<PlannedItem<Value>>, TypeError>> {
        async move { (self.plan)(payload) }.boxed()
    }
    fn validate_submission<'a>(
        &'a self,
        input: &'a Value,
        result: &'a Value,
    ) -> BoxFuture<'a, Result<(), TypeError>> {
        async move { (self.validate)(input, result) }.boxed()
    }
}
