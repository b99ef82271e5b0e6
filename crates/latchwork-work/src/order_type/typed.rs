//! The typed form behind the form on JSON.

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{DynOrderType, OrderType, PlannedItem, TypeError, TypeSettings};

/// A typed order type as the registry keeps it.
pub(super) struct Typed<T>(pub(super) T);

impl<T: OrderType> DynOrderType for Typed<T> {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn version(&self) -> u32 {
        self.0.version()
    }
    fn settings(&self) -> TypeSettings {
        self.0.settings()
    }
    fn payload_schema(&self) -> Value {
        schemars::schema_for!(T::Payload).to_value()
    }
    fn input_schema(&self) -> Value {
        schemars::schema_for!(T::Input).to_value()
    }
    fn result_schema(&self) -> Value {
        schemars::schema_for!(T::Result).to_value()
    }
    fn plan<'a>(
        &'a self,
        payload: &'a Value,
    ) -> BoxFuture<'a, Result<Vec<PlannedItem<Value>>, TypeError>> {
        async move {
            let items = self.0.plan(read("payload", payload)?).await?;
            items.into_iter().map(|item| item.map(|input| write("input", &input))).collect()
        }
        .boxed()
    }
    fn validate_submission<'a>(
        &'a self,
        input: &'a Value,
        result: &'a Value,
    ) -> BoxFuture<'a, Result<(), TypeError>> {
        async move {
            self.0.validate_submission(read("input", input)?, read("result", result)?).await
        }
        .boxed()
    }
}

/// What passed its schema can still be refused by serde: a number out of range, a rule of the type's
/// own `Deserialize`.
fn read<T: DeserializeOwned>(what: &str, value: &Value) -> Result<T, TypeError> {
    T::deserialize(value).map_err(|error| {
        TypeError::invalid("", "deserialize", format!("the {what} cannot be read: {error}"))
    })
}

fn write<T: Serialize>(what: &str, value: &T) -> Result<Value, TypeError> {
    serde_json::to_value(value).map_err(|error| {
        TypeError::Failed(format!("the {what} cannot be written as JSON: {error}").into())
    })
}
