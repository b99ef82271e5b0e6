//! The script's responses.

use std::time::Duration;

use redis::Value;

use crate::providers::redis::{error, record};
use crate::rules::Id;
use crate::{Clock, Fence, Grant, Holder, Result};

/// The response to one command.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) value: Value,
    /// Whether the command was sent before, and that response was lost.
    pub(crate) repeated: bool,
}

/// The response to a request for a lease.
#[derive(Debug)]
pub(crate) enum AcquireResponse {
    /// It is granted; and whether the ttl started with this very request.
    Granted(Grant, bool),
    /// It is refused; and a holder, if one is known.
    Refused(Option<Box<Holder>>),
    /// It is in the queue; and the time until the next lease of the key expires.
    Queued(Option<Duration>),
}

/// The response to a release.
#[derive(Debug)]
pub(crate) struct ReleaseResponse {
    pub(crate) held: bool,
    /// The time until the next lease of the key expires, if others wait.
    pub(crate) expires_in: Option<Duration>,
    /// The waiters of this process that were granted the key.
    pub(crate) granted: Vec<(Id, Grant)>,
}

/// The response to a claim.
#[derive(Debug, Default)]
pub(crate) struct ClaimResponse {
    /// The grant, and whether its ttl started with this very claim.
    pub(crate) granted: Option<(Grant, bool)>,
    /// The time until the next lease of the key expires, if others wait.
    pub(crate) expires_in: Option<Duration>,
}

/// The response to a refresh of a key.
#[derive(Debug)]
pub(crate) struct WaiterStatuses {
    /// The time until the next lease of the key expires.
    pub(crate) expires_in: Option<Duration>,
    /// One for each waiter: `w` waits, `r` may claim, `c` has claimed, `-` is unknown.
    pub(crate) statuses: Vec<u8>,
    /// The server's clock, in microseconds since 1970.
    pub(crate) server_us: i64,
}

impl Response {
    pub(crate) fn acquire(
        &self,
        during: &'static str,
        clock: &dyn Clock,
    ) -> Result<AcquireResponse> {
        self.read(during, |value| acquire(value, clock))
    }

    pub(crate) fn release(&self, during: &'static str) -> Result<ReleaseResponse> {
        self.read(during, release)
    }

    pub(crate) fn claim(&self) -> ClaimResponse {
        match self.value.as_sequence() {
            Some([granted, Value::Int(left)]) => {
                ClaimResponse { granted: grant(granted), expires_in: micros(*left) }
            }
            _ => ClaimResponse::default(),
        }
    }

    /// The server's clock, in microseconds since 1970, if the lease was renewed.
    pub(crate) fn renew(&self, during: &'static str) -> Result<Option<i64>> {
        self.read(during, |value| match (value, value.as_sequence()) {
            (Value::Int(0), _) => Some(None),
            (_, Some([Value::Int(1), Value::Int(server_us)])) => Some(Some(*server_us)),
            _ => None,
        })
    }

    /// The grant of a rotation, unless nothing was held.
    pub(crate) fn rotate(&self, during: &'static str) -> Result<Option<Grant>> {
        match &self.value {
            Value::Int(0) => Ok(None),
            _ => self.read(during, |value| Some(Some(grant(value)?.0))),
        }
    }

    pub(crate) fn statuses(&self, during: &'static str, count: usize) -> Result<WaiterStatuses> {
        self.read(during, |value| match value.as_sequence()? {
            [Value::Int(left), Value::BulkString(statuses), Value::Int(server_us)]
                if statuses.len() == count =>
            {
                let (expires_in, statuses) = (micros(*left), statuses.clone());
                Some(WaiterStatuses { expires_in, statuses, server_us: *server_us })
            }
            _ => None,
        })
    }

    pub(crate) fn boolean(&self, during: &'static str) -> Result<bool> {
        self.read(during, boolean)
    }

    pub(crate) fn read<T>(
        &self,
        during: &'static str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T> {
        read(&self.value).ok_or_else(|| error::unreadable(during))
    }
}

/// The values that answer so many commands. `None` if that is not what was replied.
pub(crate) fn split(reply: Value, commands: usize) -> Option<Vec<Value>> {
    match reply {
        Value::Array(values) if values.len() == commands => Some(values),
        _ => None,
    }
}

/// The error that the script caught for one command.
pub(crate) fn caught(value: &Value) -> Option<String> {
    match value.as_sequence()? {
        [Value::BulkString(mark), Value::BulkString(message)] if mark == b"!" => {
            Some(String::from_utf8_lossy(message).into())
        }
        _ => None,
    }
}

fn acquire(value: &Value, clock: &dyn Clock) -> Option<AcquireResponse> {
    // A free key that is granted at once is answered with the bare fence. It is a clock in
    // microseconds: 0 or 1 would be the reply to another command, on a connection that lost bytes.
    if let Value::Int(number @ 2..) = value {
        return Some(AcquireResponse::Granted(Grant::first(fence(*number)), true));
    }
    match value.as_sequence()? {
        [Value::Int(2), Value::Int(left), ..] => Some(AcquireResponse::Queued(micros(*left))),
        [Value::Int(0), holder @ ..] => {
            let holder = record::holders(holder, clock.wall())?.pop();
            Some(AcquireResponse::Refused(holder.map(Box::new)))
        }
        _ => grant(value).map(|(grant, started)| AcquireResponse::Granted(grant, started)),
    }
}

fn release(value: &Value) -> Option<ReleaseResponse> {
    let (held, expires_in, granted) = match value.as_sequence() {
        None => (value, None, &[][..]),
        Some([held, Value::Int(left), granted @ ..]) => (held, micros(*left), granted),
        Some(_) => return None,
    };
    let granted = granted.chunks(3).map(granted_waiter).collect::<Option<_>>()?;
    Some(ReleaseResponse { held: boolean(held)?, expires_in, granted })
}

/// A waiter that a release has granted the key: its id, fence and previous fence.
fn granted_waiter(parts: &[Value]) -> Option<(Id, Grant)> {
    let [Value::BulkString(id), Value::BulkString(fence), Value::BulkString(previous)] = parts
    else {
        return None;
    };
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse::<i64>().ok();
    Some((record::decode_id(id)?, waiter_grant(number(fence)?, number(previous)?)))
}

fn grant(value: &Value) -> Option<(Grant, bool)> {
    let [
        Value::Int(1),
        Value::Int(fence),
        Value::Int(previous),
        Value::Int(waited),
        Value::Int(started),
    ] = value.as_sequence()?
    else {
        return None;
    };
    let grant = Grant { waited: *waited == 1, ..waiter_grant(*fence, *previous) };
    Some((grant, *started == 1))
}

fn waiter_grant(number: i64, previous: i64) -> Grant {
    Grant {
        fence: fence(number),
        previous_fence: (previous > 0).then(|| fence(previous)),
        waited: true,
        trusted_from: None,
    }
}

fn fence(number: i64) -> Fence {
    Fence::new(number.max(0).unsigned_abs())
}

fn boolean(value: &Value) -> Option<bool> {
    match value {
        Value::Int(number @ (0 | 1)) => Some(*number == 1),
        _ => None,
    }
}

fn micros(left: i64) -> Option<Duration> {
    u64::try_from(left).ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SystemClock;

    /// A connection that lost bytes delivers the reply to one command as that to another.
    #[test]
    fn the_reply_to_another_command_is_not_taken_for_a_grant_or_a_renewal() {
        let response = |value| Response { value, repeated: false };
        for other in
            [Value::Int(0), Value::Int(1), Value::Array(vec![Value::Int(1), Value::Int(9)])]
        {
            assert!(response(other).acquire("testing", &SystemClock).is_err());
        }
        assert!(response(Value::Int(1_794_976_095_220_730)).renew("testing").is_err(), "a fence");
        assert!(response(Value::Int(1)).renew("testing").is_err(), "a release");
    }
}
