//! Results in parts: handing parts in, and assembling them.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::client::{Answer, check_text, once};
use super::heartbeat::expired;
use super::submit::{MAX_NOTES, check_evidence};
use super::{WorkClient, WorkManager, read, transact};
use crate::metrics::count_refusal;
use crate::store::{ItemEdit, LeaseRow, Session, json as json_text, params, rows};
use crate::{
    Error, ErrorKind, EventType, FinalizeMode, Item, ItemId, ItemState, Lease, LeaseId, OrderId,
    Part, PartBody, PartQuery, PartStatus, PartSubmission, Result, Submission, Submitted,
};

/// What became of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SubmittedPart {
    /// The item.
    pub item_id: ItemId,
    /// Its order.
    pub order_id: OrderId,
    /// Which part.
    pub key: String,
    /// Its place among several of one key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u32>,
    /// Validated, or a draft.
    pub status: PartStatus,
    /// SHA-256 of its JSON as it is stored, in hex.
    pub checksum: String,
    /// Whether another part stood in its place.
    pub replaced: bool,
}

/// Asks for a result to be assembled from its parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finalize {
    /// The lease of the item.
    pub lease: LeaseId,
    /// Strict unless told.
    #[serde(default)]
    pub mode: FinalizeMode,
    /// What supports the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Value>,
    /// Notes for the reviewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
}

impl Finalize {
    /// Strictly.
    pub fn strict(lease: &Lease) -> Self {
        Finalize { lease: lease.id, mode: FinalizeMode::Strict, evidence: None, notes: None }
    }

    /// With what is validated.
    pub fn best_effort(lease: &Lease) -> Self {
        Finalize { mode: FinalizeMode::BestEffort, ..Self::strict(lease) }
    }

    /// What supports the result.
    #[must_use]
    pub fn evidence(mut self, evidence: Value) -> Self {
        self.evidence = Some(evidence);
        self
    }

    /// Notes for the reviewer.
    #[must_use]
    pub fn notes(mut self, notes: impl Into<String>) -> Self {
        self.notes = Some(notes.into());
        self
    }
}

/// The parts that a result was assembled from. They must still be these when the result is stored.
pub(super) struct Assembly {
    parts: Vec<(String, Option<u32>, PartStatus, String)>,
    mode: FinalizeMode,
}

impl Assembly {
    fn new(parts: &[Part], mode: FinalizeMode) -> Self {
        Assembly { parts: fingerprint(parts), mode }
    }

    /// Under the item's lock, which every change of a part holds too.
    pub(super) async fn check(&self, session: &mut Session<'_>, item: ItemId) -> Result<()> {
        if fingerprint(&session.parts(item).await?) == self.parts {
            return Ok(());
        }
        Err(ErrorKind::Conflict { entity: "part" }.into())
    }

    /// What the event tells.
    pub(super) fn payload(&self) -> Value {
        let part = |(key, seq, _, checksum): &(String, Option<u32>, PartStatus, String)| json!({"key": key, "seq": seq, "checksum": checksum});
        let used = self.parts.iter().filter(|(_, _, status, _)| *status == PartStatus::Validated);
        json!({"mode": self.mode, "parts": used.map(part).collect::<Vec<_>>()})
    }
}

fn fingerprint(parts: &[Part]) -> Vec<(String, Option<u32>, PartStatus, String)> {
    let one = |part: &Part| (part.key.clone(), part.seq, part.status, part.checksum.clone());
    parts.iter().map(one).collect()
}

/// The longest key of a part, in bytes.
const MAX_KEY: usize = 120;

impl WorkManager {
    /// The parts of an item by key and sequence, also those of agents before.
    ///
    /// # Errors
    /// [`ItemNotFound`](ErrorKind::ItemNotFound).
    pub async fn list_parts(&self, item: ItemId, query: &PartQuery) -> Result<Vec<Part>> {
        read!(self, session => {
            session.item(item).await?;
            let mut parts = session.parts(item).await?;
            parts.retain(|part| {
                query.key.as_ref().is_none_or(|key| part.key == *key)
                    && query.status.is_none_or(|status| part.status == status)
            });
            if query.bodies {
                session.add_part_bodies(item, &mut parts).await?;
            }
            Ok(parts)
        })
    }
}

impl WorkClient {
    /// Hands in a part of an item's result. It is checked by the type's schema for its key and stored in
    /// the place of the one before; a rejected part is kept too, unless the type has no such key, and never
    /// takes the place of a validated one. The lease goes on. Parts stay when the lease ends: the next agent goes on with them.
    ///
    /// # Errors
    /// [`PartInvalid`](ErrorKind::PartInvalid) with every violation, [`TooLarge`](ErrorKind::TooLarge),
    /// [`PartLimit`](ErrorKind::PartLimit), and for the lease and the order as for
    /// [`submit`](Self::submit).
    pub async fn submit_part(&self, part: PartSubmission) -> Result<SubmittedPart> {
        Ok(self.submit_part_once(part).await?.value)
    }

    /// The same, and whether the answer is that of an earlier request with the same
    /// [key](Self::idempotent).
    ///
    /// # Errors
    /// As for [`submit_part`](Self::submit_part).
    pub async fn submit_part_once(&self, part: PartSubmission) -> Result<Answer<SubmittedPart>> {
        check_text("notes", part.notes.as_deref().unwrap_or_default(), MAX_NOTES)?;
        check_evidence(part.evidence.as_ref())?;
        let name = part.key.as_str();
        if name.is_empty() || name.len() > MAX_KEY || name.chars().any(char::is_control) {
            let reason = format!("it has 1 to {MAX_KEY} bytes and no control characters");
            return Err(Error::invalid("part key", reason));
        }
        let key = self.key("submit_part", &part)?;
        if let Some(replay) = self.replay::<SubmittedPart>(&key).await? {
            self.check_replay(part.lease, replay.value.order_id).await?;
            return Ok(replay);
        }
        let row = self.own_lease(part.lease).await?;
        let known = self.manager.types().get(&row.order_type)?;
        let checked = match part.draft {
            true => known.check_draft(name, &part.payload).map(|()| PartStatus::Draft),
            false => known.validate_part(name, &part.payload).map(|()| PartStatus::Validated),
        };
        let status = match checked {
            Ok(status) => status,
            Err(error) => {
                if let ErrorKind::PartInvalid { violations, .. } = error.kind() {
                    // A refusal is no answer that a key could replay: it may be sent again.
                    transact!(begin_short, self.manager, session => {
                        let errors = violations.clone();
                        self.store_part(session, &part, PartStatus::Rejected, errors).await
                    })?;
                }
                return Err(error);
            }
        };
        let answer: Answer<SubmittedPart> = transact!(begin_short, self.manager, session => {
            once!(session, &key, { self.store_part(session, &part, status, Vec::new()).await? })
        })
        .inspect_err(count_refusal)?;
        if !answer.replayed {
            self.manager.follow_if_needed([answer.value.order_id]).await;
        }
        Ok(answer)
    }

    /// Assembles the validated parts of an item and submits what they make up: checked as by
    /// [`submit`](Self::submit), stored with the end of the lease.
    ///
    /// # Errors
    /// [`PartsIncomplete`](ErrorKind::PartsIncomplete) with everything that is missing,
    /// [`Conflict`](ErrorKind::Conflict) when a part came in meanwhile, and those of
    /// [`submit`](Self::submit).
    pub async fn finalize(&self, request: Finalize) -> Result<Submitted> {
        Ok(self.finalize_once(request).await?.value)
    }

    /// The same, and whether the answer is that of an earlier request with the same
    /// [key](Self::idempotent).
    ///
    /// # Errors
    /// As for [`finalize`](Self::finalize).
    pub async fn finalize_once(&self, request: Finalize) -> Result<Answer<Submitted>> {
        check_text("notes", request.notes.as_deref().unwrap_or_default(), MAX_NOTES)?;
        check_evidence(request.evidence.as_ref())?;
        let key = self.key("finalize", &request)?;
        if let Some(Answer { value, replayed }) = self.replay::<Vec<Submitted>>(&key).await? {
            let value = first(value)?;
            self.check_replay(request.lease, value.order_id).await?;
            return Ok(Answer { value, replayed });
        }
        let row = self.own_lease(request.lease).await?;
        let known = self.manager.types().get(&row.order_type)?;
        let mut parts = read!(self.manager, session => {
            let mut parts = session.parts(row.item_id).await?;
            session.add_part_bodies(row.item_id, &mut parts).await?;
            Ok(parts)
        })?;
        let assembly = Assembly::new(&parts, request.mode);
        parts.retain(|part| part.counts_for(row.fence));
        let result = match known.settings().parts.assemble(&parts, request.mode) {
            Ok(result) => result,
            Err(problems) => {
                let payload = json!({"code": "parts_incomplete", "problems": problems});
                self.record_refusal(&row, "parts_incomplete", payload).await;
                return Err(ErrorKind::PartsIncomplete { problems }.into());
            }
        };
        let Finalize { lease, evidence, notes, .. } = request;
        let submission = Submission { lease, result, evidence, notes };
        self.check_submissions(std::slice::from_ref(&submission)).await?;
        let answer = self.accept_all(&[submission], &key, Some(&assembly)).await?;
        first(answer.value).map(|value| Answer { value, replayed: answer.replayed })
    }

    /// A lease that is this agent's. Whether it is over is judged again under the item's lock.
    async fn own_lease(&self, id: LeaseId) -> Result<LeaseRow> {
        let agent = self.agent()?;
        let values = params![json_text(&[id])?];
        let found = self.manager.store().fetch_once(|sql| sql.leases, values).await?;
        let mut row = found.into_iter().next().ok_or_else(|| expired(id))?;
        let row = rows::lease(&mut row)?;
        if !self.may_use(&row.order_type) {
            return Err(expired(id));
        }
        if row.agent != agent {
            return Err(self.keep_foreign(ErrorKind::LeaseForeign { id }.into()).await);
        }
        Ok(row)
    }

    async fn store_part(
        &self,
        session: &mut Session<'_>,
        part: &PartSubmission,
        status: PartStatus,
        errors: Vec<crate::Violation>,
    ) -> Result<SubmittedPart> {
        let leased = self.lock_leased(session, &[part.lease]).await?.into_iter().next();
        let (row, item) = leased.ok_or_else(|| expired(part.lease))?;
        self.check_takes_results(session, [row.order_id]).await?;
        let text = json_text(&part.payload)?;
        let checksum = hex::encode(Sha256::digest(&text));
        let mut others = session.parts(item.id).await?;
        others.retain(|other| other.counts_for(row.fence));
        let of_key = || others.iter().filter(|other| other.key == part.key);
        if of_key().any(|other| other.seq.is_some() != part.seq.is_some()) {
            let reason =
                "parts of this key were handed in with a sequence and without one; do one of both";
            return Err(Error::invalid("seq", reason));
        }
        let before = of_key().find(|other| other.seq == part.seq);
        let validated = before.is_some_and(|before| before.status == PartStatus::Validated);
        if validated && status == PartStatus::Draft {
            let reason =
                "the part is validated; a draft does not take its place, another part does";
            return Err(Error::invalid("draft", reason));
        }
        let (count, bytes) = (others.len() + usize::from(before.is_none()), text.len() as u64);
        let settings = &self.manager.types().get(&row.order_type)?.settings().parts;
        // Nothing could take the place of a part that the type does not have.
        let kept = settings.takes(&part.key) && !(validated && status == PartStatus::Rejected);
        let had = before.map_or(0, |before| before.bytes);
        let total = others.iter().map(|other| other.bytes).sum::<u64>() - had + bytes;
        let limit = |what, limit| Err(ErrorKind::PartLimit { what, limit }.into());
        if kept && count > settings.max_parts as usize {
            return limit("parts", settings.max_parts as usize);
        }
        if kept && total > settings.max_total_bytes as u64 {
            return limit("bytes of parts", settings.max_total_bytes);
        }
        let stored = Part {
            key: part.key.clone(),
            seq: part.seq,
            status,
            checksum: checksum.clone(),
            bytes,
            errors,
            agent: row.agent.clone(),
            fence: row.fence,
            submitted_at: session.now(),
            body: Some(PartBody {
                payload: Value::Null,
                evidence: part.evidence.clone(),
                notes: part.notes.clone(),
            }),
        };
        // The same part once more is no news, and a loop of it does not flood the trail.
        let same =
            before.is_some_and(|before| before.checksum == checksum && before.status == status);
        let news = !same || part.evidence.is_some() || part.notes.is_some();
        if news && kept {
            session.put_part(item.id, &stored, &text).await?;
        }
        if news {
            self.record_part(session, item, &row, &stored).await?;
        }
        Ok(SubmittedPart {
            item_id: row.item_id,
            order_id: row.order_id,
            key: stored.key,
            seq: stored.seq,
            status,
            checksum,
            replaced: before.is_some(),
        })
    }

    /// The event of a part. A part that counts is work: the item is in progress from then on.
    async fn record_part(
        &self,
        session: &mut Session<'_>,
        item: Item,
        row: &LeaseRow,
        part: &Part,
    ) -> Result<()> {
        let payload = json!({"key": part.key, "seq": part.seq, "status": part.status,
            "checksum": part.checksum, "bytes": part.bytes, "lease_id": row.id, "fence": row.fence,
            "violations": part.errors});
        let note = self.note().payload(payload);
        if part.status == PartStatus::Rejected {
            let code = format!("part_rejected {}", part.name());
            let (order, item, every) = (row.order_id, Some(item.id), super::submit::REFUSED_EVERY);
            if session.count_refusal(order, item, &self.actor, &code, every).await? {
                session.record(order, item, EventType::PartRejected, note).await?;
            }
            return Ok(());
        }
        if item.state != ItemState::Leased {
            session.record(row.order_id, Some(item.id), EventType::PartSubmitted, note).await?;
            return Ok(());
        }
        let now = session.now();
        let mut edit = ItemEdit::new(item);
        edit.step(self.manager.tables(), ItemState::InProgress, self.note(), now)?;
        edit.record(EventType::PartSubmitted, note);
        session.write_items(vec![edit]).await?;
        Ok(())
    }
}

fn first(submitted: Vec<Submitted>) -> Result<Submitted> {
    submitted.into_iter().next().ok_or_else(|| Error::damaged("an empty answer"))
}
