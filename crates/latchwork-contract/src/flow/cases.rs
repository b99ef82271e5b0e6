//! The list of all cases.

use super::{
    Case, f01_states, f02_gates, f03_actions, f04_failures, f05_steps, f06_stored_form, f07_resume,
    f08_cancel, f08_claims, f08_due, f08_listing, f08_rows, f08_runs, f09_keys, f10_events,
    f11_tables, f12_forecast, f13_entities, f14_stale_state, f15_attempts, f15_limits, f16_retries,
};

/// Every case, sorted by name and so by promise.
pub fn cases() -> Vec<Case> {
    let mut cases = [
        f01_states::CASES,
        f02_gates::CASES,
        f03_actions::CASES,
        f04_failures::CASES,
        f05_steps::CASES,
        f06_stored_form::CASES,
        f07_resume::CASES,
        f08_cancel::CASES,
        f08_claims::CASES,
        f08_due::CASES,
        f08_listing::CASES,
        f08_rows::CASES,
        f08_runs::CASES,
        f09_keys::CASES,
        f10_events::CASES,
        f11_tables::CASES,
        f12_forecast::CASES,
        f13_entities::CASES,
        f14_stale_state::CASES,
        f15_attempts::CASES,
        f15_limits::CASES,
        f16_retries::CASES,
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
    fn every_promise_has_a_case_and_every_name_is_its_own() {
        let promises: BTreeSet<_> = cases().iter().map(|case| case.promise).collect();
        assert_eq!(promises, (1..=16).collect());
        let names: BTreeSet<_> = cases().iter().map(|case| case.name).collect();
        assert_eq!(names.len(), cases().len(), "two cases have one name");
    }
}
