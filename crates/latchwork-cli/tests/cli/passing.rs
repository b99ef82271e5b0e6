//! What passes through: exit codes, the environment, input and output.

use std::io::Write as _;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{LockDirectory, Running, assert_code, latchwork, said, text};

#[test]
fn the_exit_code_passes() {
    let place = LockDirectory::new();
    for (script, code) in [("true", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137)] {
        let out = place.lock("k", &[], script).output().expect("it runs");
        assert_code(&out, code);
        assert_eq!(text(&out), "", "{script}: nothing to say");
    }
    assert!(!place.is_held("k"));
}

#[test]
fn a_command_that_cannot_start_has_the_codes_of_a_shell() {
    let place = LockDirectory::new();
    for (program, code, word) in [
        ("no-such-command-here", 127, "not found"),
        ("/no/such/command", 127, "not found"),
        ("/etc/passwd", 126, "cannot be started"),
        ("/", 126, "cannot be started"),
    ] {
        let out = latchwork().args(["lock", "k", "--at", &place.at(), "--", program]).output();
        let out = out.expect("it runs");
        assert_code(&out, code);
        assert!(text(&out).contains(word) && text(&out).contains(program), "{}", text(&out));
    }
    assert!(!place.is_held("k"), "and the lock is free");
}

#[test]
fn the_command_sees_key_and_fence_and_the_rest() {
    let place = LockDirectory::new();
    let script = "echo $LATCHWORK_KEY; echo $MINE; echo $LATCHWORK_FENCE";
    let mut last = 0;
    for _ in 0..3 {
        let out = place.lock("a key", &[], script).env("MINE", "yes").output().expect("it runs");
        let said = said(&out);
        let fence = said.strip_prefix("a key\nyes\n").expect("key and variable").trim();
        let fence: u64 = fence.parse().expect("a number");
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
}

#[test]
fn input_and_output_pass_unchanged() {
    let place = LockDirectory::new();
    let bytes: Vec<u8> = (0..200_000_u32).map(|n| (n * 7 + n / 256) as u8).collect();
    let mut command = place.lock("k", &[], "cat; echo error >&2");
    let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent));
    let out = child.wait_with_output().expect("it ends");
    writer.join().expect("no panic").expect("written");
    assert!(out.stdout == bytes);
    assert_eq!(text(&out), "error\n");
}

#[test]
fn arguments_pass_unchanged() {
    let place = LockDirectory::new();
    let args = ["a b", "", "--ttl", "--", "$HOME", "'\"", "ünïcode"];
    let out = latchwork()
        .args(["lock", "k", "--at", &place.at(), "--", "printf", "[%s]"])
        .args(args)
        .output()
        .expect("it runs");
    let expected: String = args.iter().map(|arg| format!("[{arg}]")).collect();
    assert_eq!(said(&out), expected);
}

#[test]
fn the_command_starts_with_the_signals_of_our_caller() {
    let place = LockDirectory::new();
    // The last eight digits: the C library has signals of its own behind them.
    let script = "exec sed -nE 's/^(Sig(Blk|Ign)).*(.{8})$/\\1 \\3/p' /proc/self/status";
    let bare = Command::new("sh").args(["-c", script]).output().expect("it runs");
    let under = place.lock("k", &[], script).output().expect("it runs");
    assert_eq!(said(&under), said(&bare));
    assert!(said(&bare).contains("SigBlk 0"), "{}", said(&bare));
}

#[test]
fn what_is_left_behind_is_spoken_of() {
    let place = LockDirectory::new();
    // Its output goes elsewhere, so that the pipes of the test end.
    let script = "sleep 60 >/dev/null 2>&1 & echo $! > $D/left";
    let out = Running::start(&mut place.lock("k", &[], script)).output();
    assert_code(&out, 0);
    let pid = place.line("left");
    assert!(text(&out).contains("without the lock") && text(&out).contains(&pid), "{}", text(&out));
    let pid = Pid::from_raw(pid.parse().expect("a number")).expect("a process");
    kill_process(pid, Signal::KILL).expect("it was still there");
}
