//! A walkthrough of the service that checks each of its statements.
//!
//! It works in a temporary directory and fails at the first statement that does not hold.

mod walkthrough;

use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    if std::env::args_os().len() > 1 {
        print_error("it takes no arguments: it runs the walkthrough and checks it");
        return ExitCode::from(2);
    }
    let mut transcript = Transcript::default();
    match walkthrough::run(&mut transcript).await {
        Ok(()) => {
            print_line(format_args!("\nAll {} checks hold.", transcript.checks));
            ExitCode::SUCCESS
        }
        Err(error) => {
            print_error(error);
            ExitCode::FAILURE
        }
    }
}

/// The printed walkthrough, and how many of its statements were checked.
#[derive(Default)]
struct Transcript {
    sections: usize,
    checks: usize,
}

impl Transcript {
    fn section(&mut self, title: &str) {
        self.sections += 1;
        print_line(format_args!("\n{}. {title}", self.sections));
    }

    fn line(&self, line: impl Display) {
        print_line(format_args!("   {line}"));
    }

    /// Prints a statement, and ends the walkthrough if it does not hold.
    fn check(&mut self, told: impl Display, is_so: bool) -> Result<(), String> {
        if !is_so {
            print_line(format_args!(" ✗ {told}"));
            return Err(format!("not so: {told}"));
        }
        self.checks += 1;
        print_line(format_args!(" ✓ {told}"));
        Ok(())
    }
}

/// A closed pipe is no failure: the reader has seen enough.
fn print_line(line: impl Display) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn print_error(line: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "latchwork-payments: {line}");
}

#[cfg(test)]
mod tests {
    use super::Transcript;

    #[test]
    fn a_failed_check_stops_the_walkthrough() {
        let mut transcript = Transcript::default();
        assert_eq!(transcript.check("one is one", true), Ok(()));
        let stopped = transcript.check("one is two", false).expect_err("it is not");
        assert_eq!((stopped.as_str(), transcript.checks), ("not so: one is two", 1));
    }
}
