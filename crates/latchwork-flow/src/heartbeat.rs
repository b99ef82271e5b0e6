//! Run-leases are kept alive by a thread of their own.
//!
//! An action may block the thread that runs it, and with it every task of a small runtime: a
//! heartbeat among those would stop, and another process would begin the action a second time while
//! the first still runs. So each machine has one thread for the heartbeats of all its runs, with a
//! runtime and connections of its own ([`ContextStore::separate`]). It starts with the first run that
//! is stored and sleeps between the heartbeats; a run that ends before the first one is due costs an
//! entry in a list.
//!
//! A future that blocks cannot be dropped. So the heartbeats of a run end some time after its action's
//! limit: the run-lease is given back, which refuses the late saves of the action that is stuck, the
//! lock is no longer renewed, and the attempt counts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use latchwork_lock::provider::Moment;
use latchwork_lock::{Clock, Held};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::store::{CancelRequest, ContextStore, GiveBack, Proof};
use crate::{BoxError, Contexts, Error};

/// The heartbeats of one machine.
pub(crate) struct Heartbeats {
    contexts: Contexts,
    clock: Arc<dyn Clock>,
    thread: OnceLock<Arc<Shared>>,
}

/// What the thread and the runs share.
struct Shared {
    clock: Arc<dyn Clock>,
    list: Mutex<List>,
    changed: Notify,
}

struct List {
    runs: Vec<Weak<RunHeartbeat>>,
    /// When the next heartbeat is due; never while there are no runs.
    next: Moment,
    closed: bool,
}

/// One run, as its worker and the thread see it.
pub(crate) struct RunHeartbeat {
    proof: Proof,
    ttl: Duration,
    clock: Arc<dyn Clock>,
    calls: Calls,
    state: Mutex<State>,
    loss: watch::Sender<Option<Loss>>,
}

/// Counts the calls of a worker that are under way. A worker that somebody only keeps, to go on
/// step by step, is not kept alive: a worker that was forgotten must not hold its transition for ever.
#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<AtomicUsize>);

/// A call that is under way.
pub(crate) struct ActiveCall(Calls);

impl Calls {
    pub(crate) fn begin(&self) -> ActiveCall {
        self.0.fetch_add(1, Ordering::AcqRel);
        ActiveCall(self.clone())
    }

    fn are_under_way(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

struct State {
    /// What runs now: an action or a gate.
    step: Option<Arc<str>>,
    /// When it must be over.
    limit: Moment,
    /// The lock under which it runs.
    lock: Option<Arc<Held>>,
    /// Since when it has been computing without a pause for others.
    busy: Option<Moment>,
    /// Whether that was logged.
    told: bool,
    next: Moment,
    asking: bool,
}

/// Why a worker must not go on with what it is at.
#[derive(Clone, Debug)]
pub(crate) enum Loss {
    /// The run-lease is another's.
    Taken,
    /// A caller asked to cancel the transition.
    Cancelled(CancelRequest),
    /// It has blocked its thread beyond its limit.
    Blocked,
}

impl Heartbeats {
    pub(crate) fn new(contexts: Contexts, clock: Arc<dyn Clock>) -> Self {
        Heartbeats { contexts, clock, thread: OnceLock::new() }
    }

    /// Keeps a run-lease alive while a call is under way, until the returned handle is dropped.
    pub(crate) fn keep(&self, proof: Proof, ttl: Duration, calls: Calls) -> Arc<RunHeartbeat> {
        let now = self.clock.now();
        let state = State {
            step: None,
            limit: Moment::NEVER,
            lock: None,
            busy: None,
            told: false,
            next: now.after(ttl / 3),
            asking: false,
        };
        let (loss, _) = watch::channel(None);
        let clock = self.clock.clone();
        let run =
            Arc::new(RunHeartbeat { proof, ttl, clock, calls, state: Mutex::new(state), loss });
        let shared = self.thread.get_or_init(|| self.start());
        let mut list = shared.list.lock();
        list.runs.push(Arc::downgrade(&run));
        let next = now.after(ttl / 3);
        if next < list.next {
            list.next = next;
            drop(list);
            shared.changed.notify_one();
        }
        run
    }

    fn start(&self) -> Arc<Shared> {
        let list = List { runs: Vec::new(), next: Moment::NEVER, closed: false };
        let shared = Arc::new(Shared {
            clock: self.clock.clone(),
            list: Mutex::new(list),
            changed: Notify::new(),
        });
        let (contexts, theirs) = (self.contexts.clone(), shared.clone());
        let started =
            std::thread::Builder::new().name("latchwork-heartbeat".to_owned()).spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                match runtime {
                    Ok(runtime) => runtime.block_on(theirs.run(contexts)),
                    Err(error) => not_started(&error.into()),
                }
            });
        if let Err(error) = started {
            not_started(&error.into());
        }
        shared
    }
}

fn not_started(error: &BoxError) {
    tracing::error!(%error, "no thread for heartbeats: run-leases end while their actions run");
}

impl Drop for Heartbeats {
    fn drop(&mut self) {
        if let Some(shared) = self.thread.get() {
            shared.list.lock().closed = true;
            shared.changed.notify_one();
        }
    }
}

impl Shared {
    async fn run(&self, contexts: Contexts) {
        let mut own = None;
        loop {
            let next = {
                let list = self.list.lock();
                if list.closed {
                    return;
                }
                list.next
            };
            if next == Moment::NEVER {
                self.changed.notified().await;
                continue;
            }
            tokio::select! {
                () = self.clock.sleep_until(next) => {}
                () = self.changed.notified() => continue,
            }
            let due = self.due();
            if due.is_empty() {
                continue;
            }
            // Not before it is needed: most runs end before their first heartbeat.
            let store = match &own {
                Some(store) => store,
                None => match contexts.separate().await {
                    Ok(store) => own.insert(store.unwrap_or_else(|| contexts.clone())),
                    Err(error) => {
                        tracing::warn!(%error, "heartbeats have no connection of their own yet");
                        &contexts
                    }
                },
            };
            for run in due {
                // Each by itself: an answer that is late must not make the others late.
                tokio::spawn(run.beat(store.clone()));
            }
        }
    }

    /// The runs whose heartbeat is due; notes when the next one is.
    fn due(&self) -> Vec<Arc<RunHeartbeat>> {
        let now = self.clock.now();
        let mut list = self.list.lock();
        let (mut due, mut next) = (Vec::new(), Moment::NEVER);
        list.runs.retain(|run| {
            let Some(run) = run.upgrade() else { return false };
            let mut state = run.state.lock();
            if run.loss.borrow().as_ref().is_some_and(Loss::is_final) {
                return false;
            }
            if state.next <= now {
                state.next = now.after(run.ttl / 3);
                if run.calls.are_under_way() && !std::mem::replace(&mut state.asking, true) {
                    due.push(run.clone());
                }
            }
            next = next.min(state.next);
            true
        });
        list.next = next;
        due
    }
}

impl Loss {
    /// Whether the run-lease is gone, so that there is nothing left to keep alive.
    fn is_final(&self) -> bool {
        !matches!(self, Loss::Cancelled(_))
    }
}

impl RunHeartbeat {
    /// One heartbeat, or the end of them.
    async fn beat(self: Arc<Self>, contexts: Contexts) {
        if self.is_stuck() {
            self.give_up(&contexts).await;
        } else {
            self.warn_if_blocked();
            match contexts.heartbeat(self.proof, self.ttl).await {
                Ok(beat) if !beat.held => self.set_loss(Loss::Taken),
                Ok(beat) => {
                    if let Some(request) = beat.cancel {
                        self.set_loss(Loss::Cancelled(request));
                    }
                }
                Err(error) => {
                    tracing::warn!(transition = %self.proof.id, %error, "a heartbeat was missed");
                    // Soon again: the run-lease does not wait.
                    let mut state = self.state.lock();
                    state.next = state.next.min(self.clock.now().after(self.ttl / 10));
                }
            }
        }
        self.state.lock().asking = false;
    }

    /// Whether its step should have been dropped long ago, and was not.
    fn is_stuck(&self) -> bool {
        let state = self.state.lock();
        state.limit != Moment::NEVER && state.limit.after(self.ttl / 3) <= self.clock.now()
    }

    async fn give_up(&self, contexts: &Contexts) {
        let (step, lock) = {
            let state = self.state.lock();
            (state.step.clone(), state.lock.clone())
        };
        // It ends with its ttl: nobody knows how long the step will hold on to it.
        if let Some(lock) = lock {
            lock.stop_renewing();
        }
        let step = step.as_deref().unwrap_or("it");
        let reason = format!("{step:?} blocked its thread beyond its time limit");
        tracing::error!(
            transition = %self.proof.id, step,
            "a step blocks its thread beyond its time limit; its run is given up"
        );
        let how = GiveBack { postpone: None, counts: true, reason: Some(&reason) };
        if let Err(error) = contexts.release(self.proof, &how).await {
            // It ends by itself, since nobody renews it any more.
            tracing::warn!(transition = %self.proof.id, %error, "a run-lease is left to its end");
        }
        self.set_loss(Loss::Blocked);
    }

    fn warn_if_blocked(&self) {
        let mut state = self.state.lock();
        let busy = state.busy.map(|since| self.clock.now().since(since));
        if let (Some(busy), Some(step)) = (busy, &state.step)
            && busy > self.ttl / 4
            && !state.told
        {
            tracing::warn!(
                transition = %self.proof.id, step = &**step, ?busy,
                "a step blocks its thread; let it wait with await or in spawn_blocking"
            );
            state.told = true;
        }
    }

    fn set_loss(&self, loss: Loss) {
        self.loss.send_if_modified(|known| {
            let more = known.as_ref().is_none_or(|known| !known.is_final());
            if more {
                *known = Some(loss);
            }
            more
        });
    }

    /// A step begins, which must be over by then. It ends when the answer is dropped, so that no limit
    /// of a call that was dropped midway is held against the next one.
    pub(crate) fn step(
        &self,
        name: Arc<str>,
        limit: Moment,
        lock: Option<Arc<Held>>,
    ) -> StepScope<'_> {
        let mut state = self.state.lock();
        state.step = Some(name);
        state.limit = limit;
        state.lock = lock;
        state.busy = Some(self.clock.now());
        state.told = false;
        StepScope(self)
    }

    /// The step computes from now on, or it waits.
    pub(crate) fn computes(&self, busy: bool) {
        self.state.lock().busy = busy.then(|| self.clock.now());
    }

    /// Why the worker must not go on, as far as is known.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.loss.borrow().clone()
    }

    /// Waits for a reason not to go on.
    pub(crate) async fn lost(&self) -> Loss {
        let mut seen = self.loss.subscribe();
        let loss = seen.wait_for(Option::is_some).await.ok().and_then(|loss| loss.clone());
        // The sender is ours, and so outlives this.
        loss.unwrap_or(Loss::Taken)
    }
}

/// A step that is under way.
pub(crate) struct StepScope<'a>(&'a RunHeartbeat);

impl Drop for StepScope<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        (state.step, state.limit, state.busy) = (None, Moment::NEVER, None);
        let lock = state.lock.take();
        drop(state);
        drop(lock);
    }
}

/// That a limit has passed.
pub(crate) fn timed_out(step: &str, index: usize, limit: Duration) -> Error {
    let action = step.to_owned();
    crate::ErrorKind::ActionTimedOut { action, index, limit }.into()
}
