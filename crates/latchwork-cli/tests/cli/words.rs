//! Help, completions, the demonstration, and bad input.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

use crate::support::{LockDirectory, assert_code, latchwork, said, server, text, unique_key};

fn run(args: &[&str]) -> Output {
    latchwork().args(args).output().expect("it runs")
}

#[test]
fn help_has_examples_and_the_exit_codes_and_no_hidden_command() {
    let help = run(&["lock", "--help"]);
    assert_code(&help, 0);
    for part in ["Exit codes:", "\n  64 ", "\n  69 ", "\n  75 ", "\n  76 ", "\n  128+N", "FENCE"] {
        assert!(said(&help).contains(part), "{part:?} in {}", said(&help));
    }
    for command in [
        &[][..],
        &["lock"],
        &["locks", "ls"],
        &["locks", "show"],
        &["locks", "break"],
        &["completions"],
    ] {
        let help = run(&[command, &["--help"]].concat());
        assert_code(&help, 0);
        assert!(said(&help).contains("Examples:"), "{command:?}");
        assert!(!said(&help).contains("keeper"), "{command:?}");
    }
    assert!(said(&run(&["--version"])).starts_with("latchwork "));
}

#[test]
fn every_shell_has_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let out = run(&["completions", shell]);
        assert_code(&out, 0);
        assert!(said(&out).contains("max-hold"), "{shell}");
        assert!(!said(&out).contains("keeper"), "{shell}");
    }
}

#[test]
fn bad_usage_has_one_code_and_a_clear_word() {
    let place = LockDirectory::new();
    let at = place.at();
    let long = "k".repeat(513);
    for (args, word) in [
        (&[][..], "Usage"),
        (&["frobnicate"], "frobnicate"),
        (&["lock", "k"], "COMMAND"),
        (&["lock", "k", "--ttl", "soon", "--", "true"], "30s"),
        (&["lock", "k", "--ttl", "30", "--", "true"], "30s"),
        (&["lock", "k", "--ttl", "1ms", "--at", &at, "--", "true"], "invalid ttl"),
        (&["lock", "k", "--wait", "1s", "--no-wait", "--", "true"], "--no-wait"),
        (&["lock", "k", "--wait-forever", "--no-wait", "--", "true"], "--no-wait"),
        (&["lock", "k", "--max-hold", "1s", "--no-renew", "--", "true"], "--no-renew"),
        (&["lock", "", "--at", &at, "--", "true"], "invalid lock key"),
        (&["lock", "a\nb", "--at", &at, "--", "true"], "control characters"),
        (&["lock", &long, "--at", &at, "--", "true"], "512"),
        (&["lock", "k", "--owner", "", "--at", &at, "--", "true"], "invalid owner"),
        (&["lock", "k", "--note", "a\tb", "--at", &at, "--", "true"], "invalid note"),
        (&["lock", "k", "--at", "locks", "--", "true"], "./locks"),
        (&["lock", "k", "--at", "carrier-pigeon://x", "--", "true"], "carrier-pigeon"),
        (&["lock", "k", "--at", "file://host/x", "--", "true"], "host"),
        (&["lock", "k", "--at", "temporal://me:secret@host", "--", "true"], "temporal"),
        (&["lock", "k", "--at", "http://me:secret@host", "--", "true"], "no kind of lock backend"),
        (&["lock", "-x", "--at", &at, "--", "true"], "--key=-x"),
        (&["locks", "show", "-x", "--at", &at], "--key=-x"),
        (&["locks", "break", "-x", "--at", &at], "--key=-x"),
        (&["locks", "ls", "-x", "--at", &at], "'-- -x'"),
        (&["lock", "k", "--at", &at, "true"], "behind '--'"),
        (&["lock", "k", "--key", "k", "--at", &at, "--", "true"], "cannot be used"),
        (&["lock", "--at", &at, "--", "true"], "KEY"),
        (&["locks", "show", "", "--at", &at], "invalid lock key"),
    ] {
        let out = run(args);
        assert_code(&out, 64);
        assert!(text(&out).contains(word), "{args:?}: {word:?} in {}", text(&out));
        assert!(!text(&out).contains("secret"), "{}", text(&out));
    }
}

#[test]
fn a_place_that_cannot_be_used_is_unavailable_and_not_taken() {
    let place = LockDirectory::new();
    fs::write(place.path("file"), "no directory").expect("written");
    let file = place.path("file").display().to_string();
    let out = run(&["lock", "k", "--at", &file, "--", "true"]);
    assert_code(&out, 69);
    assert!(text(&out).contains(&file), "{}", text(&out));
}

#[test]
fn missing_rights_are_named() {
    let place = LockDirectory::new();
    let closed = place.path("closed");
    fs::create_dir(&closed).expect("made");
    // Root may do anything, so it becomes somebody else, with a copy that anybody may run.
    let program = place.path("latchwork");
    // By another process: a fork of a test beside this one could keep a file open that we write.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_latchwork")).arg(&program).status();
    assert!(copied.expect("cp runs").success());
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).expect("set");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).expect("set");
    let mut command = Command::new(program);
    command.args(["lock", "k", "--json", "--at"]).arg(&closed).args(["--", "true"]);
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    let out = command.output().expect("it runs");
    assert_code(&out, 69);
    assert!(text(&out).contains("closed") && text(&out).contains("ermission"), "{}", text(&out));
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).expect("set");
}

#[test]
fn looking_at_locks_of_another_user_names_the_rights() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let place = LockDirectory::new();
    assert_code(&place.lock("k", &[], "true").output().expect("it runs"), 0);
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).expect("set");
    let program = place.path("latchwork");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_latchwork")).arg(&program).status();
    assert!(copied.expect("cp runs").success());
    for args in [&["ls"][..], &["show", "k"], &["break", "k", "--yes"]] {
        let mut command = Command::new(&program);
        command.arg("locks").args(args).args(["--at", &place.at()]).uid(65_534).gid(65_534);
        let out = command.output().expect("it runs");
        assert_code(&out, 69);
        for part in ["ermission denied", "root", &place.at()] {
            assert!(text(&out).contains(part), "{part:?} in {}", text(&out));
        }
        assert!(!text(&out).contains("no lock directory"), "{}", text(&out));
    }
}

#[test]
fn an_address_in_the_environment_counts() {
    let place = LockDirectory::new();
    let out = latchwork()
        .args(["lock", "k", "--inherit-at", "--", "sh", "-c", "test -d $LATCHWORK_AT/keys"])
        .env("LATCHWORK_AT", place.at())
        .output();
    assert_code(&out.expect("it runs"), 0);
}

#[test]
fn an_address_in_a_file_counts_before_the_environment() {
    let place = LockDirectory::new();
    let file = place.path("at");
    fs::write(&file, format!("  {}  \nand more\n", place.at())).expect("written");
    let run = |options: &[&str]| {
        let mut command = latchwork();
        command.args(["lock", "k", "--at-file"]).arg(&file).args(options);
        command.args(["--", "test", "-d"]).arg(place.path("locks/keys"));
        command.env("LATCHWORK_AT", "nowhere:").output().expect("it runs")
    };
    assert_code(&run(&[]), 0);
    let both = run(&["--at", "memory:"]);
    assert_code(&both, 64);
    assert!(text(&both).contains("not by both"), "{}", text(&both));
    fs::write(&file, "\n").expect("written");
    assert_code(&run(&[]), 64);
    fs::remove_file(&file).expect("removed");
    assert!(text(&run(&[])).contains("cannot be read"));
}

/// A group shares a directory by its umask.
#[test]
fn a_new_database_gets_the_rights_that_the_umask_leaves() {
    let place = LockDirectory::new();
    for (umask, rights) in [("002", 0o664), ("077", 0o600)] {
        let file = place.path(&format!("{umask}.db"));
        let at = format!("sqlite://{}", file.display());
        let script = format!("umask {umask}; exec \"$0\" lock k --at {at} -- true");
        let out =
            Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_latchwork")]).output();
        assert_code(&out.expect("it runs"), 0);
        let found = fs::metadata(&file).expect("made").permissions().mode() & 0o777;
        assert_eq!(found, rights, "{found:o} under {umask}");
    }
}

/// A command under a lock is often a script of others.
#[test]
fn the_command_does_not_see_the_address_unless_it_is_meant_to() {
    let place = LockDirectory::new();
    let seen = |options: &[&str]| {
        let mut command = latchwork();
        command.args(["lock", "k"]).args(options).args([
            "--",
            "sh",
            "-c",
            "echo ${LATCHWORK_AT-none}",
        ]);
        let out = command.env("LATCHWORK_AT", place.at()).output().expect("it runs");
        assert_code(&out, 0);
        said(&out)
    };
    assert_eq!(seen(&[]), "none\n");
    assert_eq!(seen(&["--inherit-at"]), format!("{}\n", place.at()));
}

/// Where there is a server.
#[test]
fn a_password_in_the_variable_of_a_database_counts_and_is_not_passed_on() {
    let Some(server) = server("LATCHWORK_TEST_POSTGRES") else { return };
    let (start, place) = server.rsplit_once('@').expect("a user");
    let (start, password) = start.rsplit_once(':').expect("a password");
    let mut command = latchwork();
    command.args(["lock", &unique_key("password"), "--at", &format!("{start}@{place}")]);
    command.args(["--", "sh", "-c", "echo ${PGPASSWORD-none}"]);
    let out = command.env("PGPASSWORD", password).output().expect("it runs");
    assert_code(&out, 0);
    assert_eq!(said(&out), "none\n");
}

#[test]
fn a_lock_that_excludes_nobody_says_so() {
    let out = run(&["lock", "k", "--at", "memory:", "--", "true"]);
    assert_code(&out, 0);
    assert!(text(&out).contains("excludes no other run"), "{}", text(&out));
}

#[test]
fn the_demonstration_keeps_its_promises() {
    let out = latchwork().arg("demo").output().expect("it runs");
    assert_code(&out, 0);
    assert!(said(&out).contains("promises were kept"), "{}", said(&out));
    assert!(said(&out).contains("In a database file"), "{}", said(&out));
    assert!(said(&out).contains("a late result of agent-1 is refused"), "{}", said(&out));
    assert!(said(&out).contains("their chain verifies"), "{}", said(&out));
    assert!(!said(&out).contains('\x1b'), "colours on a terminal only");
}

/// Where there is a server; that there is one in CI is the business of the provider's own tests.
#[test]
fn the_demonstration_keeps_its_promises_in_postgres() {
    let Some(server) = server("LATCHWORK_TEST_POSTGRES") else { return };
    let out = latchwork().arg("demo").env("LATCHWORK_DEMO_POSTGRES", &server).output();
    let out = out.expect("it runs");
    assert_code(&out, 0);
    assert!(said(&out).contains("In PostgreSQL"), "{}", said(&out));
    let nowhere = "postgres://me:hunter2@127.0.0.1:1/db";
    let out = latchwork().args(["demo", "--postgres", nowhere]).output().expect("it runs");
    assert_code(&out, 69);
    assert!(!text(&out).contains("hunter2"), "{}", text(&out));
}
