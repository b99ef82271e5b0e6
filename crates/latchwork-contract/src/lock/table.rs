//! The table of capabilities for the README.

use std::fmt::Write;

use latchwork_lock::Capability;

use super::expected::PROVIDERS;

/// What each provider can do and promises, as Markdown.
pub fn capability_table() -> String {
    let mut out = String::from("| |");
    for provider in PROVIDERS {
        let _ = write!(out, " {} |", provider.name);
    }
    out.push_str("\n| --- |");
    out.push_str(&" :-: |".repeat(PROVIDERS.len()));
    for capability in Capability::ALL {
        let _ = write!(out, "\n| {} |", capability.name());
        for provider in PROVIDERS {
            let declared = provider.capabilities().has(capability);
            out.push_str(match (declared, capability.is_operation()) {
                (true, _) => " yes |",
                (false, true) => " no |",
                (false, false) => " – |",
            });
        }
    }
    out.push_str("\n\n*no*: the call answers `not_supported`; *–*: not promised.\n");
    out
}

/// Puts `content` between the markers of a text; none when the markers are not there.
pub fn between_markers(text: &str, content: &str) -> Option<String> {
    const BEGIN: &str = "<!-- capabilities:begin -->\n";
    const END: &str = "<!-- capabilities:end -->";
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{content}{END}{after}"))
}
