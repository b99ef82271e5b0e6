//! `latchwork serve`.

mod sample;
mod types;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use latchwork::Locks;
use latchwork::flow::Contexts;
use latchwork::work::{MaintenanceSettings, WorkManager};
use latchwork_server::{
    App, Duties, Metrics, ServeError, ServeOptions, Settings, Shutdown, Tls, router, serve_with,
};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::block_on_threads;
use crate::exit::{Exit, Failure};
use crate::output::{Output, has_colour, out};
use crate::server_config::{ListenFlags, ServerConfig, ServerFlags};

/// Serve orders, items, locks and flows over HTTP.
///
/// Without --database everything is in one SQLite file. As long as there are no tokens (latchwork tokens
/// create) every caller may do everything, so it listens on loopback only then, and refuses web pages.
///
/// Settings come from latchwork.toml, from LATCHWORK_… variables and from flags; the later one counts.
/// `latchwork config show` prints them.
#[derive(Args, Debug)]
pub(crate) struct Serve {
    #[command(flatten)]
    flags: ServerFlags,
    #[command(flatten)]
    listen: ListenFlags,
}

impl Serve {
    pub(crate) fn run(self) -> ExitCode {
        match block_on_threads(self.serve()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => Output::default().fail(failure),
        }
    }

    async fn serve(self) -> Result<(), Failure> {
        let config = ServerConfig::load(&self.flags, &self.listen)?;
        let output = begin_to_log(&config)?;
        let tls = config.tls().map(|(cert, key)| Tls::from_files(&cert, &key)).transpose()?;
        let declared = config.types()?;
        let (url, shown) = config.database(true)?;
        let listen = config.listen()?;
        let listener = TcpListener::bind(listen).await.map_err(|error| {
            let message = format!("cannot listen on {listen}: {error}");
            let mut failure = Failure::new(Exit::Unavailable, "unavailable", message);
            failure.hint =
                Some("name another address with --listen; port 0 takes a free one".to_owned());
            failure
        })?;
        let address = listener.local_addr().map_err(ServeError::from)?;
        let tokens = super::tokens::open(&url, &shown).await?;
        let has_tokens = tokens.are_configured().await?;
        if !address.ip().is_loopback() && !has_tokens {
            // Before anything else is opened or said.
            return Err(ServeError::NotLoopback { address }.into());
        }
        let types = types::of(declared.as_deref())?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let base = format!("{scheme}://{address}");
        let try_out = types::commands(declared.is_some(), &types, &base, has_tokens);
        let work = WorkManager::builder(types).connect(&url).await?;
        let locks = Locks::connect(&url).await?;
        let flows = Contexts::connect(&url).await?;

        let shutdown = Shutdown::new();
        let duties = Duties::start(&work, &locks, MaintenanceSettings::default(), &shutdown)?;
        let mut app = App::new(work.clone(), settings(&config)?, &shutdown)
            .with_locks(locks.clone())
            .with_flows(flows)
            .with_tokens(tokens.clone());
        if let Ok(metrics) = Metrics::install() {
            app = app.with_metrics(metrics);
        }
        tokio::spawn(end_at_a_signal(shutdown.clone(), output));
        if let Some(tls) = tls.clone() {
            // From here on a SIGHUP ends nothing.
            let hangup = signal(SignalKind::hangup()).map_err(ServeError::from)?;
            tokio::spawn(renew(tls, hangup, output));
        }
        out(&greeting(&base, &shown, has_tokens, &try_out));
        if !address.ip().is_loopback() && tls.is_none() {
            let note = "connections are not encrypted, and tokens can be read on their way: use \
                        --tls-cert and --tls-key, or let a proxy do it";
            output.note("not_encrypted", note);
        }
        let options = ServeOptions {
            tls,
            any_address: has_tokens,
            max_connections: config.number("limits.max_connections")?,
        };
        let served = serve_with(listener, router(app), &shutdown, options).await;
        // Whatever ended the server: orders that are being applied are finished first.
        shutdown.begin();
        duties.end().await;
        locks.close().await;
        work.close().await;
        tokens.close().await;
        served.map_err(Failure::from)
    }
}

/// The log, on stderr, where the messages of the program are too: in the same form.
fn begin_to_log(config: &ServerConfig) -> Result<Output, Failure> {
    let (filter, json) = config.log()?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match json {
        true => log.json().flatten_event(true).init(),
        false => log.with_ansi(has_colour(&std::io::stderr())).init(),
    }
    Ok(Output { json, ..Output::default() })
}

fn settings(config: &ServerConfig) -> Result<Settings, Failure> {
    Ok(Settings {
        max_body_bytes: config.number("limits.max_body_bytes")?,
        max_waiting: config.number("limits.max_waiting")?,
        max_wait: Duration::from_secs(config.number("limits.max_wait_s")?),
    })
}

/// SIGINT and SIGTERM end the server; who sends a second one does not want to wait for what is under way.
async fn end_at_a_signal(shutdown: Shutdown, output: Output) {
    let (Ok(mut term), Ok(mut int)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return;
    };
    let mut next = async || {
        tokio::select! {
            _ = term.recv() => SignalKind::terminate(),
            _ = int.recv() => SignalKind::interrupt(),
        }
    };
    next().await;
    output.note("ending", "ending: requests under way are finished; a second signal cuts them");
    shutdown.begin();
    let second = next().await;
    // Our handler stays installed, so the system would do nothing by itself.
    let _ = signal_hook::low_level::emulate_default_handler(second.as_raw_value());
}

/// How often the files for TLS are looked at.
const LOOK_AT_FILES: Duration = Duration::from_secs(60);

/// Takes a renewed certificate: at SIGHUP, and by itself within a minute.
async fn renew(tls: Tls, mut hangup: Signal, output: Output) {
    loop {
        // Whichever it was.
        let _ = tokio::time::timeout(LOOK_AT_FILES, hangup.recv()).await;
        match tls.reload() {
            Ok(false) => {}
            Ok(true) => {
                let note = "the certificate was read again, and is that of new connections";
                output.note("certificate_renewed", note);
            }
            Err(error) => {
                let note = format!("{error}; the certificate that was read before stays in force");
                output.note("certificate_refused", &note);
            }
        }
    }
}

fn greeting(base: &str, data: &str, has_tokens: bool, try_out: &str) -> String {
    let who = if has_tokens { "for callers with a token" } else { "for this machine only" };
    format!(
        "latchwork listens on {base}, {who}
its data is in {data}
what it can do is at {base}/docs

{try_out}
"
    )
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        let exit = match error {
            ServeError::NotLoopback { .. } | ServeError::Tls { .. } => Exit::Usage,
            _ => Exit::Unavailable,
        };
        Failure::new(exit, "invalid_argument", error.to_string())
    }
}
