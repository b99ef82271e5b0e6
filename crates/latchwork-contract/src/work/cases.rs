//! The list of all cases.

use super::{
    Case, w01_moves, w02_checkout, w02_lease_ends, w02_operator, w02_parts, w02_propose,
    w03_claims, w03_limits, w04_leases, w05_failures, w06_validation, w07_apply, w07_exact_preview,
    w07_failures, w07_hooks, w07_leases, w08_rework, w09_idempotency, w10_audit, w11_maintenance,
    w12_declared, w13_blockers, w13_items, w13_listings, w14_listeners, w15_bad_input, w17_review,
    w17_reviewers, w17_unattended, w18_receipt, w20_unique,
};

/// Every case, sorted by name and so by promise.
pub fn cases() -> Vec<Case> {
    let mut cases = [
        w01_moves::CASES,
        w02_checkout::CASES,
        w02_lease_ends::CASES,
        w02_operator::CASES,
        w02_parts::CASES,
        w02_propose::CASES,
        w03_claims::CASES,
        w03_limits::CASES,
        w04_leases::CASES,
        w05_failures::CASES,
        w06_validation::CASES,
        w07_apply::CASES,
        w07_exact_preview::CASES,
        w07_failures::CASES,
        w07_hooks::CASES,
        w07_leases::CASES,
        w08_rework::CASES,
        w09_idempotency::CASES,
        w10_audit::CASES,
        w11_maintenance::CASES,
        w12_declared::CASES,
        w13_blockers::CASES,
        w13_items::CASES,
        w13_listings::CASES,
        w14_listeners::CASES,
        w15_bad_input::CASES,
        w17_review::CASES,
        w17_reviewers::CASES,
        w17_unattended::CASES,
        w18_receipt::CASES,
        w20_unique::CASES,
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
