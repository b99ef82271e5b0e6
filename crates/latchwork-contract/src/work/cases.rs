//! The list of all cases.

use super::{Case, w01_moves, w03_claims, w04_leases, w13_blockers, w13_items, w13_listings};

/// Every case, sorted by name and so by promise.
pub fn cases() -> Vec<Case> {
    let mut cases = [
        w01_moves::CASES,
        w03_claims::CASES,
        w04_leases::CASES,
        w13_blockers::CASES,
        w13_items::CASES,
        w13_listings::CASES,
    ]
    .concat();
    cases.sort_by_key(|case| case.name);
    cases
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::cases;

    #[test]
    fn every_name_is_its_own() {
        let names: BTreeSet<_> = cases().iter().map(|case| case.name).collect();
        assert_eq!(names.len(), cases().len(), "two cases have one name");
    }
}
