//! `latchwork tokens create|ls|revoke`: on the database itself, so that the first token can be made.

use std::process::ExitCode;
use std::time::Duration;

use chrono::{SecondsFormat, TimeDelta, Utc};
use clap::{Args, Subcommand};
use latchwork::lock::{Clock as _, SystemClock};
use latchwork_server::{NewToken, Role, Token, TokenError, Tokens};
use serde_json::{Value, json};

use super::block_on;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::output::{Output, out};
use crate::server_config::{ListenFlags, ServerConfig, ServerFlags};
use crate::show::{plain_table, trimmed};

/// Make, list and revoke the tokens of a server, on its database.
///
/// As soon as there is one, every request to the server needs one, and the server may listen on an
/// address that other machines can reach. A running server takes notice at once, or
/// within a second where its database is slow.
#[derive(Args, Debug)]
pub(crate) struct TokensCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Create(Create),
    Ls(Ls),
    Revoke(Revoke),
}

/// Make a token, and print it: it is shown once.
#[derive(Args, Debug)]
struct Create {
    /// Its name, which is that of the agent or user in orders and events.
    name: String,
    /// reader, agent, reviewer, operator or admin.
    #[arg(long)]
    role: Role,
    /// An order type that it may see; may be told several times. All of them unless told.
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<String>,
    /// What a key of a lock or flow that it may see begins with; may be told several times.
    #[arg(long = "key-prefix", value_name = "PREFIX")]
    key_prefixes: Vec<String>,
    /// A role in which its user reviews, as the rules of order types name it; may be told several times.
    #[arg(long = "review-role", value_name = "ROLE")]
    review_roles: Vec<String>,
    /// How long it can be used, such as 30d; until it is revoked unless told.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse)]
    expires_in: Option<Duration>,
    #[command(flatten)]
    common: Common,
}

/// List the tokens that can be used.
#[derive(Args, Debug)]
struct Ls {
    /// Also those that have ended or were revoked.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    common: Common,
}

/// Revoke a token: every server refuses it within a second.
#[derive(Args, Debug)]
struct Revoke {
    /// Its name, or its id.
    token: String,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct Common {
    #[command(flatten)]
    flags: ServerFlags,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Common {
    async fn open(&self, make: bool) -> Result<Tokens, Failure> {
        let config = ServerConfig::load(&self.flags, &ListenFlags::default())?;
        let (url, shown) = config.database(make)?;
        open(&url, &shown).await
    }
}

/// Opens the tokens of a database, and says which one it was where it cannot be opened.
pub(super) async fn open(url: &str, shown: &str) -> Result<Tokens, Failure> {
    Tokens::connect(url).await.map_err(|error| match &error {
        TokenError::Store(failed) => {
            let message = format!("{shown} cannot be used: {failed}");
            Failure::new(Exit::Unavailable, error.code(), message)
        }
        _ => error.into(),
    })
}

impl TokensCommand {
    pub(crate) fn run(self) -> ExitCode {
        let (json, done) = match self.command {
            Command::Create(create) => (create.common.json, block_on(create.run())),
            Command::Ls(ls) => (ls.common.json, block_on(ls.run())),
            Command::Revoke(revoke) => (revoke.common.json, block_on(revoke.run())),
        };
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => Output { json, quiet: false }.fail(failure),
        }
    }
}

impl Create {
    async fn run(self) -> Result<(), Failure> {
        let tokens = self.common.open(true).await?;
        let some = |list: Vec<String>| Some(list).filter(|list| !list.is_empty());
        let expires_at = match self.expires_in {
            None => None,
            Some(span) => Some(after(span)?),
        };
        let wanted = NewToken {
            types: some(self.types),
            key_prefixes: some(self.key_prefixes),
            review_roles: self.review_roles,
            expires_at,
            ..NewToken::new(self.name, self.role)
        };
        let (token, secret) = tokens.create(wanted, None).await?;
        tokens.close().await;
        if self.common.json {
            let mut object = shown(&token);
            object["secret"] = json!(secret.expose());
            out(&format!("{object}\n"));
        } else {
            // The token alone on stdout, so that a script can take it.
            let note = format!(
                "made {} {:?}; this is its token, which is not shown again. Send it as \
                 `Authorization: Bearer …`",
                token.role, token.name
            );
            Output::default().note("token_created", &note);
            out(&format!("{}\n", secret.expose()));
        }
        Ok(())
    }
}

impl Ls {
    async fn run(self) -> Result<(), Failure> {
        let tokens = self.common.open(false).await?;
        let now = SystemClock.wall();
        let found = all(&tokens).await?.into_iter().filter(|token| self.all || token.is_live(now));
        let found: Vec<_> = found.collect();
        tokens.close().await;
        if self.common.json {
            let list: Vec<_> = found.iter().map(shown).collect();
            out(&format!("{}\n", json!({"tokens": list})));
            return Ok(());
        }
        if found.is_empty() {
            Output::default().note("no_tokens", "there are no tokens that can be used");
            return Ok(());
        }
        let mut table = plain_table();
        let header = ["NAME", "ROLE", "STATE", "LIMITS", "EXPIRES", "LAST USED", "ID"];
        table.set_header(header);
        for token in &found {
            let time = |time: Option<chrono::DateTime<Utc>>| {
                time.map_or("-".to_owned(), |time| time.to_rfc3339_opts(SecondsFormat::Secs, true))
            };
            table.add_row([
                token.name.clone(),
                token.role.to_string(),
                state(token).to_owned(),
                limits(token),
                time(token.expires_at),
                time(token.last_used_at),
                token.id.to_string(),
            ]);
        }
        out(&trimmed(table));
        Ok(())
    }
}

impl Revoke {
    async fn run(self) -> Result<(), Failure> {
        let tokens = self.common.open(false).await?;
        let now = SystemClock.wall();
        let found = all(&tokens).await?;
        let is_named = |token: &&Token| {
            token.id.to_string() == self.token || token.name == self.token && token.is_live(now)
        };
        let Some(found) = found.iter().find(is_named) else {
            return Err(TokenError::NotFound { token: self.token }.into());
        };
        let revoked = tokens.revoke(found.id).await?;
        tokens.close().await;
        if self.common.json {
            out(&format!("{}\n", shown(&revoked)));
        } else {
            let note = format!("revoked {:?}; servers refuse it from now on", revoked.name);
            Output::default().note("token_revoked", &note);
        }
        Ok(())
    }
}

/// So many tokens are read at once.
const PAGE: u32 = 200;

async fn all(tokens: &Tokens) -> Result<Vec<Token>, Failure> {
    let mut found: Vec<Token> = Vec::new();
    loop {
        let page = tokens.list(found.last().map(|last| last.id), PAGE).await?;
        if page.is_empty() {
            return Ok(found);
        }
        found.extend(page);
    }
}

fn after(span: Duration) -> Result<chrono::DateTime<Utc>, Failure> {
    let span = TimeDelta::from_std(span).ok();
    span.and_then(|span| SystemClock.wall().checked_add_signed(span)).ok_or_else(|| {
        Failure::new(Exit::Usage, "invalid_argument", "--expires-in: no calendar reaches that far")
    })
}

fn state(token: &Token) -> &'static str {
    match token.revoked_at {
        Some(_) => "revoked",
        None if token.is_live(SystemClock.wall()) => "live",
        None => "expired",
    }
}

fn limits(token: &Token) -> String {
    let types = token.types.iter().flatten().map(|name| format!("type {name}"));
    let keys = token.key_prefixes.iter().flatten().map(|prefix| format!("keys {prefix}*"));
    let roles = token.review_roles.iter().map(|role| format!("reviews as {role}"));
    let all: Vec<_> = types.chain(keys).chain(roles).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

fn shown(token: &Token) -> Value {
    json!({
        "id": token.id.to_string(),
        "name": token.name,
        "role": token.role.as_str(),
        "state": state(token),
        "review_roles": token.review_roles,
        "types": token.types,
        "key_prefixes": token.key_prefixes,
        "created_at": token.created_at,
        "created_by": token.created_by,
        "expires_at": token.expires_at,
        "last_used_at": token.last_used_at,
        "revoked_at": token.revoked_at,
    })
}

impl From<TokenError> for Failure {
    fn from(error: TokenError) -> Self {
        let exit = match &error {
            TokenError::Store(_) => Exit::Unavailable,
            _ => Exit::Usage,
        };
        Failure::new(exit, error.code(), error.to_string())
    }
}
