//! One thread that calls the waiters of this process: at a record's change, at the death of a
//! process ahead of them, at a lease's end, and once a second in case a notice was lost.
//!
//! It only reads. What is due it leaves to a waiter, so that an edit that hangs holds up those
//! who wait for that key and nobody else.

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::name::place;
use super::process::{Census, Process, lives};
use super::store::Store;
use super::watch::{Desk, UNWATCHED_TICK};
use crate::rules::Id;
use crate::{Key, Mode, Moment, Result};

/// How often a waited-for key is looked at without a notice.
const FALLBACK: Duration = Duration::from_secs(1);

/// How long whoever is not the next waits after a notice, for each one ahead: each of them comes and
/// goes with two notices, and all processes that look at all of them would take the time of those
/// whose turn it is.
const APIECE: Duration = Duration::from_millis(1);
const MOST_APIECES: u32 = 10;

/// The same where a process ahead gives no notice of its death, or where something is due.
const SOON: Duration = Duration::from_millis(200);

/// Notices of records that were replaced or removed. There is a limit on how many of these a user
/// may have; without one the thread looks more often.
fn notices(store: &Store) -> Option<OwnedFd> {
    let open = || {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let flags = WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        inotify::add_watch(&fd, store.keys.path(""), flags)?;
        Ok::<_, rustix::io::Errno>(fd)
    };
    open()
        .inspect_err(|error| {
            tracing::warn!(%error, "no inotify for lock waiters (see fs.inotify in sysctl): looking every 100 ms");
        })
        .ok()
}

pub(super) fn start(desk: Arc<Desk>, store: Arc<Store>) -> std::io::Result<()> {
    let watcher = Watcher {
        notices: notices(&store),
        desk,
        store,
        watched: HashMap::new(),
        deaths: HashMap::new(),
    };
    std::thread::Builder::new().name("latchwork-watch".into()).spawn(move || watcher.run())?;
    Ok(())
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
    /// How long after a notice it is looked at.
    hesitation: Duration,
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
            let watched = Watched {
                key: key.clone(),
                look_at: Moment::default(),
                hesitation: Duration::ZERO,
                ahead: Vec::new(),
            };
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
        // Of those whose descriptor has told nothing we know that they live.
        let mut census = Census::knowing(&self.store.here, self.deaths.keys().copied());
        match look(&self.store, &watched.key, &mut census) {
            Ok(View { queue, modes, next, ahead, due }) => {
                watched.look_at = watched.look_at.min(next);
                watched.ahead = ahead;
                let first = queue.iter().position(|id| seats.iter().any(|seat| seat.0 == *id));
                watched.hesitation = hesitation(&modes, first);
                seats.iter().filter(|(id, _)| !queue.contains(id)).for_each(|s| s.1.notify_one());
                if due {
                    // One of ours asks, and in doing so ends what is due: best the next in turn.
                    let first = queue.iter().find_map(|id| seats.iter().find(|s| s.0 == *id));
                    first.inspect(|seat| seat.1.notify_one());
                    watched.look_at = watched.look_at.min(self.store.clock.now().after(SOON));
                }
            }
            // They ask, and are told what is wrong.
            Err(_) => seats.iter().for_each(|(_, notify)| notify.notify_one()),
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
            // Asked after the descriptor was made: the number may have become another's before.
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

/// How a key stands.
fn look(store: &Store, key: &Key, census: &mut Census<'_>) -> Result<View> {
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
