//! One thread that wakes the waiters of this process: by the record's change, by the death of a
//! process ahead of them, by a lease's end, and once a second in case a notice was lost.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::{Either, select};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::Notify;

use super::name::place;
use super::process::{Census, Process, lives};
use super::store::Store;
use super::wait::UNWATCHED_TICK;
use crate::rules::Id;
use crate::{Clock, Key, Moment, Result};

/// How often a waited-for key is looked at without a notice.
const FALLBACK: Duration = Duration::from_secs(1);

/// The same where a process ahead gives no notice of its death.
const UNSEEN_DEATH: Duration = Duration::from_millis(200);

/// Ends its thread when it is dropped.
pub(super) struct Watch {
    store: Arc<Store>,
    /// None: it could not be started, and waiters look by themselves.
    desk: OnceLock<Option<Arc<Desk>>>,
}

/// Where waiters sign in.
struct Desk {
    bell: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    seats: HashMap<Key, Vec<(Id, Arc<Notify>)>>,
    fresh: Vec<Key>,
    closed: bool,
}

/// A waiter's place at the watch.
pub(super) struct Seat {
    desk: Option<Arc<Desk>>,
    key: Key,
    notify: Arc<Notify>,
}

impl Watch {
    pub(super) fn new(store: Arc<Store>) -> Self {
        Watch { store, desk: OnceLock::new() }
    }

    /// Signs a waiter in. Its key is looked at once right away, so that nothing that happened
    /// between its question and this is missed.
    pub(super) fn join(&self, key: &Key, id: Id) -> Seat {
        let desk = self.desk.get_or_init(|| match Desk::start(&self.store) {
            Ok(desk) => Some(desk),
            Err(error) => {
                tracing::warn!(%error, "no watch for lock waiters: they look by themselves");
                None
            }
        });
        let notify = Arc::new(Notify::new());
        if let Some(desk) = desk {
            let mut state = desk.state.lock();
            state.seats.entry(key.clone()).or_default().push((id, notify.clone()));
            state.fresh.push(key.clone());
            drop(state);
            desk.ring();
        }
        Seat { desk: desk.clone(), key: key.clone(), notify }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(Some(desk)) = self.desk.get() {
            desk.state.lock().closed = true;
            desk.ring();
        }
    }
}

impl Seat {
    /// Ends when the waiter's place may have changed, at the latest at the deadline.
    pub(super) async fn changed(&self, clock: &dyn Clock, deadline: Moment) {
        let until = match self.desk {
            Some(_) => deadline,
            None => deadline.min(clock.now().after(UNWATCHED_TICK)),
        };
        let told = std::pin::pin!(self.notify.notified());
        if until == Moment::NEVER {
            return told.await;
        }
        match select(told, clock.sleep_until(until)).await {
            Either::Left(_) | Either::Right(_) => {}
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(desk) = &self.desk else { return };
        let mut state = desk.state.lock();
        if let Some(seats) = state.seats.get_mut(&self.key) {
            seats.retain(|(_, notify)| !Arc::ptr_eq(notify, &self.notify));
            if seats.is_empty() {
                state.seats.remove(&self.key);
            }
        }
    }
}

impl Desk {
    fn start(store: &Arc<Store>) -> std::io::Result<Arc<Self>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let desk = Arc::new(Desk { bell, state: Mutex::default() });
        let watcher = Watcher {
            desk: desk.clone(),
            store: store.clone(),
            notices: notices(store),
            watched: HashMap::new(),
            deaths: HashMap::new(),
        };
        std::thread::Builder::new().name("latchwork-watch".into()).spawn(move || watcher.run())?;
        Ok(desk)
    }

    fn ring(&self) {
        // It fails only when it has been rung 2^64 times and not been heard.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

/// Notices of records that were replaced or removed. There is a limit on how many of these a user
/// may have; without one the thread looks more often.
fn notices(store: &Store) -> Option<OwnedFd> {
    let open = || {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let flags = WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        inotify::add_watch(&fd, &store.keys, flags)?;
        Ok::<_, rustix::io::Errno>(fd)
    };
    open()
        .inspect_err(|error| {
            tracing::warn!(%error, "no inotify for lock waiters (see fs.inotify in sysctl): looking every 100 ms");
        })
        .ok()
}

struct Watcher {
    desk: Arc<Desk>,
    store: Arc<Store>,
    notices: Option<OwnedFd>,
    /// By the record's file name.
    watched: HashMap<String, Watched>,
    deaths: HashMap<Process, OwnedFd>,
}

struct Watched {
    key: Key,
    look_at: Moment,
    /// Those ahead whose death we would like to know of.
    ahead: Vec<Process>,
}

impl Watcher {
    fn run(mut self) {
        while self.sign_in() {
            let now = self.store.clock.now();
            let due: Vec<String> = self
                .watched
                .iter()
                .filter(|(_, w)| w.look_at <= now)
                .map(|(n, _)| n.clone())
                .collect();
            for file in due {
                self.look(&file);
            }
            self.follow_deaths();
            self.sleep();
        }
    }

    /// Takes up who came; false when nobody can come any more.
    fn sign_in(&mut self) -> bool {
        let mut state = self.desk.state.lock();
        for key in state.fresh.drain(..) {
            let watched =
                Watched { key: key.clone(), look_at: Moment::default(), ahead: Vec::new() };
            self.watched.insert(place(key.as_str()).file, watched);
        }
        !state.closed || !state.seats.is_empty()
    }

    /// Wakes those who are no longer in the queue: it is their turn, or they were dropped.
    fn look(&mut self, file: &str) {
        let Some(watched) = self.watched.get_mut(file) else { return };
        let seats = self.desk.state.lock().seats.get(&watched.key).cloned();
        let Some(seats) = seats else {
            self.watched.remove(file);
            return;
        };
        let tick = if self.notices.is_some() { FALLBACK } else { UNWATCHED_TICK };
        watched.look_at = self.store.clock.now().after(tick);
        match look(&self.store, &watched.key) {
            Ok(View { queue, next, ahead }) => {
                watched.look_at = watched.look_at.min(next);
                watched.ahead = ahead;
                seats.iter().filter(|(id, _)| !queue.contains(id)).for_each(|s| s.1.notify_one());
            }
            // They ask, and are told what is wrong.
            Err(_) => seats.iter().for_each(|(_, notify)| notify.notify_one()),
        }
    }

    fn follow_deaths(&mut self) {
        let wanted: std::collections::HashSet<Process> =
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
            // Asked after the descriptor was made: the number may have become another's before.
            let look_again = match fd {
                Some(fd) if lives(process) => {
                    self.deaths.insert(process, fd);
                    continue;
                }
                None if lives(process) => self.store.clock.now().after(UNSEEN_DEATH),
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
        let mut fds = vec![PollFd::new(&self.desk.bell, PollFlags::IN)];
        fds.extend(self.notices.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
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
        let _ = rustix::io::read(&self.desk.bell, &mut heard);
        self.read_notices();
    }

    fn read_notices(&mut self) {
        let Some(fd) = &self.notices else { return };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(fd.as_fd(), &mut buffer);
        while let Ok(event) = reader.next() {
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                self.watched.values_mut().for_each(|w| w.look_at = Moment::default());
            }
            let file = event.file_name().and_then(|name| name.to_str().ok());
            if let Some(watched) = file.and_then(|file| self.watched.get_mut(file)) {
                watched.look_at = Moment::default();
            }
        }
    }
}

struct View {
    queue: Vec<Id>,
    /// When something ends by itself.
    next: Moment,
    ahead: Vec<Process>,
}

/// How a key stands, after ending what is due.
fn look(store: &Store, key: &Key) -> Result<View> {
    let (mut rules, due) = store.peek(key)?;
    if due && !rules.is_empty() {
        rules = store.edit(key, |_, _| ())?.1;
    }
    let mut census = Census::new(&store.here);
    let parties = rules.holders.iter().map(|h| &h.party).chain(&rules.queue);
    let mut ahead: Vec<Process> = parties.flat_map(|p| census.mortals(&p.extra)).collect();
    ahead.sort_unstable_by_key(|p| p.pid);
    ahead.dedup();
    let until = rules.queue.iter().map(|w| w.extra.until).min().unwrap_or(Moment::NEVER);
    Ok(View {
        queue: rules.queue.iter().map(|w| w.id).collect(),
        next: rules.next_expiry().min(until),
        ahead,
    })
}

fn nap_of(nap: Duration) -> Timespec {
    Timespec { tv_sec: nap.as_secs().cast_signed(), tv_nsec: i64::from(nap.subsec_nanos()) }
}
