//! F10, measured: an event that nobody listens to allocates nothing.
//!
//! Alone in its binary, because the count is of the whole process.
#![expect(unsafe_code, reason = "an allocator that counts is an allocator")]
#![allow(clippy::expect_used, reason = "a test says what went wrong by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use latchwork_flow::{
    Action, ActionContext, ActionResult, BoxError, Event, JsonState, StateMachine,
};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged, and the counter touches no memory
// that either of them manages.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `alloc` above, and so from the system.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Does nothing, in place.
struct Nothing(String);

impl Action<JsonState> for Nothing {
    fn name(&self) -> &str {
        &self.0
    }

    async fn execute(
        &self,
        _: ActionContext<JsonState>,
    ) -> Result<ActionResult<JsonState>, BoxError> {
        Ok(ActionResult::proceed())
    }

    fn execute_now(
        &self,
        _: &ActionContext<JsonState>,
    ) -> Option<Result<ActionResult<JsonState>, BoxError>> {
        Some(Ok(ActionResult::proceed()))
    }
}

fn machine(actions: usize, listens: bool) -> StateMachine<JsonState> {
    let mut machine = StateMachine::builder("counted");
    for number in 0..actions {
        machine = machine.action(Nothing(format!("action {number}")));
    }
    if listens {
        machine = machine.observe(|event: &Event<'_, JsonState>| drop(event.to_record()));
    }
    machine.build().expect("a machine")
}

/// The fewest allocations that a transition of so many actions needs: others of this process may
/// allocate meanwhile, so of some tries the least counts.
async fn allocations(actions: usize, listens: bool) -> usize {
    let machine = machine(actions, listens);
    let mut least = usize::MAX;
    for _ in 0..50 {
        let mut worker = machine.transition(JsonState::default(), Default::default());
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let done = worker.execute().await.expect("nothing fails");
        least = least.min(ALLOCATIONS.load(Ordering::Relaxed) - before);
        assert_eq!(done.action_executions().len(), actions);
    }
    least
}

#[tokio::test]
async fn f10_no_allocation_per_event_when_nobody_listens() {
    // 64 more actions are 128 more events. What their history needs is one list that doubles.
    let (few, many) = (allocations(4, false).await, allocations(68, false).await);
    let doublings = 8;
    assert!(many - few <= doublings, "{few} allocations with 4 actions, {many} with 68");
    // And the count counts: with somebody listening there are more.
    let heard = allocations(68, true).await;
    assert!(heard > many + 128, "{heard} allocations with a listener, {many} without");
}
