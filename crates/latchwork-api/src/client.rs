//! A typed client of a Latchwork server.
//!
//! ```no_run
//! # async fn example() -> Result<(), latchwork_api::client::Error> {
//! use latchwork_api::client::Client;
//! use latchwork_api::{CheckoutRequest, Proposal, SubmitRequest};
//! use serde_json::json;
//!
//! let server = Client::new("http://127.0.0.1:8420")?; // `.token("lw_…")` where the server has tokens
//! let ada = server.clone().actor("user:ada");
//! let order = Proposal::new("greeting", json!({"names": ["Grace"]}));
//! let order = ada.propose(&order).key("greet-grace").await?.order;
//!
//! let agent = server.actor("agent:a-1");
//! let wanted = CheckoutRequest { wait_ms: 20_000, ..CheckoutRequest::default() };
//! for lease in agent.checkout(&wanted).await?.leases {
//!     let result = SubmitRequest::new(lease.id, json!({"text": "Hello, Grace!"}));
//!     agent.submit(&result).await?;
//! }
//! println!("{}", agent.order(order.id).await?.order.state);
//! # Ok(()) }
//! ```
//!
//! Every operation is an [`ApiCall`]: await it, or give it a key, a version or a timeout first.

mod call;
mod error;
mod items;
mod locks;
mod orders;
mod sse;
mod stream;
mod tokens;
mod trail;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

pub use call::{ApiCall, Reply};
pub use error::{Error, ErrorKind, Result};
pub use stream::{EventStream, EventsWanted};

use transport::{Base, Http};

/// A client of one server. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    http: Http,
    base: Arc<Base>,
    token: Option<HeaderValue>,
    actor: Option<HeaderValue>,
    timeout: Duration,
}

/// How long an answer may take unless told; a long poll has its own wait on top.
const TIMEOUT: Duration = Duration::from_secs(30);

impl Client {
    /// A client of the server at this address, such as `http://127.0.0.1:8420`. Nothing is sent yet.
    ///
    /// An `https://` server is trusted by the certificates of the system, or by those of the file that
    /// the environment variable `SSL_CERT_FILE` names.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for what is no address of a server.
    pub fn new(address: &str) -> Result<Self> {
        let base = Arc::new(Base::parse(address)?);
        let http = Http::new(base.is_https())?;
        Ok(Client { http, base, token: None, actor: None, timeout: TIMEOUT })
    }

    /// With a token, sent as `Authorization: Bearer`. It is in no `Debug` and no error.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a text that no header can carry.
    pub fn token(mut self, token: &str) -> Result<Self> {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| Error::invalid("token", "it holds characters that no token has"))?;
        value.set_sensitive(true);
        self.token = Some(value);
        Ok(self)
    }

    /// Names the actor at a server without tokens: `agent:NAME` or `user:NAME`. A name that no header
    /// can carry is sent as the server refuses it.
    #[must_use]
    pub fn actor(mut self, actor: &str) -> Self {
        let refused = HeaderValue::from_static("invalid");
        self.actor = Some(HeaderValue::from_str(actor).unwrap_or(refused));
        self
    }

    /// How long an answer may take; 30 seconds unless told. The wait of a long poll comes on top.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The address of the server.
    pub fn address(&self) -> &str {
        self.base.address()
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("address", &self.address()).finish_non_exhaustive()
    }
}
