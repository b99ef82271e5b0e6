//! The submission by one statement, where the database has it.

use super::super::WorkClient;
use super::{Submission, Submitted};
use crate::store::{Store, json};
use crate::stores::postgres::{PlainSubmission, SubmitRequest, submission_steps};
use crate::{EventId, Result};

impl WorkClient {
    /// Submits one result, together with those of other agents of this process; none where the general
    /// way has to decide, which also says what is wrong.
    pub(super) async fn submit_at_once(&self, one: &Submission) -> Result<Option<Submitted>> {
        let inner = &self.manager.inner;
        let Store::Postgres(store) = &inner.store else { return Ok(None) };
        if !store.has_scripts() {
            return Ok(None);
        }
        let at = inner.clock.wall();
        let submission = PlainSubmission {
            lease: one.lease,
            agent: self.agent()?.to_owned(),
            actor_type: self.actor.actor_type.as_str(),
            result: json(&one.result)?,
            evidence: one.evidence.as_ref().map(json).transpose()?,
            notes: one.notes.clone(),
            provenance: self.stored_provenance()?,
            first: EventId::new(at),
            second: EventId::new(at),
        };
        let steps = submission_steps(self.manager.tables())?;
        let answer = store.submit(SubmitRequest { submission, steps }).await?;
        let Some(done) = answer.done else { return Ok(None) };
        crate::metrics::submitted(&done.order_type);
        let order = done.submitted.order_id;
        match answer.lags {
            Some(true) => self.manager.follow_all([order]).await,
            Some(false) => {}
            None => self.manager.follow_if_needed([order]).await,
        }
        self.manager.wake_opened(done.opened.into_iter().collect());
        if done.was_counted {
            self.manager.wake_freed([done.order_type]);
        }
        Ok(Some(done.submitted))
    }
}
