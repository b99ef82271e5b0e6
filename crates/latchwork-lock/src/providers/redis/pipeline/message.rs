//! Sends one message: a call of the script for one or many commands.

use std::sync::Arc;

use redis::{ErrorKind, RedisError};

use crate::providers::redis::connection::Connection;
use crate::providers::redis::error;
use crate::providers::redis::scripts::response::{self, Response};
use crate::providers::redis::scripts::{self, Command};
use crate::{Error, Result};

pub(super) const DURING: &str = "asking the server";

/// Sends messages on one connection.
pub(super) struct MessageSender {
    connection: Arc<Connection>,
    /// The id under which the server knows this provider.
    client: Arc<str>,
}

impl MessageSender {
    pub(super) fn new(connection: Arc<Connection>, client: Arc<str>) -> Self {
        MessageSender { connection, client }
    }

    /// A sender with another connection to the same server.
    pub(super) fn another(&self) -> Self {
        Self::new(Arc::new(self.connection.another()), self.client.clone())
    }

    /// Sends a message, and returns a response for each command that it has in the end: before a
    /// message is repeated, `retain_wanted` may remove commands.
    pub(super) async fn send(
        &self,
        commands: &mut Vec<Command>,
        mut retain_wanted: impl FnMut(&mut Vec<Command>),
    ) -> Result<Vec<Result<Response>>, MessageError> {
        let (mut repeated, mut unknown_script) = (false, false);
        let values = loop {
            let hash = self.connection.script_hash();
            let hash = (!unknown_script).then_some(&*hash);
            let message = scripts::message(hash, &self.client, commands);
            match self.connection.send(&message).await {
                Ok(reply) => {
                    break response::split(reply, commands.len()).ok_or(MessageError(None))?;
                }
                // A restart forgot the script, and nothing was executed. The next message has its
                // source: if it was loaded first, the message behind this one could overtake it.
                Err(failure) if is_unknown_script(&failure) && !unknown_script => {
                    unknown_script = true;
                }
                // The server may be back already. Each command may be repeated: its id tells.
                Err(failure) if failure.is_connection_dropped() && !repeated => repeated = true,
                Err(failure) => return Err(MessageError(Some(failure))),
            }
            retain_wanted(commands);
            if commands.is_empty() {
                return Ok(Vec::new());
            }
        };
        let response = |value| match response::caught(&value) {
            None => Ok(Response { value, repeated }),
            Some(message) => {
                if message.contains("READONLY") {
                    self.connection.discard();
                }
                Err(error::script(DURING, &message))
            }
        };
        Ok(values.into_iter().map(response).collect())
    }
}

/// The failure of a whole message: the driver's error, or `None` for a reply that is not readable.
pub(super) struct MessageError(Option<RedisError>);

impl MessageError {
    /// Whether the server did not reply in time.
    pub(super) fn is_timeout(&self) -> bool {
        self.0.as_ref().is_some_and(RedisError::is_timeout)
    }

    /// The error for one of the commands.
    pub(super) fn to_error(&self) -> Error {
        match &self.0 {
            Some(failure) => error::driver(DURING, failure.clone()),
            None => error::unreadable(DURING),
        }
    }
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(redis::ServerErrorKind::NoScript)
}
