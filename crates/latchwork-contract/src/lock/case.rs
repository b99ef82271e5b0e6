//! One promise, put to the test in one way.

use futures::future::LocalBoxFuture;
use latchwork_lock::provider::promise;
use latchwork_lock::{Capabilities, Capability};

use super::Fixture;

/// One test of one promise.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name, which begins with the promise: `l01_exclusive_excludes_exclusive`.
    pub name: &'static str,
    /// The number of the promise, 1 to 22.
    pub promise: u8,
    /// What a provider must have declared for it to run.
    pub needs: &'static [Capability],
    /// Whether it measures or loads the machine, and so says nothing under a clock that stands.
    pub real_time: bool,
    /// The test; it panics when the promise is broken.
    pub run: fn(Fixture) -> LocalBoxFuture<'static, ()>,
}

/// What becomes of a case on a provider, given what the provider declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The case runs.
    Runs,
    /// It needs an undeclared operation, which a test of its own sees refused.
    NotSupported,
    /// It needs an undeclared guarantee: there is nothing to test.
    NotPromised,
}

impl Outcome {
    /// The word in the matrix.
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Runs => "runs",
            Outcome::NotSupported => "not_supported",
            Outcome::NotPromised => "not_promised",
        }
    }
}

impl Case {
    /// A case whose promise is the number in its name.
    pub const fn new(
        name: &'static str,
        needs: &'static [Capability],
        run: fn(Fixture) -> LocalBoxFuture<'static, ()>,
    ) -> Self {
        let text = name.as_bytes();
        assert!(text[0] == b'l' && text[3] == b'_', "a case's name begins with l01_ to l22_");
        let promise = (text[1] - b'0') * 10 + (text[2] - b'0');
        assert!(promise >= 1 && promise <= 22, "there are promises 1 to 22");
        Case { name, promise, needs, real_time: false, run }
    }

    /// The same case, for real clocks only.
    pub const fn real_time(self) -> Self {
        Case { real_time: true, ..self }
    }

    /// The promise that it tests: its name and its sentence.
    ///
    /// # Panics
    /// When the list of the promises lacks it.
    pub fn promised(&self) -> (&'static str, &'static str) {
        promise(self.promise).expect("the promises are 1 to 22")
    }

    /// What becomes of it on a provider that declares this.
    ///
    /// An undeclared operation counts before an undeclared guarantee: callers see the refusal.
    pub fn outcome(&self, declared: Capabilities) -> Outcome {
        if self.undeclared(declared).any(Capability::is_operation) {
            Outcome::NotSupported
        } else if self.undeclared(declared).next().is_some() {
            Outcome::NotPromised
        } else {
            Outcome::Runs
        }
    }

    /// What it needs and the provider does not declare.
    pub fn undeclared(&self, declared: Capabilities) -> impl Iterator<Item = Capability> {
        self.needs.iter().copied().filter(move |need| !declared.has(*need))
    }
}

/// A case of the function with its name.
macro_rules! case {
    ($run:ident, [$($need:ident),* $(,)?]) => {
        $crate::lock::Case::new(
            stringify!($run),
            &[$(latchwork_lock::Capability::$need),*],
            |fixture| Box::pin($run(fixture)),
        )
    };
}
pub(super) use case;
