//! On a terminal: `script` of util-linux gives one.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use crate::support::{LockDirectory, Running, assert_code, said};

/// `latchwork lock k -- sh script after` on a terminal of its own, with `keys` typed once the script has
/// written `$D/in`.
fn typed(place: &LockDirectory, script: &str, after: &str, keys: &[u8]) -> Output {
    std::fs::write(place.path("script"), script).expect("written");
    let line = format!(
        "{} lock k --at {} -- sh {} {after}",
        env!("CARGO_BIN_EXE_latchwork"),
        place.at(),
        place.path("script").display()
    );
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("D", place.path("")).env("SHELL", "/bin/bash");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("`script` of util-linux is installed");
    let mut keyboard = child.stdin.take().expect("a pipe");
    let run = Running::from(child);
    place.line("in");
    keyboard.write_all(keys).expect("typed");
    let out = run.output();
    drop(keyboard);
    out
}

#[test]
fn the_command_can_read_the_terminal() {
    let place = LockDirectory::new();
    let out = typed(&place, "echo in > $D/in; read word; echo got-$word", "", b"hello\n");
    assert_code(&out, 0);
    assert!(said(&out).contains("got-hello"), "{}", said(&out));
}

#[test]
fn a_command_whose_output_goes_elsewhere_can_read_the_terminal() {
    let place = LockDirectory::new();
    let script = "echo in > $D/in; read word; echo got-$word > $D/got";
    // Not lent at first, since the output is no terminal: it is when the command asks.
    assert_code(&typed(&place, script, "> /dev/null", b"hello\n"), 0);
    assert_eq!(place.line("got"), "got-hello");
}

#[test]
fn the_interrupt_key_ends_the_command() {
    let place = LockDirectory::new();
    let out = typed(&place, "echo in > $D/in; exec sleep 1000", "", b"\x03");
    assert_code(&out, 130);
    assert!(!place.is_held("k"));
}

#[test]
fn the_interrupt_key_ends_a_loop_around_it() {
    let place = LockDirectory::new();
    let after = "; echo went-on";
    let out = typed(&place, "echo in > $D/in; exec sleep 1000", after, b"\x03");
    assert_code(&out, 130);
    assert!(!said(&out).contains("went-on"), "{}", said(&out));
}

#[test]
fn the_suspend_key_does_not_suspend() {
    let place = LockDirectory::new();
    let script = "trap 'echo on > $D/on' CONT
        echo in > $D/in; while [ ! -e $D/on ]; do sleep 0.05; done";
    let out = typed(&place, script, "", b"\x1a");
    assert_code(&out, 0);
    assert!(said(&out).contains("is not suspended"), "{}", said(&out));
}
