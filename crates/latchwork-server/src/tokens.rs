//! Tokens: who may use the server.
//!
//! Tokens are rows of the database, made by `latchwork tokens create` or by an admin's token over HTTP. As
//! soon as there ever was one, every request needs one: revoking the last token opens nothing.
//!
//! A server remembers a token for [`REMEMBERED`], so that its store is not asked at every request. Every
//! [`NOTICED`] one request asks what is new for all of them, so that a first token and a revocation are known
//! by then; where that answer is late, after [`REMEMBERED`] at the latest. Streams and long polls look
//! again while they wait.

mod cache;
mod error;
mod secret;
mod token;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use latchwork_lock::provider::Moment;
use latchwork_lock::{Clock, SystemClock};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::stores::TokenStore;

pub use error::TokenError;
pub use secret::Secret;
pub(crate) use secret::SecretHash;
pub use token::{NewToken, Token};

use secret::Malformed;

/// How long a server goes by what it knows of a token.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(1);

/// How long a server goes by what it knows of whether tokens were made or revoked elsewhere. One small
/// query in this time, however many requests come.
const NOTICED: Duration = Duration::from_millis(100);

/// How exactly the last use is noted, so that reading requests do not become writes.
const LAST_USED: TimeDelta = TimeDelta::minutes(1);

/// The tokens of a database. Clones share what they remember.
#[derive(Clone)]
pub struct Tokens(Arc<Inner>);

struct Inner {
    store: TokenStore,
    clock: Arc<dyn Clock>,
    cache: Mutex<cache::Cache>,
    /// That there ever was a token stays true once it is.
    configured: AtomicBool,
    news: Mutex<News>,
}

/// What was last known of all tokens.
#[derive(Default)]
struct News {
    /// When the store was asked for it.
    at: Option<Moment>,
    /// How many were revoked then.
    revoked: i64,
    /// A request asks at this time.
    asking: bool,
}

/// Why a caller is not who it says.
#[derive(Debug)]
pub(crate) enum Unauthorized {
    /// The text is no token.
    Malformed,
    /// It was cut or mistyped.
    Checksum,
    /// There is no such token.
    Unknown,
    /// It was revoked.
    Revoked,
    /// It has ended.
    Expired(DateTime<Utc>),
    /// The store did not answer.
    Store(TokenError),
}

impl Tokens {
    /// Opens the tokens of a database, and makes their table where it is missing.
    ///
    /// # Errors
    /// [`TokenError::Store`].
    pub async fn connect(url: &str) -> Result<Self, TokenError> {
        Self::with_clock(url, SystemClock::shared()).await
    }

    /// The same by another clock, for tests: the end of a token is a time of the calendar.
    #[doc(hidden)]
    pub async fn with_clock(url: &str, clock: Arc<dyn Clock>) -> Result<Self, TokenError> {
        Ok(Tokens(Arc::new(Inner {
            store: TokenStore::connect(url).await?,
            clock,
            cache: Mutex::default(),
            configured: AtomicBool::new(false),
            news: Mutex::default(),
        })))
    }

    /// Whether there ever was a token, as known for a tenth of a second while there is none; for a second
    /// where the store is slow to answer.
    ///
    /// # Errors
    /// [`TokenError::Store`]: who does not know must not let anybody in.
    pub async fn are_configured(&self) -> Result<bool, TokenError> {
        if self.0.configured.load(Ordering::Acquire) {
            return Ok(true);
        }
        self.notice_changes().await?;
        Ok(self.0.configured.load(Ordering::Acquire))
    }

    /// Asks what other programs did to the tokens, unless that was done just now.
    async fn notice_changes(&self) -> Result<(), TokenError> {
        let inner = &self.0;
        let now = inner.clock.now();
        {
            let mut news = inner.news.lock();
            let age = news.at.map(|at| now.since(at));
            // While one asks, the others go by what is known, as long as that is not too old.
            let known_for = if news.asking { REMEMBERED } else { NOTICED };
            if age.is_some_and(|age| age < known_for) {
                return Ok(());
            }
            news.asking = true;
        }
        let found = inner.store.news().await;
        let mut news = inner.news.lock();
        news.asking = false;
        let (made, revoked) = found?;
        if made {
            inner.configured.store(true, Ordering::Release);
        }
        if revoked != news.revoked {
            news.revoked = revoked;
            inner.cache.lock().clear();
        }
        news.at = news.at.max(Some(now));
        Ok(())
    }

    /// Makes a token, by another token or, without one, by a user who has the database. Its text is in the
    /// answer and nowhere else.
    ///
    /// Cancel safety: dropped, the token was made or it was not; one that was made stands in the list.
    ///
    /// # Errors
    /// [`TokenError::Exceeds`] where it could do more than its maker, [`TokenError::NameTaken`],
    /// [`TokenError::Invalid`] and the store's.
    pub async fn create(
        &self,
        wanted: NewToken,
        maker: Option<&Token>,
    ) -> Result<(Token, Secret), TokenError> {
        let token = wanted.build(maker, self.now())?;
        let secret = Secret::generate(token.role);
        if !self.0.store.insert(&token, secret.hash()).await? {
            return Err(TokenError::NameTaken { name: token.name });
        }
        self.0.configured.store(true, Ordering::Release);
        Ok((token, secret))
    }

    /// A page of tokens behind an id, oldest first; those that were revoked too.
    ///
    /// # Errors
    /// The store's.
    pub async fn list(&self, after: Option<Uuid>, limit: u32) -> Result<Vec<Token>, TokenError> {
        Ok(self.0.store.list(after, limit.into()).await?)
    }

    /// The token of an id.
    ///
    /// # Errors
    /// [`TokenError::NotFound`].
    pub async fn get(&self, id: Uuid) -> Result<Token, TokenError> {
        self.0.store.get(id).await?.ok_or_else(|| TokenError::not_found(id))
    }

    /// Revokes a token. This server refuses it at once, every other one within a tenth of a second, or a
    /// second where its store is slow. One that is revoked already stays as it is.
    ///
    /// Cancel safety: dropped, it was revoked or it was not.
    ///
    /// # Errors
    /// [`TokenError::NotFound`].
    pub async fn revoke(&self, id: Uuid) -> Result<Token, TokenError> {
        self.0.store.revoke(id, self.now()).await?;
        self.0.cache.lock().forget(id);
        self.get(id).await
    }

    /// Who a caller is that sent this text.
    pub(crate) async fn authenticate(
        &self,
        text: &str,
    ) -> Result<(Arc<Token>, SecretHash), Unauthorized> {
        let hash = secret::parse(text).map_err(|malformed| match malformed {
            Malformed::Shape => Unauthorized::Malformed,
            Malformed::Checksum => Unauthorized::Checksum,
        })?;
        Ok((self.check(hash).await?, hash))
    }

    /// Whether the token of this hash can be used, as known for [`REMEMBERED`] at most.
    pub(crate) async fn check(&self, hash: SecretHash) -> Result<Arc<Token>, Unauthorized> {
        if let Err(error) = self.notice_changes().await {
            // What is remembered is judged by its own age, and everything else is looked up.
            tracing::debug!(%error, "it is not known whether tokens were revoked");
        }
        let known = self.0.cache.lock().get(hash, self.0.clock.now());
        let token = match known {
            Some(token) => token,
            None => self.look_up(hash).await?,
        };
        if token.revoked_at.is_some() {
            return Err(Unauthorized::Revoked);
        }
        match token.expires_at {
            Some(end) if end <= self.now() => Err(Unauthorized::Expired(end)),
            _ => Ok(token),
        }
    }

    async fn look_up(&self, hash: SecretHash) -> Result<Arc<Token>, Unauthorized> {
        // Counted from before the store was asked: what was true then is known for so long, and not at all
        // where a revocation is noticed meanwhile.
        let asked = self.0.clock.now();
        let clearings = self.0.cache.lock().clearings();
        let found = self.0.store.find(hash).await;
        let found = found.map_err(|error| Unauthorized::Store(error.into()))?;
        // Not remembered: a client that sends made-up tokens must not fill the memory.
        let token = Arc::new(found.ok_or(Unauthorized::Unknown)?);
        self.0.cache.lock().put(hash, token.clone(), asked, clearings);
        let now = self.now();
        if token.is_live(now) && token.last_used_at.is_none_or(|last| now - last >= LAST_USED) {
            self.note_use(token.id, now);
        }
        Ok(token)
    }

    /// Beside the request, which need not wait for it.
    fn note_use(&self, id: Uuid, now: DateTime<Utc>) {
        let store = self.0.store.clone();
        tokio::spawn(async move {
            if let Err(error) = store.touch(id, now).await {
                tracing::debug!(%error, "the last use of a token was not noted");
            }
        });
    }

    fn now(&self) -> DateTime<Utc> {
        self.0.clock.wall()
    }

    /// Closes the connections.
    pub async fn close(&self) {
        self.0.store.close().await;
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}
