//! `latchwork locks break`.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use clap::Args;
use latchwork::lock::{Fence, Holder, Locks};
use serde_json::json;

use super::json_line;
use crate::exit::{Exit, Failure};
use crate::key::KeyArg;
use crate::lock_location::LockLocation;
use crate::output::out;
use crate::show;

const EXAMPLES: &str = "\
Examples:
  latchwork locks break nightly-backup --dry-run
  latchwork locks break nightly-backup --fence 17 --yes

The holder learns of it at its next renewal, and is then stopped if it is a `latchwork lock`. Until
then only the fence keeps it out: see `latchwork lock --help`.";

/// End the lease of a holder that is stuck or gone.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, override_usage = "latchwork locks break [OPTIONS] <KEY>")]
pub(crate) struct Break {
    #[command(flatten)]
    key: KeyArg,

    /// Only the lease with this fence.
    #[arg(long, value_name = "N")]
    fence: Option<u64>,

    /// Do not ask.
    #[arg(long, short)]
    yes: bool,

    /// Say what would be broken, and break nothing.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    location: LockLocation,

    /// An object of JSON instead of text.
    #[arg(long)]
    pub(super) json: bool,
}

impl Break {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let locks = self.location.open().await?;
        let seen = match self.seen(&locks).await {
            // Of a record that nobody can read no lease can be told, but it can be removed.
            Err(failure)
                if failure.code == "lock_backend"
                    && self.fence.is_none()
                    && self.yes
                    && !self.dry_run =>
            {
                return match locks.break_lock(self.key.as_str()).await {
                    Ok(broken) if broken.is_empty() => self.report_removed(),
                    Ok(broken) => self.report(&broken),
                    Err(_) => Err(failure),
                };
            }
            seen => seen?,
        };
        if seen.is_empty() || self.dry_run {
            return self.report(&seen);
        }
        if !self.yes && !self.confirm(&seen)? {
            out("nothing was broken\n");
            return Ok(());
        }
        // What was seen is what is broken, not a holder that came after it.
        let mut broken = Vec::new();
        for holder in seen {
            broken.extend(locks.break_lease(self.key.as_str(), holder.fence).await?);
        }
        self.report(&broken)
    }

    async fn seen(&self, locks: &Locks) -> Result<Vec<Holder>, Failure> {
        let mut holders = locks.inspect(self.key.as_str()).await?.holders;
        if let Some(fence) = self.fence {
            holders.retain(|holder| holder.fence == Fence::new(fence));
        }
        Ok(holders)
    }

    fn confirm(&self, seen: &[Holder]) -> Result<bool, Failure> {
        if !std::io::stdin().is_terminal() || self.json {
            return Err(Failure::new(
                Exit::Usage,
                "not_confirmed",
                format!("breaking {:?} must be confirmed: add --yes", self.key.as_str()),
            ));
        }
        let mut question = String::new();
        for holder in seen {
            question += &format!("{:?} is held by {}\n", self.key.as_str(), show::sentence(holder));
        }
        let mut stderr = std::io::stderr().lock();
        let _ = write!(stderr, "{question}End it? Its work may be half done. [y/N] ")
            .and_then(|()| stderr.flush());
        let mut answer = String::new();
        let _ = std::io::stdin().lock().read_line(&mut answer);
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }

    fn report_removed(&self) -> Result<(), Failure> {
        if self.json {
            return self.report(&[]);
        }
        let key = self.key.as_str();
        out(&format!("removed the record of {key:?}, which could not be read\n"));
        Ok(())
    }

    fn report(&self, holders: &[Holder]) -> Result<(), Failure> {
        if self.json {
            let done =
                json!({ "key": self.key.as_str(), "broken": holders, "dry_run": self.dry_run });
            out(&json_line(&done)?);
            return Ok(());
        }
        let mut text = String::new();
        for holder in holders {
            let verb = if self.dry_run { "would break" } else { "broke" };
            text += &format!(
                "{verb} the lease on {:?} of {}\n",
                self.key.as_str(),
                show::sentence(holder)
            );
        }
        if holders.is_empty() {
            let which = self.fence.map(|fence| format!(" with fence {fence}")).unwrap_or_default();
            text = format!("nobody holds {:?}{which}: nothing was broken\n", self.key.as_str());
        }
        out(&text);
        Ok(())
    }
}
