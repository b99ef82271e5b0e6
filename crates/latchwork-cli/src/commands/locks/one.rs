//! `latchwork locks show`.

use clap::Args;

use super::json_line;
use crate::exit::Failure;
use crate::key::KeyArg;
use crate::lock_location::LockLocation;
use crate::output::out;
use crate::show;

const EXAMPLES: &str = "\
Examples:
  latchwork locks show nightly-backup
  latchwork locks show nightly-backup --json | jq '.holders[0].process'";

/// Show who holds a key and who waits for it, in order.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, override_usage = "latchwork locks show [OPTIONS] <KEY>")]
pub(crate) struct Show {
    #[command(flatten)]
    key: KeyArg,

    #[command(flatten)]
    location: LockLocation,

    /// An object of JSON instead of tables.
    #[arg(long)]
    pub(super) json: bool,
}

impl Show {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let locks = self.location.open().await?;
        let found = locks.inspect(self.key.as_str()).await?;
        out(&if self.json { json_line(&found)? } else { show::transcript(&found) });
        Ok(())
    }
}
