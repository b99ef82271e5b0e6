//! Any sequence of operations and times keeps the promises.

use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000;
const IDLE: u64 = 600 * SECOND;

#[derive(Clone, Debug)]
enum Step {
    Acquire { mode: Mode, owner: Option<u8>, wait: Option<u8>, workflow: bool },
    Again(usize),
    Release(usize),
    ReleaseFirst,
    Renew(usize),
    Rotate(usize),
    Break(Option<usize>),
    Gone(usize),
    Pass(u16),
    Carry,
}

fn step() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![3 => Just(Mode::Exclusive), 1 => Just(Mode::Shared)];
    let owner = prop::option::weighted(0.2, 0..3_u8);
    let wait = prop::option::of(1..60_u8);
    prop_oneof![
        6 => (mode, owner, wait, any::<bool>())
            .prop_map(|(mode, owner, wait, workflow)| Step::Acquire { mode, owner, wait, workflow }),
        4 => (0..8_usize).prop_map(Step::Again),
        4 => (0..8_usize).prop_map(Step::Release),
        1 => Just(Step::ReleaseFirst),
        1 => (0..8_usize).prop_map(Step::Renew),
        1 => (0..8_usize).prop_map(Step::Rotate),
        1 => prop::option::of(0..8_usize).prop_map(Step::Break),
        2 => (0..8_usize).prop_map(Step::Gone),
        4 => (1..5_000_u16).prop_map(Step::Pass),
        1 => Just(Step::Carry),
    ]
}

struct World {
    state: State,
    now: u64,
    ids: u128,
    requests: Vec<Acquire>,
    granted: Vec<u64>,
}

impl World {
    fn new() -> Self {
        World {
            state: State::new(41, SECOND),
            now: SECOND,
            ids: 0,
            requests: Vec::new(),
            granted: Vec::new(),
        }
    }

    fn id(&mut self) -> Id {
        self.ids += 1;
        Id(self.ids)
    }

    fn request(&mut self, workflow: bool) -> Acquire {
        let lease = self.id();
        Acquire {
            lease,
            mode: Mode::Exclusive,
            owner: None,
            process: "here:1".into(),
            note: None,
            ttl_us: 10 * SECOND,
            wait: Patience::Forever,
            again: false,
            workflow: workflow.then(|| Caller {
                workflow_id: format!("w{}", lease.0),
                run_id: "r".into(),
                grace_us: 10 * SECOND,
            }),
        }
    }

    /// Applies an operation twice, as a retry does, and returns its outcome.
    fn apply(&mut self, kind: OperationKind) -> Outcome {
        let operation = Operation { id: self.id(), kind };
        let batch = Batch { version: VERSION, operations: vec![operation.clone()] };
        self.state.apply(batch.clone(), self.now);
        let first = self.state.outcome(operation.id).cloned().expect("an outcome");
        let fence = self.state.last_fence;
        self.state.apply(batch, self.now);
        assert_eq!(self.state.outcome(operation.id), Some(&first), "done once");
        assert_eq!(self.state.last_fence, fence, "a retry grants nothing");
        first
    }

    fn lease(&self, at: usize) -> Option<Id> {
        self.requests.get(at % self.requests.len().max(1)).map(|request| request.lease)
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Acquire { mode, owner, wait, workflow } => {
                let mut request = self.request(workflow);
                request.mode = mode;
                request.owner = owner.map(|owner| format!("o{owner}"));
                request.wait =
                    wait.map_or(Patience::No, |wait| Patience::ForMicros(u64::from(wait) * SECOND));
                self.requests.push(request.clone());
                let outcome = self.apply(OperationKind::Acquire(request));
                assert!(wait.is_some() || outcome != Outcome::Queued);
            }
            Step::Again(at) => {
                let len = self.requests.len().max(1);
                if let Some(request) = self.requests.get(at % len).cloned() {
                    self.apply(OperationKind::Acquire(Acquire { again: true, ..request }));
                }
            }
            Step::Release(at) => {
                if let Some(lease) = self.lease(at) {
                    self.apply(OperationKind::Release { lease });
                    assert_eq!(self.state.place(lease), QueuePlace::Unknown);
                }
            }
            Step::ReleaseFirst => {
                let request = self.request(false);
                self.apply(OperationKind::Release { lease: request.lease });
                let outcome = self.apply(OperationKind::Acquire(request));
                assert_eq!(outcome, Outcome::Refused { holder: None }, "its release came before");
            }
            Step::Renew(at) => {
                if let Some(lease) = self.lease(at) {
                    self.apply(OperationKind::Renew { lease, ttl_us: 10 * SECOND });
                }
            }
            Step::Rotate(at) => {
                if let Some(lease) = self.lease(at) {
                    let fresh = self.id();
                    let ttl_us = 10 * SECOND;
                    self.apply(OperationKind::Rotate { lease, fresh, ttl_us });
                    assert!(self.state.holder_mut(lease).is_none(), "the old copy is dead");
                }
            }
            Step::Break(at) => {
                let held = at.and_then(|at| self.state.holders.get(at)).map(|held| held.fence);
                self.apply(OperationKind::Break { fence: held });
            }
            Step::Gone(at) => {
                let mut messages = self.state.take_messages();
                messages.extend(self.state.take_probes(self.now));
                let gone = at % messages.len().max(1);
                for (place, message) in messages.iter().enumerate() {
                    if place == gone {
                        self.state.undelivered(message, self.now);
                    } else {
                        self.state.delivered(message);
                    }
                }
            }
            Step::Pass(millis) => self.now += u64::from(millis) * 1_000,
            Step::Carry => {
                let text = serde_json::to_string(&self.state).expect("it serialises");
                self.state = serde_json::from_str(&text).expect("it is read");
            }
        }
    }

    fn check(&mut self) {
        let order: Vec<Id> = self.state.queue.iter().map(|it| it.request.lease).collect();
        self.state.settle(self.now);
        let state = &self.state;
        let left: Vec<Id> = state.queue.iter().map(|it| it.request.lease).collect();
        assert!(left.iter().all(|id| order.contains(id)), "nobody joins by the passing of time");
        let writers = state.holders.iter().filter(|h| h.request.mode == Mode::Exclusive).count();
        assert!(writers == 0 || state.holders.len() == 1, "exclusion: {state:?}");
        if let Some(first) = state.queue.front() {
            assert!(!state.admits(first.request.mode), "nobody waits for a free mutex");
        }
        for held in &state.holders {
            assert!(held.expires > self.now, "a lease is over at its end");
            assert!(held.fence <= state.last_fence);
            assert!(state.next_wake(IDLE) <= held.expires, "its end is not slept over");
            if !self.granted.contains(&held.fence) {
                assert!(self.granted.last().is_none_or(|last| *last < held.fence), "fences grow");
                self.granted.push(held.fence);
            }
        }
        assert!(state.outcomes.len() <= OUTCOMES && state.tombstones.len() <= TOMBSTONES);
    }
}

proptest! {
    #[test]
    fn any_sequence_of_events_keeps_the_promises(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
            world.check();
        }
        // Left alone, it becomes free and ends.
        let mut rounds = 0;
        loop {
            world.state.take_messages();
            world.state.take_probes(world.now);
            if world.state.is_over(IDLE, world.now) {
                break;
            }
            let due = world.state.next_wake(IDLE);
            prop_assert!(due < u64::MAX, "it would sleep for ever: {:?}", world.state);
            world.now = world.now.max(due);
            world.check();
            rounds += 1;
            prop_assert!(rounds < 1_000, "it never ends: {:?}", world.state);
        }
    }
}

#[test]
fn first_come_first_served() {
    let mut world = World::new();
    let requests: Vec<_> = (0..4).map(|_| world.request(false)).collect();
    for request in &requests {
        world.apply(OperationKind::Acquire(request.clone()));
    }
    for (at, request) in requests.iter().enumerate() {
        if at > 0 {
            assert_eq!(world.state.place(request.lease), QueuePlace::Reserved);
            world.apply(OperationKind::Acquire(Acquire { again: true, ..request.clone() }));
        }
        assert_eq!(world.state.place(request.lease), QueuePlace::Held);
        assert_eq!(world.state.queue.len(), 3 - at);
        world.apply(OperationKind::Release { lease: request.lease });
    }
    assert!(world.state.holders.is_empty());
}

#[test]
fn an_unclaimed_turn_passes_on() {
    let mut world = World::new();
    let [first, gone, next] = [(); 3].map(|()| world.request(false));
    for request in [&first, &gone, &next] {
        world.apply(OperationKind::Acquire(request.clone()));
    }
    world.apply(OperationKind::Release { lease: first.lease });
    assert_eq!(world.state.place(gone.lease), QueuePlace::Reserved);
    world.now += micros(CLAIM_WINDOW);
    world.check();
    assert_eq!(world.state.place(gone.lease), QueuePlace::Unknown);
    assert_eq!(world.state.place(next.lease), QueuePlace::Reserved);
}

#[test]
fn a_workflow_that_is_gone_frees_the_lock_after_its_grace() {
    let mut world = World::new();
    let holder = Acquire { ttl_us: 3_600 * SECOND, ..world.request(true) };
    let waiter = world.request(false);
    world.apply(OperationKind::Acquire(holder.clone()));
    assert_eq!(world.state.take_messages().len(), 1, "it is told");
    world.now += 100 * SECOND;
    world.check();
    assert!(world.state.take_probes(world.now).is_empty(), "nobody waits, so nobody looks");
    world.apply(OperationKind::Acquire(waiter.clone()));
    world.now += micros(FIRST_PROBE);
    let probes = world.state.take_probes(world.now);
    assert_eq!(probes.len(), 1);
    assert!(world.state.take_probes(world.now).is_empty(), "one look at a time");
    world.state.undelivered(&probes[0], world.now);
    assert!(matches!(world.state.take_messages()[0].reply.kind, ReplyKind::Confirm { .. }));
    assert_eq!(world.state.next_wake(IDLE), world.now + 10 * SECOND);
    assert_eq!(world.state.place(holder.lease), QueuePlace::Held);
    world.now += 10 * SECOND;
    world.check();
    assert_eq!(world.state.place(waiter.lease), QueuePlace::Reserved);
}

#[test]
fn a_workflow_that_was_reset_and_confirms_keeps_the_lock() {
    let mut world = World::new();
    let holder = Acquire { ttl_us: 3_600 * SECOND, ..world.request(true) };
    let waiter = world.request(true);
    world.apply(OperationKind::Acquire(holder.clone()));
    world.apply(OperationKind::Acquire(waiter));
    world.now += micros(FIRST_PROBE);
    let probes = world.state.take_probes(world.now);
    world.state.undelivered(&probes[0], world.now);
    world.now += SECOND;
    let run_id = "after the reset".to_owned();
    let outcome =
        world.apply(OperationKind::Confirm { lease: holder.lease, run_id: run_id.clone() });
    assert_eq!(outcome, Outcome::Done { found: true });
    world.now += 60 * SECOND;
    world.check();
    assert_eq!(world.state.place(holder.lease), QueuePlace::Held);
    assert_eq!(world.state.status("r", 0).holders[0].run_id, Some(run_id));
}

#[test]
fn an_old_version_is_told_so_and_changes_nothing() {
    let mut world = World::new();
    let request = world.request(false);
    let operation = Operation { id: Id(99), kind: OperationKind::Acquire(request) };
    world.state.apply(Batch { version: 1, operations: vec![operation] }, world.now);
    assert_eq!(world.state.outcome(Id(99)), Some(&Outcome::Unsupported));
    assert!(world.state.holders.is_empty());
}

#[test]
fn activity_restarts_the_idle_timer() {
    let mut world = World::new();
    world.now += IDLE - SECOND;
    assert!(!world.state.is_over(IDLE, world.now));
    world.apply(OperationKind::Ping);
    world.now += SECOND;
    assert!(!world.state.is_over(IDLE, world.now));
    world.now += IDLE;
    assert!(world.state.is_over(IDLE, world.now));
}

#[test]
fn a_waiting_workflow_that_was_reset_gets_its_turn_in_the_new_run() {
    let mut world = World::new();
    let holder = world.request(false);
    let waiter = Acquire { ttl_us: 3_600 * SECOND, ..world.request(true) };
    let next = world.request(false);
    for request in [&holder, &waiter, &next] {
        world.apply(OperationKind::Acquire(request.clone()));
    }
    world.apply(OperationKind::Release { lease: holder.lease });
    let told = world.state.take_messages();
    world.state.undelivered(&told[0], world.now);
    assert_eq!(world.state.place(waiter.lease), QueuePlace::Held);
    let told = world.state.take_messages();
    assert_eq!(told[0].run_id, None, "whichever run there is");
    assert!(matches!(told[0].reply.kind, ReplyKind::Granted { .. }));
    world.state.delivered(&told[0]);
    // Its new run is learnt by the next look.
    world.now += micros(FIRST_PROBE);
    world.check();
    let probes = world.state.take_probes(world.now);
    world.state.undelivered(&probes[0], world.now);
    assert!(matches!(world.state.take_messages()[0].reply.kind, ReplyKind::Confirm { .. }));
    let run_id = "after the reset".to_owned();
    world.apply(OperationKind::Confirm { lease: waiter.lease, run_id });
    world.now += 60 * SECOND;
    world.check();
    assert_eq!(world.state.place(waiter.lease), QueuePlace::Held);
}

#[test]
fn a_waiting_workflow_that_is_gone_leaves_its_turn_to_the_next() {
    let mut world = World::new();
    let [holder, next] = [(); 2].map(|()| world.request(false));
    let gone = world.request(true);
    for request in [&holder, &gone, &next] {
        world.apply(OperationKind::Acquire(request.clone()));
    }
    world.apply(OperationKind::Release { lease: holder.lease });
    for _ in 0..2 {
        let told = world.state.take_messages();
        world.state.undelivered(&told[0], world.now);
    }
    assert_eq!(world.state.place(gone.lease), QueuePlace::Unknown);
    assert_eq!(world.state.place(next.lease), QueuePlace::Reserved, "without any grace");
}

#[test]
fn a_workflow_that_is_refused_is_told() {
    let mut world = World::new();
    let owned =
        |request: Acquire| Acquire { owner: Some("one".into()), mode: Mode::Shared, ..request };
    let first = owned(world.request(true));
    let other = Acquire { mode: Mode::Shared, ..world.request(true) };
    let upgrade = Acquire { mode: Mode::Exclusive, ..owned(world.request(true)) };
    for request in [&first, &other] {
        world.apply(OperationKind::Acquire(request.clone()));
    }
    world.state.take_messages();
    let outcome = world.apply(OperationKind::Acquire(upgrade.clone()));
    assert!(matches!(outcome, Outcome::Refused { .. }));
    let told = world.state.take_messages();
    assert_eq!((told.len(), told[0].reply.lease), (1, upgrade.lease));
    assert_eq!(told[0].reply.kind, ReplyKind::Refused);
}

/// A server accepts two megabytes, and the state goes to the next run as one payload.
#[test]
fn a_crowd_with_long_names_can_be_carried() {
    let long = "\"".repeat(255);
    for (mode, workflow) in
        [(Mode::Exclusive, false), (Mode::Exclusive, true), (Mode::Shared, true)]
    {
        for text in [None, Some(long.clone())] {
            let mut world = World::new();
            let mut taken = 0;
            loop {
                let mut request = world.request(workflow);
                request.mode = mode;
                request.note.clone_from(&text);
                request.owner = text.as_ref().map(|text| format!("{taken}{}", &text[..250]));
                request.process = "a-host-with-a-name-of-some-length:1234567".into();
                if let Some(caller) = &mut request.workflow {
                    caller.workflow_id = text.clone().unwrap_or_else(|| "deploy-1234".into());
                    caller.run_id = "01a2b3c4-0000-7000-8000-000000000000".into();
                }
                let operation = Operation { id: world.id(), kind: OperationKind::Acquire(request) };
                let id = operation.id;
                let batch = Batch { version: VERSION, operations: vec![operation] };
                world.state.apply(batch, world.now);
                if matches!(world.state.outcome(id), Some(Outcome::Refused { .. })) {
                    break;
                }
                taken += 1;
            }
            // As many outcomes that name a holder.
            for _ in 0..OUTCOMES {
                let request = Acquire { wait: Patience::No, ..world.request(false) };
                world.apply(OperationKind::Acquire(Acquire { mode: Mode::Exclusive, ..request }));
            }
            world.apply(OperationKind::Break { fence: Some(1) });
            world.state.take_messages();
            let bytes = serde_json::to_vec(&world.state).expect("it serialises").len();
            assert!(bytes < 1_950_000, "{bytes} bytes for {taken} of {mode:?}");
            assert!(taken >= if text.is_some() { 400 } else { 3_000 }, "only {taken}");
        }
    }
}
