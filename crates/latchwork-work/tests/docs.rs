//! The diagrams in docs/work.md are those of the default tables.
#![allow(clippy::expect_used, reason = "a test says what went wrong by panicking")]

use std::path::Path;

use latchwork_work::TransitionTables;

/// The text with what stands between two marks replaced.
fn with(text: &str, name: &str, diagram: &str) -> String {
    let (begin, end) = (format!("<!-- {name}:begin -->"), format!("<!-- {name}:end -->"));
    let (before, rest) = text.split_once(&begin).expect("a mark where it begins");
    let (_, after) = rest.split_once(&end).expect("a mark where it ends");
    format!("{before}{begin}\n```mermaid\n{diagram}```\n{end}{after}")
}

#[test]
fn w16_the_documentation_shows_the_default_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/work.md");
    let committed = std::fs::read_to_string(&path).expect("docs/work.md");
    let tables = TransitionTables::default();
    let right = with(&committed, "orders", &tables.order().to_mermaid());
    let right = with(&right, "items", &tables.item().to_mermaid());
    if std::env::var("LATCHWORK_UPDATE").is_ok_and(|update| update == "1") {
        std::fs::write(&path, &right).expect("docs/work.md can be written");
    }
    let committed = std::fs::read_to_string(&path).expect("docs/work.md");
    assert!(
        committed == right,
        "docs/work.md does not show the default tables; after a look at the difference: \
         LATCHWORK_UPDATE=1 cargo test -p latchwork-work --test docs"
    );
}
