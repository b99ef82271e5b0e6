//! A bench without its server.
#![expect(clippy::print_stdout, reason = "what was not run is named")]

use std::process::ExitCode;

/// Names what is skipped; where `CI` is set, that is a failure.
pub fn missing(bench: &str, hint: &str) -> ExitCode {
    let in_ci = std::env::var_os("CI").is_some();
    println!("bench {bench}: {} ({hint})", if in_ci { "FAILED" } else { "skipped" });
    if in_ci { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
