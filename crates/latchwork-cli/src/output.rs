//! The messages of the program: on stderr, as text or as one JSON object a line.

use std::cell::RefCell;
use std::io::{IsTerminal, Write as _};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::exit::Failure;

/// How messages are written: as text or JSON, or not at all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Output {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
}

impl Output {
    /// Writes one message to stderr. A write that fails is ignored: there is nowhere left to report it.
    pub(crate) fn write_line(self, code: &str, message: &str, details: Map<String, Value>) {
        if self.quiet {
            return;
        }
        let line = if self.json {
            let mut object = json!({ "code": code, "message": message });
            if let Value::Object(object) = &mut object {
                object.extend(details);
            }
            object.to_string()
        } else {
            format!("latchwork: {message}")
        };
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }

    /// Writes a message that changes no exit code.
    pub(crate) fn note(self, code: &str, message: &str) {
        self.write_line(code, message, Map::new());
    }

    /// Writes why the program ends, and returns its exit code.
    pub(crate) fn fail(self, mut failure: Failure) -> std::process::ExitCode {
        let exit = failure.exit;
        failure.details.insert("exit".to_owned(), (exit as u8).into());
        match failure.hint {
            Some(hint) if self.json => {
                failure.details.insert("hint".to_owned(), hint.into());
            }
            Some(hint) => failure.message += &format!("\nlatchwork: {hint}"),
            None => {}
        }
        self.write_line(failure.code, &failure.message, failure.details);
        exit.into()
    }

    /// Whether stderr is a terminal, so that a progress line may be redrawn.
    pub(crate) fn is_watched(self) -> bool {
        !self.quiet && !self.json && std::io::stderr().is_terminal()
    }
}

/// Writes messages on threads of their own. A terminal under Ctrl-S, or a pipe that nobody reads,
/// blocks its writer, and that must not delay the end of a command.
#[derive(Default)]
pub(crate) struct BackgroundOutput(RefCell<Vec<JoinHandle<()>>>);

impl BackgroundOutput {
    pub(crate) fn fail(&self, output: Output, failure: Failure) {
        self.spawn(move || {
            output.fail(failure);
        });
    }

    pub(crate) fn note(&self, output: Output, code: &'static str, message: String) {
        self.spawn(move || output.note(code, &message));
    }

    fn spawn(&self, spawn: impl FnOnce() + Send + 'static) {
        // Without a thread the message is lost; the exit code still reports the failure.
        self.0.borrow_mut().extend(std::thread::Builder::new().spawn(spawn));
    }

    /// Waits until all messages are written, for at most a second.
    pub(crate) async fn flush(&self) {
        const TURN: Duration = Duration::from_millis(5);
        for _ in 0..200 {
            if self.0.borrow().iter().all(JoinHandle::is_finished) {
                break;
            }
            tokio::time::sleep(TURN).await;
        }
    }
}

/// Whether to paint what goes there: on a terminal, unless `NO_COLOR` is set (no-color.org).
pub(crate) fn has_colour(to: &impl IsTerminal) -> bool {
    to.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes to stdout. A closed pipe is no failure: the reader has seen enough.
pub(crate) fn out(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
