//! Locks as people read them.

use chrono::{DateTime, Utc};
use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use latchwork::lock::{Clock as _, Holder, Inspection, SystemClock, Waiter};

use crate::duration;

/// One line a holder, or a waiter where nobody holds.
pub(crate) fn table(keys: &[Inspection]) -> String {
    let mut table = plain_table();
    table.set_header(["KEY", "MODE", "HOLDER", "SINCE", "EXPIRES IN", "FENCE", "WAITERS"]);
    for found in keys {
        let waiters = found.waiters.len().to_string();
        if found.holders.is_empty() {
            table.add_row([found.key.as_str(), "-", "-", "-", "-", "-", waiters.as_str()]);
        }
        for holder in &found.holders {
            table.add_row([
                found.key.clone(),
                holder.mode.to_string(),
                named(holder.who(), holder.note.as_deref()),
                ago(holder.since),
                duration::show(holder.expires_in),
                holder.fence.to_string(),
                waiters.clone(),
            ]);
        }
    }
    trimmed(table)
}

/// All that is known of one key.
pub(crate) fn transcript(found: &Inspection) -> String {
    if found.holders.is_empty() && found.waiters.is_empty() {
        return format!("{:?} is free\n", found.key);
    }
    let mut text = if found.holders.is_empty() {
        format!("{:?} is free, and about to be given to the first who waits\n", found.key)
    } else {
        let mut table = plain_table();
        table.set_header(["HOLDER", "PROCESS", "MODE", "FENCE", "SINCE", "EXPIRES IN", "NOTE"]);
        for holder in &found.holders {
            table.add_row([
                holder.who(),
                &holder.process,
                &holder.mode.to_string(),
                &holder.fence.to_string(),
                &ago(holder.since),
                &duration::show(holder.expires_in),
                holder.note.as_deref().unwrap_or("-"),
            ]);
        }
        format!("{:?} is held\n\n{}", found.key, trimmed(table))
    };
    if !found.waiters.is_empty() {
        text += "\n";
        text += &queue(&found.waiters);
    }
    for process in found.held_and_waited_for_by() {
        text += &format!(
            "\n{process} both holds it and waits for it: its tasks take turns, or one waits for itself\n"
        );
    }
    text
}

fn queue(waiters: &[Waiter]) -> String {
    let mut table = plain_table();
    table.set_header(["NEXT", "WAITER", "PROCESS", "MODE", "SINCE", "EXPECTED", "NOTE"]);
    for waiter in waiters {
        table.add_row([
            &waiter.position.to_string(),
            waiter.who(),
            &waiter.process,
            &waiter.mode.to_string(),
            &ago(waiter.since),
            &waiter.expected_wait.map_or("-".into(), |wait| format!("in {}", duration::show(wait))),
            waiter.note.as_deref().unwrap_or("-"),
        ]);
    }
    trimmed(table)
}

/// A holder in a sentence: who, with what, since when.
pub(crate) fn sentence(holder: &Holder) -> String {
    format!(
        "{} ({}, fence {}, for {})",
        named(holder.who(), holder.note.as_deref()),
        holder.mode,
        holder.fence,
        age(holder.since),
    )
}

fn ago(since: DateTime<Utc>) -> String {
    format!("{} ago", age(since))
}

/// How long it is, by the wall clock; never negative, whatever that clock did.
fn age(since: DateTime<Utc>) -> String {
    duration::show((SystemClock.wall() - since).to_std().unwrap_or_default())
}

fn named(who: &str, note: Option<&str>) -> String {
    match note {
        Some(note) => format!("{who} [{note}]"),
        None => who.to_owned(),
    }
}

/// Without lines, so that `awk` and eyes both read it; as wide as the terminal.
pub(crate) fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table
}

pub(crate) fn trimmed(mut table: Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.to_string().lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
