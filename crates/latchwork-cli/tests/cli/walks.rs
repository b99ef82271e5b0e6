//! The walks of `examples/http` against the real server.

use std::path::Path;
use std::process::Command;

use crate::serve::Server;
use crate::support::{LockDirectory, latchwork};

/// Runs a walk, with a token or without, and gives what it said.
fn walk(server: &Server, file: &str, token: Option<&str>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/http").join(file);
    let mut command = Command::new(path);
    command.arg(server.address()).env_remove("LATCHWORK_TOKEN");
    command.envs(token.map(|token| ("LATCHWORK_TOKEN", token)));
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{file}: {said}{wrong}");
    said
}

#[test]
fn an_order_goes_all_the_way_by_curl_alone() {
    let place = LockDirectory::new();
    let server = Server::start(&place);
    let said = walk(&server, "walk.sh", None);
    assert!(said.contains("the reviewer sends it back") && said.contains("all the way"), "{said}");
    // Twice: a walk leaves nothing behind that is in the way of the next one.
    walk(&server, "walk.sh", None);
    server.end();
}

#[test]
fn an_order_goes_all_the_way_by_python_alone() {
    let place = LockDirectory::new();
    let server = Server::start(&place);
    let said = walk(&server, "walk.py", None);
    assert!(said.contains("done again") && said.contains("receipt"), "{said}");
    server.end();
}

#[test]
fn a_walk_makes_tokens_and_revokes_them() {
    let place = LockDirectory::new();
    let mut command = latchwork();
    command.args(["tokens", "create", "walk-admin", "--role", "admin", "--data"]);
    let made = command.arg(place.path("data")).output().expect("it runs");
    let token = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    assert!(token.starts_with("lw_admin_"), "{}", String::from_utf8_lossy(&made.stderr));
    let server = Server::start(&place);
    for file in ["walk.sh", "walk.py"] {
        let said = walk(&server, file, Some(&token));
        assert!(said.contains("revoked"), "{said}");
    }
    server.end();
    let mut command = latchwork();
    command.args(["tokens", "ls", "--data"]).arg(place.path("data"));
    let left = command.output().expect("it runs");
    let left = String::from_utf8_lossy(&left.stdout);
    assert!(left.contains("walk-admin") && !left.contains("walk-agent"), "{left}");
}

#[test]
fn a_walk_says_what_went_wrong() {
    for file in ["walk.sh", "walk.py"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/http").join(file);
        let output = Command::new(path).arg("http://127.0.0.1:1").output().expect("it runs");
        let wrong = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && wrong.contains("cannot be reached"), "{wrong}");
    }
}
