//! Where the truth lives: the transactions that grant, renew and rotate. How a lease ends is in
//! [`hand_on`](super::hand_on), how entries are read in [`inspect`](super::inspect).

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use super::batch::Way;
use super::compare::{exists, is, none, only};
use super::connection::Link;
use super::error::{self, Wrong};
use super::lease::{Lasting, Leases};
use super::presence::Presence;
use super::record::{self, About, Entry, Names, Part, State};
use super::release::Releases;
use super::watch::Desk;
use crate::rules::Id;
use crate::{Clock, Error, Grant, Key, Mode, Owner, Result};

/// How often an edit is tried when leases vanish or others are quicker.
const TRIES: usize = 8;

pub(super) struct Store {
    pub(super) link: Arc<Link>,
    pub(super) names: Names,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) process: Arc<str>,
    pub(super) leases: Leases,
    pub(super) desk: Arc<Desk>,
    pub(super) presence: Arc<Presence>,
    pub(super) releases: Releases,
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

/// What an attempt to enter came to: the lease, or what stands in the way.
pub(super) enum Entered {
    Granted(Grant),
    Not(State),
}

impl Store {
    pub(super) fn new(link: Link, names: Names, clock: Arc<dyn Clock>) -> Self {
        let link = Arc::new(link);
        Store {
            leases: Leases::new(link.clone(), clock.clone()),
            presence: Presence::new(link.clone(), clock.clone()),
            link,
            names,
            clock,
            process: crate::process_label().into(),
            desk: Arc::new(Desk::default()),
            releases: Releases::new(),
        }
    }

    /// Takes a key that nobody uses, or, shared and nameless, one that others share and nobody
    /// waits for. Where that fails, it tells who holds the key and the own place in the queue, and
    /// all else only to those who named an owner; and nothing to a nameless one that goes and stands
    /// in line then, since every word of a question is written to the disks of all members.
    pub(super) async fn take(
        &self,
        during: &'static str,
        party: &Party,
        waits: bool,
    ) -> Result<Entered> {
        let key = party.key.as_str();
        let all = |from: String| TxnOp::get(from, Some(GetOptions::new().with_prefix()));
        let otherwise = match party.owner {
            Some(_) => vec![all(self.names.all(key))],
            None if waits => Vec::new(),
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

    /// Claims a key for a waiter whose turn it is. That nobody stands before it need not be compared:
    /// it was true when its turn was found, and who came before only ever leaves.
    pub(super) async fn claim(
        &self,
        during: &'static str,
        party: &Party,
        created: i64,
    ) -> Result<Entered> {
        let key = party.key.as_str();
        let ticket = self.names.entry(key, Part::Wait, party.mode, party.id);
        let mut free = vec![is(ticket.clone(), created), self.none_in_the_way(party)];
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
            let Lasting { lease, judged_at } = self.leases.lasting(during, party.ttl).await?;
            let mut then = gone.clone();
            let hangs_on = PutOptions::new().with_lease(lease.id);
            then.push(TxnOp::put(name.clone(), value.clone(), Some(hangs_on)));
            let txn = Txn::new().when(free.clone()).and_then(then).or_else(otherwise.clone());
            let by = lease.serves_until(party.ttl);
            let own = || TxnOp::txn(txn.clone());
            let way = self.link.share(&self.clock, &party.key, Some(by), own).await;
            if matches!(way, Way::Alone(None)) && self.clock.now() > by {
                continue; // it has waited for too long
            }
            // Heard twice, it finds itself in the way.
            match self.ask_by(way, txn, during).await {
                Ok((answer, revision, twice)) => {
                    if twice {
                        self.leases.doubt(party.id, &lease);
                    }
                    if answer.succeeded() {
                        let fence = record::fence_of(revision);
                        self.leases.hold(party.id, party.mode, Some(fence), lease);
                        let trusted_from = Some(judged_at);
                        return Ok(Entered::Granted(Grant { trusted_from, ..Grant::first(fence) }));
                    }
                    let seen = self.state(&answer, revision);
                    if twice && let Some(own) = seen.find(Part::Hold, party.id) {
                        self.leases.hold(party.id, party.mode, Some(own.fence()), lease);
                    }
                    return Ok(Entered::Not(seen));
                }
                Err(Wrong::LeaseGone) => self.leases.forget(&lease),
                Err(wrong) => {
                    // Whether it was heard is not known: an entry may hang on it.
                    self.leases.doubt(party.id, &lease);
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
        let everybody = self.get(party.key.as_str());
        let look_too = look.then(|| everybody.clone());
        let own = self.names.entry(party.key.as_str(), Part::Hold, party.mode, party.id);
        let name = self.names.entry(party.key.as_str(), Part::Wait, party.mode, party.id);
        // Written again, it keeps the revision of its creation, and so its place.
        let hangs_on = PutOptions::new().with_lease(lease);
        let put = TxnOp::put(name, self.about(party).text(), Some(hangs_on));
        let txn = Txn::new()
            .when([is(own, 0)])
            .and_then(std::iter::once(put).chain(look_too).collect::<Vec<_>>())
            .or_else([everybody]);
        let (answer, _) = self.ask_again(txn, during).await?;
        let revision = revision(&answer);
        let seen = (look || !answer.succeeded()).then(|| self.state(&answer, revision));
        Ok((revision, seen))
    }

    /// Starts a new ttl; false when the id holds nothing.
    pub(super) async fn renew(
        &self,
        during: &'static str,
        key: &Key,
        id: Id,
        ttl: Duration,
    ) -> Result<bool> {
        let (known, fence) = self.leases.held(id).map_or((None, None), |(m, f)| (Some(m), f));
        for _ in 0..TRIES {
            // The caller trusts from before it asked, and so from before this choice.
            let Lasting { lease, .. } = self.leases.lasting(during, ttl).await?;
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
                        Some(mode) => self.leases.hold(id, mode, fence, lease),
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

    /// Whether the id holds the key; then its lease is left to its time, whatever becomes of this
    /// process.
    pub(super) async fn hand_over(&self, during: &'static str, key: &Key, id: Id) -> Result<bool> {
        let held = self.peek(during, key).await?.find(Part::Hold, id).is_some();
        if held {
            self.leases.hand_over(id);
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
            if let Entered::Granted(grant) = entered {
                drop(self.leases.let_go(old));
                // Of readers nobody knows who was the last before.
                let previous_fence = (entry.mode == Mode::Exclusive).then(|| entry.fence());
                return Ok(Some(Grant { previous_fence, ..grant }));
            }
        }
        Err(busy(during))
    }

    pub(super) fn wall(&self) -> DateTime<Utc> {
        self.clock.wall()
    }

    pub(super) async fn ask_again(
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

    /// The same, with others or by itself; and at which revision it was done.
    async fn ask_by(
        &self,
        way: Way,
        txn: Txn,
        during: &'static str,
    ) -> Result<(TxnResponse, i64, bool), Wrong> {
        let (answer, twice) = match way {
            Way::Together(TxnOpResponse::Txn(answer), revision) => {
                return Ok((answer, revision, false));
            }
            Way::Together(..) | Way::Lost => {
                let again = self
                    .link
                    .ask(during, move |member| async move { member.kv.clone().txn(txn).await });
                (again.await?, true)
            }
            Way::Alone(place) => {
                let asked = self.ask_again(txn, during).await;
                drop(place);
                asked?
            }
        };
        let revision = revision(&answer);
        Ok((answer, revision, twice))
    }

    pub(super) fn about(&self, party: &Party) -> About {
        About::new(party.owner.as_ref(), party.note.as_ref(), &self.process, self.wall())
    }

    /// Everybody at a key, without what they say.
    pub(super) fn get(&self, key: &str) -> TxnOp {
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
    fn state(&self, answer: &TxnResponse, revision: i64) -> State {
        let parts = answer.op_responses();
        let read = parts.iter().flat_map(|part| match part {
            TxnOpResponse::Get(read) => read.kvs(),
            _ => &[],
        });
        let entries = read.filter_map(|kv| Some(Entry::read(&self.names, kv)?.1));
        State::new(revision, entries.collect())
    }

    pub(super) fn state_of(&self, read: &GetResponse, revision: i64) -> State {
        State::read(&self.names, revision, read.kvs())
    }
}

pub(super) fn revision(answer: &TxnResponse) -> i64 {
    answer.header().map_or(0, |header| header.revision())
}

/// Others were quicker, again and again.
pub(super) fn busy(during: &'static str) -> Error {
    Error::unavailable(error::NAME, during, "the key changes faster than it can be read", None)
}
