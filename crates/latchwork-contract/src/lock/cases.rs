//! The list of all cases.

use super::{
    Case, blocking, dropped, l01_exclusion, l02_expiry, l03_tokens, l04_fences, l05_waiting,
    l06_writers, l07_same_owner, l08_refresh, l09_loss, l10_renewal, l11_reports, l12_break,
    l13_hand_over, l14_closure, l15_strategies, l16_bounded, l17_outage, l18_keys, l19_waited,
    l20_fence_gate, l21_drop, l22_deadlock, lock_all, payments, random_run,
};

/// Every case, sorted by name and so by promise.
pub fn cases() -> Vec<Case> {
    let mut cases = [
        l01_exclusion::CASES,
        l02_expiry::CASES,
        l03_tokens::CASES,
        l04_fences::CASES,
        l05_waiting::CASES,
        l06_writers::CASES,
        l07_same_owner::CASES,
        l08_refresh::CASES,
        l09_loss::CASES,
        l10_renewal::CASES,
        l11_reports::CASES,
        l12_break::CASES,
        l13_hand_over::CASES,
        l14_closure::CASES,
        l15_strategies::CASES,
        l16_bounded::CASES,
        l17_outage::CASES,
        l18_keys::CASES,
        l19_waited::CASES,
        l20_fence_gate::CASES,
        l21_drop::CASES,
        l22_deadlock::CASES,
        lock_all::CASES,
        blocking::CASES,
        dropped::CASES,
        payments::CASES,
        random_run::CASES,
    ]
    .concat();
    cases.sort_by_key(|case| case.name);
    cases
}
