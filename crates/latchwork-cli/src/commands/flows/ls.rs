//! `latchwork flows ls`.

use clap::{Args, ValueEnum};
use latchwork::flow::Status;
use latchwork::flow::store::{ContextFilter, ContextPageRequest, ContextStore as _, View};
use serde_json::json;

use super::{Store, json_line, show};
use crate::exit::Failure;
use crate::output::out;

const EXAMPLES: &str = "\
Examples:
  latchwork flows ls --at sqlite:///var/lib/app.db
  latchwork flows ls --status quarantined
  latchwork flows ls --view orphaned --json | jq '.contexts[].id'";

/// List stored transitions, with what they wait for and until when.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Ls {
    /// Only of this machine.
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,

    /// Only of this entity.
    #[arg(long, value_name = "ID")]
    entity: Option<String>,

    /// Only those that stand here: pending, running, paused, completed, stopped, failed, skipped,
    /// cancelled, quarantined.
    #[arg(long, value_name = "STATUS", value_parser = status)]
    status: Option<Status>,

    /// Only those that are due, whose process has died, or that a process is at.
    #[arg(long, value_enum, default_value = "all", hide_default_value = true)]
    view: ViewArgument,

    /// So many at most.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,

    #[command(flatten)]
    store: Store,

    /// An object of JSON instead of a table.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ViewArgument {
    All,
    Due,
    Orphaned,
    Held,
}

fn status(text: &str) -> Result<Status, String> {
    Status::of_name(text).ok_or_else(|| {
        let names: Vec<_> = Status::ALL.iter().map(|status| status.name()).collect();
        format!("there is no such status; it is one of {}", names.join(", "))
    })
}

impl Ls {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let contexts = self.store.open().await?;
        let filter = ContextFilter {
            machine: self.machine.clone(),
            entity: self.entity.clone(),
            status: self.status,
            view: match self.view {
                ViewArgument::All => View::All,
                ViewArgument::Due => View::Due,
                ViewArgument::Orphaned => View::Orphaned,
                ViewArgument::Held => View::Held,
            },
        };
        let (mut found, mut unreadable) = (Vec::new(), Vec::new());
        let mut page = ContextPageRequest::default();
        let mut more = true;
        while more && found.len() < self.limit as usize {
            page.limit = (self.limit as usize - found.len()).min(1_000);
            let part = contexts.list(&filter, &page).await?;
            found.extend(part.contexts);
            unreadable.extend(part.unreadable);
            more = part.next.is_some();
            page.after = part.next;
        }
        let now = contexts.now().await?;
        if self.json {
            let shown: Vec<_> = found.iter().map(|context| show::as_json(context, now)).collect();
            out(&json_line(&json!({ "contexts": shown, "unreadable": unreadable, "more": more }))?);
            return Ok(());
        }
        if found.is_empty() && unreadable.is_empty() {
            out("no such transition is stored\n");
        }
        if !found.is_empty() {
            out(&show::table(&found, now));
        }
        for row in unreadable {
            out(&format!("the row {:?} cannot be read: {}\n", row.id, row.reason));
        }
        if more {
            out("there are more: see --limit\n");
        }
        Ok(())
    }
}
