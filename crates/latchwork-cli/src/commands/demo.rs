//! `latchwork demo`: everything that exists, done for real and checked while it is told.

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod databases;
mod flow;
mod memory;
mod processes;
#[cfg(feature = "sqlite")]
mod review;
mod transcript;
#[cfg(feature = "sqlite")]
mod work;

use std::process::ExitCode;

use clap::Args;

use self::transcript::Transcript;
use super::block_on_threads;
use crate::exit::Failure;
use crate::output::Output;

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
                Err(failure) => Output::default().fail(failure),
            };
        }
        match block_on_threads(self.run_demo()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => Output::default().fail(failure),
        }
    }

    async fn run_demo(self) -> Result<(), Failure> {
        let mut transcript = Transcript::new();
        transcript.write_line("Latchwork decides who may move shared state. Watch it do so.");
        memory::one_at_a_time(&mut transcript).await?;
        memory::in_order(&mut transcript).await?;
        memory::readers_and_writers(&mut transcript).await?;
        memory::the_fence(&mut transcript).await?;
        memory::loss_is_noticed(&mut transcript).await?;
        memory::handing_over(&mut transcript).await?;
        flow::pause_and_resume(&mut transcript).await?;
        let directory = tempfile::tempdir()
            .map_err(|error| Failure::internal(format!("no temporary directory: {error}")))?;
        processes::counting(&mut transcript, directory.path())?;
        processes::who_holds_what(&mut transcript, directory.path()).await?;
        processes::breaking(&mut transcript, directory.path()).await?;
        #[cfg(feature = "sqlite")]
        databases::in_sqlite(&mut transcript, directory.path()).await?;
        #[cfg(feature = "sqlite")]
        work::a_killed_agent(&mut transcript, directory.path()).await?;
        #[cfg(feature = "sqlite")]
        review::nothing_changes_before_approval(&mut transcript, directory.path()).await?;
        #[cfg(feature = "postgres")]
        if let Some(address) = &self.postgres {
            databases::in_postgres(&mut transcript, address, directory.path()).await?;
        }
        #[cfg(feature = "mysql")]
        if let Some(address) = &self.mysql {
            databases::in_mysql(&mut transcript, address, directory.path()).await?;
        }
        transcript.end();
        Ok(())
    }
}
