//! The list of all cases.

use super::{Case, f08_cancel, f08_claims, f08_due, f08_listing, f08_rows};

/// Every case, sorted by name and so by promise.
pub fn cases() -> Vec<Case> {
    let mut cases =
        [f08_cancel::CASES, f08_claims::CASES, f08_due::CASES, f08_listing::CASES, f08_rows::CASES]
            .concat();
    cases.sort_by_key(|case| case.name);
    cases
}
