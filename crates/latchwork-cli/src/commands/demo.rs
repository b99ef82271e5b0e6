//! `latchwork demo`: everything that exists, done for real and checked while it is told.

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod databases;
mod flow;
mod memory;
mod processes;
mod story;
#[cfg(feature = "sqlite")]
mod work;

use std::process::ExitCode;

use clap::Args;

use self::story::Story;
use super::block_on_threads;
use crate::exit::Failure;
use crate::voice::Voice;

/// See locks, flows and work for agents, in ten seconds.
///
/// Everything happens in memory and in a temporary directory, and in a database if you name one;
/// your own locks are not touched. It fails if anything is not as promised.
#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// A PostgreSQL database to show it in, too, such as postgres://localhost/app.
    ///
    /// Its tables (latchwork_…) stay there; its locks do not.
    #[cfg(feature = "postgres")]
    #[arg(long, env = "LATCHWORK_DEMO_POSTGRES", value_name = "URL", hide_env_values = true)]
    postgres: Option<String>,
    /// The same in MariaDB or MySQL, such as mysql://app@localhost/app.
    #[cfg(feature = "mysql")]
    #[arg(long, env = "LATCHWORK_DEMO_MYSQL", value_name = "URL", hide_env_values = true)]
    mysql: Option<String>,
    /// Be the agent that the demonstration kills, on this database.
    #[cfg(feature = "sqlite")]
    #[arg(long, value_name = "URL", hide = true)]
    agent: Option<String>,
}

impl Demo {
    pub(crate) fn run(self) -> ExitCode {
        #[cfg(feature = "sqlite")]
        if let Some(url) = &self.agent {
            return match block_on_threads(work::be_the_agent(url)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => Voice::default().fail(failure),
            };
        }
        match block_on_threads(self.tell()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => Voice::default().fail(failure),
        }
    }

    async fn tell(self) -> Result<(), Failure> {
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
        #[cfg(feature = "sqlite")]
        databases::in_sqlite(&mut story, directory.path()).await?;
        #[cfg(feature = "sqlite")]
        work::a_killed_agent(&mut story, directory.path()).await?;
        #[cfg(feature = "postgres")]
        if let Some(address) = &self.postgres {
            databases::in_postgres(&mut story, address, directory.path()).await?;
        }
        #[cfg(feature = "mysql")]
        if let Some(address) = &self.mysql {
            databases::in_mysql(&mut story, address, directory.path()).await?;
        }
        story.end();
        Ok(())
    }
}
