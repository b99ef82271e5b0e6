//! Reading the entries of keys: who holds, who waits, and for how long yet. And ending a lease by hand,
//! which begins with a look.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use etcd_client::{DeleteOptions, GetOptions, Txn, TxnOp, TxnOpResponse};
use futures::{StreamExt, stream};

use super::compare::is;
use super::error::{self, Wrong};
use super::record::{Entry, Part, State};
use super::store::{Store, revision};
use crate::{Fence, Holder, Inspection, Key, Page, PageRequest, Result};

/// How many entries one answer of a listing brings.
const CHUNK: i64 = 1_000;

/// How many leases are asked about at once.
const AT_ONCE: usize = 16;

/// How many keys one look asks for; a server takes 128 operations at a time unless it was told
/// otherwise.
pub(super) const LOOK: usize = 64;

impl Store {
    /// The entries of a key.
    pub(super) async fn peek(&self, during: &'static str, key: &Key) -> Result<State> {
        let from = self.names.all(key.as_str());
        let read = self.link.ask_again(during, move |member| {
            let from = from.clone();
            async move { member.kv.clone().get(from, Some(GetOptions::new().with_prefix())).await }
        });
        let (answer, _) = read.await.map_err(|wrong| wrong.error(during))?;
        Ok(self.state_of(&answer, answer.header().map_or(0, |header| header.revision())))
    }

    /// The entries of several keys, without what they say.
    pub(super) async fn look(
        &self,
        during: &'static str,
        keys: &[Key],
    ) -> Result<Vec<State>, Wrong> {
        let all = keys.iter().map(|key| self.get(key.as_str()));
        let txn = Txn::new().and_then(all.collect::<Vec<_>>());
        let (answer, _) = self.ask_again(txn, during).await?;
        let revision = revision(&answer);
        let states = answer.op_responses().into_iter().filter_map(|part| match part {
            TxnOpResponse::Get(part) => Some(self.state_of(&part, revision)),
            _ => None,
        });
        Ok(states.collect())
    }

    /// Who holds and who waits.
    pub(super) async fn inspect(&self, during: &'static str, key: &Key) -> Result<Inspection> {
        let seen = self.peek(during, key).await?;
        let left = self.time_left(during, seen.holders()).await?;
        seen.inspection(key.as_str(), self.wall(), |lease| left.get(&lease).copied())
            .map_err(|what| error::unreadable(during, what))
    }

    /// A page of the keys that begin like this.
    pub(super) async fn list(
        &self,
        during: &'static str,
        prefix: &str,
        page: &PageRequest,
    ) -> Result<Page> {
        let mut found: Vec<(String, Vec<Entry>)> = Vec::new();
        let mut revision = 0;
        let beginning = self.names.beginning(prefix);
        let end = behind(beginning.as_bytes());
        let after = page.after.as_ref().map(|after| self.names.behind(after).into_bytes());
        let mut from = beginning.into_bytes().max(after.unwrap_or_default());
        // One more than wanted tells whether there is more.
        while found.len() <= page.limit + 1 {
            if from.is_empty() {
                from.push(0); // there is no empty name
            }
            let options = GetOptions::new().with_range(end.clone()).with_limit(CHUNK);
            let start = from.clone();
            let read = self.link.ask_again(during, move |member| {
                let (start, options) = (start.clone(), options.clone());
                async move { member.kv.clone().get(start, Some(options)).await }
            });
            let (answer, _) = read.await.map_err(|wrong| wrong.error(during))?;
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
        let states: Vec<(String, State)> =
            found.into_iter().map(|(key, entries)| (key, State::new(revision, entries))).collect();
        let holders = states.iter().flat_map(|(_, state)| state.holders());
        let left = self.time_left(during, holders).await?;
        let now = self.wall();
        let inspections = states
            .iter()
            .map(|(key, state)| state.inspection(key, now, |lease| left.get(&lease).copied()));
        let keys = inspections.collect::<Result<Vec<_>, _>>();
        Ok(Page::cut(keys.map_err(|what| error::unreadable(during, what))?, page))
    }

    /// Ends the lease with this fence, or all, and tells which.
    pub(super) async fn break_lock(
        &self,
        during: &'static str,
        key: &Key,
        fence: Option<Fence>,
    ) -> Result<Vec<Holder>> {
        let seen = self.peek(during, key).await?;
        let wanted = |entry: &&Entry| fence.is_none_or(|fence| fence == entry.fence());
        let broken: Vec<&Entry> = seen.holders().filter(wanted).collect();
        let left = self.time_left(during, broken.iter().copied()).await?;
        let mut holders = Vec::new();
        for entry in broken {
            let name = self.names.entry(key.as_str(), Part::Hold, entry.mode, entry.id);
            let told = DeleteOptions::new();
            let txn = Txn::new()
                .when([is(name.clone(), entry.created)])
                .and_then([TxnOp::delete(name, Some(told))]);
            let (answer, twice) =
                self.ask_again(txn, during).await.map_err(|wrong| wrong.error(during))?;
            if answer.succeeded() || twice {
                let left = left.get(&entry.lease).copied().unwrap_or_default();
                let holder = entry.holder(self.wall(), left);
                holders.push(holder.map_err(|what| error::unreadable(during, what))?);
            }
        }
        Ok(holders)
    }

    /// How long these holders have yet, by the server's clock; none for one that is over.
    pub(super) async fn time_left<'a>(
        &self,
        during: &'static str,
        holders: impl Iterator<Item = &'a Entry>,
    ) -> Result<HashMap<i64, Duration>> {
        let leases: HashSet<i64> = holders.map(|entry| entry.lease).collect();
        let asked = stream::iter(leases).map(|lease| {
            let link = self.link.clone();
            async move {
                let asking = link.ask_again(during, move |member| async move {
                    member.lease.clone().time_to_live(lease, None).await
                });
                match asking.await {
                    Ok((answer, _)) => Ok((lease, answer.ttl())),
                    Err(Wrong::LeaseGone) => Ok((lease, -1)),
                    Err(wrong) => Err(wrong.error(during)),
                }
            }
        });
        let answers: Vec<Result<(i64, i64)>> = asked.buffer_unordered(AT_ONCE).collect().await;
        let mut left = HashMap::new();
        for answer in answers {
            let (lease, seconds) = answer?;
            if let Ok(seconds) = u64::try_from(seconds) {
                left.insert(lease, Duration::from_secs(seconds));
            }
        }
        Ok(left)
    }

    /// The first holder, for whoever is refused.
    pub(super) async fn in_the_way(&self, during: &'static str, seen: &State) -> Option<Holder> {
        let first = seen.holders().next()?;
        // Whoever is refused is refused, also where it cannot be told how long it will last.
        let left = self.time_left(during, std::iter::once(first)).await.ok()?;
        first.holder(self.wall(), *left.get(&first.lease)?).ok()
    }
}

/// The first name behind all with this beginning; a zero byte means that there is none.
fn behind(beginning: &[u8]) -> Vec<u8> {
    let mut end = beginning.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}
