//! What a caller may see: order types, and keys of locks and flows.
//!
//! An object outside of the limits is answered like one that does not exist where it is looked up by its
//! id, so that nothing is learned of it. Where the caller itself names a type or a key, it is told that it
//! may not.

/// The limits of a caller; none unless told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    types: Option<Vec<String>>,
    key_prefixes: Option<Vec<String>>,
}

impl Scope {
    /// Whether orders of this type are within the limits.
    pub(crate) fn allows_type(&self, order_type: &str) -> bool {
        self.types.as_ref().is_none_or(|types| types.iter().any(|one| one == order_type))
    }

    /// Whether a key of a lock or of a flow's entity is within the limits.
    pub(crate) fn allows_key(&self, key: &str) -> bool {
        let prefixes = self.key_prefixes.as_ref();
        prefixes.is_none_or(|prefixes| prefixes.iter().any(|prefix| key.starts_with(&**prefix)))
    }

    /// The types to look for where the caller asks for these, none meaning all. Empty only where there
    /// are neither limits nor wishes, which the layers below read as all types.
    ///
    /// # Errors
    /// A type outside of the limits.
    pub(crate) fn narrow<'a>(&'a self, asked: &'a [String]) -> Result<&'a [String], &'a str> {
        if asked.is_empty() {
            return Ok(self.types().unwrap_or_default());
        }
        match asked.iter().find(|one| !self.allows_type(one)) {
            Some(refused) => Err(refused),
            None => Ok(asked),
        }
    }

    /// The only order types that it may see; none for all of them. Never an empty list.
    pub(crate) fn types(&self) -> Option<&[String]> {
        self.types.as_deref()
    }

    /// What every key that it may see begins with; none for all keys.
    pub(crate) fn key_prefixes(&self) -> Option<&[String]> {
        self.key_prefixes.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_and_none_means_everything() {
        let all = Scope::default();
        assert!(all.allows_type("any") && all.allows_key("any"));
        assert_eq!((all.types(), all.key_prefixes()), (None, None));
        let some = |texts: &[&str]| Some(texts.iter().map(|&text| text.to_owned()).collect());
        let scope = Scope { types: some(&["a", "b"]), key_prefixes: some(&["team-1/"]) };
        assert!(scope.allows_type("b") && !scope.allows_type("ab") && !scope.allows_type(""));
        assert!(scope.allows_key("team-1/x") && !scope.allows_key("team-1"));
        let asked = ["a".to_owned(), "c".to_owned()];
        assert_eq!(scope.narrow(&asked), Err("c"));
        assert_eq!(scope.narrow(&asked[..1]), Ok(&asked[..1]));
        assert_eq!(scope.narrow(&[]).map(<[_]>::len), Ok(2));
        assert_eq!(all.narrow(&[]), Ok(&[][..]));
    }
}
