//! A table as a picture.

use std::fmt::{Display, Write};
use std::hash::Hash;

use super::TransitionTable;

impl<S: Clone + Eq + Hash + Display> TransitionTable<S> {
    /// The table in the language of Mermaid.
    pub fn to_mermaid(&self) -> String {
        let mut out = String::from("stateDiagram-v2\n");
        // Names of states may hold anything; ours are letters and numbers, and the label shows theirs.
        for (at, state) in self.states.iter().enumerate() {
            let label = state.to_string().replace('"', "#quot;").replace(['\n', '\r'], " ");
            let _ = writeln!(out, "    state \"{label}\" as s{at}");
        }
        for at in &self.initial {
            let _ = writeln!(out, "    [*] --> s{at}");
        }
        for (from, to) in self.pairs() {
            let _ = writeln!(out, "    s{from} --> s{to}");
        }
        for at in (0..self.states.len()).filter(|at| self.terminal[*at]) {
            let _ = writeln!(out, "    s{at} --> [*]");
        }
        out
    }

    /// The table in the language of Graphviz.
    pub fn to_graphviz(&self) -> String {
        let quote = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let mut out = format!("digraph {} {{\n", quote(&self.name));
        out.push_str("    rankdir=LR;\n    node [shape=box, style=rounded];\n");
        for (at, state) in self.states.iter().enumerate() {
            let ends = if self.terminal[at] { ", peripheries=2" } else { "" };
            let _ = writeln!(out, "    s{at} [label={}{ends}];", quote(&state.to_string()));
        }
        for (number, at) in self.initial.iter().enumerate() {
            let _ = writeln!(out, "    begin{number} [shape=point]; begin{number} -> s{at};");
        }
        for (from, to) in self.pairs() {
            let _ = writeln!(out, "    s{from} -> s{to};");
        }
        out.push_str("}\n");
        out
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.states.len()).flat_map(|from| self.out_of(from).map(move |to| (from, to)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TransitionTable<&'static str> {
        let table =
            TransitionTable::builder("or\"der").initial("draft").allow("draft", ["the \"end\""]);
        table.terminal(["the \"end\""]).build().expect("it holds together")
    }

    #[test]
    fn f11_mermaid_shows_every_state_and_move() {
        assert_eq!(
            table().to_mermaid(),
            "stateDiagram-v2\n    state \"draft\" as s0\n    state \"the #quot;end#quot;\" as s1\n    \
             [*] --> s0\n    s0 --> s1\n    s1 --> [*]\n"
        );
    }

    #[test]
    fn f11_graphviz_shows_every_state_and_move() {
        let dot = table().to_graphviz();
        assert!(dot.starts_with("digraph \"or\\\"der\" {\n"), "{dot}");
        assert!(dot.contains("s1 [label=\"the \\\"end\\\"\", peripheries=2];"), "{dot}");
        assert!(dot.contains("    s0 -> s1;\n") && dot.ends_with("}\n"), "{dot}");
    }
}
