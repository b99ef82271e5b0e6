//! The typed form behind the form on JSON.

use futures::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    ApplyStep, ContentOf, DynOrderType, Hook, OrderContent, OrderType, PlannedItem, TypeError,
    TypeSettings,
};
use crate::Diff;

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
    fn plan<'a>(&'a self, payload: &'a Value) -> Hook<'a, Vec<PlannedItem<Value>>> {
        async move {
            let items = self.0.plan(read("payload", payload)?).await?;
            items.into_iter().map(|item| item.map(|input| write("input", &input))).collect()
        }
        .boxed()
    }
    fn validate_submission<'a>(&'a self, input: &'a Value, result: &'a Value) -> Hook<'a, ()> {
        async move {
            self.0.validate_submission(read("input", input)?, read("result", result)?).await
        }
        .boxed()
    }
    fn can_approve<'a>(&'a self, order: &'a OrderContent) -> Hook<'a, ()> {
        async move { self.0.can_approve(&content::<T>(order)?).await }.boxed()
    }
    fn preview<'a>(&'a self, order: &'a OrderContent) -> Hook<'a, Option<Diff>> {
        async move { self.0.preview(&content::<T>(order)?).await }.boxed()
    }
    fn auto_approve<'a>(&'a self, order: &'a OrderContent) -> Hook<'a, bool> {
        async move { self.0.auto_approve(&content::<T>(order)?).await }.boxed()
    }
    fn before_apply<'a>(&'a self, order: &'a OrderContent, step: &'a ApplyStep) -> Hook<'a, ()> {
        async move { self.0.before_apply(&content::<T>(order)?, step).await }.boxed()
    }
    fn apply<'a>(&'a self, order: &'a OrderContent, step: &'a mut ApplyStep) -> Hook<'a, Diff> {
        async move { self.0.apply(&content::<T>(order)?, step).await }.boxed()
    }
    fn after_apply<'a>(
        &'a self,
        order: &'a OrderContent,
        diff: &'a Diff,
        step: &'a ApplyStep,
    ) -> Hook<'a, ()> {
        async move { self.0.after_apply(&content::<T>(order)?, diff, step).await }.boxed()
    }
}

fn content<T: OrderType>(order: &OrderContent) -> Result<ContentOf<T>, TypeError> {
    order.read(
        |payload| read("payload", payload),
        |input| read("input", input),
        |result| read("result", result),
    )
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
