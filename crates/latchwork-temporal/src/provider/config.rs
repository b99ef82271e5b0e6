//! The settings of the provider, and its address.

use std::time::Duration;

use latchwork_lock::{Error, Result};
use temporalio_client::{Client, ClientOptions, Connection, ConnectionOptions, TlsOptions};
use url::Url;

use crate::client::DEFAULT_IDLE_TIMEOUT;
use crate::error::NAME;
use crate::worker::DEFAULT_TASK_QUEUE;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The environment variable with the key of a cloud's API.
const API_KEY: &str = "TEMPORAL_API_KEY";

/// Where the mutexes are, and how long they stay.
///
/// As an address: `temporal://host:7233/namespace?task-queue=latchwork`, or `temporals://…` with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TemporalConfig {
    /// The server, as `http://host:port` or `https://host:port`.
    pub target: String,
    /// The namespace; `default` unless told.
    pub namespace: String,
    /// The task queue of the workers that run mutexes; `latchwork` unless told.
    pub task_queue: String,
    /// How long a mutex stays although nobody uses it; ten minutes unless told.
    pub idle_timeout: Duration,
    /// After how many operations a mutex continues as new; some thousands unless told.
    pub operations_per_run: Option<u64>,
}

impl TemporalConfig {
    /// The settings for a server, in the namespace `default`.
    pub fn new(target: impl Into<String>) -> Self {
        TemporalConfig {
            target: target.into(),
            namespace: "default".to_owned(),
            task_queue: DEFAULT_TASK_QUEUE.to_owned(),
            idle_timeout: DEFAULT_IDLE_TIMEOUT,
            operations_per_run: None,
        }
    }

    /// Reads an address.
    ///
    /// # Errors
    /// [`InvalidArgument`](latchwork_lock::ErrorKind::InvalidArgument) for what is none.
    pub fn parse(address: &str) -> Result<Self> {
        let invalid = |reason: &str| {
            let form = "write temporal://host:7233/namespace?task-queue=latchwork";
            Error::invalid_argument("url", format!("{reason}; {form}"))
        };
        let url =
            Url::parse(address).map_err(|error| invalid(&format!("it is no address ({error})")))?;
        let scheme = match url.scheme() {
            "temporal" => "http",
            "temporals" => "https",
            _ => return Err(invalid("its scheme is not temporal:")),
        };
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| invalid("it names no host"))?;
        if !url.username().is_empty() || url.password().is_some() {
            let reason = format!("it has a user or a password; a key goes into {API_KEY}");
            return Err(invalid(&reason));
        }
        let mut config =
            TemporalConfig::new(format!("{scheme}://{host}:{}", url.port().unwrap_or(7233)));
        let namespace = url.path().trim_matches('/');
        if !namespace.is_empty() {
            let decoded = percent_encoding::percent_decode_str(namespace).decode_utf8();
            config.namespace =
                decoded.map_err(|_| invalid("its namespace is no text"))?.into_owned();
        }
        for (name, value) in url.query_pairs() {
            match &*name {
                "task-queue" if !value.is_empty() => config.task_queue = value.into_owned(),
                "idle-timeout" => {
                    let seconds = value.parse::<u64>().ok().filter(|seconds| *seconds > 0);
                    let seconds = seconds
                        .ok_or_else(|| invalid("its idle-timeout is no number of seconds"))?;
                    config.idle_timeout = Duration::from_secs(seconds);
                }
                _ => return Err(invalid(&format!("{name:?} is no option of it, or is empty"))),
            }
        }
        Ok(config)
    }

    /// A connection to the server. Its tasks run in the current runtime.
    ///
    /// # Errors
    /// [`Unavailable`](latchwork_lock::ErrorKind::Unavailable) when the server does not answer,
    /// [`InvalidArgument`](latchwork_lock::ErrorKind::InvalidArgument) for a target that is no address.
    pub async fn connect(&self) -> Result<Client> {
        let target = Url::parse(&self.target)
            .map_err(|error| Error::invalid_argument("url", format!("{error}")))?;
        let tls = target.scheme() == "https";
        let key = std::env::var(API_KEY).ok().filter(|key| tls && !key.is_empty());
        let options = ConnectionOptions::new(target)
            .identity(latchwork_lock::provider::process_label().to_owned())
            .connect_timeout(CONNECT_TIMEOUT)
            .maybe_tls_options(tls.then(TlsOptions::default))
            .maybe_api_key(key)
            .dns_load_balancing(None)
            .build();
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, Connection::connect(options)).await;
        let unavailable = |reason: String| Error::unavailable(NAME, "connecting", reason, None);
        let connection = connecting
            .map_err(|_| unavailable("it did not answer in time".to_owned()))?
            .map_err(|error| unavailable(error.to_string()))?;
        let options = ClientOptions::new(&self.namespace).build();
        Client::new(connection, options).map_err(|error| unavailable(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_server_namespace_and_task_queue() {
        let read =
            TemporalConfig::parse("temporal://there:7000/orders?task-queue=locks&idle-timeout=5");
        let config = read.expect("an address");
        assert_eq!(config.target, "http://there:7000");
        assert_eq!((&*config.namespace, &*config.task_queue), ("orders", "locks"));
        assert_eq!(config.idle_timeout, Duration::from_secs(5));
        let config = TemporalConfig::parse("temporals://there").expect("an address");
        assert_eq!(config, TemporalConfig::new("https://there:7233"));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for bad in [
            "redis://here",
            "temporal:",
            "temporal:///orders",
            "temporal://me:secret@here/orders",
            "temporal://here/orders?queue=a",
            "temporal://here/orders?task-queue=",
            "temporal://here/orders?idle-timeout=never",
        ] {
            let error = TemporalConfig::parse(bad).expect_err(bad);
            assert_eq!(error.code(), "invalid_argument", "{bad}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
