//! `latchwork config show`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

use crate::exit::Failure;
use crate::lock_location;
use crate::output::{Output, out};
use crate::server_config::{ListenFlags, SETTINGS, ServerConfig, ServerFlags};
use crate::show::{plain_table, trimmed};

/// See the configuration of the server.
#[derive(Args, Debug)]
pub(crate) struct ConfigCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Show(Show),
}

/// Print what is in force, and where each value is from; without secrets.
#[derive(Args, Debug)]
struct Show {
    #[command(flatten)]
    flags: ServerFlags,
    #[command(flatten)]
    listen: ListenFlags,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl ConfigCommand {
    pub(crate) fn run(self) -> ExitCode {
        let Command::Show(show) = self.command;
        match show.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => Output { json: show.json, quiet: false }.fail(failure),
        }
    }
}

impl Show {
    fn run(&self) -> Result<(), Failure> {
        let config = ServerConfig::load(&self.flags, &self.listen)?;
        let rows = rows(&config)?;
        if self.json {
            let file = config.file.as_ref().map(|file| file.display().to_string());
            out(&format!("{}\n", json!({"file": file, "settings": rows})));
            return Ok(());
        }
        let mut table = plain_table();
        table.set_header(["SETTING", "VALUE", "FROM"]);
        for Row { key, value, source } in &rows {
            table.add_row([key, value.as_deref().unwrap_or("-"), source]);
        }
        out(&trimmed(table));
        Ok(())
    }
}

/// A setting with its value, as it may be shown, and where it is from.
#[derive(Serialize)]
struct Row {
    key: &'static str,
    value: Option<String>,
    source: String,
}

fn rows(config: &ServerConfig) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for setting in &SETTINGS {
        let (value, source) = match (config.get(setting.key), setting.key) {
            (Some(value), "database") => {
                (Some(lock_location::without_password(&value.text)), value.source.to_string())
            }
            (Some(value), _) => (Some(value.text.clone()), value.source.to_string()),
            (None, "data") if config.get("database").is_none() => {
                (Some(config.directory()?.display().to_string()), "default".to_owned())
            }
            (None, _) => (None, "-".to_owned()),
        };
        rows.push(Row { key: setting.key, value, source });
    }
    Ok(rows)
}
