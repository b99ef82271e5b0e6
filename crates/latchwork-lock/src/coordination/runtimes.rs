//! A value for each runtime of the caller, such as a connection.
//!
//! A connection belongs to the runtime that opened it, and a request that goes over another thread
//! costs two thread switches: as much as the round trip to a server nearby.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id, RuntimeFlavor};

/// One value per runtime, made at its first use.
pub struct PerRuntime<T>(Mutex<Vec<(Id, Arc<T>)>>);

impl<T> Default for PerRuntime<T> {
    fn default() -> Self {
        PerRuntime(Mutex::default())
    }
}

impl<T> PerRuntime<T> {
    /// The value of the current runtime. None outside of one, and in a runtime with a single thread:
    /// a caller that blocks it would stop the connection for all other callers. Values for which
    /// `is_over` is true belong to runtimes that have ended; they are dropped when a new runtime
    /// comes.
    pub fn current(
        &self,
        make: impl FnOnce(&Handle) -> T,
        is_over: impl Fn(&T) -> bool,
    ) -> Option<Arc<T>> {
        let here = Handle::try_current().ok()?;
        if here.runtime_flavor() != RuntimeFlavor::MultiThread {
            return None;
        }
        let id = here.id();
        let mut known = self.0.lock();
        if let Some((_, found)) = known.iter().find(|(of, _)| *of == id) {
            return Some(found.clone());
        }
        known.retain(|(_, old)| !is_over(old));
        let made = Arc::new(make(&here));
        known.push((id, made.clone()));
        Some(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_runtime_of_several_threads_has_its_own() {
        let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        let all = PerRuntime::default();
        let ask = |name: &'static str| all.current(|_| name, |old| *old == "over").map(|it| *it);
        assert_eq!(ask("outside"), None);
        let one = runtime().expect("a runtime");
        let _one = one.enter();
        assert_eq!(ask("over"), Some("over"));
        assert_eq!(ask("again"), Some("over"), "made once");
        let two = runtime().expect("a runtime");
        {
            let _two = two.enter();
            assert_eq!(ask("two"), Some("two"));
        }
        assert_eq!(ask("anew"), Some("anew"), "what was over is forgotten");
        let single = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let _single = single.enter();
        assert_eq!(ask("single"), None);
    }
}
