//! Asking for the lock, with a line for whoever watches the wait.

use std::cell::Cell;
use std::convert::Infallible;
use std::io::Write as _;
use std::time::Duration;

use latchwork::lock::{Capability, Error, ErrorKind, Guard, Locks};
use serde_json::json;

use super::Lock;
use crate::exit::{Exit, Failure};
use crate::place::quoted;
use crate::voice::Voice;
use crate::{show, span};

impl Lock {
    pub(super) async fn acquire(&self, locks: &Locks, voice: Voice) -> Result<Guard, Failure> {
        let shared = locks.capabilities().has(Capability::CrossProcess);
        if !shared {
            voice.note(
                "not_shared",
                &format!(
                    "{} locks are seen by nobody else: this excludes no other run",
                    locks.provider_name()
                ),
            );
        }
        let default_note = self.default_note();
        let mut request =
            locks.lock(&self.key).ttl(self.ttl).note(self.note.as_deref().unwrap_or(&default_note));
        request = if self.wait_forever {
            request.wait_forever()
        } else if self.no_wait || self.wait.is_zero() {
            request
        } else {
            request.wait(self.wait)
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
        let got = if voice.is_watched() {
            let shown = Shown::default();
            tokio::select! {
                got = request.acquire() => got,
                never = self.show_wait(locks, &shown) => match never {},
            }
        } else {
            request.acquire().await
        };
        match got {
            Ok(guard) => Ok(guard),
            Err(error) => Err(self.not_granted(locks, error).await),
        }
    }

    /// Who is waited for and for how long, until the wait is over.
    async fn show_wait(&self, locks: &Locks, shown: &Shown) -> Infallible {
        const TICK: Duration = Duration::from_secs(1);
        let clock = locks.clock();
        let started = clock.now();
        loop {
            tokio::time::sleep(TICK).await;
            let holder = match locks.inspect(&self.key).await {
                Ok(found) => found.holders.first().map(show::sentence),
                Err(_) => None,
            };
            let holder = holder.map_or(String::new(), |holder| format!(", held by {holder}"));
            let bound = if self.wait_forever {
                String::new()
            } else {
                format!(" of {}", span::show(self.wait))
            };
            let line = format!(
                "latchwork: waiting {}{bound} for {:?}{holder}",
                span::show(Duration::from_secs(clock.now().since(started).as_secs())),
                self.key,
            );
            shown.replace(&line);
        }
    }

    /// Taken is told with all that helps; the rest speaks for itself.
    async fn not_granted(&self, locks: &Locks, error: Error) -> Failure {
        let ErrorKind::LockAcquisition { waited, holder, .. } = error.kind() else {
            return Failure::from(error).with("key", self.key.as_str());
        };
        let holders = match holder {
            Some(holder) => vec![(**holder).clone()],
            None => locks.inspect(&self.key).await.map(|found| found.holders).unwrap_or_default(),
        };
        let held = match holders.first() {
            Some(holder) => format!(" by {}", show::sentence(holder)),
            None => String::new(),
        };
        let patience = if waited.is_zero() {
            "--no-wait was asked for".to_owned()
        } else {
            format!("waited {}", span::show(*waited))
        };
        let message = format!("{:?} is taken{held}; {patience}", self.key);
        let mut failure = Failure::new(Exit::Taken, error.code(), message);
        failure.hint = Some(self.show_command());
        failure
            .with("key", self.key.as_str())
            .with("waited_ms", u64::try_from(waited.as_millis()).unwrap_or(u64::MAX))
            .with("holders", json!(holders))
    }

    fn show_command(&self) -> String {
        let key = quoted(&self.key);
        let end = if key.starts_with('-') { " --" } else { "" };
        format!("see `latchwork locks show{}{end} {key}`", self.place.option())
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
