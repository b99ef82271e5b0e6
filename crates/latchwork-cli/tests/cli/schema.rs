//! The server's answers are those that it describes, for whatever is sent to it.

use std::path::Path;
use std::process::Command;

use crate::serve::Server;
use crate::support::LockDirectory;

/// What `scripts/schemathesis` ends with where schemathesis cannot be installed.
const NOT_INSTALLED: i32 = 75;

#[test]
fn every_answer_is_as_described() {
    let place = LockDirectory::new();
    let server = Server::start(&place);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/schemathesis");
    let output = Command::new(script).arg(server.address()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(NOT_INSTALLED) {
        assert!(std::env::var_os("CI").is_none(), "{wrong}");
        println!("skipped: {wrong}");
        return;
    }
    assert!(output.status.success(), "{said}{wrong}");
    // A run that tested nothing looks green too.
    let links = said.lines().filter_map(|line| line.trim().strip_prefix("API Links:"));
    let covered = links.filter_map(|line| line.split_whitespace().next()?.parse::<u32>().ok());
    assert!(covered.max() >= Some(10), "hardly any sequence was tried: {said}");
    server.end();
}
