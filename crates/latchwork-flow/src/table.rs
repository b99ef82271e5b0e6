//! States and allowed moves as data (F11).

mod builder;
mod diagram;

use std::fmt::{self, Display};
use std::hash::Hash;

use serde::{Deserialize, Serialize};
use std::collections::HashMap;

use crate::{ErrorKind, Result};

pub use builder::{TransitionTableBuilder, TransitionTableData};

/// Which state may become which.
///
/// Typed, with an enum of yours, or from data, as a `TransitionTable<String>`. A table that does
/// not hold together is not built: see [`TransitionTableBuilder::build`].
///
/// ```
/// use latchwork_flow::TransitionTable;
///
/// #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
/// enum Payment { Pending, Authorized, Captured, Failed }
/// use Payment::*;
/// # impl std::fmt::Display for Payment {
/// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { write!(f, "{self:?}") }
/// # }
///
/// let table = TransitionTable::builder("payment")
///     .initial(Pending)
///     .allow(Pending, [Authorized, Failed])
///     .allow(Authorized, [Captured, Failed])
///     .terminal([Captured, Failed])
///     .build()?;
///
/// assert!(table.can(&Pending, &Authorized));
/// let error = table.check(&Captured, &Pending).unwrap_err();
/// assert_eq!(error.to_string(), "payment: Captured cannot become Pending; from Captured it can become nothing");
/// assert!(table.to_mermaid().starts_with("stateDiagram-v2"));
/// # Ok::<(), latchwork_flow::Error>(())
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[serde(
    try_from = "TransitionTableData<S>",
    into = "TransitionTableData<S>",
    bound(
        serialize = "S: Clone + Eq + Hash + Display + Serialize",
        deserialize = "S: Clone + Eq + Hash + Display + Deserialize<'de>"
    )
)]
pub struct TransitionTable<S> {
    name: String,
    states: Vec<S>,
    /// Only for tables with many states: a look at each of some few is quicker than a hash.
    places: Option<HashMap<S, usize, foldhash::fast::FixedState>>,
    /// A row of bits for each state: where it may go.
    moves: Vec<u64>,
    /// How many words a row has.
    width: usize,
    initial: Vec<usize>,
    terminal: Vec<bool>,
}

/// Up to so many states are looked through one by one.
const FEW: usize = 16;

impl<S: Clone + Eq + Hash + Display> TransitionTable<S> {
    /// A table under construction. The name says what is moved, in messages and diagrams.
    pub fn builder(name: impl AsRef<str>) -> TransitionTableBuilder<S> {
        TransitionTableBuilder::new(name.as_ref().to_owned())
    }

    /// What is moved.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Every state, in the order in which they were first named.
    pub fn states(&self) -> &[S] {
        &self.states
    }

    /// Where an entity may begin.
    pub fn initial(&self) -> impl Iterator<Item = &S> {
        self.initial.iter().map(|at| &self.states[*at])
    }

    /// Whether the table has this state.
    pub fn contains(&self, state: &S) -> bool {
        self.place(state).is_some()
    }

    /// Whether `from` may become `to`. A state that the table does not have may become nothing.
    #[inline]
    pub fn can(&self, from: &S, to: &S) -> bool {
        match (self.place(from), self.place(to)) {
            (Some(from), Some(to)) => self.moves[from * self.width + to / 64] >> (to % 64) & 1 == 1,
            _ => false,
        }
    }

    /// The same as a result whose error names from, to, and what is allowed.
    ///
    /// # Errors
    /// [`IllegalTransition`](ErrorKind::IllegalTransition).
    #[inline]
    pub fn check(&self, from: &S, to: &S) -> Result<()> {
        if self.can(from, to) { Ok(()) } else { Err(self.refuse(from, to)) }
    }

    #[cold]
    fn refuse(&self, from: &S, to: &S) -> crate::Error {
        ErrorKind::IllegalTransition {
            table: self.name.clone(),
            from: from.to_string(),
            to: to.to_string(),
            allowed: self.allowed_from(from).map(S::to_string).collect(),
        }
        .into()
    }

    /// What a state may become; nothing for one that the table does not have.
    pub fn allowed_from(&self, from: &S) -> impl Iterator<Item = &S> {
        self.place(from).into_iter().flat_map(|from| self.out_of(from)).map(|to| &self.states[to])
    }

    /// Whether nothing leads out of it: derived from the moves.
    pub fn is_final(&self, state: &S) -> bool {
        self.place(state).is_some_and(|at| self.out_of(at).next().is_none())
    }

    /// Whether it was declared an end. Moves may lead out of it all the same, as rework does.
    pub fn is_terminal(&self, state: &S) -> bool {
        self.place(state).is_some_and(|at| self.terminal[at])
    }

    #[inline]
    fn place(&self, state: &S) -> Option<usize> {
        match &self.places {
            None => self.states.iter().position(|s| s == state),
            Some(places) => places.get(state).copied(),
        }
    }

    fn out_of(&self, from: usize) -> impl Iterator<Item = usize> {
        (0..self.states.len())
            .filter(move |to| self.moves[from * self.width + to / 64] >> (to % 64) & 1 == 1)
    }

    /// The table as plain data.
    pub fn to_data(&self) -> TransitionTableData<S> {
        let pick = |at: &usize| self.states[*at].clone();
        TransitionTableData {
            name: self.name.clone(),
            states: self.states.clone(),
            initial: self.initial.iter().map(pick).collect(),
            moves: (0..self.states.len())
                .flat_map(|from| self.out_of(from).map(move |to| (from, to)))
                .map(|(from, to)| (self.states[from].clone(), self.states[to].clone()))
                .collect(),
            terminal: (0..self.states.len())
                .filter(|at| self.terminal[*at])
                .map(|at| pick(&at))
                .collect(),
        }
    }
}

impl<S: Display> fmt::Debug for TransitionTable<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states: Vec<_> = self.states.iter().map(S::to_string).collect();
        f.debug_struct("TransitionTable")
            .field("name", &self.name)
            .field("states", &states)
            .finish_non_exhaustive()
    }
}

impl<S: Clone + Eq + Hash + Display> PartialEq for TransitionTable<S> {
    fn eq(&self, other: &Self) -> bool {
        self.to_data() == other.to_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> TransitionTable<String> {
        serde_json::from_str(
            r#"{"name":"order","states":["draft","review","published","dropped"],"initial":["draft"],
                "moves":[["draft","review"],["review","published"],["review","dropped"],["dropped","draft"]],
                "terminal":["published","dropped"]}"#,
        )
        .expect("it holds together")
    }

    fn s(text: &str) -> String {
        text.to_owned()
    }

    #[test]
    fn f11_moves_are_as_told_and_nothing_else() {
        let table = order();
        for from in table.states() {
            for to in table.states() {
                let told = [
                    ("draft", "review"),
                    ("review", "published"),
                    ("review", "dropped"),
                    ("dropped", "draft"),
                ];
                assert_eq!(table.can(from, to), told.contains(&(from, to)), "{from} {to}");
            }
        }
        assert!(!table.can(&s("unknown"), &s("draft")) && !table.can(&s("draft"), &s("unknown")));
        assert_eq!(table.allowed_from(&s("review")).collect::<Vec<_>>(), ["published", "dropped"]);
    }

    #[test]
    fn f11_final_is_derived_and_terminal_is_declared() {
        let table = order();
        assert!(table.is_final(&s("published")) && table.is_terminal(&s("published")));
        assert!(!table.is_final(&s("dropped")) && table.is_terminal(&s("dropped")));
        assert!(!table.is_final(&s("unknown")) && !table.is_terminal(&s("unknown")));
    }

    #[test]
    fn f11_an_illegal_move_names_from_to_and_what_is_allowed() {
        let error = order().check(&s("draft"), &s("published")).expect_err("not so fast");
        assert_eq!(error.code(), "illegal_transition");
        assert_eq!(
            error.to_string(),
            "order: draft cannot become published; from draft it can become review"
        );
    }

    #[test]
    fn f11_a_table_survives_the_journey() {
        let text = serde_json::to_string(&order()).expect("it serialises");
        assert_eq!(
            serde_json::from_str::<TransitionTable<String>>(&text).expect("it reads"),
            order()
        );
    }

    #[test]
    fn f11_many_states_are_found_too() {
        let mut builder = TransitionTable::builder("chain").initial(0);
        for i in 0..200 {
            builder = builder.allow(i, [i + 1]);
        }
        let table = builder.terminal([200]).build().expect("it holds together");
        assert!((0..200).all(|i| table.can(&i, &(i + 1)) && !table.can(&(i + 1), &i)));
        assert!(table.is_final(&200) && !table.can(&200, &0) && !table.contains(&201));
    }
}
