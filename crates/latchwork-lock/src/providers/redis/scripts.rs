//! The script that runs inside the server, and how it is called.

use redis::Cmd;

use super::batch::Member;

/// Every operation on locks; what it takes and answers is said at its head.
pub(super) const LOCKS: &str = include_str!("locks.lua");

/// Where the last fence is kept, for all keys: one small record is all that stays.
const FENCE: &str = "latchwork:fence";

/// What stands before the name of a lock. The script counts on its length.
pub(super) const LOCK: &str = "latchwork:k:";

/// What a member of a message wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
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
    fn letter(self) -> &'static str {
        match self {
            Operation::Ask => "a",
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

/// One message for all these members.
pub(super) fn call(hash: &str, client: &str, members: &[Member]) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(hash).arg(members.len() + 1).arg(FENCE);
    for member in members {
        command.arg(&*member.lock);
    }
    command.arg(client);
    for member in members {
        command
            .arg(member.operation.letter())
            .arg(&*member.id)
            .arg(member.ttl)
            .arg(&*member.option)
            .arg(&*member.record);
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
