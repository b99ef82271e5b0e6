//! `latchwork flows signal|cancel|retry|release`.

use clap::Args;
use latchwork::flow::store::Cancelled;
use serde_json::Value;

use super::one::One;
use crate::exit::{Exit, Failure};

/// Send a signal. A transition that waits for it goes on; one that does not (yet) keeps it.
#[derive(Args, Debug)]
pub(crate) struct Signal {
    #[command(flatten)]
    pub(super) one: One,

    /// The signal's name.
    name: String,

    /// What comes with it, as JSON.
    #[arg(long, value_name = "JSON", default_value = "null", hide_default_value = true)]
    payload: String,
}

impl Signal {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let payload: Value = serde_json::from_str(&self.payload).map_err(|error| {
            let message = format!("invalid --payload: it is not JSON: {error}");
            Failure::new(Exit::Usage, "invalid_argument", message)
        })?;
        let contexts = self.one.open().await?;
        contexts.signal(self.one.id, &self.name, payload).await?;
        self.one.report(&contexts, &format!("sent {:?}", self.name)).await
    }
}

/// Call a transition off: at once if no process is at it; else its action is dropped with the next
/// heartbeat.
#[derive(Args, Debug)]
pub(crate) struct Cancel {
    #[command(flatten)]
    pub(super) one: One,

    /// Why, for those who look later.
    #[arg(long, default_value = "called off by hand")]
    reason: String,
}

impl Cancel {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let contexts = self.one.open().await?;
        let done = match contexts.cancel(self.one.id, &self.reason).await? {
            Cancelled::Done => "it is cancelled",
            Cancelled::Asked => "a process is at it, and will learn of it with its next heartbeat",
        };
        self.one.report(&contexts, done).await
    }
}

/// Let a failed transition go on from the action that failed, with the same idempotency key.
#[derive(Args, Debug)]
pub(crate) struct Retry {
    #[command(flatten)]
    pub(super) one: One,
}

impl Retry {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let contexts = self.one.open().await?;
        contexts.retry(self.one.id).await?;
        self.one.report(&contexts, "the next runner goes on with it").await
    }
}

/// Let a quarantined transition be tried again.
#[derive(Args, Debug)]
pub(crate) struct Release {
    #[command(flatten)]
    pub(super) one: One,
}

impl Release {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let contexts = self.one.open().await?;
        if !contexts.release_quarantined(self.one.id).await? {
            let status = contexts.show(self.one.id).await?.status;
            let message = format!("{} is {status}, and not quarantined", self.one.id);
            return Err(Failure::new(Exit::Usage, "invalid_argument", message));
        }
        self.one.report(&contexts, "it is released: the next runner tries it").await
    }
}
