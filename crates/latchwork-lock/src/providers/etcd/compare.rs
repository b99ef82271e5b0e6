//! What a transaction compares before it changes anything.

use etcd_client::{Compare, CompareOp};

/// Nothing has this beginning. An empty range compares as an entry that was never created.
pub(super) fn none(beginning: String) -> Compare {
    only(beginning, 0)
}

/// Everything with this beginning was created at this revision.
pub(super) fn only(beginning: String, revision: i64) -> Compare {
    Compare::create_revision(beginning, CompareOp::Equal, revision).with_prefix()
}

/// The entry is the one that was created at this revision.
pub(super) fn is(name: String, created: i64) -> Compare {
    Compare::create_revision(name, CompareOp::Equal, created)
}

pub(super) fn exists(name: String) -> Compare {
    Compare::create_revision(name, CompareOp::Greater, 0)
}
