//! The script that runs inside the server, and the message that calls it.

pub(super) mod response;

use redis::Cmd;

use super::record::{self, RequestInfo};
use crate::rules::Id;
use crate::{AcquireRequest, Key};

/// All operations on locks. Its head describes arguments, replies and layouts.
const SOURCE: &str = include_str!("locks.lua");

/// The key with the last fence of all locks. It is all that is kept for keys that nobody uses.
const FENCE_KEY: &str = "latchwork:fence";

/// The prefix of a lock's name. The script relies on its length.
pub(super) const LOCK_PREFIX: &str = "latchwork:k:";

/// The most commands in one message: the server executes nothing else meanwhile.
pub(super) const MAX_COMMANDS: usize = 100;
const _: () = assert!(MAX_COMMANDS <= 100, "the script reads a position of two digits");

/// An operation of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// The first request of a requester, and its step.
    FirstAcquire(u8),
    /// A later request.
    Acquire,
    Claim,
    Release,
    Renew,
    IsHeld,
    Rotate,
    Break,
    Inspect,
    Refresh,
}

impl Operation {
    /// Its section of a message: releases come first, so that a request of the same message can
    /// have the key.
    pub(super) fn section(self) -> usize {
        match self {
            Operation::Release => 0,
            Operation::FirstAcquire(_) => 1,
            _ => 2,
        }
    }

    fn letter(self) -> &'static str {
        match self {
            Operation::FirstAcquire(_) | Operation::Acquire => "a",
            Operation::Claim => "c",
            Operation::Release => "r",
            Operation::Renew => "n",
            Operation::IsHeld => "h",
            Operation::Rotate => "t",
            Operation::Break => "b",
            Operation::Inspect => "i",
            Operation::Refresh => "p",
        }
    }
}

/// How a request is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcquireStep {
    /// The only request, of a requester that does not wait.
    Once,
    /// The first request of a requester that waits.
    First,
    /// The same, while others of this process wait for the key.
    Behind,
    /// It has waited, and goes on.
    Again,
    /// It has waited, and its time is over.
    Last,
}

/// One operation on one lock.
pub(super) struct Command {
    pub(super) key: Key,
    pub(super) operation: Operation,
    pub(super) id: Id,
    /// In milliseconds.
    pub(super) ttl: u64,
    pub(super) option: String,
    pub(super) info: Option<RequestInfo>,
}

impl Command {
    pub(super) fn new(operation: Operation, key: &Key, id: Id) -> Self {
        Command { key: key.clone(), operation, id, ttl: 0, option: String::new(), info: None }
    }

    pub(super) fn acquire(request: &AcquireRequest, id: Id, step: AcquireStep) -> Self {
        let (operation, option) = match step {
            AcquireStep::Once => (Operation::FirstAcquire(b'n'), ""),
            AcquireStep::First => (Operation::FirstAcquire(b'w'), ""),
            AcquireStep::Behind => (Operation::FirstAcquire(b'q'), ""),
            AcquireStep::Again => (Operation::Acquire, "a"),
            AcquireStep::Last => (Operation::Acquire, "l"),
        };
        Command {
            ttl: record::millis(request.ttl),
            option: option.to_owned(),
            info: Some(RequestInfo::new(request)),
            ..Command::new(operation, &request.key, id)
        }
    }

    fn write_info(&self, out: &mut Vec<u8>) {
        if let Some(info) = &self.info {
            info.write(out, self.ttl);
        }
    }
}

/// The command that makes the server keep the script.
pub(super) fn load() -> Cmd {
    let mut message = redis::cmd("SCRIPT");
    message.arg("LOAD").arg(SOURCE);
    message
}

/// The message for these commands, which must be in the order of their sections. It names the
/// script by its hash, or has its source if the server has forgotten it.
pub(super) fn message(hash: Option<&str>, client: &str, commands: &[Command]) -> Cmd {
    let mut counts = [0; 3];
    let mut size = 128;
    for command in commands {
        counts[command.operation.section()] += 1;
        size += 64 + command.key.as_str().len() + command.option.len();
        size += command.info.as_ref().map_or(0, |_| 128);
    }
    let mut message = Cmd::with_capacity(8 + 6 * commands.len(), size);
    match hash {
        Some(hash) => message.arg("EVALSHA").arg(hash),
        None => message.arg("EVAL").arg(SOURCE),
    };
    message.arg(commands.len() + 1).arg(FENCE_KEY);
    let mut body = Vec::with_capacity(256);
    for command in commands {
        body.clear();
        body.extend_from_slice(LOCK_PREFIX.as_bytes());
        body.extend_from_slice(command.key.as_str().as_bytes());
        message.arg(&body[..]);
    }
    message.arg(client).arg(counts[0]).arg(counts[1]).arg(crate::process_label());
    let mut position = 0;
    // The first one among the first requests: its info is written once for all that have the same.
    let mut common: Option<&Command> = None;
    for command in commands {
        let id = record::encode_id(command.id);
        match command.operation {
            Operation::Release => message.arg(&id[..]),
            Operation::FirstAcquire(step) => {
                let common = *common.get_or_insert_with(|| {
                    body.clear();
                    command.write_info(&mut body);
                    message.arg(&body[..]).arg(command.ttl);
                    command
                });
                body.clear();
                body.extend_from_slice(&id);
                body.extend([step, b'0' + position / 10, b'0' + position % 10]);
                if (command.ttl, &command.info) != (common.ttl, &common.info) {
                    command.write_info(&mut body);
                }
                position += 1;
                message.arg(&body[..])
            }
            other => {
                body.clear();
                match &command.info {
                    Some(info) => info.write_record(&mut body, command.ttl, client),
                    None => body.extend_from_slice(crate::process_label().as_bytes()),
                }
                let message = message.arg(other.letter()).arg(&id[..]).arg(command.ttl);
                message.arg(&*command.option).arg(&body[..])
            }
        };
    }
    message
}

/// The channel on which the server notifies a client.
pub(super) fn channel(client: &str) -> String {
    format!("latchwork:c:{client}")
}

/// The `SCAN` pattern of the locks whose names have this prefix.
pub(super) fn pattern(prefix: &str) -> String {
    let mut pattern = String::from(LOCK_PREFIX);
    for c in prefix.chars() {
        if "*?[]^\\-".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('*');
    pattern
}
