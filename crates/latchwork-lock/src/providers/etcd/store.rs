//! Where the truth lives: the transactions on the entries of a key.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, GetResponse, PutOptions, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use futures::{StreamExt, stream};

use super::connection::Link;
use super::error::{self, Wrong};
use super::lease::Leases;
use super::record::{self, About, Entry, Names, Part, State};
use super::watch::Desk;
use super::watcher::Presence;
use crate::rules::Id;
use crate::{
    Clock, Error, Fence, Grant, Holder, Inspection, Key, Mode, Owner, Page, PageRequest, Result,
    SystemClock,
};

/// How often an edit is tried when leases vanish or others are quicker.
const TRIES: usize = 8;

/// How many entries one answer of a listing brings.
const CHUNK: i64 = 1_000;

/// How many leases are asked about at once.
const AT_ONCE: usize = 16;

/// How many keys one look asks for; the server takes no more than 128 operations at a time.
pub(super) const LOOK: usize = 64;

pub(super) struct Store {
    pub(super) link: Arc<Link>,
    pub(super) names: Names,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) process: Arc<str>,
    pub(super) leases: Leases,
    pub(super) desk: Arc<Desk>,
    pub(super) presence: Presence,
}

/// Whoever asks for a key.
#[derive(Clone, Debug)]
pub(super) struct Party {
    pub(super) key: Key,
    pub(super) id: Id,
    pub(super) mode: Mode,
    pub(super) owner: Option<Owner>,
    pub(super) note: Option<Arc<str>>,
    pub(super) ttl: Duration,
}

/// What an attempt to enter came to: the fence, or what stands in the way.
pub(super) enum Entered {
    Granted(Fence),
    Not(State),
}

impl Store {
    pub(super) fn new(link: Link, names: Names) -> Self {
        let (link, clock) = (Arc::new(link), SystemClock::shared());
        Store {
            leases: Leases::new(link.clone(), clock.clone()),
            link,
            names,
            clock,
            process: crate::process_label().into(),
            desk: Arc::new(Desk::default()),
            presence: Presence::default(),
        }
    }

    /// Takes a key that nobody uses, or, shared and nameless, one that others share and nobody
    /// waits for. Where that fails, it tells who holds the key and the own place in the queue, and
    /// all else only to those who named an owner.
    pub(super) async fn take(&self, during: &'static str, party: &Party) -> Result<Entered> {
        let key = party.key.as_str();
        let all = |from: String| TxnOp::get(from, Some(GetOptions::new().with_prefix()));
        let otherwise = match party.owner {
            Some(_) => vec![all(self.names.all(key))],
            None => {
                let ticket = self.names.entry(key, Part::Wait, party.mode, party.id);
                vec![all(self.names.part(key, Part::Hold)), TxnOp::get(ticket, None)]
            }
        };
        let free = if party.mode == Mode::Shared && party.owner.is_none() {
            vec![none(self.names.writer(key)), none(self.names.part(key, Part::Wait))]
        } else {
            vec![none(self.names.all(key))]
        };
        self.enter_or(during, party, free, Vec::new(), otherwise).await
    }

    /// Takes a key whose holders are as they were read, and that nobody waits for.
    pub(super) async fn join(
        &self,
        during: &'static str,
        party: &Party,
        seen: &State,
    ) -> Result<Entered> {
        let key = party.key.as_str();
        let free = vec![
            none(self.names.part(key, Part::Wait)),
            self.none_in_the_way(party),
            self.same_holders(key, seen),
        ];
        self.enter(during, party, free, Vec::new()).await
    }

    /// Takes the lease of the same owner over, if that excludes nobody else (L7).
    pub(super) async fn take_over(
        &self,
        during: &'static str,
        party: &Party,
        old: &Entry,
    ) -> Result<Entered> {
        let key = party.key.as_str();
        let name = self.names.entry(key, Part::Hold, old.mode, old.id);
        // Every entry in the range is the old one; no other has its revision.
        let alone = match (party.mode, old.mode) {
            (Mode::Exclusive, _) => only(self.names.part(key, Part::Hold), old.created),
            (Mode::Shared, Mode::Exclusive) => only(self.names.writer(key), old.created),
            (Mode::Shared, Mode::Shared) => none(self.names.writer(key)),
        };
        let free = vec![alone, is(name.clone(), old.created)];
        self.enter(during, party, free, vec![TxnOp::delete(name, None)]).await
    }

    /// Claims a key for a waiter whose turn it is. For a writer it is compared that nobody stands
    /// before it. For a reader it need not be: it was true when its turn was found, and who came
    /// before only ever leaves.
    pub(super) async fn claim(
        &self,
        during: &'static str,
        party: &Party,
        created: i64,
    ) -> Result<Entered> {
        let key = party.key.as_str();
        let ticket = self.names.entry(key, Part::Wait, party.mode, party.id);
        let mut free = vec![is(ticket.clone(), created), self.none_in_the_way(party)];
        if party.mode == Mode::Exclusive {
            let queue = self.names.part(key, Part::Wait);
            free.push(
                Compare::create_revision(queue, CompareOp::Greater, created - 1).with_prefix(),
            );
        }
        let mut gone = vec![TxnOp::delete(ticket, None)];
        // Two of one owner may have waited together: one lease per owner and key.
        if let (Mode::Shared, Some(owner)) = (party.mode, &party.owner) {
            let seen = self.peek(during, &party.key).await?;
            free.push(self.same_holders(key, &seen));
            let own = seen.of_owner(owner).map_err(|what| error::unreadable(during, what))?;
            gone.extend(own.map(|entry| {
                TxnOp::delete(self.names.entry(key, Part::Hold, entry.mode, entry.id), None)
            }));
        }
        self.enter(during, party, free, gone).await
    }

    /// Enters under these conditions, or tells who is there.
    async fn enter(
        &self,
        during: &'static str,
        party: &Party,
        free: Vec<Compare>,
        gone: Vec<TxnOp>,
    ) -> Result<Entered> {
        let otherwise = vec![self.get(party.key.as_str())];
        self.enter_or(during, party, free, gone, otherwise).await
    }

    /// The transaction that grants, whatever its conditions.
    async fn enter_or(
        &self,
        during: &'static str,
        party: &Party,
        free: Vec<Compare>,
        gone: Vec<TxnOp>,
        otherwise: Vec<TxnOp>,
    ) -> Result<Entered> {
        let key = party.key.as_str();
        let name = self.names.entry(key, Part::Hold, party.mode, party.id);
        let value = self.about(party).text();
        for _ in 0..TRIES {
            let lease = self.leases.lasting(during, party.ttl).await?;
            let mut then = gone.clone();
            let hangs_on = PutOptions::new().with_lease(lease.id);
            then.push(TxnOp::put(name.clone(), value.clone(), Some(hangs_on)));
            let txn = Txn::new().when(free.clone()).and_then(then).or_else(otherwise.clone());
            // Heard twice, it finds itself in the way.
            match self.ask_again(txn, during).await {
                Ok((answer, _)) if answer.succeeded() => {
                    self.leases.hold(party.id, party.mode, lease);
                    return Ok(Entered::Granted(record::fence_of(revision(&answer))));
                }
                Ok((answer, twice)) => {
                    let seen = self.state(&answer);
                    if twice && seen.find(Part::Hold, party.id).is_some() {
                        self.leases.hold(party.id, party.mode, lease);
                    }
                    return Ok(Entered::Not(seen));
                }
                Err(Wrong::LeaseGone) => self.leases.forget(&lease),
                Err(wrong) => {
                    // Whether it was heard is not known: an entry may hang on it.
                    lease.keep();
                    return Err(wrong.error(during));
                }
            }
        }
        Err(Wrong::LeaseGone.error(during))
    }

    /// Stands in line, or stays there. Answers the revision at which it does, and how the key looks
    /// then, where that was asked for or it holds the key already.
    pub(super) async fn queue(
        &self,
        during: &'static str,
        party: &Party,
        lease: i64,
        look: bool,
    ) -> Result<(i64, Option<State>), Wrong> {
        let key = party.key.as_str();
        let held = self.names.entry(key, Part::Hold, party.mode, party.id);
        let ticket = self.names.entry(key, Part::Wait, party.mode, party.id);
        let value = self.about(party).text();
        // Written again, it keeps the revision of its creation, and so its place.
        let stand = TxnOp::put(ticket, value, Some(PutOptions::new().with_lease(lease)));
        let then = if look { vec![stand, self.get(key)] } else { vec![stand] };
        let txn = Txn::new().when([is(held, 0)]).and_then(then).or_else([self.get(key)]);
        let (answer, _) = self.ask_again(txn, during).await?;
        let seen = (look || !answer.succeeded()).then(|| self.state(&answer));
        Ok((revision(&answer), seen))
    }

    /// Starts a new ttl; false when the id holds nothing.
    pub(super) async fn renew(
        &self,
        during: &'static str,
        key: &Key,
        id: Id,
        ttl: Duration,
    ) -> Result<bool> {
        let known = self.leases.mode_of(id);
        for _ in 0..TRIES {
            let lease = self.leases.lasting(during, ttl).await?;
            let put = |mode| {
                let name = self.names.entry(key.as_str(), Part::Hold, mode, id);
                let same_words = PutOptions::new().with_lease(lease.id).with_ignore_value();
                (exists(name.clone()), TxnOp::put(name, "", Some(same_words)))
            };
            let (is_writer, writer) = put(Mode::Exclusive);
            let (is_reader, reader) = put(Mode::Shared);
            // Who asks from elsewhere with the token alone need not know the mode.
            let txn = match known {
                Some(Mode::Exclusive) => Txn::new().when([is_writer]).and_then([writer]),
                Some(Mode::Shared) => Txn::new().when([is_reader]).and_then([reader]),
                None => {
                    let or = Txn::new().when([is_reader]).and_then([reader]);
                    Txn::new().when([is_writer]).and_then([writer]).or_else([TxnOp::txn(or)])
                }
            };
            match self.ask_again(txn, during).await {
                Ok((answer, _)) => {
                    let mode = if answer.succeeded() {
                        known.or(Some(Mode::Exclusive))
                    } else {
                        let inner = answer.op_responses();
                        let or =
                            matches!(inner.first(), Some(TxnOpResponse::Txn(or)) if or.succeeded());
                        or.then_some(Mode::Shared)
                    };
                    match mode {
                        Some(mode) => self.leases.hold(id, mode, lease),
                        None => drop(self.leases.let_go(id)),
                    }
                    return Ok(mode.is_some());
                }
                Err(Wrong::LeaseGone) => self.leases.forget(&lease),
                Err(wrong) => {
                    lease.keep();
                    return Err(wrong.error(during));
                }
            }
        }
        Err(Wrong::LeaseGone.error(during))
    }

    /// Ends a lease, or leaves the queue. True when it was held.
    pub(super) async fn release(&self, during: &'static str, key: &Key, id: Id) -> Result<bool> {
        let name = |part, mode| self.names.entry(key.as_str(), part, mode, id);
        // One message where it is known what it holds; the rest is looked for where it does not.
        let mut unheard = false;
        if let Some(mode) = self.leases.mode_of(id) {
            let name = name(Part::Hold, mode);
            let asked = self.link.ask(during, move |member| async move {
                member.kv.clone().delete(name, None).await
            });
            match asked.await {
                Ok(answer) if answer.deleted() > 0 => {
                    drop(self.leases.let_go(id));
                    return Ok(true);
                }
                Ok(_) => {}
                Err(Wrong::Lost(_)) => unheard = true,
                Err(wrong) => return Err(wrong.error(during)),
            }
        }
        let delete = |part, mode| TxnOp::delete(name(part, mode), None);
        let txn = Txn::new().and_then([
            delete(Part::Hold, Mode::Exclusive),
            delete(Part::Hold, Mode::Shared),
            delete(Part::Wait, Mode::Exclusive),
            delete(Part::Wait, Mode::Shared),
        ]);
        let (answer, twice) =
            self.ask_again(txn, during).await.map_err(|wrong| wrong.error(during))?;
        drop(self.leases.let_go(id));
        let ended = |gone: &TxnOpResponse| matches!(gone, TxnOpResponse::Delete(gone) if gone.deleted() > 0);
        let held = answer.op_responses().iter().take(2).any(ended);
        if !held && (twice || unheard) {
            // Ended by the question whose answer was lost, or before: it cannot be told.
            let reason = "the answer was lost, and the lease is over";
            return Err(Error::unavailable(error::NAME, during, reason, None));
        }
        Ok(held)
    }

    /// Leaves the queue, and gives nothing back that was claimed meanwhile.
    pub(super) async fn leave(&self, during: &'static str, key: &Key, id: Id) -> Result<()> {
        let delete =
            |mode| TxnOp::delete(self.names.entry(key.as_str(), Part::Wait, mode, id), None);
        let txn = Txn::new().and_then([delete(Mode::Exclusive), delete(Mode::Shared)]);
        self.ask_again(txn, during).await.map(drop).map_err(|wrong| wrong.error(during))
    }

    /// Whether the id holds the key; then its lease is left to its time, whatever becomes of this
    /// process.
    pub(super) async fn hand_over(&self, during: &'static str, key: &Key, id: Id) -> Result<bool> {
        let held = self.peek(during, key).await?.find(Part::Hold, id).is_some();
        if held && let Some(lease) = self.leases.let_go(id) {
            lease.keep();
        }
        Ok(held)
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
        for _ in 0..TRIES {
            let seen = self.peek(during, key).await?;
            if let Some(done) = seen.find(Part::Hold, fresh) {
                return Ok(Some(Grant::first(done.fence())));
            }
            let Some(entry) = seen.find(Part::Hold, old) else { return Ok(None) };
            let about = entry.about().map_err(|what| error::unreadable(during, what))?;
            let party = Party {
                key: key.clone(),
                id: fresh,
                mode: entry.mode,
                owner: about.owner,
                note: about.note,
                ttl,
            };
            let name = self.names.entry(key.as_str(), Part::Hold, entry.mode, old);
            let free = vec![is(name.clone(), entry.created)];
            let entered = self.enter(during, &party, free, vec![TxnOp::delete(name, None)]).await?;
            if let Entered::Granted(fence) = entered {
                drop(self.leases.let_go(old));
                // Of readers nobody knows who was the last before.
                let previous_fence = (entry.mode == Mode::Exclusive).then(|| entry.fence());
                return Ok(Some(Grant { previous_fence, ..Grant::first(fence) }));
            }
        }
        Err(busy(during))
    }

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

    pub(super) fn wall(&self) -> DateTime<Utc> {
        self.clock.wall()
    }

    async fn ask_again(
        &self,
        txn: Txn,
        during: &'static str,
    ) -> Result<(TxnResponse, bool), Wrong> {
        let asked = self.link.ask_again(during, move |member| {
            let txn = txn.clone();
            async move { member.kv.clone().txn(txn).await }
        });
        asked.await
    }

    fn about(&self, party: &Party) -> About {
        About::new(party.owner.as_ref(), party.note.as_ref(), &self.process, self.wall())
    }

    /// Everybody at a key, without what they say.
    fn get(&self, key: &str) -> TxnOp {
        let options = GetOptions::new().with_prefix().with_keys_only();
        TxnOp::get(self.names.all(key), Some(options))
    }

    /// Nobody holds the key in a way that excludes this mode.
    fn none_in_the_way(&self, party: &Party) -> Compare {
        let key = party.key.as_str();
        none(match party.mode {
            Mode::Exclusive => self.names.part(key, Part::Hold),
            Mode::Shared => self.names.writer(key),
        })
    }

    /// No holder has come since.
    fn same_holders(&self, key: &str, seen: &State) -> Compare {
        let range = self.names.part(key, Part::Hold);
        Compare::mod_revision(range, CompareOp::Less, seen.revision + 1).with_prefix()
    }

    /// What a transaction has read.
    fn state(&self, answer: &TxnResponse) -> State {
        let parts = answer.op_responses();
        let read = parts.iter().flat_map(|part| match part {
            TxnOpResponse::Get(read) => read.kvs(),
            _ => &[],
        });
        let entries = read.filter_map(|kv| Some(Entry::read(&self.names, kv)?.1));
        State::new(revision(answer), entries.collect())
    }

    fn state_of(&self, read: &GetResponse, revision: i64) -> State {
        State::read(&self.names, revision, read.kvs())
    }
}

/// Nothing has this beginning. An empty range compares as an entry that was never created.
fn none(beginning: String) -> Compare {
    only(beginning, 0)
}

/// Everything with this beginning was created at this revision.
fn only(beginning: String, revision: i64) -> Compare {
    Compare::create_revision(beginning, CompareOp::Equal, revision).with_prefix()
}

/// The entry is the one that was created at this revision.
fn is(name: String, created: i64) -> Compare {
    Compare::create_revision(name, CompareOp::Equal, created)
}

fn exists(name: String) -> Compare {
    Compare::create_revision(name, CompareOp::Greater, 0)
}

fn revision(answer: &TxnResponse) -> i64 {
    answer.header().map_or(0, |header| header.revision())
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

/// Others were quicker, again and again.
pub(super) fn busy(during: &'static str) -> Error {
    Error::unavailable(error::NAME, during, "the key changes faster than it can be read", None)
}
