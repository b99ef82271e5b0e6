//! Building a table, and what must be true of one.

use std::fmt::Display;
use std::hash::Hash;

use serde::{Deserialize, Serialize};
use std::collections::HashMap;

use super::{FEW, TransitionTable};
use crate::{Error, ErrorKind, Result};

/// A [`TransitionTable`] under construction.
#[must_use = "a builder makes nothing until `build` is called"]
pub struct TransitionTableBuilder<S> {
    data: TransitionTableData<S>,
}

/// A [`TransitionTable`] as plain data, to be kept in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransitionTableData<S> {
    /// What is moved.
    pub name: String,
    /// The states in their order; those named elsewhere need not stand here too.
    #[serde(default = "Vec::new")]
    pub states: Vec<S>,
    /// Where an entity may begin.
    pub initial: Vec<S>,
    /// The allowed moves: from, to.
    pub moves: Vec<(S, S)>,
    /// The declared ends.
    #[serde(default = "Vec::new")]
    pub terminal: Vec<S>,
}

impl<S: Clone + Eq + Hash + Display> TransitionTableBuilder<S> {
    pub(super) fn new(name: String) -> Self {
        let data = TransitionTableData {
            name,
            states: Vec::new(),
            initial: Vec::new(),
            moves: Vec::new(),
            terminal: Vec::new(),
        };
        TransitionTableBuilder { data }
    }

    /// Names states in an order of your own; those of moves need no mention.
    pub fn states(mut self, states: impl IntoIterator<Item = S>) -> Self {
        self.data.states.extend(states);
        self
    }

    /// An entity may begin here.
    pub fn initial(mut self, state: S) -> Self {
        self.data.initial.push(state);
        self
    }

    /// `from` may become any of these.
    pub fn allow(mut self, from: S, to: impl IntoIterator<Item = S>) -> Self {
        self.data.moves.extend(to.into_iter().map(|to| (from.clone(), to)));
        self
    }

    /// Declares ends. Without a way out of it a state must be one of them.
    pub fn terminal(mut self, states: impl IntoIterator<Item = S>) -> Self {
        self.data.terminal.extend(states);
        self
    }

    /// The table, if it holds together: it has a beginning, every state can be reached from one,
    /// and from every state an end can be reached.
    ///
    /// # Errors
    /// [`InvalidTable`](ErrorKind::InvalidTable), which names everything that is wrong.
    pub fn build(self) -> Result<TransitionTable<S>> {
        self.data.try_into()
    }
}

impl<S: Clone + Eq + Hash + Display> TryFrom<TransitionTableData<S>> for TransitionTable<S> {
    type Error = Error;

    fn try_from(data: TransitionTableData<S>) -> Result<Self> {
        let mut states: Vec<S> = Vec::new();
        let mut places = HashMap::with_hasher(foldhash::fast::FixedState::default());
        let mut place = |state: &S| {
            *places.entry(state.clone()).or_insert_with(|| {
                states.push(state.clone());
                states.len() - 1
            })
        };
        for state in &data.states {
            place(state);
        }
        let initial: Vec<usize> = data.initial.iter().map(&mut place).collect();
        let pairs: Vec<_> = data.moves.iter().map(|(from, to)| (place(from), place(to))).collect();
        let ends: Vec<usize> = data.terminal.iter().map(&mut place).collect();

        let count = states.len();
        let width = count.div_ceil(64);
        let mut moves = vec![0; count * width];
        for (from, to) in &pairs {
            moves[from * width + to / 64] |= 1 << (to % 64);
        }
        let mut terminal = vec![false; count];
        for end in &ends {
            terminal[*end] = true;
        }
        let problems = problems(&states, &initial, &pairs, &terminal);
        if !problems.is_empty() {
            return Err(ErrorKind::InvalidTable { table: data.name, problems }.into());
        }
        let places = (count > FEW).then_some(places);
        Ok(TransitionTable { name: data.name, states, places, moves, width, initial, terminal })
    }
}

impl<S: Clone + Eq + Hash + Display> From<TransitionTable<S>> for TransitionTableData<S> {
    fn from(table: TransitionTable<S>) -> Self {
        table.to_data()
    }
}

fn problems<S: Display>(
    states: &[S],
    initial: &[usize],
    moves: &[(usize, usize)],
    terminal: &[bool],
) -> Vec<String> {
    let mut problems = Vec::new();
    if initial.is_empty() {
        problems.push("no state is declared initial".to_owned());
    }
    let reached = spread(states.len(), initial.iter().copied(), moves.iter().copied());
    let ends = (0..states.len()).filter(|at| terminal[*at]);
    let ending = spread(states.len(), ends, moves.iter().map(|(from, to)| (*to, *from)));
    for (at, state) in states.iter().enumerate() {
        if !initial.is_empty() && !reached[at] {
            problems.push(format!("{state} cannot be reached from a beginning"));
        }
        if !ending[at] {
            let stuck = moves.iter().all(|(from, _)| *from != at);
            problems.push(if stuck {
                format!("{state} has no way out and is not declared terminal")
            } else {
                format!("from {state} no terminal state can be reached")
            });
        }
    }
    problems
}

/// What can be reached from somewhere along the moves.
fn spread(
    count: usize,
    from: impl Iterator<Item = usize>,
    moves: impl Iterator<Item = (usize, usize)>,
) -> Vec<bool> {
    let mut out = vec![Vec::new(); count];
    for (from, to) in moves {
        out[from].push(to);
    }
    let mut reached = vec![false; count];
    let mut next: Vec<usize> = from.collect();
    while let Some(at) = next.pop() {
        if !std::mem::replace(&mut reached[at], true) {
            next.extend(&out[at]);
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(builder: TransitionTableBuilder<&'static str>) -> String {
        let error = builder.build().expect_err("it does not hold together");
        assert_eq!(error.code(), "invalid_table");
        error.to_string()
    }

    #[test]
    fn f11_everything_that_is_wrong_is_named() {
        let table = TransitionTable::builder("t").initial("a").allow("a", ["b", "end"]);
        let table = table.allow("x", ["end"]).allow("c", ["d"]).allow("d", ["c"]).terminal(["end"]);
        let said = wrong(table);
        for part in [
            "b has no way out and is not declared terminal",
            "x cannot be reached",
            "c cannot be reached",
            "from c no terminal state can be reached",
            "from d no terminal",
        ] {
            assert!(said.contains(part), "{said}");
        }
        assert!(!said.contains("from a no") && !said.contains("a cannot"), "{said}");
    }

    #[test]
    fn f11_a_table_needs_a_beginning() {
        let table = TransitionTable::builder("t").allow("a", ["b"]).terminal(["b"]);
        assert!(wrong(table).contains("initial"));
    }

    #[test]
    fn f11_a_typo_in_data_is_noticed() {
        let text = r#"{"name":"t","initial":["a"],"moves":[],"terminal":["a"],"finals":[]}"#;
        let error = serde_json::from_str::<TransitionTable<String>>(text).expect_err("a typo");
        assert!(error.to_string().contains("finals"), "{error}");
    }
}
