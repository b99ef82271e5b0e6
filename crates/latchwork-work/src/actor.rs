//! Who did something, and with what.

use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{ErrorKind, Result};

named! {
    /// The kinds of actors that events store; a reviewer is a user's role.
    pub enum ActorType ("actor type") {
        /// A program or model that leases items.
        Agent = "agent",
        /// A person.
        User = "user",
        /// Latchwork itself: maintenance, auto-approval, the apply worker.
        System = "system",
    }
}

/// Who did something.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Actor {
    /// The kind of actor.
    #[serde(rename = "type")]
    pub actor_type: ActorType,
    /// Which one; none for the system as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// The longest name of an actor, in bytes.
pub const MAX_ACTOR_ID: usize = 255;

impl Actor {
    /// An agent.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a name that is empty, over
    /// [`MAX_ACTOR_ID`] bytes, or holds control characters.
    pub fn agent(id: impl Into<String>) -> Result<Self> {
        Self::named(ActorType::Agent, id.into())
    }

    /// A person.
    ///
    /// # Errors
    /// As for [`agent`](Self::agent).
    pub fn user(id: impl Into<String>) -> Result<Self> {
        Self::named(ActorType::User, id.into())
    }

    /// Latchwork itself.
    pub const fn system() -> Self {
        Actor { actor_type: ActorType::System, id: None }
    }

    fn named(actor_type: ActorType, id: String) -> Result<Self> {
        let reason = if id.is_empty() {
            "the name is empty".to_owned()
        } else if id.len() > MAX_ACTOR_ID {
            format!("the name has {} bytes, and {MAX_ACTOR_ID} are allowed", id.len())
        } else if id.chars().any(char::is_control) {
            "the name holds a control character".to_owned()
        } else {
            return Ok(Actor { actor_type, id: Some(id) });
        };
        Err(ErrorKind::InvalidArgument { name: "actor", reason }.into())
    }
}

impl std::fmt::Display for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.id {
            Some(id) => write!(f, "{} {id}", self.actor_type),
            None => write!(f, "{}", self.actor_type),
        }
    }
}

/// Where a request came from, kept with the events that it causes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// The agent's program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_name: Option<String>,
    /// Its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// The model behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What it runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// The request's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// W3C trace context of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The caller named itself, and nothing has checked that it is who it says.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unverified: bool,
}

impl Provenance {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_has_a_legal_name() {
        assert_eq!(Actor::agent("a-1").expect("legal").to_string(), "agent a-1");
        assert_eq!(Actor::system().to_string(), "system");
        for wrong in ["", "a\nb", &"x".repeat(256)] {
            let error = Actor::user(wrong).expect_err("refused");
            assert_eq!(error.code(), "invalid_argument");
        }
    }
}
