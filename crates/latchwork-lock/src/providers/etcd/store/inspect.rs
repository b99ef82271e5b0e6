//! Reads the entries of keys: holders, waiters, and the time that is left. And breaks locks, which
//! starts with a read.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use etcd_client::{GetOptions, Txn, TxnOp, TxnOpResponse};
use futures::{StreamExt, stream};

use super::Store;
use super::compare::created_at;
use crate::providers::etcd::error::{self, RequestError};
use crate::providers::etcd::names::Part;
use crate::providers::etcd::record::{Entry, KeyState, txn_revision};
use crate::{Fence, Holder, Inspection, Key, Page, PageRequest, Result};

/// How many entries of a listing are read at a time.
const CHUNK: i64 = 1_000;

/// How many leases are queried at a time.
const MAX_CONCURRENT: usize = 16;

impl Store {
    /// The entries of a key.
    pub(crate) async fn read_key(&self, during: &'static str, key: &Key) -> Result<KeyState> {
        let from = self.names.key_prefix(key.as_str());
        let read = self.cluster.request_with_retry(during, move |member| {
            let from = from.clone();
            async move { member.kv.clone().get(from, Some(GetOptions::new().with_prefix())).await }
        });
        let (answer, _) = read.await.map_err(|error| error.into_error(during))?;
        let revision = answer.header().map_or(0, |header| header.revision());
        Ok(KeyState::read(&self.names, revision, answer.kvs()))
    }

    /// The entries of several keys, without their values.
    pub(crate) async fn read_keys(
        &self,
        during: &'static str,
        keys: &[Key],
    ) -> Result<Vec<KeyState>, RequestError> {
        let all = keys.iter().map(|key| self.read_op(key.as_str()));
        let txn = Txn::new().and_then(all.collect::<Vec<_>>());
        let (answer, _) = self.execute(during, txn).await?;
        let revision = txn_revision(&answer);
        let states = answer.op_responses().into_iter().filter_map(|part| match part {
            TxnOpResponse::Get(part) => Some(KeyState::read(&self.names, revision, part.kvs())),
            _ => None,
        });
        Ok(states.collect())
    }

    /// Holders and waiters of a key.
    pub(crate) async fn inspect(&self, during: &'static str, key: &Key) -> Result<Inspection> {
        let seen = self.read_key(during, key).await?;
        let left = self.time_left(during, seen.holders()).await?;
        seen.inspection(key.as_str(), self.wall(), |lease| left.get(&lease).copied())
            .map_err(|what| error::unreadable(during, what))
    }

    /// A page of the keys with this prefix.
    pub(crate) async fn list(
        &self,
        during: &'static str,
        prefix: &str,
        page: &PageRequest,
    ) -> Result<Page> {
        let mut found: Vec<(String, Vec<Entry>)> = Vec::new();
        let mut revision = 0;
        let listing = self.names.listing_prefix(prefix);
        let end = end_of_prefix(listing.as_bytes());
        let after = page.after.as_ref().map(|after| self.names.after_key(after).into_bytes());
        let mut from = listing.into_bytes().max(after.unwrap_or_default());
        // One more than requested tells whether there is another page.
        while found.len() <= page.limit + 1 {
            if from.is_empty() {
                from.push(0); // an empty name is not legal
            }
            let options = GetOptions::new().with_range(end.clone()).with_limit(CHUNK);
            let start = from.clone();
            let read = self.cluster.request_with_retry(during, move |member| {
                let (start, options) = (start.clone(), options.clone());
                async move { member.kv.clone().get(start, Some(options)).await }
            });
            let (answer, _) = read.await.map_err(|error| error.into_error(during))?;
            revision = answer.header().map_or(revision, |header| header.revision());
            for (key, entry) in answer.kvs().iter().filter_map(|kv| Entry::read(&self.names, kv)) {
                match found.last_mut() {
                    Some((last, entries)) if last == key => entries.push(entry),
                    _ => found.push((key.to_owned(), vec![entry])),
                }
            }
            match answer.kvs().last() {
                Some(last) if answer.more() => from = [last.key(), &[0]].concat(),
                _ => break,
            }
        }
        found.truncate(page.limit + 1);
        let states: Vec<(String, KeyState)> = found
            .into_iter()
            .map(|(key, entries)| (key, KeyState::new(revision, entries)))
            .collect();
        let holders = states.iter().flat_map(|(_, state)| state.holders());
        let left = self.time_left(during, holders).await?;
        let now = self.wall();
        let inspections = states
            .iter()
            .map(|(key, state)| state.inspection(key, now, |lease| left.get(&lease).copied()));
        let keys = inspections.collect::<Result<Vec<_>, _>>();
        Ok(Page::cut(keys.map_err(|what| error::unreadable(during, what))?, page))
    }

    /// Ends the lease with this fence, or all; returns those that it ended.
    pub(crate) async fn break_lock(
        &self,
        during: &'static str,
        key: &Key,
        fence: Option<Fence>,
    ) -> Result<Vec<Holder>> {
        let seen = self.read_key(during, key).await?;
        let wanted = |entry: &&Entry| fence.is_none_or(|fence| fence == entry.fence());
        let broken: Vec<&Entry> = seen.holders().filter(wanted).collect();
        let left = self.time_left(during, broken.iter().copied()).await?;
        let mut holders = Vec::new();
        for entry in broken {
            let name = self.names.entry(key.as_str(), Part::Hold, entry.mode, entry.id);
            let txn = Txn::new()
                .when([created_at(name.clone(), entry.created)])
                .and_then([TxnOp::delete(name, None)]);
            let (answer, twice) =
                self.execute(during, txn).await.map_err(|error| error.into_error(during))?;
            if answer.succeeded() || twice {
                let left = left.get(&entry.lease).copied().unwrap_or_default();
                let holder = entry.holder(self.wall(), left);
                holders.push(holder.map_err(|what| error::unreadable(during, what))?);
            }
        }
        Ok(holders)
    }

    /// The time left of these holders' leases, by the server's clock; none for one that has ended.
    pub(crate) async fn time_left<'a>(
        &self,
        during: &'static str,
        holders: impl Iterator<Item = &'a Entry>,
    ) -> Result<HashMap<i64, Duration>> {
        let leases: HashSet<i64> = holders.map(|entry| entry.lease).collect();
        let queries = stream::iter(leases).map(|lease| {
            let cluster = self.cluster.clone();
            async move {
                let querying = cluster.request_with_retry(during, move |member| async move {
                    member.lease.clone().time_to_live(lease, None).await
                });
                match querying.await {
                    Ok((answer, _)) => Ok((lease, answer.ttl())),
                    Err(RequestError::LeaseNotFound) => Ok((lease, -1)),
                    Err(error) => Err(error.into_error(during)),
                }
            }
        });
        let answers: Vec<Result<(i64, i64)>> =
            queries.buffer_unordered(MAX_CONCURRENT).collect().await;
        let mut left = HashMap::new();
        for answer in answers {
            let (lease, seconds) = answer?;
            if let Ok(seconds) = u64::try_from(seconds) {
                left.insert(lease, Duration::from_secs(seconds));
            }
        }
        Ok(left)
    }

    /// The first holder, for a requester that is refused.
    pub(crate) async fn blocking_holder(
        &self,
        during: &'static str,
        seen: &KeyState,
    ) -> Option<Holder> {
        let first = seen.holders().next()?;
        // The refusal stands, also if the time left cannot be read.
        let left = self.time_left(during, std::iter::once(first)).await.ok()?;
        first.holder(self.wall(), *left.get(&first.lease)?).ok()
    }
}

/// The first name after all with this prefix; a zero byte means that there is none.
fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}
