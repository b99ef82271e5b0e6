//! `latchwork demo`: everything that exists, done for real and checked while it is told.

mod flow;
mod memory;
mod processes;
mod story;

use std::process::ExitCode;

use clap::Args;

use self::story::Story;
use super::block_on;
use crate::exit::Failure;
use crate::voice::Voice;

/// See locks, fences and leases at work, in ten seconds.
///
/// Everything happens in memory and in a temporary directory; your own locks are not touched. It
/// fails if anything is not as promised.
#[derive(Args, Debug)]
pub(crate) struct Demo {}

impl Demo {
    pub(crate) fn run(self) -> ExitCode {
        match block_on(tell()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => Voice::default().fail(failure),
        }
    }
}

async fn tell() -> Result<(), Failure> {
    let mut story = Story::new();
    story.say("Latchwork decides who may move shared state. Watch it do so.");
    memory::one_at_a_time(&mut story).await?;
    memory::in_order(&mut story).await?;
    memory::readers_and_writers(&mut story).await?;
    memory::the_fence(&mut story).await?;
    memory::loss_is_noticed(&mut story).await?;
    memory::handing_over(&mut story).await?;
    flow::pause_and_resume(&mut story).await?;
    let directory = tempfile::tempdir()
        .map_err(|error| Failure::internal(format!("no temporary directory: {error}")))?;
    processes::counting(&mut story, directory.path())?;
    processes::who_holds_what(&mut story, directory.path()).await?;
    processes::breaking(&mut story, directory.path()).await?;
    story.end();
    Ok(())
}
