//! The names of a key's entries.

use std::sync::Arc;

use crate::Mode;
use crate::rules::Id;

/// Separates a key from the rest of an entry's name. No key can contain it, and it sorts before
/// every character that a key can contain.
const SEPARATOR: char = '\u{1f}';

/// Whether an entry holds its key or waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    Hold,
    Wait,
}

/// Names of entries, below the prefix that the address gave.
#[derive(Clone, Debug)]
pub(super) struct Names {
    root: Arc<str>,
}

impl Names {
    pub(super) fn new(root: &str) -> Self {
        Names { root: root.into() }
    }

    /// The prefix of all entries of a key.
    pub(super) fn key_prefix(&self, key: &str) -> String {
        format!("{}{key}{SEPARATOR}", self.root)
    }

    /// The prefix of a key's holders, or of its waiters.
    pub(super) fn part_prefix(&self, key: &str, part: Part) -> String {
        format!("{}{}", self.key_prefix(key), part.name())
    }

    /// The prefix of a key's exclusive holder.
    pub(super) fn exclusive_holder_prefix(&self, key: &str) -> String {
        format!("{}{}", self.part_prefix(key, Part::Hold), mode_name(Mode::Exclusive))
    }

    /// The name of one entry.
    pub(super) fn entry(&self, key: &str, part: Part, mode: Mode, id: Id) -> String {
        format!("{}{}{}{id:032x}", self.key_prefix(key), part.name(), mode_name(mode))
    }

    /// The prefix of the entries of all keys that start with `prefix`.
    pub(super) fn listing_prefix(&self, prefix: &str) -> String {
        format!("{}{prefix}", self.root)
    }

    /// A name that sorts after all entries of a key and before those of the next key.
    pub(super) fn after_key(&self, key: &str) -> String {
        format!("{}{key}\u{20}", self.root)
    }

    /// Takes a name apart. `None` if another program wrote it.
    pub(super) fn parse<'a>(&self, name: &'a [u8]) -> Option<(&'a str, Part, Mode, Id)> {
        let name = std::str::from_utf8(name).ok()?.strip_prefix(&*self.root)?;
        let (key, rest) = name.split_once(SEPARATOR)?;
        let (part, rest) = [Part::Hold, Part::Wait]
            .into_iter()
            .find_map(|part| Some((part, rest.strip_prefix(part.name())?)))?;
        let (mode, id) = [Mode::Exclusive, Mode::Shared]
            .into_iter()
            .find_map(|mode| Some((mode, rest.strip_prefix(mode_name(mode))?)))?;
        let id = (id.len() == 32).then(|| Id::from_str_radix(id, 16).ok()).flatten()?;
        Some((key, part, mode, id))
    }
}

impl Part {
    const fn name(self) -> &'static str {
        match self {
            Part::Hold => "hold/",
            Part::Wait => "wait/",
        }
    }
}

const fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive/",
        Mode::Shared => "shared/",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parsed_name_gives_its_parts() {
        let names = Names::new("app/");
        for key in ["a", "a/b", "größe 7", "hold/exclusive/"] {
            for part in [Part::Hold, Part::Wait] {
                for mode in [Mode::Exclusive, Mode::Shared] {
                    let name = names.entry(key, part, mode, 0xabc);
                    assert_eq!(names.parse(name.as_bytes()), Some((key, part, mode, 0xabc)));
                    assert!(name.starts_with(&names.part_prefix(key, part)));
                    assert!(name.starts_with(&names.key_prefix(key)));
                    assert!(name < names.after_key(key));
                }
            }
        }
        for foreign in ["app/a", "other/a\u{1f}hold/shared/0", "app/a\u{1f}hold/shared/zz"] {
            assert_eq!(names.parse(foreign.as_bytes()), None, "{foreign:?}");
        }
    }

    #[test]
    fn a_key_prefix_excludes_entries_of_other_keys() {
        let names = Names::new("");
        for other in ["a/", "a ", "a/b", "ab", "A"] {
            let entry = names.entry(other, Part::Hold, Mode::Shared, 1);
            assert!(!entry.starts_with(&names.key_prefix("a")), "{other:?}");
        }
    }

    /// Two versions of the program with different names could both hold one key.
    #[test]
    fn names_never_change() {
        let name = Names::new("").entry("lock/a", Part::Hold, Mode::Exclusive, 1);
        assert_eq!(name, "lock/a\u{1f}hold/exclusive/00000000000000000000000000000001");
    }
}
