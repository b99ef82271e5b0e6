//! The README's table of capabilities is generated, and this keeps it true.
#![allow(clippy::expect_used, reason = "a test says what went wrong by panicking")]

use std::path::Path;

use latchwork_contract::lock::internal::{between_markers, capability_table};

#[test]
fn the_readme_has_the_table_of_capabilities() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let mut text = std::fs::read_to_string(&path).expect("README.md in the repository's root");
    if std::env::var("LATCHWORK_UPDATE").is_ok_and(|update| update == "1") {
        text = between_markers(&text, &capability_table()).expect("README.md has the markers");
        std::fs::write(&path, &text).expect("README.md can be written");
    }
    assert!(
        between_markers(&text, &capability_table()).is_some_and(|true_text| true_text == text),
        "README.md must have between `<!-- capabilities:begin -->` and `<!-- capabilities:end -->` \
         what this writes: LATCHWORK_UPDATE=1 cargo test -p latchwork-contract --test readme"
    );
}
