//! Reports deadlocks within this process where they are certain (L22).
//!
//! # What is known
//!
//! The lease of a closure form such as [`run`](crate::LockRequest::run) is held until the closure ends,
//! because the closure does not have the guard. Such a lease is a [`Scope`]. The thread stores the
//! current scope while the closure runs (for a future: during each poll), so a request made by the
//! closure knows under which leases it is made. A task that the closure spawns is not in the scope;
//! where a runtime polls it on the same thread within the closure, its task id tells the two apart.
//!
//! # What is certain
//!
//! A request fails when it can never be granted within its own wait, unless a lease is lost:
//!
//! - **It waits for a scope that it is made in.** The lease ends when the closure does, and the request
//!   ends with the closure. If the lease ends sooner, by its ttl or by a break, the closure is dropped
//!   or its result is replaced by the error of the loss (L14), so a grant would be of no use to it.
//!   With [`OnLoss::Finish`](crate::OnLoss::Finish) the closure would continue, so that is no scope.
//! - **It closes a cycle.** It waits for a scope whose own request waits, and so on, back to a scope that
//!   it is made in. Each of them waits for a lease that ends when the request before it ends, so one
//!   must give up. If the wait of another one ends sooner than that of the request which closes the
//!   cycle, this one may still be granted, and waits. A scope in which several requests wait at once may
//!   continue with the first that is granted, so it does not count either.
//!
//! A loss is no way out of a cycle: it costs a closure its work. So nothing waits for one.
//!
//! A request that its caller gives up early, by `select!` or a timeout around it, waits for as long as it
//! says, as far as others can know. Set the time in the request, by [`wait`](crate::LockRequest::wait).
//!
//! # What is not
//!
//! A bare [`Guard`](crate::Guard) can be given to another task, dropped or released while a request
//! waits. A request of another process can end at any time. Requests that do not wait cannot
//! deadlock; shared leases admit each other; a request that names the holder's owner takes over (L7).
//! The same key in another provider or under another prefix is another key. Two connections to one
//! server are two providers here, since only the server knows that they are the same.
//!
//! # What it costs
//!
//! Nothing where a lease is granted at once. A request that must wait reads a thread-local, and if it is
//! made in a scope, it is registered with all others that are.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::{self, Id};

use crate::{Capability, ErrorKind, Held, Key, Locks, Mode, Moment, Owner, Result, Wait};

/// Work that is done under a lease which nobody can release before the work ends.
///
/// The closure forms make one by themselves. It is for layers that keep a guard and run the work of
/// others under it: see [`Held::scope`].
#[derive(Clone)]
pub struct Scope(Arc<Node>);

struct Node {
    held: Arc<Held>,
    /// What it was made in.
    outer: Option<Scope>,
}

/// The scope that a thread is in.
struct Current {
    scope: Scope,
    /// The task that entered it; none outside of tasks.
    task: Option<Id>,
}

thread_local! {
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
}

impl Held {
    /// A scope of work under this lease, within the scope that is entered now, if any.
    ///
    /// Requests made in it that would wait for this very lease fail with
    /// [`LockDeadlock`](ErrorKind::LockDeadlock) (L22). Only for those who keep the guard until
    /// the work has ended, and give up the work or its result if the lease is lost.
    pub fn scope(self: &Arc<Self>) -> Scope {
        Scope(Arc::new(Node { held: self.clone(), outer: Scope::current() }))
    }
}

impl Scope {
    /// Does work in the scope.
    ///
    /// Cancel safe if the work is.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|cx| self.call(|| work.as_mut().poll(cx))).await
    }

    /// The same for work that does not await.
    pub fn call<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = self.enter();
        work()
    }

    /// From now on, until what it gives is dropped.
    pub(crate) fn enter(&self) -> Entered {
        let current = Current { scope: self.clone(), task: task::try_id() };
        Entered { before: CURRENT.replace(Some(current)) }
    }

    /// The scope in which the calling task is.
    pub(crate) fn current() -> Option<Scope> {
        // A thread that ends is in none.
        let found = CURRENT.try_with(|current| {
            let now = current.take()?;
            let found = (now.task == task::try_id()).then(|| now.scope.clone());
            current.set(Some(now));
            found
        });
        found.ok().flatten()
    }

    /// Within this one, a scope of work under another lease.
    pub(crate) fn inner(&self, held: Arc<Held>) -> Scope {
        Scope(Arc::new(Node { held, outer: Some(self.clone()) }))
    }

    /// This one, then those around it.
    fn chain(&self) -> impl Iterator<Item = &Node> {
        std::iter::successors(Some(&*self.0), |node| node.outer.as_ref().map(|outer| &*outer.0))
    }
}

/// Dropped, the thread is where it was before.
pub(crate) struct Entered {
    before: Option<Current>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}

/// A registered request that waits. Dropped, it no longer waits.
pub(crate) struct Waiting(u64);

impl Waiting {
    /// Registers a request that must wait; none where no other request can depend on it.
    pub(crate) fn begin(held: &Held) -> Result<Option<Self>> {
        let deadline = match held.request.wait {
            Wait::No => return Ok(None),
            Wait::For(span) => held.request.sent_at.after(span),
            Wait::Forever => Moment::NEVER,
        };
        let Some(scope) = Scope::current() else { return Ok(None) };
        if !held.locks.capabilities().has(Capability::Exclusion) {
            return Ok(None);
        }
        let want = Want {
            locks: held.locks.share(),
            key: held.request.key.clone(),
            mode: held.request.mode,
            owner: held.request.owner.clone(),
            deadline,
        };
        // A caller of `try_acquire` gets its answer when the wait is over.
        let fails = !held.is_try || deadline == Moment::NEVER;
        if fails && scope.chain().any(|node| want.waits_for(&node.held)) {
            return Err(deadlock(vec![want.name()]));
        }
        let new = Request { scope, want };
        let mut waits = WAITS.lock();
        if fails && let Some(keys) = waits.circle(&new) {
            drop(waits);
            return Err(deadlock(keys));
        }
        Ok(Some(Waiting(waits.add(new))))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let gone = WAITS.lock().remove(self.0);
        drop(gone); // outside of the lock: with it a lease may end
    }
}

/// Logs, once for each key, that a request timed out on a key that this process itself holds. It may be
/// intended, or a task may have waited for a guard of its own: only the author of the program knows.
#[cold]
pub(crate) fn log_own_holder(held: &Held) {
    /// Bounds the memory for keys that are used once.
    const MOST: usize = 1_024;
    static LOGGED: LazyLock<Mutex<HashSet<u64>>> = LazyLock::new(Mutex::default);

    let mut logged = LOGGED.lock();
    if logged.len() < MOST && logged.insert(held.request.key.process_hash()) {
        drop(logged);
        tracing::warn!(
            key = held.key(),
            "a request timed out on a lock that this process itself holds; if the task that \
             waited has the guard, it waited for itself"
        );
    }
}

fn deadlock(keys: Vec<String>) -> crate::Error {
    ErrorKind::LockDeadlock { keys }.into()
}

/// What a request waits for.
struct Want {
    locks: Locks,
    key: Key,
    mode: Mode,
    owner: Option<Owner>,
    deadline: Moment,
}

impl Want {
    /// Whether it cannot be granted while this lease is held.
    fn waits_for(&self, held: &Held) -> bool {
        let theirs = &held.request;
        self.key == theirs.key
            && self.locks.is_same_provider(&held.locks)
            && (self.mode == Mode::Exclusive || theirs.mode == Mode::Exclusive)
            && !(self.owner.is_some() && self.owner == theirs.owner)
            && held.is_held()
    }

    /// How long it waits yet.
    fn left(&self) -> Duration {
        match self.deadline {
            Moment::NEVER => Duration::MAX,
            deadline => deadline.since(self.locks.clock().now()),
        }
    }

    fn name(&self) -> String {
        self.locks.strip(self.key.as_str()).to_owned()
    }
}

/// A request that waits in a scope.
struct Request {
    scope: Scope,
    want: Want,
}

impl Request {
    fn is_in(&self, scope: &Node) -> bool {
        self.scope.chain().any(|node| std::ptr::eq(node, scope))
    }
}

static WAITS: LazyLock<Mutex<Waits>> = LazyLock::new(Mutex::default);

/// All requests of this process that wait in scopes.
#[derive(Default)]
struct Waits {
    last: u64,
    all: HashMap<u64, Request>,
    /// Those that are made in a scope which holds this key, in whatever provider.
    under: HashMap<Key, Vec<u64>>,
}

impl Waits {
    fn add(&mut self, new: Request) -> u64 {
        self.last += 1;
        for node in new.scope.chain() {
            let under = self.under.entry(node.held.request.key.clone()).or_default();
            if under.last() != Some(&self.last) {
                under.push(self.last);
            }
        }
        self.all.insert(self.last, new);
        self.last
    }

    fn remove(&mut self, number: u64) -> Option<Request> {
        let gone = self.all.remove(&number)?;
        for node in gone.scope.chain() {
            let key = &node.held.request.key;
            if let Some(numbers) = self.under.get_mut(key) {
                numbers.retain(|other| *other != number);
                if numbers.is_empty() {
                    self.under.remove(key);
                }
            }
        }
        Some(gone)
    }

    /// The keys of the circle that a new request would close, if it would: first its own, then
    /// what the scope that holds that one waits for, and so on.
    fn circle(&self, new: &Request) -> Option<Vec<String>> {
        let left = new.want.left();
        // From which request each was found, and those to go on from.
        let mut found_from: HashMap<u64, Option<u64>> = HashMap::new();
        let mut next = vec![None];
        while let Some(from) = next.pop() {
            let want = match from {
                None => &new.want,
                Some(number) => &self.all.get(&number)?.want,
            };
            for &number in self.under.get(&want.key).into_iter().flatten() {
                let Some(request) = self.all.get(&number) else { continue };
                if found_from.contains_key(&number)
                    || request.want.left() < left
                    || !self.holds_up(request, want)
                {
                    continue;
                }
                found_from.insert(number, from);
                if new.scope.chain().any(|node| request.want.waits_for(&node.held)) {
                    return Some(self.names(new, number, &found_from));
                }
                next.push(Some(number));
            }
        }
        None
    }

    /// Whether a scope that waits with this request, and with no other, holds what is wanted.
    fn holds_up(&self, request: &Request, want: &Want) -> bool {
        request.scope.chain().filter(|node| want.waits_for(&node.held)).any(|node| {
            let numbers = self.under.get(&want.key).into_iter().flatten();
            let inside = numbers.filter_map(|number| self.all.get(number));
            inside.filter(|other| other.is_in(node)).count() == 1
        })
    }

    fn names(
        &self,
        new: &Request,
        last: u64,
        found_from: &HashMap<u64, Option<u64>>,
    ) -> Vec<String> {
        let back = std::iter::successors(Some(last), |number| found_from.get(number).copied()?);
        let mut names: Vec<String> =
            back.filter_map(|number| Some(self.all.get(&number)?.want.name())).collect();
        names.push(new.want.name());
        names.reverse();
        names
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::{join, poll_immediate};

    use super::*;
    use crate::{Guard, InMemoryLockProvider, blocking};

    const LONG: Duration = Duration::from_secs(60);

    fn locks() -> Locks {
        Locks::new(InMemoryLockProvider::new())
    }

    async fn asks(locks: &Locks, key: &str, wait: Duration) -> Result<Guard> {
        locks.lock(key).ttl(LONG).wait(wait).acquire().await
    }

    #[track_caller]
    fn is_deadlock<T>(answer: &Result<T>) -> bool {
        answer.as_ref().is_err_and(|error| error.code() == "lock_deadlock")
    }

    /// Polls a future once, as a task that waits would.
    macro_rules! begin {
        ($future:ident) => {
            let mut $future = pin!($future);
            assert!(poll_immediate($future.as_mut()).await.is_none(), "it waits");
        };
    }

    /// Work in a scope of its own under a key.
    async fn scope(locks: &Locks, key: &str) -> (Guard, Scope) {
        let guard = locks.lock(key).ttl(LONG).acquire().await.expect("a free key");
        let scope = guard.share().scope();
        (guard, scope)
    }

    #[tokio::test]
    async fn a_circle_is_found_from_whichever_side_it_is_closed() {
        for turned in [false, true] {
            let locks = locks();
            let (_a, under_a) = scope(&locks, "a").await;
            let (_b, under_b) = scope(&locks, "b").await;
            let [first, last] = match turned {
                false => [(&under_a, "b"), (&under_b, "a")],
                true => [(&under_b, "a"), (&under_a, "b")],
            };
            let waits = first.0.run(asks(&locks, first.1, LONG));
            begin!(waits);
            assert!(is_deadlock(&last.0.run(asks(&locks, last.1, LONG / 2)).await));
        }
    }

    #[tokio::test]
    async fn who_waits_for_longer_than_another_of_the_circle_waits() {
        let locks = locks();
        let (_a, under_a) = scope(&locks, "a").await;
        let (b, under_b) = scope(&locks, "b").await;
        let waits = under_a.run(asks(&locks, "b", LONG));
        begin!(waits);
        let longer = under_b.run(asks(&locks, "a", LONG * 2));
        begin!(longer);
        let forever = under_b.run(locks.lock("a").wait_forever().acquire());
        begin!(forever);
        b.release().await.expect("held");
        assert!(waits.await.is_ok());
    }

    #[tokio::test]
    async fn a_request_that_is_gone_closes_nothing() {
        let locks = locks();
        let (_a, under_a) = scope(&locks, "a").await;
        let (_b, under_b) = scope(&locks, "b").await;
        {
            let waits = under_a.run(asks(&locks, "b", LONG));
            begin!(waits);
        }
        let asking = under_b.run(asks(&locks, "a", LONG / 2));
        begin!(asking);
    }

    #[tokio::test]
    async fn a_scope_that_waits_for_several_at_once_is_not_counted() {
        let locks = locks();
        let (_a, under_a) = scope(&locks, "a").await;
        let (_b, under_b) = scope(&locks, "b").await;
        let (_c, _) = scope(&locks, "c").await;
        let both = under_a.run(join(asks(&locks, "b", LONG), asks(&locks, "c", LONG)));
        begin!(both);
        let asking = under_b.run(asks(&locks, "a", LONG / 2));
        begin!(asking);
    }

    #[tokio::test]
    async fn a_lease_that_is_lost_holds_nothing_up() {
        let locks = locks();
        let (a, under_a) = scope(&locks, "a").await;
        a.release().await.expect("held");
        let granted = under_a.run(asks(&locks, "a", LONG)).await.expect("it is free");
        // Somebody else has it now.
        let asking = under_a.run(asks(&locks, "a", LONG));
        begin!(asking);
        drop(granted);
        assert!(asking.await.is_ok());
    }

    #[test]
    #[expect(clippy::async_yields_async, reason = "the task is awaited when the lock is free")]
    fn a_task_that_is_polled_on_the_same_thread_is_not_in_the_scope() {
        let locks = blocking::Locks::from(locks());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let own = locks.as_async().clone();
        let work = |_: &Held| {
            runtime.block_on(async {
                let task = tokio::spawn(async move { asks(&own, "a", LONG).await });
                // It has been polled, and waits.
                tokio::task::yield_now().await;
                let inside = asks(locks.as_async(), "a", LONG).await;
                assert!(is_deadlock(&inside), "that is not another task");
                task
            })
        };
        let task = locks.scoped("a", work).expect("held to the end");
        let answer = runtime.block_on(task).expect("no panic");
        assert!(answer.is_ok(), "{answer:?}");
    }

    #[tokio::test]
    async fn nothing_is_left_behind() {
        let locks = locks();
        let (_a, under_a) = scope(&locks, "left behind").await;
        assert!(is_deadlock(&under_a.run(asks(&locks, "left behind", LONG)).await));
        assert!(Scope::current().is_none());
        let key = locks.key("left behind").expect("a legal key");
        assert!(!WAITS.lock().under.contains_key(&key));
        let (_b, _) = scope(&locks, "b").await;
        {
            let asking = under_a.run(asks(&locks, "b", LONG));
            begin!(asking);
            assert!(WAITS.lock().under.contains_key(&key));
        }
        assert!(!WAITS.lock().under.contains_key(&key));
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            under_a.call(|| panic!("simulated failure"))
        }));
        assert!(panics.is_err() && Scope::current().is_none());
    }

    /// Counts the warnings of this module.
    struct Warnings(Arc<AtomicUsize>);

    impl tracing::Subscriber for Warnings {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::WARN
                && metadata.target() == module_path!().trim_end_matches("::tests")
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[tokio::test]
    async fn a_wait_in_vain_for_a_bare_guard_is_logged_once() {
        let logged = Arc::new(AtomicUsize::new(0));
        let _logs_here = tracing::subscriber::set_default(Warnings(logged.clone()));
        let locks = locks();
        let guard = locks.lock("bare").acquire().await.expect("a free key");
        assert!(locks.lock("bare").try_acquire().await.expect("an answer").is_none());
        assert_eq!(logged.load(Ordering::SeqCst), 0, "it did not wait");
        for _ in 0..3 {
            let answer = asks(&locks, "bare", Duration::from_millis(10)).await;
            assert_eq!(answer.expect_err("it is taken").code(), "lock_taken");
            assert_eq!(logged.load(Ordering::SeqCst), 1);
        }
        drop(guard);
    }

    #[test]
    fn the_message_names_the_keys_in_turn() {
        let told = |keys: &[&str]| {
            deadlock(keys.iter().map(|key| (*key).to_owned()).collect()).to_string()
        };
        let own = told(&["a"]);
        assert!(own.contains("waiting for \"a\" would never end"), "{own}");
        let circle = told(&["a", "b", "c"]);
        let way = "for \"a\", whose holder waits for \"b\", whose holder waits for \"c\"";
        assert!(circle.contains(way) && circle.contains("lock_all"), "{circle}");
    }
}
