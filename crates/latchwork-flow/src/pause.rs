//! How a pause ends, and how its lock lives meanwhile (F8).

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What an action asks for when it pauses: until when, and what becomes of the lock.
///
/// Of several conditions the first that comes true wakes it. Without any it waits to be resumed by
/// hand.
///
/// ```
/// use latchwork_flow::{OnTimeout, Pause};
/// use std::time::Duration;
///
/// let hour = Duration::from_secs(3_600);
/// Pause::new().on_signal("approved").timeout(24 * hour, OnTimeout::Stop).keep_lock_for(25 * hour);
/// Pause::new().wake_after(hour).renew_lock();
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "a pause does nothing until an action returns it"]
pub struct Pause {
    pub(crate) wake: Option<When>,
    pub(crate) signal: Option<String>,
    pub(crate) timeout: Option<(Duration, OnTimeout)>,
    pub(crate) lock: PauseLock,
    pub(crate) repeat: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum When {
    At(DateTime<Utc>),
    After(Duration),
}

impl Pause {
    /// A pause until somebody resumes it by hand.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes at this time.
    pub fn wake_at(mut self, at: DateTime<Utc>) -> Self {
        self.wake = Some(When::At(at));
        self
    }

    /// Wakes this long from now.
    pub fn wake_after(mut self, span: Duration) -> Self {
        self.wake = Some(When::After(span));
        self
    }

    /// Wakes when a signal of this name comes, or came before.
    pub fn on_signal(mut self, name: impl AsRef<str>) -> Self {
        self.signal = Some(name.as_ref().to_owned());
        self
    }

    /// What happens when nothing else has woken it after this long.
    pub fn timeout(mut self, span: Duration, then: OnTimeout) -> Self {
        self.timeout = Some((span, then));
        self
    }

    /// Keeps the lock this long without anybody renewing it. Without this, its usual ttl counts
    /// from the pause.
    pub fn keep_lock_for(mut self, ttl: Duration) -> Self {
        self.lock = PauseLock::Keep { ttl: Some(ttl) };
        self
    }

    /// Lets the runner renew the lock for as long as the pause lasts. Needs a store, and a
    /// [`FlowRunner`](crate::FlowRunner) that is there: without one the lock ends with its ttl.
    pub fn renew_lock(mut self) -> Self {
        self.lock = PauseLock::Renew;
        self
    }

    /// Runs the action that asks for it once more when the pause ends, instead of the next one, with
    /// the same idempotency key: so it can look again and again for what it waits for.
    ///
    /// Unless the pause says otherwise, the lock is kept until its usual ttl after the wake time.
    pub fn repeat(mut self) -> Self {
        self.repeat = true;
        self
    }

    /// How long the lock must be kept from now on, where that is longer than the usual ttl.
    pub(crate) fn lock_until(&self, now: DateTime<Utc>, ttl: Duration) -> PauseLock {
        let wake = match self.wake {
            Some(When::After(span)) => Some(span),
            Some(When::At(at)) => (at - now).to_std().ok(),
            None => None,
        };
        match (self.lock, wake) {
            (PauseLock::Keep { ttl: None }, Some(span)) if self.repeat => {
                PauseLock::Keep { ttl: Some(span.saturating_add(ttl)) }
            }
            (lock, _) => lock,
        }
    }

    /// The pause as it is stored, from this time on.
    pub(crate) fn begin(self, now: DateTime<Utc>) -> Paused {
        let after = |span: Duration| {
            chrono::TimeDelta::from_std(span).ok().and_then(|span| now.checked_add_signed(span))
        };
        Paused {
            since: now,
            wake_at: self.wake.and_then(|when| match when {
                When::At(at) => Some(at),
                When::After(span) => after(span),
            }),
            signal: self.signal,
            timeout: self
                .timeout
                .and_then(|(span, then)| Some(PauseTimeout { at: after(span)?, then })),
            lock: self.lock,
        }
    }
}

/// What happens to a pause that nothing has woken in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// The transition is stopped.
    Stop,
    /// The transition fails, with [`PauseTimedOut`](crate::ErrorKind::PauseTimedOut).
    Fail,
    /// The transition goes on; the next action can see why ([`Woken::Timeout`]).
    Resume,
}

/// How the lock lives during a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseLock {
    /// It is kept for this ttl, or for its usual one, and then lost.
    Keep {
        /// How long from the pause.
        #[serde(
            rename = "ttl_ms",
            default,
            with = "crate::serde_millis::option",
            skip_serializing_if = "Option::is_none"
        )]
        ttl: Option<Duration>,
    },
    /// The runner renews it.
    Renew,
}

impl Default for PauseLock {
    fn default() -> Self {
        PauseLock::Keep { ttl: None }
    }
}

/// A pause that has begun: what a paused transition waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Paused {
    /// Since when.
    pub since: DateTime<Utc>,
    /// Until when, if a time wakes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_at: Option<DateTime<Utc>>,
    /// The signal that wakes it, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// When it has waited long enough, and what happens then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<PauseTimeout>,
    /// How its lock lives.
    #[serde(default)]
    pub lock: PauseLock,
}

/// When a pause has lasted long enough, and what happens then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseTimeout {
    /// When.
    pub at: DateTime<Utc>,
    /// What.
    pub then: OnTimeout,
}

/// What ended a pause: the next action can read it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Woken {
    /// Somebody resumed it.
    Hand,
    /// Its time had come.
    Time,
    /// The signal that it waited for.
    Signal {
        /// The signal's name.
        name: String,
        /// What came with it.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        payload: Value,
        /// When the store got it.
        at: DateTime<Utc>,
    },
    /// Nothing else came in time.
    Timeout,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_count_from_the_pause() {
        let now = DateTime::from_timestamp(1_767_225_600, 0).expect("in range");
        let second = Duration::from_secs(1);
        let paused =
            Pause::new().wake_after(second).timeout(2 * second, OnTimeout::Fail).begin(now);
        assert_eq!(paused.wake_at, Some(now + second));
        assert_eq!(
            paused.timeout,
            Some(PauseTimeout { at: now + 2 * second, then: OnTimeout::Fail })
        );
        let paused = Pause::new().wake_after(Duration::MAX).begin(now);
        assert_eq!(paused.wake_at, None, "later than any time is never");
    }

    #[test]
    fn a_pause_survives_the_journey() {
        let now = DateTime::from_timestamp(1_767_225_600, 0).expect("in range");
        for pause in [
            Pause::new(),
            Pause::new().wake_at(now).on_signal("go").keep_lock_for(Duration::from_millis(1_500)),
            Pause::new().renew_lock().timeout(Duration::from_secs(1), OnTimeout::Resume),
        ] {
            let paused = pause.begin(now);
            let text = serde_json::to_string(&paused).expect("it serialises");
            assert_eq!(serde_json::from_str::<Paused>(&text).expect("it reads"), paused, "{text}");
        }
    }
}
