//! Every case on every provider, as a table that is committed.

use std::fmt::Write;

use super::cases;
use super::expected::PROVIDERS;

/// The table: a row for each case, a column for each provider.
///
/// It follows from the expected capabilities and what each case needs. It is committed as
/// `matrix.txt`, so that a change of either shows what it takes away.
pub fn matrix() -> String {
    let mut out = String::from(
        "# What each case does on each provider; kept true by tests/matrix.rs.\n\
         # runs: the case. not_supported: the operation is refused, which is tested.\n\
         # not_promised: nothing to test.\n\n",
    );
    let cases = cases();
    let widest = cases.iter().map(|case| case.name.len()).max().unwrap_or(0);
    let mut row = |name: &str, cells: [&str; PROVIDERS.len()]| {
        let _ = write!(out, "{name:widest$}");
        for cell in cells {
            let _ = write!(out, "  {cell:13}");
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    };
    row("case", PROVIDERS.map(|provider| provider.name));
    for case in &cases {
        row(case.name, PROVIDERS.map(|p| case.outcome(p.capabilities()).name()));
    }
    out
}
