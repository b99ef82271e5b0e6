//! `latchwork locks ls`.

use clap::Args;
use latchwork::lock::PageRequest;

use super::json_line;
use crate::exit::Failure;
use crate::lock_location::LockLocation;
use crate::output::out;
use crate::show;

const EXAMPLES: &str = "\
Examples:
  latchwork locks ls
  latchwork locks ls order:
  latchwork locks ls --json | jq '.[].key'";

/// List the keys that are held or waited for.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Ls {
    /// Only keys that begin with this.
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,

    #[command(flatten)]
    location: LockLocation,

    /// An array of JSON instead of a table.
    #[arg(long)]
    pub(super) json: bool,
}

impl Ls {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let locks = self.location.open().await?;
        let mut keys = Vec::new();
        let mut page = PageRequest { limit: 1_000, after: None };
        loop {
            let found = locks.list(&self.prefix, page.clone()).await?;
            keys.extend(found.keys);
            match found.next {
                Some(next) => page.after = Some(next),
                None => break,
            }
        }
        if self.json {
            out(&json_line(&keys)?);
        } else if keys.is_empty() {
            out("nothing is locked\n");
        } else {
            out(&show::table(&keys));
        }
        Ok(())
    }
}
