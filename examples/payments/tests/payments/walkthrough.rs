//! The command and its output.

use std::process::Command;

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_latchwork-payments"))
}

#[test]
fn the_walkthrough_passes() {
    let told = command().output().expect("started");
    let text = String::from_utf8(told.stdout).expect("text");
    assert!(told.status.success(), "{text}{}", String::from_utf8_lossy(&told.stderr));
    for (number, section) in [
        "Authorize",
        "Capture",
        "Replay",
        "Conflict",
        "Two at once",
        "Expired window",
        "Crossing transfers",
        "The late writer",
    ]
    .iter()
    .enumerate()
    {
        assert!(text.contains(&format!("\n{}. {section}\n", number + 1)), "{section}: {text}");
    }
    let checks = text.lines().filter(|line| line.starts_with(" ✓ ")).count();
    assert!(checks > 20 && !text.contains('✗'), "{text}");
    assert!(text.ends_with(&format!("All {checks} checks hold.\n")), "{text}");
}

#[test]
fn a_step_that_fails_fails_the_command() {
    let directory = tempfile::tempdir().expect("a directory");
    let nowhere = directory.path().join("nowhere");
    let told = command().env("TMPDIR", &nowhere).output().expect("started");
    assert_eq!(told.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&told.stderr).contains("set TMPDIR"), "{told:?}");
}

#[test]
fn arguments_are_refused() {
    let told = command().arg("--fast").output().expect("started");
    assert_eq!(told.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&told.stderr).contains("no arguments"), "{told:?}");
}
