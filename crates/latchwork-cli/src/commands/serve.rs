//! `latchwork serve`.

mod sample;
mod types;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use latchwork::Locks;
use latchwork::work::{Maintenance, MaintenanceSettings, WorkManager};
use latchwork_server::{App, ApplyWorkers, ServeError, Settings, Shutdown, router, serve};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::block_on_threads;
use crate::exit::{Exit, Failure};
use crate::lock_location;
use crate::output::{Output, out};

/// So many approved orders are applied at once.
const APPLY_WORKERS: usize = 4;

/// How long an order that is being applied may take when the server ends; after that another server
/// takes it over.
const APPLY_GRACE: Duration = Duration::from_secs(30);

/// Serve orders and items over HTTP, for programs of this machine.
///
/// Without --database everything is in one SQLite file. There are no tokens yet: every caller may do
/// everything, so it listens on loopback only, and refuses web pages.
#[derive(Args, Debug)]
pub(crate) struct Serve {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, env = "LATCHWORK_LISTEN", default_value = "127.0.0.1:8420", value_name = "ADDR")]
    listen: SocketAddr,
    /// The directory of the SQLite file; by default one of the user.
    #[arg(long, env = "LATCHWORK_DATA", value_name = "DIR", conflicts_with = "database")]
    data: Option<PathBuf>,
    /// A database instead: postgres://user:password@host/database.
    #[arg(long, env = "LATCHWORK_DATABASE", value_name = "URL", hide_env_values = true)]
    database: Option<String>,
    /// The order types: a directory of declarations and their commands; without it, a sample.
    #[arg(long, env = "LATCHWORK_TYPES", value_name = "DIR")]
    types: Option<PathBuf>,
}

impl Serve {
    pub(crate) fn run(self) -> ExitCode {
        match block_on_threads(self.serve()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => Output::default().fail(failure),
        }
    }

    async fn serve(self) -> Result<(), Failure> {
        let (url, shown) = self.database()?;
        let listener = TcpListener::bind(self.listen).await.map_err(|error| {
            let message = format!("cannot listen on {}: {error}", self.listen);
            let mut failure = Failure::new(Exit::Unavailable, "unavailable", message);
            failure.hint =
                Some("name another address with --listen; port 0 takes a free one".to_owned());
            failure
        })?;
        let address = listener.local_addr().map_err(ServeError::from)?;
        if !address.ip().is_loopback() {
            // Before anything is opened or said.
            return Err(ServeError::NotLoopback { address }.into());
        }
        let types = types::of(self.types.as_deref())?;
        let try_out = types::commands(self.types.is_some(), &types, address);
        let work = WorkManager::builder(types).connect(&url).await?;
        let locks = Locks::connect(&url).await?;
        let maintenance =
            Maintenance::new(work.clone(), locks.clone(), MaintenanceSettings::default());
        let maintenance = tokio::spawn(maintenance.run());

        let shutdown = Shutdown::new();
        let app = App::new(work.clone(), Settings::default(), &shutdown);
        tokio::spawn(end_at_a_signal(shutdown.clone()));
        let appliers = ApplyWorkers::start(&work, &shutdown, APPLY_WORKERS)?;
        out(&greeting(address, &shown, &try_out));
        let served = serve(listener, router(app), &shutdown).await;
        // Whatever ended the server: orders that are being applied are finished first.
        shutdown.begin();
        appliers.finish(APPLY_GRACE).await;
        maintenance.abort();
        locks.close().await;
        work.close().await;
        served.map_err(Failure::from)
    }

    /// The address of the database, and how it is shown.
    fn database(&self) -> Result<(String, String), Failure> {
        if let Some(url) = &self.database {
            return Ok((url.clone(), lock_location::without_password(url)));
        }
        let directory = match &self.data {
            Some(directory) => directory.clone(),
            None => lock_location::default_directory()?.with_file_name("server"),
        };
        std::fs::create_dir_all(&directory).map_err(|error| {
            let message = format!("{} cannot be made: {error}", directory.display());
            Failure::new(Exit::Unavailable, "work_store_backend", message)
        })?;
        let file = directory.join("latchwork.db");
        Ok((sqlite_url(&file)?, file.display().to_string()))
    }
}

fn sqlite_url(file: &Path) -> Result<String, Failure> {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    match file.to_str() {
        Some(path) if !path.contains(['?', '%', '#']) => Ok(format!("sqlite://{path}")),
        _ => {
            let message = format!(
                "{} cannot be used as the directory of a database: use a path of plain UTF-8 characters",
                file.display()
            );
            Err(Failure::new(Exit::Usage, "invalid_argument", message))
        }
    }
}

/// SIGINT and SIGTERM end the server once; the second one is the system's own.
async fn end_at_a_signal(shutdown: Shutdown) {
    let (Ok(mut term), Ok(mut int)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    Output::default().note("ending", "ending: requests under way are finished");
    shutdown.begin();
}

fn greeting(address: SocketAddr, data: &str, try_out: &str) -> String {
    format!(
        "latchwork listens on http://{address}, for this machine only
its data is in {data}
what it can do is at http://{address}/docs

{try_out}
"
    )
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        let exit = match error {
            ServeError::NotLoopback { .. } => Exit::Usage,
            _ => Exit::Unavailable,
        };
        Failure::new(exit, "invalid_argument", error.to_string())
    }
}
