//! What is known of a token, and what a new one may be.

use chrono::{DateTime, Utc};
use latchwork_work::Actor;
use uuid::Uuid;

use super::error::TokenError;
use crate::role::{Access, Role};
use crate::scope::Scope;

/// What is known of a token: everything but its text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Token {
    /// Its id.
    pub id: Uuid,
    /// Its name, which is the name of the agent or user that it stands for. No two tokens that can be
    /// used have the same.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// The roles in which its user reviews, besides its own: what the rules of order types name.
    pub review_roles: Vec<String>,
    /// The only order types that it may see; none for all.
    pub types: Option<Vec<String>>,
    /// What every key that it may see begins with; none for all keys.
    pub key_prefixes: Option<Vec<String>>,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// Who made it.
    pub created_by: String,
    /// When it ends by itself.
    pub expires_at: Option<DateTime<Utc>>,
    /// When it was last used, to the minute.
    pub last_used_at: Option<DateTime<Utc>>,
    /// When it was revoked, or replaced after its end.
    pub revoked_at: Option<DateTime<Utc>>,
}

impl Token {
    /// Whether it can be used at a time.
    pub fn is_live(&self, now: DateTime<Utc>) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| end > now)
    }

    pub(crate) fn scope(&self) -> Scope {
        Scope::new(self.types.clone(), self.key_prefixes.clone())
    }

    /// Whom it stands for. Its name was checked when it was made.
    pub(crate) fn actor(&self) -> latchwork_work::Result<Actor> {
        match self.role {
            Role::Agent => Actor::agent(&self.name),
            _ => Actor::user(&self.name),
        }
    }

    /// Whether another token may do nothing that this one may not, and not for longer.
    pub(crate) fn covers(&self, other: &Token) -> Result<(), &'static str> {
        let within = |own: &Option<Vec<String>>, theirs: &Option<Vec<String>>, fits: Fits| match (
            own, theirs,
        ) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(theirs)) => {
                theirs.iter().all(|text| own.iter().any(|one| fits(one, text)))
            }
        };
        let may = |access: &Access| !other.role.may(*access) || self.role.may(*access);
        if !Access::ALL.iter().all(may) {
            Err("role")
        } else if !other.review_roles.iter().all(|role| self.review_roles.contains(role)) {
            Err("review_roles")
        } else if !within(&self.types, &other.types, |own, text| own == text) {
            Err("types")
        } else if !within(&self.key_prefixes, &other.key_prefixes, |own, text| {
            text.starts_with(own)
        }) {
            Err("key_prefixes")
        } else if self.expires_at.is_some_and(|end| other.expires_at.is_none_or(|at| at > end)) {
            Err("expires_at")
        } else {
            Ok(())
        }
    }
}

type Fits = fn(&str, &str) -> bool;

/// What a new token shall be.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// Its name: that of the agent or user.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// The roles in which its user reviews, besides its own.
    pub review_roles: Vec<String>,
    /// The only order types that it may see; those of its maker unless told.
    pub types: Option<Vec<String>>,
    /// What every key that it may see begins with; as its maker's unless told.
    pub key_prefixes: Option<Vec<String>>,
    /// When it ends; with its maker's unless told.
    pub expires_at: Option<DateTime<Utc>>,
}

impl NewToken {
    /// One without limits of its own.
    pub fn new(name: impl Into<String>, role: Role) -> Self {
        NewToken {
            name: name.into(),
            role,
            review_roles: Vec::new(),
            types: None,
            key_prefixes: None,
            expires_at: None,
        }
    }

    /// The token that this describes, made by a token or, without one, by a user who has the database.
    pub(super) fn build(
        self,
        maker: Option<&Token>,
        now: DateTime<Utc>,
    ) -> Result<Token, TokenError> {
        Actor::user(&self.name).map_err(|_| {
            TokenError::invalid("name", "it has 1 to 255 bytes and no control characters")
        })?;
        each("review_roles", Some(&self.review_roles))?;
        each("types", self.types.as_deref())?;
        each("key_prefixes", self.key_prefixes.as_deref())?;
        for (field, list) in [("types", &self.types), ("key_prefixes", &self.key_prefixes)] {
            if list.as_ref().is_some_and(Vec::is_empty) {
                // Below, an empty list means everything; nobody needs a token that sees nothing.
                let reason = "an empty list would allow nothing; leave it out for no limit";
                return Err(TokenError::invalid(field, reason));
            }
        }
        if self.expires_at.is_some_and(|end| end <= now) {
            return Err(TokenError::invalid("expires_at", "it lies in the past"));
        }
        let token = Token {
            id: Uuid::now_v7(),
            name: self.name,
            role: self.role,
            review_roles: self.review_roles,
            types: self.types.or_else(|| maker?.types.clone()),
            key_prefixes: self.key_prefixes.or_else(|| maker?.key_prefixes.clone()),
            created_at: now,
            created_by: maker.map_or("command line", |maker| &maker.name).to_owned(),
            expires_at: self.expires_at.or_else(|| maker?.expires_at),
            last_used_at: None,
            revoked_at: None,
        };
        match maker.map_or(Ok(()), |maker| maker.covers(&token)) {
            Ok(()) => Ok(token),
            Err(field) => Err(TokenError::Exceeds { field }),
        }
    }
}

/// So many entries a list has at most.
const MAX_ENTRIES: usize = 100;

/// The longest entry, in bytes.
const MAX_ENTRY: usize = 255;

fn each(field: &'static str, list: Option<&[String]>) -> Result<(), TokenError> {
    let list = list.unwrap_or_default();
    if list.len() > MAX_ENTRIES {
        return Err(TokenError::invalid(field, format!("it has more than {MAX_ENTRIES} entries")));
    }
    let wrong = |text: &&String| {
        text.is_empty() || text.len() > MAX_ENTRY || text.chars().any(char::is_control)
    };
    match list.iter().find(wrong) {
        None => Ok(()),
        Some(_) => {
            let reason = format!("each entry has 1 to {MAX_ENTRY} bytes and no control characters");
            Err(TokenError::invalid(field, reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::{TimeDelta, TimeZone as _};

    use super::*;

    fn now() -> DateTime<Utc> {
        Utc.with_ymd_and_hms(2026, 1, 31, 12, 0, 0).single().expect("a time")
    }

    fn texts(texts: &[&str]) -> Option<Vec<String>> {
        Some(texts.iter().map(|&text| text.to_owned()).collect())
    }

    #[test]
    fn nobody_makes_a_token_that_may_do_more_than_itself() {
        let end = now() + TimeDelta::hours(1);
        let limited = NewToken {
            types: texts(&["a", "b"]),
            key_prefixes: texts(&["team/"]),
            expires_at: Some(end),
            review_roles: vec!["legal".to_owned()],
            ..NewToken::new("boss", Role::Admin)
        };
        let boss = limited.build(None, now()).expect("made at the database");
        let plain = NewToken::new("x", Role::Agent);
        let made = plain.clone().build(Some(&boss), now()).expect("within the limits");
        assert_eq!((&made.types, &made.key_prefixes), (&boss.types, &boss.key_prefixes));
        assert_eq!((made.expires_at, &*made.created_by), (Some(end), "boss"));
        let narrower = NewToken {
            types: texts(&["b"]),
            key_prefixes: texts(&["team/x/"]),
            expires_at: Some(end - TimeDelta::minutes(1)),
            review_roles: vec!["legal".to_owned()],
            ..plain.clone()
        };
        narrower.build(Some(&boss), now()).expect("narrower");
        let wider = [
            ("types", NewToken { types: texts(&["a", "c"]), ..plain.clone() }),
            ("key_prefixes", NewToken { key_prefixes: texts(&["te"]), ..plain.clone() }),
            (
                "expires_at",
                NewToken { expires_at: Some(end + TimeDelta::seconds(1)), ..plain.clone() },
            ),
            (
                "review_roles",
                NewToken { review_roles: vec!["finance".to_owned()], ..plain.clone() },
            ),
        ];
        for (what, wider) in wider {
            let error = wider.build(Some(&boss), now()).expect_err(what);
            assert!(matches!(error, TokenError::Exceeds { field } if field == what), "{error}");
        }
        let agent = plain.clone().build(None, now()).expect("an agent");
        for role in [Role::Reviewer, Role::Operator, Role::Admin] {
            let error = NewToken::new("y", role).build(Some(&agent), now()).expect_err("more");
            assert!(matches!(error, TokenError::Exceeds { field: "role" }), "{error}");
        }
        NewToken::new("y", Role::Reader).build(Some(&agent), now()).expect("less");
    }

    #[test]
    fn illegal_tokens_are_refused() {
        let plain = NewToken::new("x", Role::Agent);
        for (what, wrong) in [
            ("name", NewToken::new("", Role::Agent)),
            ("name", NewToken::new("a\nb", Role::Agent)),
            ("types", NewToken { types: texts(&[]), ..plain.clone() }),
            ("types", NewToken { types: texts(&[""]), ..plain.clone() }),
            ("key_prefixes", NewToken { key_prefixes: texts(&["\0"]), ..plain.clone() }),
            ("expires_at", NewToken { expires_at: Some(now()), ..plain.clone() }),
        ] {
            let error = wrong.build(None, now()).expect_err(what);
            assert!(matches!(error, TokenError::Invalid { field, .. } if field == what), "{error}");
        }
        let token = plain.build(None, now()).expect("legal");
        assert!(token.is_live(now()));
        let ended = Token { expires_at: Some(now()), ..token.clone() };
        let revoked = Token { revoked_at: Some(now()), ..token };
        assert!(!ended.is_live(now()) && !revoked.is_live(now()));
    }
}
