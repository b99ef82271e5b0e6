//! How the waiters of this process learn of changes: one thread wakes them when a record changes, when
//! a process ahead of them dies, when a lease expires, and once a second in case a notification was
//! lost.
//!
//! It only reads. What is due is left to a waiter, so that an edit that hangs holds up the waiters of
//! that key only.

use std::collections::{HashMap, HashSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::name::locate;
use super::process::{Census, Process, lives};
use super::store::Store;
use crate::coordination::waiters::WaiterRegistry;
use crate::rules::Id;
use crate::{Key, Mode, Moment, Result};

/// How often a key with waiters is read without a notification.
const FALLBACK: Duration = Duration::from_secs(1);

/// The same where there are no notifications of changes.
pub(super) const WITHOUT_INOTIFY: Duration = Duration::from_millis(100);

/// How long a waiter that is not the next waits after a notification, for each one ahead of it. Each of
/// them comes and goes with two notifications, and processes that read the record at all of them
/// would take the time of those that are next.
const APIECE: Duration = Duration::from_millis(1);
const MOST_APIECES: u32 = 10;

/// The pause where the death of a process ahead is not notified, or where something is due.
const SOON: Duration = Duration::from_millis(200);

/// Wakes the waiters of this process. Dropped, its thread ends when there is no waiter any more.
pub(super) struct Notifier {
    store: Arc<Store>,
    waiters: Arc<WaiterRegistry>,
    /// None: the thread could not be started, and waiters poll.
    keys: OnceLock<Option<Arc<WatchedKeys>>>,
}

/// What the thread is told.
struct WatchedKeys {
    wake: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Keys that have got a waiter.
    added: Vec<Key>,
    is_closed: bool,
}

impl Notifier {
    pub(super) fn new(store: Arc<Store>, waiters: Arc<WaiterRegistry>) -> Self {
        Notifier { store, waiters, keys: OnceLock::new() }
    }

    /// Looks after the queued waiters of a key from now on. The key is read right away, so that no
    /// change since the waiter was queued is missed. False when there is no thread for it.
    pub(super) fn watch(&self, key: &Key) -> bool {
        let keys = self.keys.get_or_init(|| match self.start() {
            Ok(keys) => Some(keys),
            Err(error) => {
                tracing::warn!(%error, "no thread for lock waiters; they poll every 100 ms");
                None
            }
        });
        if let Some(keys) = keys {
            keys.state.lock().added.push(key.clone());
            keys.wake();
        }
        keys.is_some()
    }

    fn start(&self) -> io::Result<Arc<WatchedKeys>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let keys = Arc::new(WatchedKeys { wake, state: Mutex::default() });
        let watcher = Watcher {
            changes: inotify_of(&self.store),
            keys: keys.clone(),
            store: self.store.clone(),
            waiters: self.waiters.clone(),
            watched: HashMap::new(),
            deaths: HashMap::new(),
        };
        std::thread::Builder::new().name("latchwork-watch".into()).spawn(move || watcher.run())?;
        Ok(keys)
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        if let Some(Some(keys)) = self.keys.get() {
            keys.state.lock().is_closed = true;
            keys.wake();
        }
    }
}

impl WatchedKeys {
    fn wake(&self) {
        // It fails only after 2^64 calls that the thread has not seen.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

struct Watcher {
    keys: Arc<WatchedKeys>,
    store: Arc<Store>,
    waiters: Arc<WaiterRegistry>,
    /// Notifies of records that were replaced or removed.
    changes: Option<OwnedFd>,
    /// By the record's file name.
    watched: HashMap<String, Watched>,
    deaths: HashMap<Process, OwnedFd>,
}

struct Watched {
    key: Key,
    look_at: Moment,
    /// How long after a notification it is read.
    hesitation: Duration,
    /// Processes ahead of the waiters.
    ahead: Vec<Process>,
}

impl Watcher {
    fn run(mut self) {
        while self.add_keys() {
            let now = self.store.clock.now();
            let due: Vec<String> = self
                .watched
                .iter()
                .filter(|(_, w)| w.look_at <= now)
                .map(|(n, _)| n.clone())
                .collect();
            for file in due {
                self.check(&file);
            }
            self.follow_deaths();
            self.sleep();
        }
    }

    /// Adds the keys that have got waiters; false when there can be no waiter any more.
    fn add_keys(&mut self) -> bool {
        let mut state = self.keys.state.lock();
        for key in state.added.drain(..) {
            let file = locate(key.as_str()).file;
            let watched = self.watched.entry(file).or_insert_with(|| Watched {
                key,
                look_at: Moment::default(),
                hesitation: Duration::ZERO,
                ahead: Vec::new(),
            });
            watched.look_at = Moment::default();
        }
        !state.is_closed || !self.waiters.is_empty()
    }

    /// Wakes the waiters that are no longer queued: they were granted the key, or were dropped.
    fn check(&mut self, file: &str) {
        let Some(watched) = self.watched.get_mut(file) else { return };
        let waiters = self.waiters.waiters_of(&watched.key);
        if waiters.is_empty() {
            self.watched.remove(file);
            return;
        }
        let tick = if self.changes.is_some() { FALLBACK } else { WITHOUT_INOTIFY };
        watched.look_at = self.store.clock.now().after(tick);
        // Processes whose descriptor is silent are alive.
        let mut census = Census::knowing(&self.store.here, self.deaths.keys().copied());
        match read_view(&self.store, &watched.key, &mut census) {
            Ok(View { queue, modes, next, ahead, due }) => {
                watched.look_at = watched.look_at.min(next);
                watched.ahead = ahead;
                let first = queue.iter().position(|id| waiters.contains(id));
                watched.hesitation = hesitation(&modes, first);
                waiters
                    .iter()
                    .filter(|id| !queue.contains(id))
                    .for_each(|id| self.waiters.wake(*id));
                if due {
                    // One of ours sends a request, which ends what is due: best the next one.
                    let first = queue.iter().find(|id| waiters.contains(id));
                    first.inspect(|id| self.waiters.wake(**id));
                    watched.look_at = watched.look_at.min(self.store.clock.now().after(SOON));
                }
            }
            // They send a request each, and are told what is wrong.
            Err(_) => waiters.iter().for_each(|id| self.waiters.wake(*id)),
        }
    }

    fn follow_deaths(&mut self) {
        let wanted: HashSet<Process> =
            self.watched.values().flat_map(|w| w.ahead.iter().copied()).collect();
        self.deaths.retain(|process, _| wanted.contains(process));
        for process in wanted {
            if self.deaths.contains_key(&process) {
                continue;
            }
            let fd = i32::try_from(process.pid)
                .ok()
                .and_then(Pid::from_raw)
                .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            // Checked after the descriptor was made: the pid may have been reused before.
            let look_again = match fd {
                Some(fd) if lives(process) => {
                    self.deaths.insert(process, fd);
                    continue;
                }
                None if lives(process) => self.store.clock.now().after(SOON),
                // It died since the look. The next look no longer names it.
                _ => Moment::default(),
            };
            let behind = self.watched.values_mut().filter(|w| w.ahead.contains(&process));
            behind.for_each(|w| w.look_at = w.look_at.min(look_again));
        }
    }

    fn sleep(&mut self) {
        let next = self.watched.values().map(|w| w.look_at).min().unwrap_or(Moment::NEVER);
        // Sleeps stand still while the machine is suspended; leases do not.
        let nap = next.since(self.store.clock.now()).min(FALLBACK);
        let nap = nap_of(nap);
        let timeout = (next != Moment::NEVER).then_some(&nap);
        let mut fds = vec![PollFd::new(&self.keys.wake, PollFlags::IN)];
        fds.extend(self.changes.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let first_death = fds.len();
        let processes: Vec<Process> = self.deaths.keys().copied().collect();
        fds.extend(self.deaths.values().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let _ = poll(&mut fds, timeout);
        let dead: Vec<Process> = processes
            .into_iter()
            .zip(&fds[first_death..])
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(process, _)| process)
            .collect();
        drop(fds);
        for process in dead {
            self.deaths.remove(&process);
            for watched in self.watched.values_mut().filter(|w| w.ahead.contains(&process)) {
                watched.look_at = Moment::default();
                watched.ahead.retain(|p| *p != process);
            }
        }
        let mut heard = [0_u8; 8];
        let _ = rustix::io::read(&self.keys.wake, &mut heard);
        self.read_changes();
    }

    fn read_changes(&mut self) {
        let Some(fd) = &self.changes else { return };
        let now = self.store.clock.now();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(fd.as_fd(), &mut buffer);
        while let Ok(event) = reader.next() {
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                self.watched.values_mut().for_each(|w| w.look_at = Moment::default());
            }
            let file = event.file_name().and_then(|name| name.to_str().ok());
            if let Some(watched) = file.and_then(|file| self.watched.get_mut(file)) {
                watched.look_at = watched.look_at.min(now.after(watched.hesitation));
            }
        }
    }
}

struct View {
    queue: Vec<Id>,
    modes: Vec<Mode>,
    /// When something ends by itself.
    next: Moment,
    ahead: Vec<Process>,
    /// Whether something has ended by itself already.
    due: bool,
}

/// Reads the state of a key.
fn read_view(store: &Store, key: &Key, census: &mut Census<'_>) -> Result<View> {
    let (rules, due) = store.peek(key, census)?;
    let requesters = rules.holders.iter().map(|h| &h.requester).chain(&rules.queue);
    let mut ahead: Vec<Process> = requesters.flat_map(|p| census.mortals(&p.extra)).collect();
    ahead.sort_unstable_by_key(|p| p.pid);
    ahead.dedup();
    let until = rules.queue.iter().map(|w| w.extra.until).min().unwrap_or(Moment::NEVER);
    let next = rules.next_expiry().min(until);
    let queue = rules.queue.iter().map(|w| w.id).collect();
    let modes = rules.queue.iter().map(|w| w.mode).collect();
    Ok(View { queue, modes, next, ahead, due })
}

/// None for the next in turn, and for readers who come with it.
fn hesitation(modes: &[Mode], first: Option<usize>) -> Duration {
    let Some(ahead) = first else { return Duration::ZERO };
    if modes[..=ahead].iter().all(|mode| *mode == Mode::Shared) {
        return Duration::ZERO;
    }
    APIECE * u32::try_from(ahead).unwrap_or(MOST_APIECES).min(MOST_APIECES)
}

fn nap_of(nap: Duration) -> Timespec {
    Timespec { tv_sec: nap.as_secs().cast_signed(), tv_nsec: i64::from(nap.subsec_nanos()) }
}

/// Notifies of records that were replaced or removed. A user may have a limited number of these;
/// without one the thread reads more often.
fn inotify_of(store: &Store) -> Option<OwnedFd> {
    let open = || {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let flags = WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        inotify::add_watch(&fd, store.keys.path(""), flags)?;
        Ok::<_, rustix::io::Errno>(fd)
    };
    open()
        .inspect_err(|error| {
            tracing::warn!(%error, "no inotify for lock waiters (see fs.inotify in sysctl); polling every 100 ms");
        })
        .ok()
}
