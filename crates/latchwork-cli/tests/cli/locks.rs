//! `locks ls`, `show` and `break`.

use serde_json::Value;

use crate::support::{LockDirectory, Running, assert_code, eventually, latchwork, said, text};

const UNTIL_GO: &str = "echo in > $D/in; while [ ! -e $D/go ]; do sleep 0.01; done";

#[test]
fn a_free_place_says_so_and_one_that_is_not_there_too() {
    let place = LockDirectory::new();
    let out = place.locks(&["ls"]);
    assert_code(&out, 69);
    assert!(text(&out).contains("does not exist"), "{}", text(&out));
    assert!(!place.exists("locks"), "it was not made by looking");
    place.lock("k", &[], "true").output().expect("it runs");
    let out = place.locks(&["ls"]);
    assert_code(&out, 0);
    assert_eq!(said(&out), "nothing is locked\n");
    assert_eq!(said(&place.locks(&["ls", "--json"])), "[]\n");
    assert_eq!(said(&place.locks(&["show", "k"])), "\"k\" is free\n");
    let out = place.locks(&["break", "k"]);
    assert_code(&out, 0);
    assert!(said(&out).contains("nobody holds \"k\""), "{}", said(&out));
}

#[test]
fn the_schema_is_printed_without_a_server() {
    let schema = |at: &str| {
        std::process::Command::new(env!("CARGO_BIN_EXE_latchwork"))
            .args(["locks", "schema", "--at", at])
            .output()
            .expect("it runs")
    };
    for at in ["sqlite:", "postgres:", "postgres://me:hunter2@nowhere/db"] {
        let out = schema(at);
        assert_code(&out, 0);
        assert!(said(&out).contains("latchwork_lock"), "{at}: {}", said(&out));
        assert!(!said(&out).contains("hunter2"));
    }
    let granting = |at: &str, role: &str| {
        std::process::Command::new(env!("CARGO_BIN_EXE_latchwork"))
            .args(["locks", "schema", "--at", at, "--role", role])
            .output()
            .expect("it runs")
    };
    let out = granting("postgres:", "app");
    assert_code(&out, 0);
    assert!(said(&out).contains("ON SEQUENCE latchwork_lock_fence TO \"app\";"), "{}", said(&out));
    assert_code(&granting("sqlite:", "app"), 64);
    let out = schema("memory:");
    assert_code(&out, 64);
    assert!(text(&out).contains("no tables"), "{}", text(&out));
}

#[test]
fn looking_into_another_directory_leaves_it_alone() {
    let other = tempfile::tempdir().expect("a directory");
    let at = other.path().to_str().expect("text");
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_latchwork"))
        .args(["locks", "ls", "--at", at])
        .output()
        .expect("it runs");
    assert_code(&out, 69);
    assert!(text(&out).contains("is no lock directory"), "{}", text(&out));
    assert_eq!(other.path().read_dir().expect("readable").count(), 0);
}

/// As with a directory: a name that was mistyped must not pass for a place where nothing is locked.
#[test]
fn looking_at_a_database_file_does_not_make_it() {
    let place = LockDirectory::new();
    let at = format!("sqlite://{}", place.path("a%20b.db").display());
    let run = |args: &[&str]| latchwork().args(args).args(["--at", &at]).output().expect("it runs");
    for args in [&["locks", "ls"][..], &["locks", "show", "k"], &["flows", "ls"]] {
        let out = run(args);
        assert_code(&out, 69);
        assert!(text(&out).contains("a b.db does not exist"), "{}", text(&out));
        assert!(!place.exists("a b.db"), "it was not made by looking");
    }
    let out = latchwork().args(["lock", "k", "--at", &at, "--", "true"]).output();
    assert_code(&out.expect("it runs"), 0);
    assert_eq!(said(&run(&["locks", "ls"])), "nothing is locked\n");
    assert_eq!(said(&run(&["flows", "ls"])), "no such transition is stored\n");
}

/// What may not be read is not the same as what is not there.
#[test]
fn another_users_locks_are_told_from_no_locks() {
    use std::os::unix::fs::PermissionsExt;
    if !rustix::process::geteuid().is_root() {
        println!(
            "SKIPPED another_users_locks_are_told_from_no_locks: only root can be several users"
        );
        return;
    }
    let place = LockDirectory::new();
    place.lock("k", &[], "true").output().expect("it runs");
    let root = place.path("");
    std::fs::set_permissions(&root, PermissionsExt::from_mode(0o755)).expect("set");
    // The build directory may be closed to others, so the program moves.
    let program = place.path("latchwork");
    std::fs::copy(env!("CARGO_BIN_EXE_latchwork"), &program).expect("copied");
    for mode in [0o700, 0o755] {
        std::fs::set_permissions(place.path("locks"), PermissionsExt::from_mode(mode))
            .expect("set");
        for args in [&["ls"][..], &["show", "k"], &["break", "k", "--yes"]] {
            let out = std::process::Command::new("setpriv")
                .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
                .arg(&program)
                .arg("locks")
                .args(args)
                .args(["--at", &place.at()])
                .output()
                .expect("it runs");
            assert_code(&out, 69);
            assert!(text(&out).contains("permission denied"), "{}", text(&out));
            assert!(!text(&out).contains("is no lock directory"), "{}", text(&out));
        }
    }
}

/// As a damaged record says itself.
#[test]
fn a_damaged_record_can_be_broken() {
    let place = LockDirectory::new();
    place.lock("k", &[], "true").output().expect("it runs");
    let record = place.path("locks/keys/lock%2Fk.json");
    std::fs::write(&record, "{").expect("written");
    let out = place.locks(&["show", "k"]);
    assert_code(&out, 69);
    assert!(text(&out).contains("latchwork locks break KEY"), "{}", text(&out));
    let out = place.locks(&["ls"]);
    assert!(
        text(&out).contains("lock%2Fk.json is damaged"),
        "nobody may take it for free: {}",
        text(&out)
    );
    assert_code(&place.locks(&["break", "k", "--dry-run"]), 69);
    assert!(record.exists(), "nothing was broken");
    let out = place.locks(&["break", "k", "--yes"]);
    assert_code(&out, 0);
    assert_eq!(said(&out), "removed the record of \"k\", which could not be read\n");
    assert!(!record.exists(), "{}", text(&out));
}

#[test]
fn holders_and_waiters_are_listed() {
    let place = LockDirectory::new();
    let one = Running::start(&mut place.lock("order:1", &["--note", "nightly"], UNTIL_GO));
    let two = Running::start(&mut place.lock("other", &["--shared", "--owner", "ana"], UNTIL_GO));
    eventually("both", || place.is_held("order:1") && place.is_held("other"));
    let options = ["--owner", "ben", "--wait-forever"];
    let three = Running::start(&mut place.lock("order:1", &options, "true"));
    eventually("the queue", || place.waiters("order:1") == 1);

    let table = said(&place.locks(&["ls"]));
    for part in ["KEY", "WAITERS", "order:1", "other", "exclusive", "shared", "ana", "nightly"] {
        assert!(table.contains(part), "{part:?} in\n{table}");
    }
    let some = said(&place.locks(&["ls", "order:"]));
    assert!(some.contains("order:1") && !some.contains("other"), "{some}");
    let json: Value = serde_json::from_str(&said(&place.locks(&["ls", "--json"]))).expect("JSON");
    assert_eq!((&json[0]["key"], &json[1]["key"]), (&"order:1".into(), &"other".into()));
    assert_eq!(json[0]["waiters"][0]["owner"], "ben");

    let shown = said(&place.locks(&["show", "order:1"]));
    for part in ["is held", "nightly", "NEXT", "ben"] {
        assert!(shown.contains(part), "{part:?} in\n{shown}");
    }
    place.touch("go");
    for run in [one, two, three] {
        assert_code(&run.output(), 0);
    }
}

#[test]
fn breaking_must_be_confirmed_and_can_be_tried_dry() {
    let place = LockDirectory::new();
    let holder = Running::start(&mut place.lock("k", &["--ttl", "4s"], UNTIL_GO));
    place.line("in");
    let out = place.locks(&["break", "k"]);
    assert_code(&out, 64);
    assert!(text(&out).contains("--yes"), "{}", text(&out));
    let out = place.locks(&["break", "k", "--dry-run"]);
    assert_code(&out, 0);
    assert!(said(&out).contains("would break"), "{}", said(&out));
    let out = place.locks(&["break", "k", "--fence", "1", "--yes"]);
    assert_code(&out, 0);
    assert!(said(&out).contains("nobody holds \"k\" with fence 1"), "{}", said(&out));
    assert!(place.is_held("k"), "none of these broke it");

    let fence = place.inspect("k")["holders"][0]["fence"].to_string();
    let out = place.locks(&["break", "k", "--fence", &fence, "--yes", "--json"]);
    assert_code(&out, 0);
    let json: Value = serde_json::from_str(&said(&out)).expect("JSON");
    assert_eq!(json["broken"][0]["fence"].to_string(), fence);
    assert_eq!(json["dry_run"], false);
    assert_code(&holder.output(), 76);
}

#[test]
fn no_secret_is_shown() {
    let place = LockDirectory::new();
    let holder = Running::start(&mut place.lock("k", &[], UNTIL_GO));
    place.line("in");
    let mut all = String::new();
    for args in [&["ls", "--json"][..], &["show", "k", "--json"], &["show", "k"]] {
        all += &said(&place.locks(args));
    }
    let mut refused = place.lock("k", &["--no-wait", "--json"], "exit 9");
    all += &text(&refused.env("LATCHWORK_LOG", "trace").output().expect("it runs"));
    assert!(!all.to_lowercase().contains("token"), "{all}");
    // A token is 32 hexadecimal digits.
    let longest = all.split(|c: char| !c.is_ascii_hexdigit()).map(str::len).max().unwrap_or(0);
    assert!(longest < 32, "{all}");
    place.touch("go");
    assert_code(&holder.output(), 0);
}
