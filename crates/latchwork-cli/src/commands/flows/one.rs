//! `latchwork flows show`, and what the commands on one transition share.

use clap::Args;
use latchwork::flow::store::ContextStore as _;
use latchwork::flow::{Contexts, TransitionId};

use super::{Store, json_line, show};
use crate::exit::Failure;
use crate::output::out;

const EXAMPLES: &str = "\
Examples:
  latchwork flows show 01a1ec65-bd87-79bf-b011-37a5ca00697c
  latchwork flows show 01a1ec65-bd87-79bf-b011-37a5ca00697c --json | jq .waiting_for";

/// Show one transition: where it stands, what it waits for and why. Neither its state nor any secret
/// is shown.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Show {
    /// The transition.
    id: TransitionId,

    #[command(flatten)]
    store: Store,

    /// An object of JSON instead of text.
    #[arg(long)]
    pub(super) json: bool,
}

impl Show {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let contexts = self.store.open().await?;
        let context = contexts.show(self.id).await?;
        let now = contexts.now().await?;
        out(&match self.json {
            true => json_line(&show::as_json(&context, now))?,
            false => show::details(&context, now),
        });
        Ok(())
    }
}

/// One transition, and how to speak of it.
#[derive(Args, Debug)]
pub(super) struct One {
    /// The transition.
    pub(super) id: TransitionId,

    #[command(flatten)]
    store: Store,

    /// An object of JSON instead of text.
    #[arg(long)]
    pub(super) json: bool,
}

impl One {
    pub(super) async fn open(&self) -> Result<Contexts, Failure> {
        self.store.open().await
    }

    /// Says what was done, and where that leaves the transition.
    pub(super) async fn report(&self, contexts: &Contexts, done: &str) -> Result<(), Failure> {
        let context = contexts.show(self.id).await?;
        let now = contexts.now().await?;
        if self.json {
            out(&json_line(&show::as_json(&context, now))?);
        } else {
            out(&format!("{done}\n{}", show::details(&context, now)));
        }
        Ok(())
    }
}
