//! Requests the lock, and prints a line while it waits.

use std::cell::Cell;
use std::convert::Infallible;
use std::io::Write as _;
use std::time::Duration;

use latchwork::lock::provider::{Moment, Wait};
use latchwork::lock::{
    Capability, Clock as _, ConnectOptions, Error, ErrorKind, Guard, Locks, SystemClock,
};
use serde_json::json;

use super::Lock;
use crate::exit::{Exit, Failure};
use crate::lock_location::quoted;
use crate::output::Output;
use crate::{duration, show};

impl Lock {
    /// Connects to the backend, within the time to wait. Without one there is a single try.
    ///
    /// Cancel safe: nothing but the connection is lost.
    pub(super) async fn connect(&self, output: Output, companion: u32) -> Result<Locks, Failure> {
        let options = match self.patience() {
            Wait::No => ConnectOptions::default(),
            Wait::For(span) => ConnectOptions::default().connect_timeout(span),
            Wait::Forever => ConnectOptions::default().connect_timeout(Duration::MAX),
        };
        let opened = self.location.open_with(Some(companion), &options);
        if !output.is_watched() {
            return opened.await;
        }
        let shown = Shown::default();
        let started = SystemClock.now();
        tokio::select! {
            opened = opened => opened,
            never = self.show_wait(started, &shown, || async { "the lock backend to answer".into() }) => match never {},
        }
    }

    fn patience(&self) -> Wait {
        if self.wait_forever {
            Wait::Forever
        } else if self.no_wait || self.wait.is_zero() {
            Wait::No
        } else {
            Wait::For(self.wait)
        }
    }

    /// Asks for the lock. The time to wait began at `started`.
    pub(super) async fn acquire(
        &self,
        locks: &Locks,
        output: Output,
        started: Moment,
    ) -> Result<Guard, Failure> {
        let shared = locks.capabilities().has(Capability::CrossProcess);
        if !shared {
            output.note(
                "not_shared",
                &format!(
                    "{} locks are seen by nobody else: this excludes no other run",
                    locks.provider_name()
                ),
            );
        }
        let default_note = self.default_note();
        let mut request = locks
            .lock(self.key.as_str())
            .ttl(self.ttl)
            .note(self.note.as_deref().unwrap_or(&default_note));
        request = match self.patience() {
            Wait::No => request,
            Wait::For(span) => request.wait(started.after(span).since(locks.clock().now())),
            Wait::Forever => request.wait_forever(),
        };
        if self.shared {
            request = request.shared();
        }
        if let Some(owner) = &self.owner {
            request = request.owner(owner);
        }
        if !self.no_renew {
            request = request.auto_renew(self.max_hold);
        }
        let got = if output.is_watched() {
            let shown = Shown::default();
            tokio::select! {
                got = request.acquire() => got,
                never = self.show_wait(started, &shown, || self.awaited(locks)) => match never {},
            }
        } else {
            request.acquire().await
        };
        match got {
            Ok(guard) => Ok(guard),
            Err(error) => Err(self.not_granted(locks, error, started).await),
        }
    }

    /// What is waited for and for how long, until the wait is over.
    async fn show_wait<F: Future<Output = String>>(
        &self,
        started: Moment,
        shown: &Shown,
        awaited: impl Fn() -> F,
    ) -> Infallible {
        const TICK: Duration = Duration::from_secs(1);
        loop {
            tokio::time::sleep(TICK).await;
            let awaited = awaited().await;
            let bound = match self.patience() {
                Wait::For(span) => format!(" of {}", duration::show(span)),
                Wait::No | Wait::Forever => String::new(),
            };
            let waited = Duration::from_secs(SystemClock.now().since(started).as_secs());
            shown.replace(&format!(
                "latchwork: waiting {}{bound} for {awaited}",
                duration::show(waited)
            ));
        }
    }

    /// The key and who holds it.
    async fn awaited(&self, locks: &Locks) -> String {
        let holder = match locks.inspect(self.key.as_str()).await {
            Ok(found) => found.holders.first().map(show::sentence),
            Err(_) => None,
        };
        let holder = holder.map_or(String::new(), |holder| format!(", held by {holder}"));
        format!("{:?}{holder}", self.key.as_str())
    }

    /// Taken is told with all that helps; the rest speaks for itself.
    async fn not_granted(&self, locks: &Locks, error: Error, started: Moment) -> Failure {
        let ErrorKind::LockAcquisition { holder, .. } = error.kind() else {
            return Failure::from(error).with("key", self.key.as_str());
        };
        let waited = match self.patience() {
            Wait::No => Duration::ZERO,
            Wait::For(_) | Wait::Forever => locks.clock().now().since(started),
        };
        let holders = match holder {
            Some(holder) => vec![(**holder).clone()],
            None => locks
                .inspect(self.key.as_str())
                .await
                .map(|found| found.holders)
                .unwrap_or_default(),
        };
        let held = match holders.first() {
            Some(holder) => format!(" by {}", show::sentence(holder)),
            None => String::new(),
        };
        let patience = if waited.is_zero() {
            "--no-wait was asked for".to_owned()
        } else {
            format!("waited {}", duration::show(waited))
        };
        let message = format!("{:?} is taken{held}; {patience}", self.key.as_str());
        let mut failure = Failure::new(Exit::Taken, error.code(), message);
        failure.hint = Some(self.show_command());
        failure
            .with("key", self.key.as_str())
            .with("waited_ms", u64::try_from(waited.as_millis()).unwrap_or(u64::MAX))
            .with("holders", json!(holders))
    }

    fn show_command(&self) -> String {
        let key = quoted(self.key.as_str());
        let option = if self.key.as_str().starts_with('-') { "--key=" } else { "" };
        let at = self.location.option();
        let environment = match self.location.needs_environment() {
            true => " with LATCHWORK_AT as it is here",
            false => "",
        };
        format!("see `latchwork locks show {option}{key}{at}`{environment}")
    }
}

/// The line of the wait, which vanishes when the wait is over.
#[derive(Default)]
struct Shown(Cell<bool>);

impl Shown {
    /// Shows another line, cut so that it never wraps.
    fn replace(&self, line: &str) {
        let size = rustix::termios::tcgetwinsize(rustix::stdio::stderr());
        let width = size.map_or(0, |size| usize::from(size.ws_col));
        let width = if width == 0 { 80 } else { width };
        let line: String = line.chars().take(width - 1).collect();
        let _ = write!(std::io::stderr(), "{CLEAR}{line}");
        self.0.set(true);
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if self.0.get() {
            let _ = write!(std::io::stderr(), "{CLEAR}");
        }
    }
}

/// To the beginning of the line, and away with what is there.
const CLEAR: &str = "\r\x1b[2K";
