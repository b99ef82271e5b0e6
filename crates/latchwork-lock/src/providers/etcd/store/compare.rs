//! The comparisons of the store's transactions.

use etcd_client::{Compare, CompareOp};

/// No entry has this prefix. An empty range compares as an entry that was never created.
pub(super) fn none(prefix: String) -> Compare {
    all_created_at(prefix, 0)
}

/// All entries with this prefix were created at this revision.
pub(super) fn all_created_at(prefix: String, revision: i64) -> Compare {
    Compare::create_revision(prefix, CompareOp::Equal, revision).with_prefix()
}

/// The entry was created at this revision; 0 means that there is none.
pub(super) fn created_at(name: String, revision: i64) -> Compare {
    Compare::create_revision(name, CompareOp::Equal, revision)
}

pub(super) fn exists(name: String) -> Compare {
    Compare::create_revision(name, CompareOp::Greater, 0)
}

/// No entry with this prefix was created or renewed after this revision.
pub(super) fn unchanged_since(prefix: String, revision: i64) -> Compare {
    Compare::mod_revision(prefix, CompareOp::Less, revision + 1).with_prefix()
}
