//! The stored truth: the operations on locks, as commands for the server's script.
//!
//! [`acquire`] requests, enqueues and claims, [`release`] ends leases, [`list`] lists keys.
//!
//! Cancel safety: dropping the future of an operation withdraws its command if that was not sent yet;
//! otherwise the server executes it. A release goes on in any case.

pub(super) mod acquire;
mod list;
pub(super) mod release;

use std::sync::Arc;
use std::time::Duration;

use super::connection::Connection;
use super::pipeline::Pipelines;
use super::scripts::response::WaiterStatuses;
use super::scripts::{Command, Operation};
use super::waiters::WaiterRegistry;
use super::{error, record};
use crate::coordination::server_clock::ServerClock;
use crate::rules::Id;
use crate::{Clock, Fence, Grant, Holder, Inspection, Key, Moment, Result};

/// One server, with what this process waits for there.
pub(super) struct Store {
    pub(super) connection: Arc<Connection>,
    pipelines: Pipelines,
    /// Renewals have a connection of their own where the other one is the caller's: the runtime that
    /// drives that one may be blocked.
    renewals: Option<Pipelines>,
    pub(super) clock: Arc<dyn Clock>,
    /// Random: the id of this provider among all clients of the server.
    pub(super) client: Arc<str>,
    pub(super) waiters: Arc<WaiterRegistry>,
    server_clock: ServerClock,
    /// How many deferred releases are pending.
    pending_releases: tokio::sync::watch::Sender<usize>,
}

impl Store {
    pub(super) fn new(connection: Arc<Connection>, clock: Arc<dyn Clock>) -> Result<Self> {
        let client: Arc<str> = format!("{:016x}", rand::random::<u64>()).into();
        let open = |connection| Pipelines::open(connection, client.clone());
        let renewals = connection.own().map(|own| open(Arc::new(own))).transpose()?;
        let pipelines = open(connection.clone())?;
        Ok(Store {
            connection,
            pipelines,
            renewals,
            clock,
            client,
            waiters: Arc::default(),
            server_clock: ServerClock::default(),
            pending_releases: tokio::sync::watch::Sender::new(0),
        })
    }

    /// Starts a new ttl; false if the id holds nothing.
    pub(super) async fn renew(
        &self,
        during: &'static str,
        key: &Key,
        id: Id,
        ttl: Duration,
    ) -> Result<bool> {
        let (ttl, sent_at) = (record::millis(ttl), self.clock.now());
        let command = Command { ttl, ..Command::new(Operation::Renew, key, id) };
        let response = match &self.renewals {
            Some(renewals) => renewals.send_from_background(during, command).await?,
            None => self.pipelines.send(during, command).await?,
        };
        let renewed = response.renew(during)?;
        if let Some(server_us) = renewed {
            self.observe_clock(server_us, sent_at);
        }
        Ok(renewed.is_some())
    }

    pub(super) async fn is_held(&self, during: &'static str, key: &Key, id: Id) -> Result<bool> {
        let command = Command::new(Operation::IsHeld, key, id);
        self.pipelines.send(during, command).await?.boolean(during)
    }

    /// Replaces a grant's identity and raises its fence (L13).
    pub(super) async fn rotate(
        &self,
        during: &'static str,
        key: &Key,
        old: Id,
        fresh: Id,
        ttl: Duration,
    ) -> Result<Option<Grant>> {
        let command = Command {
            ttl: record::millis(ttl),
            option: record::encode_ids(&[fresh]),
            ..Command::new(Operation::Rotate, key, old)
        };
        self.pipelines.send(during, command).await?.rotate(during)
    }

    /// Ends the lease with this fence, or all; returns those that it ended.
    pub(super) async fn break_lock(
        &self,
        during: &'static str,
        key: &Key,
        fence: Option<Fence>,
    ) -> Result<Vec<Holder>> {
        let option = fence.map_or(String::new(), |fence| fence.to_string());
        let command = Command { option, ..Command::new(Operation::Break, key, 0) };
        let response = self.pipelines.send(during, command).await?;
        response.read(during, |value| record::holders(value.as_sequence()?, self.clock.wall()))
    }

    /// Holders and waiters of a key.
    pub(super) async fn inspect(&self, during: &'static str, key: &Key) -> Result<Inspection> {
        let command = Command::new(Operation::Inspect, key, 0);
        let response = self.pipelines.send(during, command).await?;
        response.read(during, |value| record::inspection(key.as_str(), value))
    }

    /// Refreshes a key: grants what has expired to the next waiter, keeps this process's waiters alive,
    /// and returns the statuses of some of them.
    pub(super) async fn refresh_key(
        &self,
        during: &'static str,
        key: &Key,
        ids: &[Id],
    ) -> Result<WaiterStatuses> {
        let (option, sent_at) = (record::encode_ids(ids), self.clock.now());
        let command = Command { option, ..Command::new(Operation::Refresh, key, 0) };
        let response = self.pipelines.send(during, command).await?;
        let found = response.statuses(during, ids.len())?;
        self.observe_clock(found.server_us, sent_at);
        Ok(found)
    }

    /// Compares the server's clock, as a response had it, with ours.
    fn observe_clock(&self, server_us: i64, sent_at: Moment) {
        self.server_clock.observe(error::NAME, server_us, sent_at, self.clock.now());
    }
}
