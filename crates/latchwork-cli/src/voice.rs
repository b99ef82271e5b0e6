//! What the program says about itself: on stderr, as text or as one JSON object a line.

use std::cell::RefCell;
use std::io::{IsTerminal, Write as _};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::exit::Failure;

/// How to speak.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Voice {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
}

impl Voice {
    /// Says one thing. Nobody can be told that stderr is gone, so that is ignored.
    pub(crate) fn say(self, code: &str, message: &str, details: Map<String, Value>) {
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

    /// Says something that changes no exit code.
    pub(crate) fn note(self, code: &str, message: &str) {
        self.say(code, message, Map::new());
    }

    /// Says why the program ends, and with which exit code.
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
        self.say(failure.code, &failure.message, failure.details);
        exit.into()
    }

    /// Whether a person is there to watch a line change.
    pub(crate) fn is_watched(self) -> bool {
        !self.quiet && !self.json && std::io::stderr().is_terminal()
    }
}

/// Speaking while something else must go on: a terminal under Ctrl-S, or a pipe that nobody reads,
/// holds up whoever writes to it, and must not hold up the end of a command.
#[derive(Default)]
pub(crate) struct Aside(RefCell<Vec<JoinHandle<()>>>);

impl Aside {
    pub(crate) fn fail(&self, voice: Voice, failure: Failure) {
        self.speak(move || {
            voice.fail(failure);
        });
    }

    pub(crate) fn note(&self, voice: Voice, code: &'static str, message: String) {
        self.speak(move || voice.note(code, &message));
    }

    fn speak(&self, speak: impl FnOnce() + Send + 'static) {
        // Without a thread it is not said: the exit code still tells.
        self.0.borrow_mut().extend(std::thread::Builder::new().spawn(speak));
    }

    /// Waits until all is said, but not for long.
    pub(crate) async fn settle(&self) {
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
