//! Time, as a port: the only place that reads a clock.
//!
//! Leases are trusted by a clock that goes on while the machine is suspended
//! ([`Moment`]); people are shown the wall clock. Read the time *inside* the
//! critical section: a time read before waiting for the lock is as old as the
//! wait was long.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// An instant on a clock that never jumps and does not stop in suspend, in
/// nanoseconds from a start that only this machine's boot knows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Moment(u64);

impl Moment {
    /// Later than anything.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// The moment this many nanoseconds after the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Moment(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This moment and a span after it; [`Moment::NEVER`] when that is too far.
    #[must_use]
    #[inline]
    pub const fn after(self, span: Duration) -> Self {
        // By halves, because the whole of a span in nanoseconds would be a number of 128 bits.
        let nanos = span.as_secs().saturating_mul(1_000_000_000);
        Moment(self.0.saturating_add(nanos).saturating_add(span.subsec_nanos() as u64))
    }

    /// This moment less a span before it; the clock's start when that is too far.
    pub(crate) const fn before(self, span: Duration) -> Self {
        let nanos = span.as_secs().saturating_mul(1_000_000_000);
        Moment(self.0.saturating_sub(nanos).saturating_sub(span.subsec_nanos() as u64))
    }

    /// How long from `earlier` to this moment; zero when it is not earlier.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A boxed future that ends at some moment; see [`Clock::sleep_until`].
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Called by a clock after it was moved by hand; see [`Clock::on_jump`].
pub type JumpHook = Arc<dyn Fn() + Send + Sync>;

/// Where the time comes from.
///
/// [`SystemClock`] in production, [`ManualClock`] in tests that move the time
/// themselves. Both readings of one clock must belong together.
pub trait Clock: Send + Sync + 'static {
    /// The moment by which leases are judged.
    fn now(&self) -> Moment;

    /// A moment that is never later than now, and usually less than [`lag`](Self::lag) before it.
    ///
    /// Enough to begin a lease by, since trust may begin too early but not too late, and several
    /// times cheaper than [`now`](Self::now) where that is a look at the hardware.
    fn recent(&self) -> Moment {
        self.now()
    }

    /// How far behind [`recent`](Self::recent) usually is at most. Nothing that must be safe
    /// rests on it.
    fn lag(&self) -> Duration {
        Duration::ZERO
    }

    /// The wall clock, for people and records. It may jump.
    fn wall(&self) -> DateTime<Utc>;

    /// The wall clock as it was at the last [`recent`](Self::recent) tick or later: for records whose
    /// milliseconds nobody reads, and several times cheaper than [`wall`](Self::wall).
    fn recent_wall(&self) -> DateTime<Utc> {
        self.wall()
    }

    /// Ends at the first poll at or after `until`.
    fn sleep_until(&self, until: Moment) -> Sleep;

    /// Registers a hook that runs whenever the time moves other than by itself.
    /// Real clocks have no such moves, so by default nothing is registered.
    fn on_jump(&self, hook: JumpHook) {
        drop(hook);
    }
}

/// The machine's own clocks: `CLOCK_BOOTTIME` on Linux, so that a laptop which
/// slept through its lease knows it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl SystemClock {
    /// The system clock behind the pointer that [`Locks`](crate::Locks) and providers keep.
    pub fn shared() -> Arc<dyn Clock> {
        static SHARED: std::sync::LazyLock<Arc<dyn Clock>> =
            std::sync::LazyLock::new(|| Arc::new(SystemClock));
        SHARED.clone()
    }
}

/// Names the clock that [`SystemClock::now`] reads. Moments of two processes can be compared only if
/// theirs are equal: each boot begins anew, and a time namespace has an offset of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootClock {
    /// The boot.
    pub boot_id: String,
    /// How far the clock is ahead of that of the initial time namespace, in nanoseconds.
    pub offset_ns: i64,
}

impl SystemClock {
    /// Which clock this process reads.
    ///
    /// # Errors
    /// When `/proc` does not tell; [`NotFound`](std::io::ErrorKind::NotFound) where there is none.
    pub fn boot_clock() -> std::io::Result<BootClock> {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(BootClock { boot_id: boot_id.trim().to_owned(), offset_ns: time_offset()? })
    }
}

/// The offset of the boot clock in this process's time namespace.
fn time_offset() -> std::io::Result<i64> {
    use std::io::{Error, ErrorKind};

    let text = match std::fs::read_to_string("/proc/self/timens_offsets") {
        Ok(text) => text,
        // A kernel without time namespaces.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    // The offsets are those of our children, who may have been given a namespace of their own.
    let namespace = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}"));
    if namespace("time")? != namespace("time_for_children")? {
        return Err(Error::other(
            "this process has made a time namespace for its children, so that the system does not \
             tell its own; open the locks before, or in a child",
        ));
    }
    parse_offset(&text).ok_or_else(|| Error::other("/proc/self/timens_offsets is unreadable"))
}

/// From lines such as `boottime 86400 0`: seconds and nanoseconds.
fn parse_offset(text: &str) -> Option<i64> {
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    let mut words = lines.find_map(|mut words| (words.next()? == "boottime").then_some(words))?;
    let (seconds, nanos): (i64, i64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        #[cfg(target_os = "linux")]
        let clock = rustix::time::ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let clock = rustix::time::ClockId::Monotonic;
        Moment(nanos(clock))
    }

    #[cfg(target_os = "linux")]
    #[inline]
    fn recent(&self) -> Moment {
        tick::recent()
    }

    #[cfg(target_os = "linux")]
    fn lag(&self) -> Duration {
        tick::LAG
    }

    fn wall(&self) -> DateTime<Utc> {
        // As `Utc::now` does it, without the way over `SystemTime`.
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        DateTime::from_timestamp(t.tv_sec, t.tv_nsec as u32).unwrap_or_default()
    }

    #[cfg(target_os = "linux")]
    #[inline]
    fn recent_wall(&self) -> DateTime<Utc> {
        tick::recent_wall()
    }

    fn sleep_until(&self, until: Moment) -> Sleep {
        // The runtime's timers stand still in suspend; a look at the clock at
        // least once a second bounds how late we notice.
        const LONGEST_NAP: Duration = Duration::from_secs(1);
        Box::pin(async move {
            loop {
                let left = until.since(SystemClock.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(LONGEST_NAP)).await;
            }
        })
    }
}

#[inline]
fn nanos(clock: rustix::time::ClockId) -> u64 {
    let t = rustix::time::clock_gettime(clock);
    // Neither part of a time since boot is ever negative.
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The time at the kernel's last tick.
#[cfg(target_os = "linux")]
mod tick {
    use std::cell::Cell;
    use std::time::Duration;

    use chrono::{DateTime, Utc};

    use super::{Clock, Moment, SystemClock, nanos};

    /// Two ticks of the slowest kernel in use.
    pub(super) const LAG: Duration = Duration::from_millis(20);

    /// What this thread saw last.
    #[derive(Clone, Copy)]
    struct Seen {
        /// The kernel's tick, which is read from memory and not from the hardware.
        tick: u64,
        /// A reading of the real clock since that tick.
        at: Moment,
    }

    thread_local! {
        static SEEN: Cell<Seen> = const { Cell::new(Seen { tick: 0, at: Moment(0) }) };
    }

    /// The reading that belongs to the current tick. A suspend begins a new one, so a reading from
    /// before it is not used after it.
    #[inline]
    pub(super) fn recent() -> Moment {
        let tick = nanos(rustix::time::ClockId::MonotonicCoarse);
        let seen = SEEN.get();
        if seen.tick == tick {
            return seen.at;
        }
        let at = SystemClock.now();
        SEEN.set(Seen { tick, at });
        at
    }

    thread_local! {
        /// The same of the wall clock, whose ticks jump when it does.
        static SEEN_WALL: Cell<(u64, DateTime<Utc>)> = const { Cell::new((0, DateTime::UNIX_EPOCH)) };
    }

    #[inline]
    pub(super) fn recent_wall() -> DateTime<Utc> {
        let tick = nanos(rustix::time::ClockId::RealtimeCoarse);
        let (seen, at) = SEEN_WALL.get();
        if seen == tick {
            return at;
        }
        let at = SystemClock.wall();
        SEEN_WALL.set((tick, at));
        at
    }
}

/// A clock that stands still until it is told to move.
///
/// Clones show the same time.
///
/// ```
/// use latchwork_lock::{Clock, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(30));
/// assert_eq!(clock.now().since(before), Duration::from_secs(30));
/// ```
#[derive(Clone, Default)]
pub struct ManualClock {
    inner: Arc<Manual>,
}

#[derive(Default)]
struct Manual {
    state: Mutex<ManualState>,
}

#[derive(Default)]
struct ManualState {
    elapsed: Duration,
    sleepers: Vec<(Moment, Waker)>,
    hooks: Vec<JumpHook>,
}

impl ManualClock {
    /// A clock that shows one second after boot, on 1 January 2026.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the time forward and wakes what slept until then.
    pub fn advance(&self, span: Duration) {
        let (wake, hooks) = {
            let mut state = self.inner.state.lock();
            state.elapsed += span;
            let now = moment(state.elapsed);
            let (due, left) =
                std::mem::take(&mut state.sleepers).into_iter().partition(|(at, _)| *at <= now);
            state.sleepers = left;
            let due: Vec<(Moment, Waker)> = due;
            (due, state.hooks.clone())
        };
        for (_, waker) in wake {
            waker.wake();
        }
        for hook in hooks {
            hook();
        }
    }
}

fn moment(elapsed: Duration) -> Moment {
    // Not zero: a moment of zero would hide a forgotten initialisation.
    Moment::from_nanos(1_000_000_000).after(elapsed)
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        moment(self.inner.state.lock().elapsed)
    }

    fn wall(&self) -> DateTime<Utc> {
        const START: i64 = 1_767_225_600; // 2026-01-01T00:00:00Z
        DateTime::from_timestamp(START, 0).unwrap_or_default() + self.inner.state.lock().elapsed
    }

    fn sleep_until(&self, until: Moment) -> Sleep {
        Box::pin(ManualSleep { clock: self.inner.clone(), until })
    }

    fn on_jump(&self, hook: JumpHook) {
        self.inner.state.lock().hooks.push(hook);
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock").field("now", &self.now()).finish_non_exhaustive()
    }
}

struct ManualSleep {
    clock: Arc<Manual>,
    until: Moment,
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.clock.state.lock();
        if moment(state.elapsed) >= self.until {
            return Poll::Ready(());
        }
        let waker = cx.waker();
        let until = self.until;
        if !state.sleepers.iter().any(|(at, w)| *at == until && w.will_wake(waker)) {
            state.sleepers.push((until, waker.clone()));
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_a_time_namespace_is_read() {
        let text = "monotonic           5         0\nboottime        86400       100\n";
        assert_eq!(parse_offset(text), Some(86_400_000_000_100));
        assert_eq!(parse_offset("boottime -1 0"), Some(-1_000_000_000));
        assert_eq!(parse_offset("monotonic 0 0"), None);
        assert_eq!(parse_offset("boottime x 0"), None);
    }

    #[test]
    fn moments_saturate_instead_of_wrapping() {
        assert_eq!(Moment::NEVER.after(Duration::from_secs(1)), Moment::NEVER);
        assert_eq!(Moment(5).after(Duration::MAX), Moment::NEVER);
        assert_eq!(Moment(5).since(Moment(9)), Duration::ZERO);
    }

    #[test]
    fn a_recent_moment_is_never_in_the_future_and_goes_on() {
        let start = SystemClock.recent();
        loop {
            let recent = SystemClock.recent();
            assert!(recent <= SystemClock.now());
            if recent > start {
                return;
            }
        }
    }

    #[tokio::test]
    async fn a_manual_sleep_ends_when_the_clock_is_moved() {
        let clock = ManualClock::new();
        let sleep = clock.sleep_until(clock.now().after(Duration::from_secs(5)));
        let mover = clock.clone();
        let task = tokio::spawn(sleep);
        tokio::task::yield_now().await;
        mover.advance(Duration::from_secs(4));
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        mover.advance(Duration::from_secs(1));
        task.await.expect("the sleeper ends");
    }

    #[test]
    fn the_wall_shows_what_others_show() {
        let apart = (SystemClock.wall() - Utc::now()).abs();
        assert!(apart < chrono::TimeDelta::seconds(5), "{apart}");
    }

    #[test]
    fn the_system_clock_moves_forward() {
        let a = SystemClock.now();
        assert!(SystemClock.now() >= a);
    }
}
