//! What makes the changes of orders whose type is declared in a file.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures::FutureExt;

use super::{ApplyStep, Hook, OrderContent, TypeError};
use crate::{Diff, ErrorKind, Result};

/// Makes the changes of approved orders. A declared order type names one; a command of the server is one.
pub trait Applier: Send + Sync + 'static {
    /// What apply would change, without changing anything; none unless written.
    ///
    /// May be run at any time and more than once. Dropped in the middle it must leave nothing behind.
    fn preview(
        &self,
        order: &OrderContent,
    ) -> impl Future<Output = Result<Option<Diff>, TypeError>> + Send {
        let _ = order;
        async { Ok(None) }
    }

    /// Makes the changes of an approved order, and tells them.
    ///
    /// It is recorded once and may be run more than once: a worker can die in the middle, and the next
    /// one begins anew with the same [`idempotency_key`](ApplyStep::idempotency_key) and a higher
    /// [`fence`](ApplyStep::fence). It is dropped at its next await when its time is up or the lease is
    /// lost; what it did until then is done.
    fn apply(
        &self,
        order: &OrderContent,
        step: &mut ApplyStep,
    ) -> impl Future<Output = Result<Diff, TypeError>> + Send;
}

/// An applier in the form that a registry keeps.
trait DynApplier: Send + Sync {
    fn preview<'a>(&'a self, order: &'a OrderContent) -> Hook<'a, Option<Diff>>;
    fn apply<'a>(&'a self, order: &'a OrderContent, step: &'a mut ApplyStep) -> Hook<'a, Diff>;
}

impl<T: Applier> DynApplier for T {
    fn preview<'a>(&'a self, order: &'a OrderContent) -> Hook<'a, Option<Diff>> {
        Applier::preview(self, order).boxed()
    }
    fn apply<'a>(&'a self, order: &'a OrderContent, step: &'a mut ApplyStep) -> Hook<'a, Diff> {
        Applier::apply(self, order, step).boxed()
    }
}

/// The appliers that declarations can name.
#[derive(Clone, Default)]
pub struct Appliers(BTreeMap<String, Arc<dyn DynApplier>>);

impl Appliers {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an applier.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a name that is not legal, or is taken.
    pub fn add(&mut self, name: impl Into<String>, applier: impl Applier) -> Result<&mut Self> {
        let name = name.into();
        let wrong = |reason| ErrorKind::InvalidArgument { name: "applier", reason };
        super::registry::legal_name(&name).map_err(wrong)?;
        if self.0.contains_key(&name) {
            return Err(wrong(format!("there is already an applier {name:?}")).into());
        }
        self.0.insert(name, Arc::new(applier));
        Ok(self)
    }

    /// Their names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// An applier as the two hooks of an order type; none where there is none of this name.
    pub(super) fn get(&self, name: &str) -> Option<Named> {
        self.0.get(name).cloned().map(Named)
    }
}

/// One applier of the registry.
#[derive(Clone)]
pub(super) struct Named(Arc<dyn DynApplier>);

impl Named {
    pub(super) async fn preview(self, order: &OrderContent) -> Result<Option<Diff>, TypeError> {
        self.0.preview(order).await
    }
    pub(super) async fn apply(
        self,
        order: &OrderContent,
        step: &mut ApplyStep,
    ) -> Result<Diff, TypeError> {
        self.0.apply(order, step).await
    }
}

impl fmt::Debug for Appliers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
