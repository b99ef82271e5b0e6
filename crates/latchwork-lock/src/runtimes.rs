//! Something of its own for each runtime that the caller has.
//!
//! To wake another thread and be woken by it costs as much as a message to a server nearby. So what
//! a provider does for a request it does best in the runtime that asks.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id, RuntimeFlavor};

/// What each runtime has, made when it is first asked for.
pub(crate) struct PerRuntime<T>(Mutex<Vec<(Id, Arc<T>)>>);

impl<T> Default for PerRuntime<T> {
    fn default() -> Self {
        PerRuntime(Mutex::default())
    }
}

impl<T> PerRuntime<T> {
    /// What the runtime has that we are in. None outside of one, and in one with a single thread:
    /// whoever blocks that would stop what it drives, for all. What `is_over` belongs to runtimes
    /// that have ended, and is forgotten when another one comes.
    pub(crate) fn here(
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
        let ask = |name: &'static str| all.here(|_| name, |old| *old == "over").map(|it| *it);
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
