//! The script that runs inside the server, and how it is called.

use redis::{Cmd, Value};

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

/// One message for all these members, which stand in the order of their sections. It has the name of the
/// script, or none for a server that has forgotten it.
pub(super) fn call(script: Option<&str>, client: &str, members: &[Member]) -> Cmd {
    let mut counts = [0; 3];
    let mut size = 128;
    for member in members {
        counts[member.operation.section()] += 1;
        size += 64 + member.key.as_str().len() + member.option.len();
        size += member.asker.as_ref().map_or(0, |_| 128);
    }
    let mut command = Cmd::with_capacity(8 + 6 * members.len(), size);
    match script {
        Some(hash) => command.arg("EVALSHA").arg(hash),
        None => command.arg("EVAL").arg(LOCKS),
    };
    command.arg(members.len() + 1).arg(FENCE);
    let mut body = Vec::with_capacity(256);
    for member in members {
        body.clear();
        body.extend_from_slice(LOCK.as_bytes());
        body.extend_from_slice(member.key.as_str().as_bytes());
        command.arg(&body[..]);
    }
    command.arg(client).arg(counts[0]).arg(counts[1]).arg(crate::process_label());
    let mut place = 0;
    // Of the first one who asks.
    let mut told: Option<&Member> = None;
    for member in members {
        let id = record::text(member.id);
        match member.operation {
            Operation::Release => command.arg(&id[..]),
            Operation::First(how) => {
                let told = *told.get_or_insert_with(|| {
                    body.clear();
                    member.write_asker(&mut body);
                    command.arg(&body[..]).arg(member.ttl);
                    member
                });
                body.clear();
                body.extend_from_slice(&id);
                body.extend([how, b'0' + place / 10, b'0' + place % 10]);
                if (member.ttl, &member.asker) != (told.ttl, &told.asker) {
                    member.write_asker(&mut body);
                }
                place += 1;
                command.arg(&body[..])
            }
            other => {
                body.clear();
                match &member.asker {
                    Some(asker) => asker.write_record(&mut body, member.ttl, client),
                    None => body.extend_from_slice(crate::process_label().as_bytes()),
                }
                let command = command.arg(other.letter()).arg(&id[..]).arg(member.ttl);
                command.arg(&*member.option).arg(&body[..])
            }
        };
    }
    command
}

/// What the script answered to each of so many members; none where that is not readable.
pub(super) fn answers(answer: Value, members: usize) -> Option<Vec<Value>> {
    match answer {
        Value::Array(answers) if answers.len() == members => Some(answers),
        _ => None,
    }
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
