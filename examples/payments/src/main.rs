//! The service at work: a story that is checked while it is told.
//!
//! Everything happens in a temporary directory. It fails if anything is not as it is told.

mod story;

use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    if std::env::args_os().len() > 1 {
        complain("it takes no arguments: it tells its story, and checks it");
        return ExitCode::from(2);
    }
    let mut transcript = Transcript::default();
    match story::tell(&mut transcript).await {
        Ok(()) => {
            say(format_args!("\nAll {} checks hold.", transcript.checks));
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(error);
            ExitCode::FAILURE
        }
    }
}

/// What is told, and how much of it was checked.
#[derive(Default)]
struct Transcript {
    chapters: usize,
    checks: usize,
}

impl Transcript {
    fn chapter(&mut self, title: &str) {
        self.chapters += 1;
        say(format_args!("\n{}. {title}", self.chapters));
    }

    fn tell(&self, line: impl Display) {
        say(format_args!("   {line}"));
    }

    /// Tells something, and stops the story if it is not so.
    fn check(&mut self, told: impl Display, is_so: bool) -> Result<(), String> {
        if !is_so {
            say(format_args!(" ✗ {told}"));
            return Err(format!("not so: {told}"));
        }
        self.checks += 1;
        say(format_args!(" ✓ {told}"));
        Ok(())
    }
}

/// A closed pipe is no failure: the reader has seen enough.
fn say(line: impl Display) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn complain(line: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "latchwork-payments: {line}");
}

#[cfg(test)]
mod tests {
    use super::Transcript;

    #[test]
    fn what_is_not_so_stops_the_story() {
        let mut transcript = Transcript::default();
        assert_eq!(transcript.check("one is one", true), Ok(()));
        let stopped = transcript.check("one is two", false).expect_err("it is not");
        assert_eq!((stopped.as_str(), transcript.checks), ("not so: one is two", 1));
    }
}
