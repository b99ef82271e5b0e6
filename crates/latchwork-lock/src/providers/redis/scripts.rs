//! The script that runs inside the server, and how it is called.

use redis::Cmd;

use super::batch::Member;
use super::record;

/// Every operation on locks; what it takes and answers is said at its head.
pub(super) const LOCKS: &str = include_str!("locks.lua");

/// Where the last fence is kept, for all keys: one small record is all that stays.
const FENCE: &str = "latchwork:fence";

/// What stands before the name of a lock. The script counts on its length.
pub(super) const LOCK: &str = "latchwork:k:";

/// What a member of a message wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// A first question, with how it is asked.
    First(u8),
    /// Any later one.
    Ask,
    Claim,
    Release,
    Renew,
    IsHeld,
    Rotate,
    Break,
    Inspect,
    Poke,
}

impl Operation {
    /// Where it stands in a message: releases first, since what is free then can be taken by who asks
    /// in the same one.
    pub(super) fn section(self) -> usize {
        match self {
            Operation::Release => 0,
            Operation::First(_) => 1,
            _ => 2,
        }
    }

    fn letter(self) -> &'static str {
        match self {
            Operation::First(_) | Operation::Ask => "a",
            Operation::Claim => "c",
            Operation::Release => "r",
            Operation::Renew => "n",
            Operation::IsHeld => "h",
            Operation::Rotate => "t",
            Operation::Break => "b",
            Operation::Inspect => "i",
            Operation::Poke => "p",
        }
    }
}

/// Lets the server keep the script.
pub(super) fn load() -> Cmd {
    let mut command = redis::cmd("SCRIPT");
    command.arg("LOAD").arg(LOCKS);
    command
}

/// One message for all these members, which stand in the order of their sections.
pub(super) fn call(hash: &str, client: &str, members: &[Member]) -> Cmd {
    let mut counts = [0; 3];
    let mut size = 128;
    for member in members {
        counts[member.operation.section()] += 1;
        size += 64 + member.lock.len() + member.option.len() + member.record.len();
    }
    let mut command = Cmd::with_capacity(6 + 6 * members.len(), size);
    command.arg("EVALSHA").arg(hash).arg(members.len() + 1).arg(FENCE);
    for member in members {
        command.arg(&*member.lock);
    }
    command.arg(client).arg(counts[0]).arg(counts[1]);
    let mut place = 0;
    let mut body = Vec::new();
    for member in members {
        let id = record::hex(member.id);
        match member.operation {
            Operation::Release => command.arg(&id[..]),
            Operation::First(how) => {
                body.clear();
                body.extend_from_slice(&id);
                body.extend([how, b'0' + place / 10, b'0' + place % 10]);
                body.extend_from_slice(member.record.as_bytes());
                place += 1;
                command.arg(&body[..]).arg(member.ttl)
            }
            other => command
                .arg(other.letter())
                .arg(&id[..])
                .arg(member.ttl)
                .arg(&*member.option)
                .arg(&*member.record),
        };
    }
    command
}

/// The channel on which a client hears of its turns.
pub(super) fn channel(client: &str) -> String {
    format!("latchwork:c:{client}")
}

/// A pattern for the locks whose names begin like this.
pub(super) fn pattern(prefix: &str) -> String {
    let mut pattern = String::from(LOCK);
    for c in prefix.chars() {
        if "*?[]^\\-".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('*');
    pattern
}
